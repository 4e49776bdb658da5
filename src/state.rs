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

/// Gives the engine to `body`. `None` if it is in use, which would be a bug.
pub(crate) fn with_engine<R>(body: impl FnOnce(&mut Engine) -> R) -> Option<R> {
    ENGINE.with(|engine| engine.as_mut().map(body)).flatten()
}

/// Tells the engine what the server has told: see `rlock_core::Engine` for what there is to tell.
pub(crate) fn tell(what: impl FnOnce(&mut Engine)) {
    if with_engine(what).is_none() {
        // The engine calls nothing of the server's that could call back, so this does not happen.
        log_warning("a bug in rlock was caught, please report it: an event came while the engine was in use");
    }
}
