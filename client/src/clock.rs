//! Moments on a clock that never steps and goes on while the machine is suspended.
//!
//! `Instant` stands still during a suspend on Linux, so a hold would look valid for as long as the machine has slept.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
// Where there is no such clock, the monotonic one is the nearest; on macOS it counts through sleep.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// A point in time, in microseconds since the machine's start. Only differences mean something, and only in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    /// A moment that does not come.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    /// Now.
    pub(crate) fn now() -> Self {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(CLOCK);
        let seconds = u64::try_from(tv_sec).unwrap_or(0);
        Self(seconds.saturating_mul(1_000_000).saturating_add(u64::try_from(tv_nsec).unwrap_or(0) / 1000))
    }

    /// For tests.
    #[cfg(test)]
    pub(crate) const fn from_us(us: u64) -> Self {
        Self(us)
    }

    /// The moment that is `duration` later.
    pub(crate) fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }

    /// The last moment before this one, or this one, that is a multiple of some span: what is not in a hurry comes together there.
    pub(crate) fn rounded_down(self, span: Duration) -> Self {
        let span_us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX).max(1);
        Self(self.0 - self.0 % span_us)
    }

    /// How long it is from now to `later`; zero if that is over.
    pub(crate) fn until(self, later: Self) -> Duration {
        Duration::from_micros(later.0.saturating_sub(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn moments_are_as_far_apart_as_time_says() {
        let rounding = Duration::from_micros(2);
        for _ in 0..3 {
            let outer = Instant::now();
            let began = Moment::now();
            let inner = Instant::now();
            std::thread::sleep(Duration::from_millis(30));
            let least = inner.elapsed();
            let passed = began.until(Moment::now());
            assert!(passed + rounding >= least && passed <= outer.elapsed() + rounding, "{passed:?} for {least:?}");
        }
    }
}
