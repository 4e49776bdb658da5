//! The only module that reads the clocks of this machine.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

/// The monotonic clock.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this module is where the clock is read")]
pub fn now() -> Instant {
    Instant::now()
}

/// The wall clock, as a UTC date and time to print.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this module is where the clock is read")]
pub fn utc_date() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// The CPU time that all threads of this process have used so far.
#[must_use]
pub fn process_cpu() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

/// Sleeps until `instant`; returns at once if that has passed.
pub fn sleep_until(instant: Instant) {
    std::thread::sleep(instant.saturating_duration_since(now()));
}

/// A duration in milliseconds, with its fraction.
#[must_use]
pub fn as_ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The counters of the kernel's scheduler for a thread, from its `schedstat` file.
#[derive(Clone, Copy, Debug)]
pub struct ThreadTimes {
    /// How long the thread has run.
    pub cpu_ns: u64,
    /// How long the thread waited for a CPU although it could have run.
    pub waited_ns: u64,
}

impl ThreadTimes {
    /// The counters of the calling thread; `None` if the kernel does not provide them.
    #[must_use]
    pub fn own() -> Option<Self> {
        Self::from_file("/proc/thread-self/schedstat")
    }

    /// The counters of the main thread of a process; `None` if the kernel does not provide them.
    ///
    /// The kernel updates them when the thread is scheduled away, and otherwise once per tick. They
    /// are exact while the thread sleeps, and up to one tick old while it runs.
    #[must_use]
    pub fn of_main_thread(process_id: u32) -> Option<Self> {
        Self::from_file(&format!("/proc/{process_id}/task/{process_id}/schedstat"))
    }

    fn from_file(path: &str) -> Option<Self> {
        let text = fs::read_to_string(path).ok()?;
        let mut fields = text.split_ascii_whitespace().map_while(|field| field.parse().ok());
        Some(Self { cpu_ns: fields.next()?, waited_ns: fields.next()? })
    }
}
