//! Shared objects built from the C files of this folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::OnceLock;

/// A module whose command `CALLER.CALL` calls other commands.
pub fn calling_module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| build("calling_module"))
}

/// Compiles a C file to a shared object. Rust needs a C compiler to link, so one exists wherever
/// this test was built.
pub(super) fn build(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(folder).expect("a folder for temporary files");
    let object = folder.join(format!("{name}.so"));
    // Other test programs may be loading the file, so build it under another name and rename it.
    let unfinished = folder.join(format!("{name}-{}.so", std::process::id()));
    let status = Process::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&unfinished)
        .arg(root.join("tests/support").join(format!("{name}.c")))
        .status();
    assert!(status.is_ok_and(|status| status.success()), "cc cannot build {name}");
    fs::rename(&unfinished, &object).expect("replace an earlier build");
    object
}
