//! A turn of the server's event loop: from waking up until the loop sleeps again.
//!
//! The module does the work of the end of a turn in the server's `BEFORE_SLEEP` event. After that
//! event the server still runs commands: those that a client had sent behind a wait that has just
//! ended, and on some servers those that I/O threads have read. Work that they leave for the end of
//! the turn, and timers that they start, would have to wait until something else wakes the loop.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::ffi;

/// Whether `BEFORE_SLEEP` has come in this turn.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Whether the loop will run once more without sleeping.
static HAS_MORE: AtomicBool = AtomicBool::new(false);

/// Begins a turn.
pub(crate) fn begin() {
    IS_OVER.store(false, Ordering::Relaxed);
    HAS_MORE.store(false, Ordering::Relaxed);
}

/// The server is about to sleep.
pub(crate) fn end() {
    IS_OVER.store(true, Ordering::Relaxed);
}

/// Lets the event loop run once more without sleeping. A timer alone is not enough: Redis 7.0 has
/// computed the length of the sleep before `BEFORE_SLEEP`, so a timer that is started later fires
/// only when the sleep ends.
pub(crate) fn wake_event_loop() {
    ffi::in_next_turn(on_wake);
}

/// The event loop has woken, so [`expect_more`] may wake it again. The loop also wakes during a
/// long script, within the same turn. Work that the script itself leaves waits for the server's
/// tick.
fn on_wake() {
    HAS_MORE.store(false, Ordering::Relaxed);
}

/// Something was left for the end of this turn, or for a timer. If `BEFORE_SLEEP` has come already,
/// another turn follows at once.
pub(crate) fn expect_more() {
    if IS_OVER.load(Ordering::Relaxed) && !HAS_MORE.swap(true, Ordering::Relaxed) {
        wake_event_loop();
    }
}
