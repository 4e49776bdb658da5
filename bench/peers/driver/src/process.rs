//! Child processes, which end when their owner is dropped, and with the driver however it ends.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result};
use rlock_bench::server::die_with_parent;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::clock;

const GRACE: Duration = Duration::from_secs(3);

/// A child in its own process group, so that processes which it has started end with it.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts the child. Only the main thread may do so, because the kernel kills the child when
    /// the thread that started it ends.
    pub fn start(mut command: Command) -> Result<Self> {
        command.process_group(0);
        die_with_parent(&mut command);
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("cannot run {program}"))?;
        Ok(Self { child })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Result<Option<std::process::ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Kills it and all processes that it has started, like a crash.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        // This reads the status even if it ended before, so that no zombie stays.
        let _ = self.child.wait();
    }

    /// Asks it to end, and kills it if it does not. A server with child processes needs time to end
    /// them.
    fn end(&mut self) {
        self.signal(Signal::TERM);
        let deadline = clock::now() + GRACE;
        while matches!(self.child.try_wait(), Ok(None)) && clock::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
    }

    fn signal(&mut self, signal: Signal) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The group may already be gone.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}
