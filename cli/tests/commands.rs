//! The tool as a process: run to its end, or running beside the test.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::PATIENCE;
use crate::support::{Server, eventually};

/// The tool with arguments as one would type them, for a server. Words of a shell command come last, behind ` -- `.
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

/// The tests may run at a terminal, where commands have no process groups of their own.
fn leave_terminal(command: &mut Command) {
    let leave = || {
        // SAFETY: nothing is passed.
        unsafe { libc::setsid() };
        Ok(())
    };
    // SAFETY: between fork and exec it calls setsid(2) alone, which may be called there.
    unsafe { command.pre_exec(leave) };
}

/// The tests may run where signals are ignored (nohup(1), a job in the background of a script), and what they start would ignore them, too.
pub fn hear_signals(command: &mut Command) {
    let hear = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2] {
            // SAFETY: only numbers are passed.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec it calls signal(2) alone, which may be called there.
    unsafe { command.pre_exec(hear) };
}

pub fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}/", server.port())
}

/// Runs the tool to its end.
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

/// The tool running beside the test. Killed when this is dropped, and its command with it.
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
        // SAFETY: only numbers are passed. The child has not been reaped, so its id is nobody else's.
        assert_eq!(unsafe { libc::kill(self.id(), signal) }, 0, "there is no process to signal");
    }

    /// The exit status, when it has ended.
    #[track_caller]
    pub fn status(&mut self) -> i32 {
        let mut ended = None;
        eventually(PATIENCE, || {
            ended = self.0.try_wait().expect("a child of this process");
            ended.is_some()
        });
        ended.and_then(|status| status.code()).expect("it exits")
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

/// A folder in which commands leave what the test looks at.
pub struct Desk(TempDir);

impl Desk {
    pub fn new() -> Desk {
        Desk(tempfile::tempdir().expect("a temporary folder"))
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// What is in a file; nothing if it is not there.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits until a file has a whole line, and hands out what is in it.
    #[track_caller]
    pub fn wait_for(&self, name: &str) -> String {
        eventually(PATIENCE, || self.read(name).ends_with('\n'));
        self.read(name)
    }

    /// Waits for a file with the id of a process.
    #[track_caller]
    pub fn process(&self, name: &str) -> i32 {
        self.wait_for(name).trim().parse().expect("an id of a process")
    }
}

/// Whether a process lives. One that has ended and is not yet reaped does not.
pub fn lives(process: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = status.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

#[track_caller]
pub fn wait_for_end_of(process: i32) {
    eventually(PATIENCE, || !lives(process));
}

/// Waits until somebody holds a lock.
#[track_caller]
pub fn wait_for_holder(server: &Server, key: &str) {
    eventually(PATIENCE, || server.client().holder(key).is_some());
}

/// Waits until so many wait for a lock.
#[track_caller]
pub fn wait_for_waiters(server: &Server, key: &str, count: usize) {
    eventually(PATIENCE, || server.client().waiting_owners(key).len() == count);
}

/// Long enough to be ended by something else.
pub const VERY_LONG: Duration = Duration::from_secs(600);
