//! Moments on a clock that never steps and that runs on while the machine is suspended.
//!
//! On Linux `Instant` stops during a suspend, so an expired hold would still look valid afterwards.

use std::sync::Arc;
use std::time::Duration;

/// A point in time in microseconds. Only differences between moments of one client's clock mean
/// something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    /// A moment that never comes.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) const fn from_us(us: u64) -> Self {
        Self(us)
    }

    pub(crate) const fn as_us(self) -> u64 {
        self.0
    }

    /// This moment plus `duration`.
    pub(crate) fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }

    /// The time from this moment to `later`; zero if `later` is earlier.
    pub(crate) fn until(self, later: Self) -> Duration {
        Duration::from_micros(later.0.saturating_sub(self.0))
    }

    /// The last multiple of `span` at or before this moment.
    pub(crate) fn rounded_down(self, span: Duration) -> Self {
        let span_us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX).max(1);
        Self(self.0 - self.0 % span_us)
    }
}

/// The clock that measures the leases of a client.
#[derive(Clone, Default)]
pub(crate) struct Clock(pub(crate) Option<Arc<dyn Fn() -> Duration + Send + Sync>>);

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

impl Clock {
    pub(crate) fn now(&self) -> Moment {
        let elapsed = self.0.as_ref().map_or_else(system, |injected| injected());
        Moment(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX))
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn system() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Adds up the larger advance of the monotonic and the wall clock: the monotonic clock may stop
/// during a suspend, and the wall clock may be set back.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn system() -> Duration {
    use std::sync::Mutex;
    use std::time::{Instant, SystemTime};

    static LAST: Mutex<Option<(Instant, SystemTime, Duration)>> = Mutex::new(None);
    let mut last = crate::sync::lock(&LAST);
    let (steady, wall) = (Instant::now(), SystemTime::now());
    let elapsed = last.map_or(Duration::ZERO, |(last_steady, last_wall, elapsed)| {
        elapsed + (steady - last_steady).max(wall.duration_since(last_wall).unwrap_or_default())
    });
    *last = Some((steady, wall, elapsed));
    elapsed
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn moments_differ_by_the_elapsed_time() {
        let (clock, rounding) = (Clock::default(), Duration::from_micros(2));
        for _ in 0..3 {
            let outer = Instant::now();
            let began = clock.now();
            let inner = Instant::now();
            std::thread::sleep(Duration::from_millis(30));
            let least = inner.elapsed();
            let passed = began.until(clock.now());
            assert!(passed + rounding >= least && passed <= outer.elapsed() + rounding, "{passed:?} for {least:?}");
        }
    }
}
