//! Watches the lock and forwards signals while the command runs.

use std::time::Duration;

use rlock_client::{Guard, Kind};
use rustix::process::Signal;
use tokio::time::{Instant, sleep, sleep_until};

use super::command::Command;
use super::signals::Signals;
use crate::arguments::Run;
use crate::exit::{Failure, LOST, complain};

/// The longest default time between SIGTERM and SIGKILL.
const LONGEST_NOTICE: Duration = Duration::from_secs(5);

/// How often to check the clock: timers stop while the machine is suspended.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// Signals that ask the command and its child processes to end.
const ASK_TO_END: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// When the command gets SIGTERM and SIGKILL for a lost lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    /// The command gets SIGTERM when the lock is valid for no longer than this, so that the command
    /// has ended before the server grants the lock to another owner.
    before: Duration,
    /// The time from SIGTERM to SIGKILL.
    kill_after: Duration,
}

impl Notice {
    /// For the lease in force, which may be shorter than `--lease` and is at most `--session`. A lock
    /// that is renewed in time is always valid for at least two thirds of it. So SIGTERM comes at
    /// most a third of it before the end, and never while renewals succeed.
    fn new(options: &Run, lease: Duration) -> Self {
        let third = lease / 3;
        let kill_after = options.kill_after.unwrap_or(third.min(LONGEST_NOTICE));
        Self { before: kill_after.min(third), kill_after }
    }

    /// Whether the command may have ended because of a signal that it got this long before. An
    /// older signal, such as a SIGHUP that made the command reload its settings, is not the reason.
    fn explains_an_end(&self, after: Duration) -> bool {
        after <= self.kill_after.max(LONGEST_NOTICE)
    }
}

/// Watches the command until it ends. Returns its status, or a failure if the command was ended
/// because the lock was lost.
pub(super) async fn attend<K: Kind>(
    guard: &Guard<K>,
    command: &mut Command,
    signals: &mut Signals,
    options: &Run,
    name: &str,
) -> Result<u8, Failure> {
    let notice = || Notice::new(options, guard.lease());
    let mut asked_to_end: Option<Instant> = None;
    let mut valid_until = Instant::now();
    loop {
        tokio::select! {
            biased;
            status = command.ended() => {
                let notice = notice();
                if asked_to_end.is_some_and(|asked| notice.explains_an_end(asked.elapsed())) {
                    let was_lost = !guard.is_held();
                    end_group(guard, command, signals, Instant::now() + notice.kill_after, was_lost).await;
                }
                return status;
            }
            signal = signals.next() => {
                if ASK_TO_END.contains(&signal) {
                    asked_to_end = Some(Instant::now());
                }
                command.forward(signal);
            }
            () = about_to_be_lost(guard, || notice().before, &mut valid_until) => break,
        }
    }
    let reason = if guard.is_held() { "cannot renew the lock" } else { "lost the lock" };
    complain(&format!("{reason} {name}; ending the command"));
    // If rlock itself was late, another owner may hold the lock already.
    let kill_at = if valid_until <= Instant::now() { Instant::now() } else { Instant::now() + notice().kill_after };
    end(guard, command, signals, kill_at).await;
    Err(Failure::new(LOST, format!("the command was ended because the lock {name} was lost")))
}

/// Resolves when the lock is valid for no longer than `before`, which changes with the lease.
/// `valid_until` is then the end of the last known validity, also if the lock was lost earlier.
async fn about_to_be_lost<K: Kind>(guard: &Guard<K>, before: impl Fn() -> Duration, valid_until: &mut Instant) {
    loop {
        let (left, before) = (guard.valid_for(), before());
        if !left.is_zero() {
            *valid_until = Instant::now() + left;
        }
        if left <= before {
            return;
        }
        tokio::select! {
            biased;
            () = guard.lost() => return,
            () = sleep((left - before).min(LONGEST_NAP)) => {}
        }
    }
}

/// Ends the command by SIGTERM, and by SIGKILL at `kill_at` or when the lock is lost, whichever
/// comes first.
async fn end<K: Kind>(guard: &Guard<K>, command: &mut Command, signals: &mut Signals, kill_at: Instant) {
    let was_lost = !guard.is_held();
    command.signal(Signal::TERM);
    // A stopped process handles SIGTERM only after it continues.
    command.signal(Signal::CONT);
    let mut is_killed = false;
    loop {
        tokio::select! {
            biased;
            _ = command.ended() => break,
            signal = signals.next() => command.forward(signal),
            () = sleep_until(kill_at), if !is_killed => {
                command.signal(Signal::KILL);
                is_killed = true;
            }
            () = guard.lost(), if !was_lost && !is_killed => {
                command.signal(Signal::KILL);
                is_killed = true;
            }
        }
    }
    end_group(guard, command, signals, if is_killed { Instant::now() } else { kill_at }, was_lost).await;
}

/// Waits for the processes that the command has left in its group, and that got the same signal.
/// They get SIGKILL at `kill_at` or when the lock is lost, whichever comes first.
async fn end_group<K: Kind>(
    guard: &Guard<K>,
    command: &Command,
    signals: &mut Signals,
    kill_at: Instant,
    was_lost: bool,
) {
    loop {
        tokio::select! {
            biased;
            () = command.group_ended() => return,
            signal = signals.next() => command.forward(signal),
            () = sleep_until(kill_at) => break,
            () = guard.lost(), if !was_lost => break,
        }
    }
    command.signal(Signal::KILL);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Action, Arguments};
    use clap::Parser;

    fn notice_ms(words: &str, lease_ms: u64) -> (u128, u128) {
        let line = format!("rlock run k {words} -- true");
        let arguments = Arguments::try_parse_from(line.split_whitespace()).expect("a command line");
        let Action::Run(run) = arguments.action else { panic!("it is run") };
        let notice = Notice::new(&run, Duration::from_millis(lease_ms));
        (notice.before.as_millis(), notice.kill_after.as_millis())
    }

    #[test]
    fn sigterm_comes_in_time_and_never_while_the_lock_is_renewed() {
        assert_eq!(notice_ms("", 30_000), (5000, 5000));
        assert_eq!(notice_ms("", 3000), (1000, 1000));
        assert_eq!(notice_ms("--kill-after 1m", 30_000), (10_000, 60_000));
        assert_eq!(notice_ms("--kill-after 0", 30_000), (0, 0));
    }

    #[test]
    fn old_signal_is_not_the_reason_of_an_end() {
        let explains = |kill_after_s, after_s| {
            let notice = Notice { before: Duration::ZERO, kill_after: Duration::from_secs(kill_after_s) };
            notice.explains_an_end(Duration::from_secs(after_s))
        };
        assert!(explains(0, 5) && explains(60, 60));
        assert!(!explains(0, 6) && !explains(60, 61));
    }
}
