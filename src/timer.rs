//! One timer of the server's behind all deadlines.
//!
//! It is armed for the next deadline of the engine. The server's timers run on the wall clock, so the callback looks at
//! the clock that never steps; and the server's regular tick arms the timer anew when something is overdue, so that a
//! backward step of the wall clock delays nothing for longer than a tick.

use rlock_core::{Outbox, Output, US_PER_MS};

use crate::clock;
use crate::execute::{self, KEY};
use crate::ffi::{self, Ctx, Keys, MainThread, TimerId};
use crate::state;
use crate::waiting;

/// How long one run may take before other clients get their turn.
const BUDGET_US: u64 = 2_000;

/// How long to wait while nothing may be decided: during a load, or a pause of writes.
const RETRY_MS: u64 = 5;

struct Armed {
    timer: TimerId,
    due_us: u64,
}

static ARMED: MainThread<Option<Armed>> = MainThread::new(None);

/// Arms the timer for the next deadline, if it is not armed for an earlier moment.
pub(crate) fn arm() {
    if let Some(due_us) = state::peek_engine(rlock_core::Engine::next_deadline_us).flatten() {
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
        let delay_ms = i64::try_from(delay_ms).unwrap_or(i64::MAX);
        *armed = ffi::start_timer(delay_ms).map(|timer| Armed { timer, due_us });
    });
}

/// The server's regular tick: a timer that is overdue was delayed by a step of the wall clock.
pub(crate) fn on_tick() {
    let overdue = ARMED.with(|armed| armed.as_ref().is_some_and(|armed| armed.due_us < clock::mono_us()));
    if overdue == Some(true) {
        disarm();
        arm_soon();
    }
}

fn disarm() {
    ARMED.with(|armed| {
        if let Some(armed) = armed.take() {
            ffi::stop_timer(armed.timer);
        }
    });
}

/// The timer went off.
pub(crate) fn on_timer(ctx: Ctx<'_>) {
    ARMED.with(|armed| *armed = None);
    let flags = ctx.flags();
    let start_us = clock::mono_us();
    if flags.is_loading() || (flags.is_master() && ctx.is_paused()) {
        arm_at(start_us.saturating_add(RETRY_MS.saturating_mul(US_PER_MS)));
        return;
    }
    let step = if flags.is_master() { settle_next } else { observe_next };
    while step(ctx) {
        if clock::mono_us().saturating_sub(start_us) >= BUDGET_US {
            arm_soon();
            return;
        }
    }
    if flags.is_master() {
        arm();
    }
}

/// Settles the next key that is due. `false` if there is none.
fn settle_next(ctx: Ctx<'_>) -> bool {
    let now = clock::now();
    let mut out = Outbox::default();
    let next = state::with_engine(|engine| engine.next_due(now, &mut out));
    for output in out.drain() {
        if let Output::Answer { ticket, answer } = output {
            waiting::finish(ticket, answer);
        }
    }
    let Some(key) = next.flatten() else {
        return false;
    };
    if ctx.select_db(key.db) {
        let name = ctx.string(key.name.as_slice());
        execute::on_key(ctx, name.arg(), |engine, turn| engine.settle_key(turn, KEY));
    }
    true
}

/// What a replica does with the keys that it was told of: it keeps their alarms for the day when it is promoted, and
/// decides nothing.
fn observe_next(ctx: Ctx<'_>) -> bool {
    let Some(key) = state::with_engine(rlock_core::Engine::next_pending).flatten() else {
        return false;
    };
    if ctx.select_db(key.db) {
        let name = ctx.string(key.name.as_slice());
        let mut keys = Keys::open_to_read(ctx, name.arg());
        state::with_engine(|engine| engine.observe(&mut keys, KEY));
    }
    true
}
