//! The module's state: the engine.
//!
//! Callbacks of the server must not decide anything. They report each event to the engine, which
//! only records it, and arm the timer.

use rlock_core::Engine;

use crate::ffi::{MainThread, log_warning};

/// The engine; `None` until the module is loaded.
static ENGINE: MainThread<Option<Engine>> = MainThread::new(None);

/// Starts the engine.
pub(crate) fn init(seeds: [u64; 4]) {
    ENGINE.with(|engine| *engine = Some(Engine::new(seeds)));
}

/// Runs `body` on the engine. `None` if the engine is in use. That would be a bug, and is logged:
/// the engine never calls a function of the server that could call back.
pub(crate) fn with_engine<R>(body: impl FnOnce(&mut Engine) -> R) -> Option<R> {
    let result = ENGINE.with(|engine| engine.as_mut().map(body)).flatten();
    if result.is_none() {
        log_warning("internal error, please report it: the engine was called while it was in use");
    }
    result
}

/// Reports to the engine what the server reported: see the methods of `rlock_core::Engine`.
pub(crate) fn tell(what: impl FnOnce(&mut Engine)) {
    with_engine(what);
}
