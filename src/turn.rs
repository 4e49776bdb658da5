//! A turn of the server's event loop: from waking up until the loop sleeps again.
//!
//! What a module does at the end of a turn is done when the server says that it is about to sleep. After that it still runs commands: those that clients
//! had sent behind a wait that is over now, and on some servers those that threads have read. What is left for the end of a turn then, and timers that are
//! started, would have to wait until something else wakes the loop.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::ffi;

/// Whether the server has said that it is about to sleep.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Whether it was told not to.
static HAS_MORE: AtomicBool = AtomicBool::new(false);

/// A turn begins.
pub(crate) fn begin() {
    IS_OVER.store(false, Ordering::Relaxed);
    HAS_MORE.store(false, Ordering::Relaxed);
}

/// The server is about to sleep.
pub(crate) fn end() {
    IS_OVER.store(true, Ordering::Relaxed);
}

/// Lets the event loop run once more without sleeping. Redis 7.0 has looked at its timers already when it says that it is about to
/// sleep: one that is started then goes off when the sleep ends.
pub(crate) fn wake_event_loop() {
    ffi::in_next_turn(on_wake);
}

/// The event loop has woken. It may have done so while a script goes on for long, and then it is still the same turn: what comes after that wakes it again.
/// What the script itself has left waits for the server's tick.
fn on_wake() {
    HAS_MORE.store(false, Ordering::Relaxed);
}

/// Something was left for the end of this turn, or for a timer: if it is too late for that, another turn comes at once.
pub(crate) fn expect_more() {
    if IS_OVER.load(Ordering::Relaxed) && !HAS_MORE.swap(true, Ordering::Relaxed) {
        wake_event_loop();
    }
}
