//! After a loss of data nothing is granted for a while.
//!
//! A server that comes up without a single key cannot know which locks it gave before. If `rlock.quarantine-ms` is as
//! long as the longest lease in use, whoever held one of them has lost it by its own clock before another owner gets
//! it here.
//!
//! It is decided at the start, and after each load of a master's data set, because a master that lost
//! its data passes the emptiness on, and its replica may be promoted next. A load that brought keys ends the quarantine.
//! FLUSHALL begins none: it is somebody's wish, and not a loss.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rlock_core::US_PER_MS;

use crate::clock;
use crate::configuration;
use crate::ffi::{self, Ctx, log_warning};

/// Whether a data set was taken up, or is about to be, that nobody has looked at.
static UNDECIDED: AtomicBool = AtomicBool::new(true);

/// When the data set was found empty, in microseconds of the clock that never steps; 0 if it was not.
static EMPTY_SINCE_US: AtomicU64 = AtomicU64::new(0);

/// A load of a master's data set begins.
pub(crate) fn on_load_from_master() {
    UNDECIDED.store(true, Ordering::Relaxed);
}

/// Looks at a data set that was taken up. The server's event loop calls this before it reads a command, so what clients
/// add does not count.
pub(crate) fn look(ctx: Ctx<'_>) {
    if !UNDECIDED.load(Ordering::Relaxed) || ctx.flags().is_loading() {
        return;
    }
    UNDECIDED.store(false, Ordering::Relaxed);
    let is_empty = !ffi::has_keys();
    EMPTY_SINCE_US.store(if is_empty { clock::mono_us().max(1) } else { 0 }, Ordering::Relaxed);
    let left_ms = left_ms(ctx);
    if left_ms > 0 {
        log_warning(&format!("the data set is empty: no lock is granted for {left_ms} ms (rlock.quarantine-ms)"));
    }
}

/// For how many milliseconds nothing is granted from now on; 0 outside of a quarantine.
pub(crate) fn left_ms(ctx: Ctx<'_>) -> u64 {
    look(ctx);
    remaining_ms()
}

/// The same where there is no context, for INFO: a data set that nobody has looked at is not counted.
pub(crate) fn remaining_ms() -> u64 {
    let quarantine_ms = configuration::quarantine_ms();
    let since_us = EMPTY_SINCE_US.load(Ordering::Relaxed);
    if quarantine_ms == 0 || since_us == 0 {
        return 0;
    }
    let end_us = since_us.saturating_add(quarantine_ms.saturating_mul(US_PER_MS));
    end_us.saturating_sub(clock::mono_us()).div_ceil(US_PER_MS)
}
