//! The command as a process: how it is started, signalled and waited for.
//!
//! At a terminal it stays in rlock's process group: the terminal sends what is typed there to both, lets both read, and the shell stops and
//! continues both. Otherwise it gets a group of its own, and signals reach all of its processes that stay in it.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::termios::tcgetpgrp;
use tokio::process::Child;

use crate::arguments::{Run, name_of};
use crate::exit::{CANNOT_RUN, FAILED, Failure, NOT_FOUND, SIGNALLED, complain};

/// How often to look whether a process group has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// A command that runs. It is killed when this is dropped.
pub(crate) struct Command {
    child: Child,
    id: Pid,
    has_group: bool,
    /// Whether it has been said that it may not be signalled.
    was_refused: Cell<bool>,
}

impl Command {
    /// Starts it. Must be called on the main thread: the command is killed when the thread that started it ends.
    pub(crate) fn start(options: &Run, token: u64, owner: &[u8]) -> Result<Self, Failure> {
        let [program, arguments @ ..] = options.command.as_slice() else {
            return Err(Failure::new(FAILED, "no command"));
        };
        let has_group = !is_at_terminal();
        let mut command = std::process::Command::new(program);
        command.args(arguments);
        command.env("RLOCK_TOKEN", token.to_string());
        command.env("RLOCK_KEY", &options.key).env("RLOCK_OWNER", OsStr::from_bytes(owner));
        die_with_parent(&mut command);
        let mut command = tokio::process::Command::from(command);
        if has_group {
            command.process_group(0);
        }
        let child = command.kill_on_drop(true).spawn().map_err(|error| {
            let status = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN };
            Failure::new(status, format!("{}: {error}", name_of(program)))
        })?;
        let id = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let id = id.ok_or_else(|| Failure::new(FAILED, "the command has no process id"))?;
        Ok(Self { child, id, has_group, was_refused: Cell::new(false) })
    }

    /// Its exit status, as a shell has it. May be dropped and asked for again.
    pub(crate) async fn ended(&mut self) -> Result<u8, Failure> {
        let status = self.child.wait().await.map_err(|error| Failure::new(FAILED, format!("wait: {error}")))?;
        let status = status.code().or_else(|| Some(i32::from(SIGNALLED) + status.signal()?));
        Ok(status.and_then(|status| u8::try_from(status).ok()).unwrap_or(u8::MAX))
    }

    /// Sends a signal. One that the terminal sends to the command as well is not sent twice.
    pub(crate) fn pass_on(&self, signal: Signal) {
        let is_typed = matches!(signal, Signal::INT | Signal::QUIT);
        if self.has_group || !is_typed {
            self.signal(signal);
        }
    }

    /// Sends a signal. Only before its end has been seen, or while its group has others in it: the id is its own until then.
    pub(crate) fn signal(&self, signal: Signal) {
        let sent = match self.has_group {
            true => rustix::process::kill_process_group(self.id, signal),
            false => rustix::process::kill_process(self.id, signal),
        };
        if is_refused(sent) && !self.was_refused.replace(true) {
            complain("the command runs as another user and may not be signalled: it goes on, also without the lock");
        }
    }

    /// After its end: waits for the processes that it has left in its group.
    pub(crate) async fn group_ended(&self) {
        while self.has_group && self.is_group_alive() {
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn is_group_alive(&self) -> bool {
        // In a container rlock may be the first process, which has the orphans of all others to bury. They count until then.
        while let Ok(Some(_)) = rustix::process::waitpgid(self.id, WaitOptions::NOHANG) {}
        // Those of another user live, too.
        rustix::process::test_kill_process_group(self.id) != Err(Errno::SRCH)
    }
}

/// Whether there is somebody who may not be signalled. Any other error means that the command has just ended, which is what is seen next.
fn is_refused(sent: rustix::io::Result<()>) -> bool {
    sent == Err(Errno::PERM)
}

/// Whether somebody types to rlock: wherever its input comes from, if its process group is the one that the terminal listens to, and also if it
/// is not yet, as a job in the background that may be brought to the front, if the terminal is its input.
fn is_at_terminal() -> bool {
    let has_front = |terminal: File| tcgetpgrp(terminal).is_ok_and(|front| front == rustix::process::getpgrp());
    tcgetpgrp(io::stdin()).is_ok() || File::open("/dev/tty").is_ok_and(has_front)
}

/// Lets the kernel kill the command when rlock ends without having been able to: by SIGKILL, or out of memory.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "there is no other way to act between fork and exec")]
fn die_with_parent(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let parent = rustix::process::getpid();
    let tie = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have ended before that.
        match rustix::process::getppid() {
            Some(now) if now == parent => Ok(()),
            _ => Err(io::Error::from(ErrorKind::NotFound)),
        }
    };
    // SAFETY: between fork and exec only what is safe in a signal handler may be called. These are two system calls, and errors that
    // hold a number and allocate nothing.
    unsafe {
        command.pre_exec(tie);
    }
}

/// Other systems have nothing like it: there the command goes on if rlock is killed.
#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut std::process::Command) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_another_user_is_told_from_one_that_has_ended() {
        assert!(is_refused(Err(Errno::PERM)));
        assert!(!is_refused(Err(Errno::SRCH)));
        assert!(!is_refused(Ok(())));
    }
}
