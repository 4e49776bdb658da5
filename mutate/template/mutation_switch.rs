//! Which change of this package is on: the one whose number RLOCK_CHANGE is. With none, the file that RLOCK_REACHED names is told once of each
//! change that is come to.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static REACHED: [AtomicBool; CHANGES + 1] = [const { AtomicBool::new(false) }; CHANGES + 1];

/// Whether a change is on.
pub(crate) fn is_on(change: usize) -> bool {
    static ON: OnceLock<usize> = OnceLock::new();
    let on = *ON.get_or_init(|| std::env::var("RLOCK_CHANGE").ok().and_then(|number| number.parse().ok()).unwrap_or(0));
    if on == 0 && !REACHED[change].swap(true, Ordering::Relaxed) {
        note(change);
    }
    on == change
}

/// Many processes write into the file: each number at once, at its end.
fn note(change: usize) {
    let Some(path) = std::env::var_os("RLOCK_REACHED") else { return };
    if let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path) {
        let _ = file.write_all(format!("{change}\n").as_bytes());
    }
}
