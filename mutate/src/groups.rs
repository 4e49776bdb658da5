//! The process groups of the tests that are under way.
//!
//! Each test runs in a group of its own, so that its servers end with it. A terminal's Ctrl-C reaches only the group in front: the others are ended
//! from here.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// What a program that Ctrl-C has ended says to its shell.
const INTERRUPTED: i32 = 130;

/// The groups that are under way. Clones are about the same ones.
#[derive(Clone, Debug, Default)]
pub struct Groups(Arc<Mutex<Vec<Pid>>>);

impl Groups {
    /// Lets Ctrl-C end all of them, and then this process.
    pub fn end_on_ctrl_c(&self) -> Result<()> {
        let groups = self.clone();
        ctrlc::set_handler(move || {
            // Nobody begins one more while this holds the list.
            let _under_way = groups.end_all();
            std::process::exit(INTERRUPTED);
        })
        .context("cannot take note of Ctrl-C")
    }

    /// Ends all of them.
    fn end_all(&self) -> MutexGuard<'_, Vec<Pid>> {
        let under_way = self.lock();
        under_way.iter().for_each(|group| end(*group));
        under_way
    }

    /// Begins a command in a group of its own.
    pub fn begin(&self, command: &mut Command) -> Result<Group> {
        let mut under_way = self.lock();
        let leader = command.process_group(0).spawn().with_context(|| format!("cannot run {command:?}"))?;
        let id = i32::try_from(leader.id()).ok().and_then(Pid::from_raw).context("a process without an id")?;
        under_way.push(id);
        Ok(Group { leader, id, groups: self.clone(), is_ended: false })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process, and all that it has begun. They end with this value.
#[derive(Debug)]
pub struct Group {
    leader: Child,
    id: Pid,
    groups: Groups,
    is_ended: bool,
}

impl Group {
    /// Waits for the process that was begun, and then ends the rest. Returns how it has ended, if it has in that time.
    pub fn finish(mut self, longest: Duration) -> Result<Option<ExitStatus>> {
        let begin = Instant::now();
        // Until it is reaped its number is nobody else's, and neither is that of its group.
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        loop {
            if waitid(WaitId::Pid(self.id), look)?.is_some() {
                self.end();
                return Ok(Some(self.leader.wait()?));
            }
            if begin.elapsed() > longest {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn end(&mut self) {
        let mut under_way = self.groups.lock();
        end(self.id);
        under_way.retain(|group| *group != self.id);
        self.is_ended = true;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_ended {
            self.end();
            let _ = self.leader.wait();
        }
    }
}

/// Who has ended in an orderly way has left nobody, and then there is nobody to end.
fn end(group: Pid) {
    let _ = kill_process_group(group, Signal::KILL);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::process::Stdio;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        command
    }

    #[test]
    fn how_a_process_ends_is_told_and_what_it_has_begun_ends_with_it() {
        let groups = Groups::default();
        let mut group = groups.begin(&mut shell("(sleep 30; echo left) & exit 3")).unwrap();
        let mut pipe = group.leader.stdout.take().unwrap();
        assert_eq!(group.finish(PATIENCE).unwrap().and_then(|status| status.code()), Some(3));
        assert_eq!(pipe.read_to_string(&mut String::new()).unwrap(), 0, "the sleeper has ended too");
        assert!(groups.lock().is_empty());
    }

    #[test]
    fn who_takes_too_long_is_ended() {
        let groups = Groups::default();
        let mut group = groups.begin(&mut shell("sleep 30; echo left")).unwrap();
        let mut pipe = group.leader.stdout.take().unwrap();
        assert_eq!(group.finish(Duration::from_millis(10)).unwrap(), None);
        assert_eq!(pipe.read_to_string(&mut String::new()).unwrap(), 0);
        assert!(groups.lock().is_empty());
    }

    #[test]
    fn all_that_are_under_way_can_be_ended_at_once() {
        let groups = Groups::default();
        let under_way: Vec<_> = (0..3).map(|_| groups.begin(&mut shell("sleep 30; echo left")).unwrap()).collect();
        drop(groups.end_all());
        for mut group in under_way {
            assert_eq!(group.leader.stdout.take().unwrap().read_to_string(&mut String::new()).unwrap(), 0);
            let status = group.finish(PATIENCE).unwrap().unwrap();
            assert!(!status.success());
        }
    }
}
