//! One timer of the server's behind all deadlines.
//!
//! It is armed for the next deadline of the engine. The server's timers run on the wall clock, so the callback looks at
//! the clock that never steps; and the server's regular tick arms the timer anew when something is overdue, so that a
//! backward step of the wall clock delays nothing for longer than a tick.

use rlock_core::{Engine, Key, Keyspace, MAX_LEASE_MS, Outbox, Slot, US_PER_MS};

use crate::clock;
use crate::execute::{self, KEY};
use crate::ffi::{self, Arg, Ctx, Flags, Keys, MainThread, TimerId};
use crate::state;

/// How long one run may take before other clients get their turn.
const BUDGET_US: u64 = 2_000;

/// How long to wait while nothing may be decided: during a load, or a pause of writes.
const RETRY_MS: u64 = 5;

struct Armed {
    timer: TimerId,
    due_us: u64,
}

/// Keys that were due and could not be settled, because this node of the cluster does not serve them now.
static POSTPONED: MainThread<Vec<Key>> = MainThread::new(Vec::new());

static ARMED: MainThread<Option<Armed>> = MainThread::new(None);

/// Arms the timer for the next deadline, if it is not armed for an earlier moment.
pub(crate) fn arm() {
    if let Some(due_us) = state::peek_engine(Engine::next_deadline_us).flatten() {
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
        // The server counts in microseconds: a far deadline is looked at again in a year.
        let delay_ms = i64::try_from(delay_ms.min(MAX_LEASE_MS)).unwrap_or(0);
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
    if !flags.is_master() {
        run(start_us, || observe_next(ctx));
        return;
    }
    for key in POSTPONED.with(std::mem::take).unwrap_or_default() {
        state::with_engine(|engine| engine.note(key));
    }
    if run(start_us, || settle_next(ctx, flags)) {
        arm();
    }
    let postponed = POSTPONED.with(|postponed| postponed.len() as u64).unwrap_or(0);
    if postponed > 0 {
        // A cluster that is down postpones everything; then there is no hurry.
        let delay_ms = RETRY_MS.saturating_add(postponed / 100);
        arm_at(start_us.saturating_add(delay_ms.saturating_mul(US_PER_MS)));
    }
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

/// Settles the next key that is due. `false` if there is none.
fn settle_next(ctx: Ctx<'_>, flags: Flags) -> bool {
    let now = clock::now();
    let mut out = Outbox::default();
    let next = state::with_engine(|engine| engine.next_due(now, &mut out));
    execute::wake(&mut out);
    let Some(key) = next.flatten().or_else(state::next_loaded) else {
        return false;
    };
    if !ctx.select_db(key.db) {
        return true;
    }
    let name = ctx.string(key.name.as_slice());
    if flags.is_cluster() && !ctx.serves(name.arg()) {
        postpone(ctx, key, name.arg());
    } else {
        execute::settle(ctx, name.arg());
    }
    true
}

/// Leaves a key alone that another node of the cluster serves, or none at the moment. Its waiters are the server's, which
/// sends them MOVED; when there is nothing left of it here, it is forgotten.
fn postpone(ctx: Ctx<'_>, key: Key, name: Arg<'_>) {
    let mut keys = Keys::open_to_peek(ctx, name);
    let is_here = matches!(keys.slot(KEY), Slot::Lock(_));
    let is_waited_for = state::peek_engine(|engine| engine.waiting_on(key.borrow())) != Some(0);
    if is_here || is_waited_for {
        POSTPONED.with(|postponed| postponed.push(key));
    } else {
        state::with_engine(|engine| engine.observe(&mut keys, KEY));
    }
}

/// What a replica does with the keys that it was told of: it keeps their alarms for the day when it is promoted, and
/// decides nothing.
fn observe_next(ctx: Ctx<'_>) -> bool {
    let Some(key) = state::with_engine(Engine::next_pending).flatten().or_else(state::next_loaded) else {
        return false;
    };
    if ctx.select_db(key.db) {
        let name = ctx.string(key.name.as_slice());
        let mut keys = Keys::open_to_read(ctx, name.arg());
        state::with_engine(|engine| engine.observe(&mut keys, KEY));
    }
    true
}
