//! The process of the command: starting, signalling and waiting for it.
//!
//! At a terminal the command stays in rlock's process group, so that the terminal sends typed
//! signals to both, both may read, and the shell stops and continues both. Otherwise it gets its
//! own group, and rlock sends signals to the group.

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

/// The pause between two checks whether a process group has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// A running command. Dropping it kills the command.
pub(crate) struct Command {
    child: Child,
    id: Pid,
    has_group: bool,
    /// Whether the message about a missing permission to signal was printed.
    was_refused: Cell<bool>,
}

impl Command {
    /// Starts the command. Call it on the main thread: the kernel kills the command when the thread
    /// that started it ends.
    pub(crate) fn start(options: &Run, token: u64, owner: &[u8]) -> Result<Self, Failure> {
        let [program, arguments @ ..] = options.command.as_slice() else {
            return Err(Failure::new(FAILED, "the command is missing"));
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

    /// The exit status as in a shell: 128+n after signal n. Cancel safe.
    pub(crate) async fn ended(&mut self) -> Result<u8, Failure> {
        let status = self.child.wait().await.map_err(|error| Failure::new(FAILED, format!("wait: {error}")))?;
        let status = status.code().or_else(|| Some(i32::from(SIGNALLED) + status.signal()?));
        Ok(status.and_then(|status| u8::try_from(status).ok()).unwrap_or(u8::MAX))
    }

    /// Forwards a signal, unless the terminal has sent it to the command already.
    pub(crate) fn forward(&self, signal: Signal) {
        let is_typed = matches!(signal, Signal::INT | Signal::QUIT);
        if self.has_group || !is_typed {
            self.signal(signal);
        }
    }

    /// Sends a signal. Call it only while the command has not been reaped or its group has
    /// processes: afterwards the id may belong to another process.
    pub(crate) fn signal(&self, signal: Signal) {
        let sent = match self.has_group {
            true => rustix::process::kill_process_group(self.id, signal),
            false => rustix::process::kill_process(self.id, signal),
        };
        if is_refused(sent) && !self.was_refused.replace(true) {
            complain("cannot signal the command, which runs as another user and continues, even without the lock");
        }
    }

    /// Waits until its process group is empty. Call it after the end of the command.
    pub(crate) async fn group_ended(&self) {
        while self.has_group && self.is_group_alive() {
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn is_group_alive(&self) -> bool {
        // In a container rlock may be process 1, which has to reap orphans. Unreaped processes keep
        // the group alive.
        while let Ok(Some(_)) = rustix::process::waitpgid(self.id, WaitOptions::NOHANG) {}
        // EPERM means that the group has processes of another user.
        rustix::process::test_kill_process_group(self.id) != Err(Errno::SRCH)
    }
}

/// Whether rlock has no permission to signal the command. Any other error means that the command
/// has just ended, which `ended` reports next.
fn is_refused(sent: rustix::io::Result<()>) -> bool {
    sent == Err(Errno::PERM)
}

/// Whether rlock runs at a terminal: in the foreground of its controlling terminal, whatever its
/// standard input is, or in the background with the terminal as standard input.
fn is_at_terminal() -> bool {
    let has_front = |terminal: File| tcgetpgrp(terminal).is_ok_and(|front| front == rustix::process::getpgrp());
    tcgetpgrp(io::stdin()).is_ok() || File::open("/dev/tty").is_ok_and(has_front)
}

/// Makes the kernel kill the command when rlock dies without a chance to kill it, such as by
/// SIGKILL or the OOM killer.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "there is no other way to act between fork and exec")]
fn die_with_parent(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let parent = rustix::process::getpid();
    let tie = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // rlock may have died before the call.
        match rustix::process::getppid() {
            Some(now) if now == parent => Ok(()),
            _ => Err(io::Error::from(ErrorKind::NotFound)),
        }
    };
    // SAFETY: between fork and exec only async-signal-safe functions may be called. `tie` makes two
    // system calls, and its errors hold a number and allocate nothing.
    unsafe {
        command.pre_exec(tie);
    }
}

/// Other systems have no equivalent: there the command continues if rlock is killed.
#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut std::process::Command) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_of_another_user_is_not_taken_for_ended() {
        assert!(is_refused(Err(Errno::PERM)));
        assert!(!is_refused(Err(Errno::SRCH)));
        assert!(!is_refused(Ok(())));
    }
}
