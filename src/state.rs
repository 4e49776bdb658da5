//! The module's state: the engine.
//!
//! Callbacks of the server may not decide anything. They tell the engine what happened, which notes it, and arm the timer.

use rlock_core::Engine;

use crate::ffi::{MainThread, log_warning};

/// The engine; `None` before the module was loaded.
static ENGINE: MainThread<Option<Engine>> = MainThread::new(None);

/// Starts the engine.
pub(crate) fn init(seeds: [u64; 4]) {
    ENGINE.with(|engine| *engine = Some(Engine::new(seeds)));
}

/// Gives the engine to `body`. `None` if it is in use, which would be a bug and is logged: the engine calls nothing of the
/// server's that could call back.
pub(crate) fn with_engine<R>(body: impl FnOnce(&mut Engine) -> R) -> Option<R> {
    let result = ENGINE.with(|engine| engine.as_mut().map(body)).flatten();
    if result.is_none() {
        log_warning("rlock caught a bug of its own, please report it: the engine was called while it was in use");
    }
    result
}

/// Tells the engine what the server has told: see `rlock_core::Engine` for what there is to tell.
pub(crate) fn tell(what: impl FnOnce(&mut Engine)) {
    with_engine(what);
}
