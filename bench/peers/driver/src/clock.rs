//! The only module that reads the clocks.

use std::time::{Duration, Instant, SystemTime};

use rustix::time::{ClockId, clock_gettime};

pub fn now() -> Instant {
    Instant::now()
}

/// CLOCK_MONOTONIC in nanoseconds: the clock of the programs' records.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Sleeps until a moment of CLOCK_MONOTONIC.
pub fn sleep_until_ns(deadline_ns: u64) {
    std::thread::sleep(Duration::from_nanos(deadline_ns.saturating_sub(monotonic_ns())));
}

/// The date and time, to print.
pub fn utc_date() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
