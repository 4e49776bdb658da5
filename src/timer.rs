//! One timer of the server for all deadlines.
//!
//! It is armed for the next deadline of the engine. When it fires, `jobs` does the work.
//!
//! The server's timers run on the wall clock, so `jobs` compares deadlines with the steady clock.
//! The server's tick calls [`stop_overdue`], so a step of the wall clock delays nothing for longer
//! than a tick. Arming the timer again would not be enough: the server sleeps until the earliest
//! timer of all modules, and does not notice that the clock has jumped past it.

use rlock_core::US_PER_MS;

use crate::clock;
use crate::ffi::{self, MainThread, TimerId};
use crate::state;
use crate::turn;

/// The longest delay of the timer. For a later deadline the timer fires early, and the module arms
/// it again.
///
/// If a timer callback starts a timer, the server's event loop stores the delay in an `int`: in
/// microseconds in Redis 7.0, which overflows after 35 minutes; in milliseconds in Redis up to 8.6
/// and Valkey up to 8.0, which overflows after 24 days. The delay would wrap around to the past,
/// and the server would no longer sleep (redis/redis#12474, valkey-io/valkey#1057).
const LONGEST_DELAY_MS: u64 = 30 * 60 * 1000;

struct Armed {
    timer: TimerId,
    due_us: u64,
}

static ARMED: MainThread<Option<Armed>> = MainThread::new(None);

/// Arms the timer for the engine's next deadline, unless it is armed for an earlier one.
pub(crate) fn arm() {
    arm_for(state::with_engine(|engine| engine.next_timeout_us()).flatten());
}

/// Arms the timer for a deadline, if there is one.
pub(crate) fn arm_for(due_us: Option<u64>) {
    if let Some(due_us) = due_us {
        arm_at(due_us);
    }
}

/// Arms the timer to fire as soon as possible.
pub(crate) fn arm_soon() {
    arm_at(0);
}

/// Arms the timer for a time of the steady clock, unless it is armed for an earlier one.
pub(crate) fn arm_at(due_us: u64) {
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

/// The timer has fired.
pub(crate) fn fired() {
    ARMED.with(|armed| *armed = None);
}

/// Stops the timer if it is overdue because a step of the wall clock delayed it. Returns whether it
/// was.
pub(crate) fn stop_overdue() -> bool {
    let overdue = ARMED.with(|armed| armed.take_if(|armed| armed.due_us < clock::mono_us()));
    let Some(armed) = overdue.flatten() else {
        return false;
    };
    ffi::stop_timer(armed.timer);
    true
}
