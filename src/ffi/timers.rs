//! The server's timers.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;

use super::{Ctx, api, guard};

/// A context that lives as long as the module: timers are also started from callbacks that have none.
static DETACHED: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

/// Makes the context for timers. Called once, from `OnLoad`.
pub(super) fn init(ctx: Ctx<'_>) {
    // SAFETY: the context is alive.
    let detached = unsafe { api!(RedisModule_GetDetachedThreadSafeContext, ctx.raw()) };
    DETACHED.store(detached, Ordering::Relaxed);
}

/// Gives the context back, if the module does not come to be loaded: the server then forgets the module, and this place with it.
pub(super) fn give_back() {
    let detached = DETACHED.swap(ptr::null_mut(), Ordering::Relaxed);
    if !detached.is_null() {
        // SAFETY: the context came from the server, and nobody finds it any more.
        unsafe { api!(RedisModule_FreeThreadSafeContext, detached) };
    }
}

/// Whether any database has a key. Selecting them in the module's own context moves no client.
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

/// The number of a timer that is running.
#[derive(Clone, Copy)]
pub(crate) struct TimerId(raw::RedisModuleTimerID);

/// Starts a timer that calls `jobs::on_timer` after `delay_ms`.
pub(crate) fn start_timer(delay_ms: i64) -> Option<TimerId> {
    let ctx = DETACHED.load(Ordering::Relaxed);
    if ctx.is_null() {
        return None;
    }
    // SAFETY: the detached context lives as long as the module.
    Some(TimerId(unsafe { api!(RedisModule_CreateTimer, ctx, delay_ms, Some(on_timer), ptr::null_mut()) }))
}

/// Lets the event loop run once more without sleeping. Redis 7.0 has looked at its timers already when it says that it is about to
/// sleep: one that is started then goes off when the sleep ends.
pub(crate) fn wake_event_loop() {
    unsafe extern "C" fn on_wake(_data: *mut c_void) {
        crate::turn::on_wake();
    }
    in_next_turn(on_wake);
}

/// Arms the timer in the next turn of the event loop, before the server looks at its timers.
pub(crate) fn arm_in_next_turn() {
    unsafe extern "C" fn on_next_turn(_data: *mut c_void) {
        guard((), crate::timer::arm_soon);
    }
    in_next_turn(on_next_turn);
}

fn in_next_turn(callback: unsafe extern "C" fn(*mut c_void)) {
    // SAFETY: the callbacks of this file take a null pointer, and have no use for it.
    unsafe { api!(RedisModule_EventLoopAddOneShot, Some(callback), ptr::null_mut()) };
}

/// Stops a timer.
pub(crate) fn stop_timer(timer: TimerId) {
    let ctx = DETACHED.load(Ordering::Relaxed);
    // SAFETY: the detached context lives as long as the module; a timer that is over is not found, which is fine.
    unsafe { api!(RedisModule_StopTimer, ctx, timer.0, ptr::null_mut()) };
}

unsafe extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    guard((), || {
        // SAFETY: the server gives a context that is alive during the callback.
        crate::jobs::on_timer(unsafe { Ctx::new(ctx) });
    });
}
