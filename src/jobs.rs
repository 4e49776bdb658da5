//! The work of the timer: a master runs the engine's jobs, and a replica notes the alarms of its keys for a promotion.
//!
//! The server reads the wall clock once for all timers of a turn. If the clock steps back after that, a timer that the callback starts is
//! over already by that reading, and so is the next, for as long as the step was: the server would call the callback without an end, and
//! serve no client. Therefore it works once in a turn, and starts no timer when it is called again.

use std::sync::atomic::{AtomicBool, Ordering};

use rlock_core::{Engine, Key, Keyspace, Outbox, US_PER_MS, Value};

use crate::clock;
use crate::execute::{self, KEY};
use crate::ffi::{self, Arg, Ctx, Keys};
use crate::server;
use crate::state;
use crate::timer;

/// How long one run may take before other clients get their turn.
const BUDGET_US: u64 = 2_000;

/// How long to wait while nothing may be decided: during a load, a pause of writes, or while the server refuses them.
const RETRY_MS: u64 = 5;

/// Whether the timer went off in this turn of the event loop.
static HAS_RUN: AtomicBool = AtomicBool::new(false);

/// A turn of the server's event loop begins.
pub(crate) fn begin_turn() {
    HAS_RUN.store(false, Ordering::Relaxed);
}

/// The server's regular tick: a timer that is overdue was delayed by a step of the wall clock.
pub(crate) fn on_tick(ctx: Ctx<'_>) {
    if timer::stop_overdue() {
        on_timer(ctx);
    }
}

/// The timer went off, or should have.
pub(crate) fn on_timer(ctx: Ctx<'_>) {
    timer::went_off();
    if HAS_RUN.swap(true, Ordering::Relaxed) {
        // There the server has read the clock anew.
        ffi::in_next_turn(timer::arm_soon);
        return;
    }
    let flags = ctx.flags();
    let start_us = clock::mono_us();
    if flags.is_loading() {
        return retry(start_us);
    }
    state::tell(Engine::begin_turn);
    if flags.is_master() && (ctx.is_paused() || server::refuses_writes(ctx)) {
        return if end_waits() { timer::arm_soon() } else { retry(start_us) };
    }
    let is_done = if flags.is_master() { run(start_us, || run_next(ctx)) } else { run(start_us, || observe_next(ctx)) };
    if is_done && flags.is_master() {
        timer::arm();
    } else if state::with_engine(|engine| engine.has_to_observe()) == Some(true) {
        timer::arm_soon();
    }
}

fn retry(start_us: u64) {
    timer::arm_at(start_us.saturating_add(RETRY_MS.saturating_mul(US_PER_MS)));
}

/// Answers the waiters whose time is over while the server may grant nothing. Returns whether there are more of them than one turn
/// has time for.
fn end_waits() -> bool {
    let mut out = Outbox::new(false);
    let has_more = state::with_engine(|engine| engine.end_waits(clock::now(), &mut out));
    execute::wake(&mut out);
    has_more == Some(true)
}

/// Takes steps until there is nothing left to do (`true`), or the time is used up.
fn run(start_us: u64, mut step: impl FnMut() -> bool) -> bool {
    while step() {
        if clock::mono_us().saturating_sub(start_us) >= BUDGET_US {
            timer::arm_soon();
            return false;
        }
    }
    true
}

/// Runs the next job that is due. `false` if no job is due, or if the budget of the turn is used up.
fn run_next(ctx: Ctx<'_>) -> bool {
    if execute::run_offer(ctx) {
        return true;
    }
    let now = clock::now();
    let mut out = Outbox::new(true);
    let next = state::with_engine(|engine| engine.next_job(now, &mut out));
    execute::wake(&mut out);
    let Some(key) = next.flatten() else {
        return false;
    };
    if !ctx.select_db(key.db) {
        return true;
    }
    let name = ctx.string(key.name.as_slice());
    if server::is_cluster() && !server::serves(ctx, &[name.arg()]) {
        postpone(ctx, &key, name.arg());
    } else {
        execute::run_job(ctx, name.arg());
    }
    true
}

/// Leaves a key alone that this node of the cluster does not serve now. The server sends MOVED to its waiters. The engine forgets
/// the key once it is vacant here and has no waiters.
fn postpone(ctx: Ctx<'_>, key: &Key, name: Arg<'_>) {
    let mut keys = Keys::open_to_peek(ctx, name);
    let is_here = matches!(keys.value(KEY), Value::Lock(_));
    let is_waited_for = state::with_engine(|engine| engine.waiting_on(key.borrow())) != Some(0);
    state::tell(|engine| {
        if is_here || is_waited_for {
            engine.postpone(key.borrow(), clock::now());
        } else {
            engine.observe(&mut keys, KEY);
        }
    });
}

/// Notes the alarm of the next dirty key on a replica, for the day when it is promoted. A replica decides nothing.
fn observe_next(ctx: Ctx<'_>) -> bool {
    let mut out = Outbox::new(false);
    state::tell(|engine| engine.end_cut_off(&mut out));
    execute::wake(&mut out);
    let Some(key) = state::with_engine(Engine::next_to_observe).flatten() else {
        return false;
    };
    if ctx.select_db(key.db) {
        let name = ctx.string(key.name.as_slice());
        let mut keys = Keys::open_to_read(ctx, name.arg());
        state::tell(|engine| engine.observe(&mut keys, KEY));
    }
    true
}
