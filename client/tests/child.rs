//! Runs an example as a separate process that can be stopped and killed, and reads its output line
//! by line.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::PATIENCE;
use crate::support::OwnedProcess;

/// The process. Dropping this kills it.
pub struct Child {
    process: OwnedProcess,
    /// The lines of its output.
    lines: Receiver<String>,
    /// The output so far, for the message of a failing test.
    said: Vec<String>,
}

impl Child {
    /// Runs an example with these arguments.
    pub fn run(example: &str, arguments: &[&str]) -> Child {
        let mut command = Command::new(folder_of_examples().join(example));
        // Standard error is part of the output, and is shown when a test fails.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        command.args(arguments).env_remove("REDIS_URL").stdin(Stdio::null());
        command.stdout(writer.try_clone().expect("a copy of the write end")).stderr(writer);
        let process = OwnedProcess::new(command.spawn().expect("the example runs"));
        // Drop our copies of the write ends. Otherwise the output would not end when the child
        // closes its own.
        drop(command);
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(reader).lines() {
                let Ok(line) = line else { return };
                // The test may have ended already.
                let _ = sender.send(line);
            }
        });
        Child { process, lines, said: Vec::new() }
    }

    /// Waits for a line that contains these words, and returns the whole line.
    #[track_caller]
    pub fn wait_for(&mut self, words: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let line = match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => line,
                Err(error) => panic!("no line contains {words:?} ({error}) after {:#?}", self.said),
            };
            self.said.push(line.clone());
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Waits for the process to end, and returns all lines.
    #[track_caller]
    pub fn wait_for_end(&mut self) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Disconnected) => return std::mem::take(&mut self.said),
                Err(error) => panic!("the process does not end ({error}) after {:#?}", self.said),
            }
        }
    }

    /// The CPU time used so far, in steps of 10 ms (proc_pid_stat(5)).
    #[track_caller]
    pub fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).expect("a process of this machine");
        // The program name is in parentheses, and may contain any character.
        let (_, fields) = stat.rsplit_once(") ").expect("a name");
        let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().expect("a number"));
        Duration::from_millis(ticks.sum::<u64>() * 10)
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// SIGSTOP. The process is stopped when this returns.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// SIGCONT.
    pub fn go_on(&self) {
        self.process.go_on();
    }
}

/// The names of all examples.
pub fn examples() -> BTreeSet<String> {
    let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).expect("a folder of examples");
    let name = |path: PathBuf| path.file_stem().expect("a name").to_string_lossy().into_owned();
    files.map(|file| name(file.expect("a readable entry").path())).collect()
}

/// The folder of the built examples. `cargo test` builds them only if no test target is named, so
/// build them here.
fn folder_of_examples() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        // This test binary is in the folder `deps` of its profile; the examples are beside that
        // folder.
        let own = env::current_exe().expect("the path of this test");
        let profile = own.ancestors().nth(2).expect("a folder of the profile");
        let mut build = Command::new(env!("CARGO"));
        // Use the features of `cargo test-all`, so that all dependencies are built already.
        build.args(["build-all", "--quiet", "--examples", "--manifest-path"]);
        build.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
        // Cargo sets variables about this package that a dependency's build script reads. With them
        // Cargo would rebuild that dependency here, and again in the next build without them.
        let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        env::vars().map(|(name, _)| name).filter(|name| of_package(name)).for_each(|name| {
            build.env_remove(name);
        });
        if profile.ends_with("release") {
            build.arg("--release");
        } else if !profile.ends_with("debug") {
            // The mutation tester uses a profile of its own, and has built the examples with its
            // mutations.
            return profile.join("examples");
        }
        assert!(build.status().expect("cargo runs").success(), "the examples are not built");
        profile.join("examples")
    })
}
