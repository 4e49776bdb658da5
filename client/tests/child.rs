//! An example of the crate as a process of its own, whose lines are read as they come, and which can be stopped and killed.

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

/// The process. It is killed when this is dropped.
pub struct Child {
    process: OwnedProcess,
    /// Its lines.
    lines: Receiver<String>,
    /// What it has said so far, for the message of a test that fails.
    said: Vec<String>,
}

impl Child {
    /// Runs an example with its arguments.
    pub fn run(example: &str, arguments: &[&str]) -> Child {
        let mut command = Command::new(folder_of_examples().join(example));
        // What it complains about belongs to its output, and shows when a test fails.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        command.args(arguments).env_remove("REDIS_URL").stdin(Stdio::null());
        command.stdout(writer.try_clone().expect("a second end")).stderr(writer);
        let process = OwnedProcess::new(command.spawn().expect("the example runs"));
        // The ends that are to be written into: the output is over when the child's are closed.
        drop(command);
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(reader).lines() {
                let Ok(line) = line else { return };
                // The test may have ended.
                let _ = sender.send(line);
            }
        });
        Child { process, lines, said: Vec::new() }
    }

    /// Waits for a line that contains these words, and hands out all of it.
    #[track_caller]
    pub fn wait_for(&mut self, words: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let line = match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => line,
                Err(error) => panic!("no line with {words:?} ({error}) after {:#?}", self.said),
            };
            self.said.push(line.clone());
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Waits for the end, and hands out all lines.
    #[track_caller]
    pub fn wait_for_end(&mut self) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Disconnected) => return std::mem::take(&mut self.said),
                Err(error) => panic!("it does not end ({error}) after {:#?}", self.said),
            }
        }
    }

    /// How much time of processors it has used so far, in steps of 10 ms (proc_pid_stat(5)).
    #[track_caller]
    pub fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).expect("a process of this machine");
        // The name of the program may have anything in it, and is in parentheses.
        let (_, fields) = stat.rsplit_once(") ").expect("a name");
        let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().expect("a number"));
        Duration::from_millis(ticks.sum::<u64>() * 10)
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// SIGSTOP. It does nothing more when this returns.
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

/// Where the built examples are. `cargo test` builds them only if no test is named, so this makes sure.
fn folder_of_examples() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        // This test is in the folder deps of its profile, beside which the examples are.
        let own = env::current_exe().expect("a path of this test");
        let profile = own.ancestors().nth(2).expect("a folder of the profile");
        let mut build = Command::new(env!("CARGO"));
        // With the features that `cargo test-all` has, so that what they depend on is there already.
        build.args(["build-all", "--quiet", "--examples", "--manifest-path"]);
        build.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
        // Cargo tells this test of its package by variables that a build script of a dependency looks at: with them, that dependency would be built
        // anew, and once more by the next build without them.
        let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        env::vars().map(|(name, _)| name).filter(|name| of_package(name)).for_each(|name| {
            build.env_remove(name);
        });
        if profile.ends_with("release") {
            build.arg("--release");
        } else if !profile.ends_with("debug") {
            // The mutation tester has a profile of its own, and has built them with its changes.
            return profile.join("examples");
        }
        assert!(build.status().expect("cargo runs").success(), "the examples are not built");
        profile.join("examples")
    })
}
