//! The only place that reads a clock.
//!
//! Deadlines count on `CLOCK_BOOTTIME`: it never steps, and it counts through a suspend of the machine, during which
//! leases go on ending for everybody else. The wall clock is needed for tokens and for times that leave the process; it is
//! kept as a distance from the other, measured by whoever is first to ask for it in a turn of the server's event loop. The
//! other commands of the turn read one clock and not two, a turn without any reads none, and a step of the wall clock is
//! noticed within a turn.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rlock_core::Now;

/// Microseconds from the steady clock to the wall clock.
static WALL_AHEAD_US: AtomicU64 = AtomicU64::new(0);

/// Whether the distance was measured in this turn.
static IS_MEASURED: AtomicBool = AtomicBool::new(false);

/// A turn of the server's event loop begins: the wall clock may have stepped.
pub(crate) fn begin_turn() {
    IS_MEASURED.store(false, Ordering::Relaxed);
}

/// The time on both clocks.
pub(crate) fn now() -> Now {
    let mono_us = mono_us();
    if !IS_MEASURED.load(Ordering::Relaxed) {
        IS_MEASURED.store(true, Ordering::Relaxed);
        WALL_AHEAD_US.store(read_us(libc::CLOCK_REALTIME).saturating_sub(mono_us), Ordering::Relaxed);
    }
    Now { mono_us, wall_us: mono_us.saturating_add(WALL_AHEAD_US.load(Ordering::Relaxed)) }
}

/// Microseconds on the clock that never steps.
pub(crate) fn mono_us() -> u64 {
    read_us(libc::CLOCK_BOOTTIME)
}

fn read_us(clock: libc::clockid_t) -> u64 {
    let time = crate::ffi::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000).saturating_add(nanoseconds / 1000)
}
