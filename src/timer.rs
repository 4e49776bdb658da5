//! One timer of the server's behind all deadlines.
//!
//! It is armed for the next deadline of the engine. The server's timers run on the wall clock, so the callback looks at
//! the clock that never steps; and the server's regular tick does what is overdue, so that no step of the wall clock delays anything for
//! longer than a tick. Arming the timer anew would not do: the server sleeps until the earliest of all modules' timers, and it does not
//! see that the clock has jumped beyond that one.
//!
//! The server reads the wall clock once for all timers of a turn. If the clock steps back after that, a timer that the callback starts is
//! over already by that reading, and so is the next, for as long as the step was: the callback would be called without an end, and nobody
//! would be served. So it works once in a turn, and starts no timer when it is called again.

use std::sync::atomic::{AtomicBool, Ordering};

use rlock_core::{Engine, Key, Keyspace, Outbox, US_PER_MS, Value};

use crate::clock;
use crate::execute::{self, KEY};
use crate::ffi::{self, Arg, Ctx, Keys, MainThread, TimerId};
use crate::server;
use crate::state;
use crate::turn;

/// How long one run may take before other clients get their turn.
const BUDGET_US: u64 = 2_000;

/// How long to wait while nothing may be decided: during a load, a pause of writes, or while the server refuses them.
const RETRY_MS: u64 = 5;

/// A deadline that is farther away is looked at again then. When a timer was started by a timer, the event loop of the server's takes what is left
/// as an `int`: of microseconds in Redis 7.0, which ends at 35 minutes, and of milliseconds in Redis up to 8.6 and Valkey up to 8.0, which
/// ends at 24 days. Beyond that it would come round to a moment that has passed, and the server would not sleep any more
/// (redis/redis#12474, valkey-io/valkey#1057).
const LONGEST_DELAY_MS: u64 = 30 * 60 * 1000;

struct Armed {
    timer: TimerId,
    due_us: u64,
}

static ARMED: MainThread<Option<Armed>> = MainThread::new(None);

/// Whether the timer went off in this turn of the event loop.
static HAS_RUN: AtomicBool = AtomicBool::new(false);

/// A turn of the server's event loop begins.
pub(crate) fn begin_turn() {
    HAS_RUN.store(false, Ordering::Relaxed);
}

/// Arms the timer for the next deadline, if it is not armed for an earlier moment.
pub(crate) fn arm() {
    arm_for(state::with_engine(|engine| engine.next_timeout_us()).flatten());
}

/// Arms the timer for a deadline that is known.
pub(crate) fn arm_for(due_us: Option<u64>) {
    if let Some(due_us) = due_us {
        arm_at(due_us);
    }
}

/// Arms the timer for right after what is going on.
pub(crate) fn arm_soon() {
    arm_at(0);
}

fn arm_at(due_us: u64) {
    ARMED.with(|armed| {
        if let Some(armed) = armed
            && armed.due_us <= due_us
        {
            return;
        }
        if let Some(armed) = armed.take() {
            ffi::stop_timer(armed.timer);
        }
        let delay_ms = due_us.saturating_sub(clock::mono_us()).div_ceil(US_PER_MS);
        let delay_ms = i64::try_from(delay_ms.min(LONGEST_DELAY_MS)).unwrap_or(0);
        *armed = ffi::start_timer(delay_ms).map(|timer| Armed { timer, due_us });
        turn::expect_more();
    });
}

/// The server's regular tick: a timer that is overdue was delayed by a step of the wall clock.
pub(crate) fn on_tick(ctx: Ctx<'_>) {
    let overdue = ARMED.with(|armed| armed.as_ref().is_some_and(|armed| armed.due_us < clock::mono_us()));
    if overdue == Some(true) {
        disarm();
        on_timer(ctx);
    }
}

fn disarm() {
    ARMED.with(|armed| {
        if let Some(armed) = armed.take() {
            ffi::stop_timer(armed.timer);
        }
    });
}

/// The timer went off, or should have.
pub(crate) fn on_timer(ctx: Ctx<'_>) {
    ARMED.with(|armed| *armed = None);
    if HAS_RUN.swap(true, Ordering::Relaxed) {
        // There the server has read the clock anew.
        ffi::arm_in_next_turn();
        return;
    }
    let flags = ctx.flags();
    let start_us = clock::mono_us();
    if flags.is_loading() {
        return retry(start_us);
    }
    state::tell(Engine::begin_turn);
    if flags.is_master() && (ctx.is_paused() || server::refuses_writes(ctx)) {
        return if end_waits() { arm_soon() } else { retry(start_us) };
    }
    let is_done = if flags.is_master() { run(start_us, || run_next(ctx)) } else { run(start_us, || observe_next(ctx)) };
    if is_done && flags.is_master() {
        arm();
    } else if state::with_engine(|engine| engine.has_to_observe()) == Some(true) {
        arm_soon();
    }
}

fn retry(start_us: u64) {
    arm_at(start_us.saturating_add(RETRY_MS.saturating_mul(US_PER_MS)));
}

/// While nothing may be granted, for nobody knows how long, whoever waits is answered when its time is over. Returns whether there are more of them than
/// can be answered in one turn.
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
            arm_soon();
            return false;
        }
    }
    true
}

/// Does the next thing that is due. `false` if there is none, or if enough was done for now.
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

/// Leaves a key alone that another node of the cluster serves, or none at the moment. Its waiters are the server's, which
/// sends them MOVED; when there is nothing left of it here, it is forgotten.
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

/// What a replica does with the keys that it was told of: it keeps their alarms for the day when it is promoted, and
/// decides nothing.
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
