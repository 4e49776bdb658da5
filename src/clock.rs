//! The only place that reads a clock.
//!
//! Deadlines use `CLOCK_BOOTTIME`, the *steady clock*. It never steps. It also counts while the
//! machine is suspended, because clients on other machines count that time too.
//!
//! Tokens, and times that leave the process, need the wall clock. The module stores the distance
//! between the two clocks. The first command of a turn of the server's event loop measures it, and
//! the later ones read only the steady clock. A step of the wall clock therefore takes effect in
//! the next turn.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rlock_core::Now;

/// How far the wall clock is ahead of the steady clock, in microseconds.
static WALL_AHEAD_US: AtomicU64 = AtomicU64::new(0);

/// Whether the module has measured the distance in this turn.
static IS_MEASURED: AtomicBool = AtomicBool::new(false);

/// Begins a turn of the server's event loop: the wall clock may have stepped.
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

/// The steady clock, in microseconds.
pub(crate) fn mono_us() -> u64 {
    read_us(libc::CLOCK_BOOTTIME)
}

fn read_us(clock: libc::clockid_t) -> u64 {
    let time = crate::ffi::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000).saturating_add(nanoseconds / 1000)
}
