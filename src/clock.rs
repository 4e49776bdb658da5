//! The only place that reads a clock.

use rlock_core::Now;

/// Reads the clock that never steps and the wall clock.
///
/// `CLOCK_BOOTTIME` counts through a suspend of the machine, during which leases go on ending for everybody else.
pub(crate) fn now() -> Now {
    Now {
        mono_us: read_us(libc::CLOCK_BOOTTIME),
        wall_us: read_us(libc::CLOCK_REALTIME),
    }
}

/// Microseconds on the clock that never steps.
pub(crate) fn mono_us() -> u64 {
    read_us(libc::CLOCK_BOOTTIME)
}

fn read_us(clock: libc::clockid_t) -> u64 {
    let time = crate::ffi::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000)
        .saturating_add(nanoseconds / 1000)
}
