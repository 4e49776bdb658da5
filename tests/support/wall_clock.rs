//! A wall clock for one server, which the test can step.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;

use super::shared_object;

/// The offset of one server's wall clock, shared with the server through a file.
pub struct WallClock {
    folder: TempDir,
}

impl WallClock {
    pub fn new() -> WallClock {
        let clock = WallClock { folder: tempfile::tempdir().expect("a temporary folder") };
        clock.write(0);
        clock
    }

    /// From now on the server's wall clock is ahead of the real one by `by`.
    pub fn step_forward(&self, by: Duration) {
        self.write(by.as_micros() as i64);
    }

    /// From now on the server's wall clock is behind the real one by `by`.
    pub fn step_back(&self, by: Duration) {
        self.write(-(by.as_micros() as i64));
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("step")
    }

    /// Writes in place and in one write, since the server has mapped the file.
    fn write(&self, step_us: i64) {
        let file = File::options().create(true).truncate(false).write(true).open(self.file());
        file.and_then(|mut file| file.write_all(&step_us.to_ne_bytes())).expect("a writable file");
    }

    /// The environment variables that make a server use this clock.
    pub(super) fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", shim().to_owned()), ("RLOCK_TEST_CLOCK", self.file())]
    }
}

/// The shared object that overrides the clock functions.
fn shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| shared_object::build("clock_shim"))
}
