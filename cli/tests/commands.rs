//! The tool as a process: the test waits for its end, or runs beside it.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::PATIENCE;
use crate::support::{Server, eventually};

/// The tool with the arguments of a command line. The text after ` -- ` is one argument of `sh -c`.
pub fn rlock(server: &Server, line: &str) -> Command {
    let (options, command) = match line.split_once(" -- ") {
        Some((options, command)) => (options, Some(command)),
        None => (line, None),
    };
    let mut tool = Command::new(env!("CARGO_BIN_EXE_rlock"));
    tool.args(options.split_whitespace());
    if let Some(command) = command {
        tool.args(["--", "sh", "-c", command]);
    }
    tool.env("RLOCK_URL", url(server)).stdin(Stdio::null());
    hear_signals(&mut tool);
    leave_terminal(&mut tool);
    tool
}

/// Detaches rlock from the terminal of the tests. At a terminal the command would stay in rlock's
/// process group.
fn leave_terminal(command: &mut Command) {
    let leave = || {
        // SAFETY: it takes no arguments.
        unsafe { libc::setsid() };
        Ok(())
    };
    // SAFETY: between fork and exec it calls only setsid(2), which is async-signal-safe.
    unsafe { command.pre_exec(leave) };
}

/// Restores the default handling of signals. The tests may run under nohup(1) or as a background
/// job of a script, and child processes inherit ignored signals.
pub fn hear_signals(command: &mut Command) {
    let hear = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2] {
            // SAFETY: only numbers are passed.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec it calls only signal(2), which is async-signal-safe.
    unsafe { command.pre_exec(hear) };
}

pub fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}/", server.port())
}

/// Runs the tool and waits for its end.
pub fn finish(server: &Server, line: &str) -> Output {
    let output = rlock(server, line).output().expect("the tool runs");
    eprintln!("rlock {line}\n{}{}", text(&output.stdout), text(&output.stderr));
    output
}

/// The exit status of the tool with these arguments.
pub fn status(server: &Server, line: &str) -> i32 {
    finish(server, line).status.code().expect("it exits")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The tool running beside the test. Dropping it kills the tool and its command.
pub struct Running(Child);

impl Running {
    pub fn start(server: &Server, line: &str) -> Running {
        Running(rlock(server, line).spawn().expect("the tool runs"))
    }

    pub fn of(mut command: Command) -> Running {
        Running(command.spawn().expect("the tool runs"))
    }

    pub fn id(&self) -> i32 {
        self.0.id().try_into().expect("an id of a process")
    }

    #[track_caller]
    pub fn signal(&self, signal: i32) {
        // SAFETY: only numbers are passed. The child has not been reaped, so no other process has
        // its id.
        assert_eq!(unsafe { libc::kill(self.id(), signal) }, 0, "there is no process to signal");
    }

    /// Waits for the end, and returns the exit status.
    #[track_caller]
    pub fn status(&mut self) -> i32 {
        let mut ended = None;
        eventually(PATIENCE, || {
            ended = self.0.try_wait().expect("a child of this process");
            ended.is_some()
        });
        ended.and_then(|status| status.code()).expect("it exits")
    }

    /// Waits for the end, and returns the piped output too.
    pub fn output(mut self) -> Output {
        let read = |stream: Option<&mut dyn Read>| {
            let mut bytes = Vec::new();
            stream.map(|stream| stream.read_to_end(&mut bytes).expect("a pipe"));
            bytes
        };
        let stdout = read(self.0.stdout.as_mut().map(|stream| stream as &mut dyn Read));
        let stderr = read(self.0.stderr.as_mut().map(|stream| stream as &mut dyn Read));
        let output = Output { status: self.0.wait().expect("a child of this process"), stdout, stderr };
        eprintln!("{}{}", text(&output.stdout), text(&output.stderr));
        output
    }

    pub fn is_running(&mut self) -> bool {
        self.0.try_wait().expect("a child of this process").is_none()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().expect("a child of this process");
        self.0.wait().expect("a child of this process");
    }
}

/// A folder for files that commands write and the test reads.
pub struct Desk(TempDir);

impl Desk {
    pub fn new() -> Desk {
        Desk(tempfile::tempdir().expect("a temporary folder"))
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// The content of a file; empty if it does not exist.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits until a file has a complete line, and returns its content.
    #[track_caller]
    pub fn wait_for(&self, name: &str) -> String {
        eventually(PATIENCE, || self.read(name).ends_with('\n'));
        self.read(name)
    }

    /// Waits for a file with a process id, and returns the id.
    #[track_caller]
    pub fn process(&self, name: &str) -> i32 {
        self.wait_for(name).trim().parse().expect("an id of a process")
    }
}

/// Whether a process is alive. A zombie is not.
pub fn is_alive(process: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = status.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

#[track_caller]
pub fn wait_for_end_of(process: i32) {
    eventually(PATIENCE, || !is_alive(process));
}

/// Waits until a lock has a holder.
#[track_caller]
pub fn wait_for_holder(server: &Server, key: &str) {
    eventually(PATIENCE, || server.client().holder(key).is_some());
}

/// Waits until a lock has `count` waiters.
#[track_caller]
pub fn wait_for_waiters(server: &Server, key: &str, count: usize) {
    eventually(PATIENCE, || server.client().waiting_owners(key).len() == count);
}

/// A lease that does not expire during a test.
pub const VERY_LONG: Duration = Duration::from_secs(600);
