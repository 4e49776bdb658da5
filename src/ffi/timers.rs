//! The server's timers, and callbacks in the next turn of its event loop.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{mem, ptr};

use redis_module::raw;

use super::at_load::AtLoad;
use super::{Ctx, api, guard};

/// A context that lives as long as the module. Callbacks without a context of their own start
/// timers with it.
static DETACHED: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

static ON_TIMER: AtLoad<fn(Ctx<'_>)> = AtLoad::new();

/// Sets the function that timers call.
pub(crate) fn set_on_timer(on_timer: fn(Ctx<'_>)) {
    ON_TIMER.set(on_timer);
}

/// Creates the context for timers. Called once, from `OnLoad`.
pub(super) fn init(ctx: Ctx<'_>) {
    // SAFETY: the context is alive.
    let detached = unsafe { api!(RedisModule_GetDetachedThreadSafeContext, ctx.raw()) };
    DETACHED.store(detached, Ordering::Relaxed);
}

/// Frees the context after a failed load. Otherwise it would leak: the server unloads the module.
pub(super) fn free_context() {
    let detached = DETACHED.swap(ptr::null_mut(), Ordering::Relaxed);
    if !detached.is_null() {
        // SAFETY: the context came from the server, and no other code can reach it now.
        unsafe { api!(RedisModule_FreeThreadSafeContext, detached) };
    }
}

/// Whether any database has a key. This selects databases in the module's own context; no client
/// changes its database.
pub(crate) fn has_keys() -> bool {
    let raw = DETACHED.load(Ordering::Relaxed);
    if raw.is_null() {
        return false;
    }
    // SAFETY: the detached context lives as long as the module.
    let ctx = unsafe { Ctx::new(raw) };
    // SAFETY: as above.
    let found = (0..).take_while(|db| ctx.select_db(*db)).any(|_| unsafe { api!(RedisModule_DbSize, raw) } > 0);
    ctx.select_db(0);
    found
}

/// The id of a running timer.
#[derive(Clone, Copy)]
pub(crate) struct TimerId(raw::RedisModuleTimerID);

/// Starts a timer that fires after `delay_ms`: see [`set_on_timer`].
pub(crate) fn start_timer(delay_ms: i64) -> Option<TimerId> {
    let ctx = DETACHED.load(Ordering::Relaxed);
    if ctx.is_null() {
        return None;
    }
    // SAFETY: the detached context lives as long as the module.
    Some(TimerId(unsafe { api!(RedisModule_CreateTimer, ctx, delay_ms, Some(on_timer), ptr::null_mut()) }))
}

/// Calls `callback` in the next turn of the event loop, before the server checks its timers. The
/// loop does not sleep until then.
pub(crate) fn in_next_turn(callback: fn()) {
    unsafe extern "C" fn on_next_turn(callback: *mut c_void) {
        // SAFETY: `in_next_turn` made the pointer from a function of this type.
        let callback = unsafe { mem::transmute::<*mut c_void, fn()>(callback) };
        guard((), callback);
    }
    // SAFETY: the callback converts the pointer back to this function.
    unsafe { api!(RedisModule_EventLoopAddOneShot, Some(on_next_turn), callback as *mut c_void) };
}

/// Stops a timer.
pub(crate) fn stop_timer(timer: TimerId) {
    let ctx = DETACHED.load(Ordering::Relaxed);
    // SAFETY: the detached context lives as long as the module; the server ignores a timer that has
    // fired.
    unsafe { api!(RedisModule_StopTimer, ctx, timer.0, ptr::null_mut()) };
}

unsafe extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    guard((), || {
        // SAFETY: the server passes a context that is alive during the callback.
        (ON_TIMER.get())(unsafe { Ctx::new(ctx) });
    });
}
