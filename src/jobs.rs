//! The work of the timer: a master runs the engine's jobs, a replica records the alarms of its keys
//! for a promotion.
//!
//! The server reads the wall clock once for all timers of a turn. If the clock steps back after
//! that reading, a timer that the callback starts is already due by the reading, and so is each
//! further one, until the clock has caught up. The server would run the callback again and again
//! and serve no client. So the callback works once per turn, and starts no timer if it is called
//! again.

use std::sync::atomic::{AtomicBool, Ordering};

use rlock_core::{Engine, Job, Keyspace, Outbox, US_PER_MS, Value};

use crate::clock;
use crate::execute::{self, KEY};
use crate::ffi::{self, Arg, Ctx, Keys};
use crate::server;
use crate::state;
use crate::timer;

/// How long one run may take before the server serves clients again.
const BUDGET_US: u64 = 2_000;

/// The time to the next try while the server loads its data set, pauses writes or refuses them.
const RETRY_MS: u64 = 5;

/// Whether the timer has fired in this turn of the event loop.
static HAS_RUN: AtomicBool = AtomicBool::new(false);

/// Begins a turn of the server's event loop.
pub(crate) fn begin_turn() {
    HAS_RUN.store(false, Ordering::Relaxed);
}

/// The server's tick: if the timer is overdue, a step of the wall clock has delayed it.
pub(crate) fn on_tick(ctx: Ctx<'_>) {
    if timer::stop_overdue() {
        on_timer(ctx);
    }
}

/// The timer has fired, or is overdue.
pub(crate) fn on_timer(ctx: Ctx<'_>) {
    timer::fired();
    if HAS_RUN.swap(true, Ordering::Relaxed) {
        // In the next turn the server has read the clock again.
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

/// Answers waiters that have timed out or were cut off, which is all that the timer may do while
/// the server takes no writes. Returns whether more are left for the next turn.
fn end_waits() -> bool {
    let mut out = Outbox::new(false);
    let has_more = state::with_engine(|engine| engine.end_waits(clock::now(), &mut out));
    execute::wake(&mut out);
    has_more == Some(true)
}

/// Takes steps until nothing is left to do (`true`), or the time is used up (`false`).
fn run(start_us: u64, mut step: impl FnMut() -> bool) -> bool {
    while step() {
        if clock::mono_us().saturating_sub(start_us) >= BUDGET_US {
            timer::arm_soon();
            return false;
        }
    }
    true
}

/// Runs the next due job. `false` if no job is due, or if the budget of the turn is used up.
fn run_next(ctx: Ctx<'_>) -> bool {
    if execute::run_offer(ctx) {
        return true;
    }
    let now = clock::now();
    let mut out = Outbox::new(true);
    let next = state::with_engine(|engine| engine.next_job(now, &mut out));
    execute::wake(&mut out);
    let Some(job) = next.flatten() else {
        return false;
    };
    if !ctx.select_db(job.key.db) {
        state::tell(|engine| engine.postpone(job, now));
        return true;
    }
    let name = ctx.string(job.key.name.as_slice());
    if server::is_cluster() && !server::serves(ctx, &[name.arg()]) {
        postpone(ctx, job, name.arg());
    } else {
        execute::run_job(ctx, name.arg(), &job);
    }
    true
}

/// Postpones the job of a key that this node of the cluster does not serve now. The server sends
/// MOVED to its waiters. The engine forgets the key once it is vacant on this node and has no
/// waiters.
fn postpone(ctx: Ctx<'_>, job: Job, name: Arg<'_>) {
    let mut keys = Keys::open_to_peek(ctx, name);
    let is_here = matches!(keys.value(KEY), Value::Lock(_));
    let is_waited_for = state::with_engine(|engine| engine.waiting_on(job.key.borrow())) != Some(0);
    state::tell(|engine| {
        if is_here || is_waited_for {
            engine.postpone(job, clock::now());
        } else {
            engine.observe(&mut keys, KEY, &job);
        }
    });
}

/// Records the alarm of the next dirty name on a replica, for a promotion. A replica decides
/// nothing.
fn observe_next(ctx: Ctx<'_>) -> bool {
    let mut out = Outbox::new(false);
    state::tell(|engine| engine.end_cut_off(&mut out));
    execute::wake(&mut out);
    let Some(job) = state::with_engine(Engine::next_to_observe).flatten() else {
        return false;
    };
    if ctx.select_db(job.key.db) {
        let name = ctx.string(job.key.name.as_slice());
        let mut keys = Keys::open_to_peek(ctx, name.arg());
        state::tell(|engine| engine.observe(&mut keys, KEY, &job));
    }
    true
}
