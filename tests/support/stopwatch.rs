//! Time as a test measures it, and how late the machine itself was meanwhile.
//!
//! On a busy machine everything comes later: a server that a deadline wakes, a test that an answer wakes. So a thread beside the
//! measurement sleeps for a millisecond again and again, and adds up by how much it overslept. An upper bound is widened by that
//! sum. A lower bound never is: nothing may come too early, however busy the machine is.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How long the thread means to sleep each time.
const NAP: Duration = Duration::from_millis(1);

/// Measures from its start until it is asked. The thread ends with it.
pub struct Stopwatch {
    start: Instant,
    sleeper: Arc<Mutex<Sleeper>>,
}

struct Sleeper {
    /// By how much it has overslept in all, but for the sleep that it is in.
    overslept: Duration,
    /// When that sleep should end.
    due: Instant,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        let start = Instant::now();
        let sleeper = Arc::new(Mutex::new(Sleeper { overslept: Duration::ZERO, due: start + NAP }));
        let of_thread = Arc::downgrade(&sleeper);
        thread::spawn(move || sleep_again_and_again(&of_thread));
        Stopwatch { start, sleeper }
    }

    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// How late the machine was since the start.
    pub fn lateness(&self) -> Duration {
        let sleeper = lock(&self.sleeper);
        sleeper.overslept + sleeper.due.elapsed()
    }

    /// Since the start at least as many milliseconds have passed as the range begins with, and fewer than it ends with, but for the
    /// lateness of the machine.
    #[track_caller]
    pub fn assert_took_ms(&self, range: Range<u64>, what: &str) {
        let took = self.elapsed();
        let lateness = self.lateness();
        let is_early = took < Duration::from_millis(range.start);
        let is_late = took >= Duration::from_millis(range.end) + lateness;
        assert!(
            !is_early && !is_late,
            "{what}: {took:?}, not in {range:?} ms, on a machine that was late by {lateness:?}"
        );
    }
}

fn sleep_again_and_again(sleeper: &Weak<Mutex<Sleeper>>) {
    loop {
        thread::sleep(NAP);
        let Some(sleeper) = sleeper.upgrade() else { return };
        let mut sleeper = lock(&sleeper);
        let now = Instant::now();
        let overslept = now.saturating_duration_since(sleeper.due);
        sleeper.overslept += overslept;
        sleeper.due = now + NAP;
    }
}

fn lock(sleeper: &Mutex<Sleeper>) -> MutexGuard<'_, Sleeper> {
    sleeper.lock().unwrap_or_else(PoisonError::into_inner)
}
