//! Measures time, and how late the machine itself was meanwhile.
//!
//! On a busy machine everything happens later, both in the server and in the test. So a thread next
//! to the measurement sleeps for one millisecond again and again, and adds up by how much it
//! overslept. Upper bounds are widened by that sum. Lower bounds never are: nothing may happen too
//! early, however busy the machine is.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How long the thread intends to sleep each time.
const NAP: Duration = Duration::from_millis(1);

/// Measures the time since its start. Its thread ends when it is dropped.
pub struct Stopwatch {
    start: Instant,
    sleeper: Arc<Mutex<Sleeper>>,
}

struct Sleeper {
    /// Total time overslept, without the current sleep.
    overslept: Duration,
    /// When the current sleep should end.
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

    /// Asserts that the time since the start is within `range`, in milliseconds. The upper bound is
    /// widened by the lateness of the machine.
    #[track_caller]
    pub fn assert_took_ms(&self, range: Range<u64>, what: &str) {
        let took = self.elapsed();
        let lateness = self.lateness();
        let is_early = took < Duration::from_millis(range.start);
        let is_late = took >= Duration::from_millis(range.end) + lateness;
        assert!(
            !is_early && !is_late,
            "{what}: took {took:?}, expected {range:?} ms, on a machine that was late by {lateness:?}"
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
