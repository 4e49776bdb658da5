//! One timer of the server's behind all deadlines.
//!
//! It is armed for the next deadline of the engine. `jobs` does the work when it goes off.
//!
//! The server's timers run on the wall clock, so `jobs` looks at the clock that never steps. The server's regular tick asks
//! [`stop_overdue`], so that no step of the wall clock delays anything for longer than a tick. Arming the timer anew would not
//! do: the server sleeps until the earliest of all modules' timers, and it does not see that the clock has jumped beyond that one.

use rlock_core::US_PER_MS;

use crate::clock;
use crate::ffi::{self, MainThread, TimerId};
use crate::state;
use crate::turn;

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

/// Arms the timer for a moment of the clock that never steps.
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

/// The timer went off.
pub(crate) fn went_off() {
    ARMED.with(|armed| *armed = None);
}

/// Stops the timer if it is overdue, which means that a step of the wall clock has delayed it. Returns whether it was.
pub(crate) fn stop_overdue() -> bool {
    let overdue = ARMED.with(|armed| armed.take_if(|armed| armed.due_us < clock::mono_us()));
    let Some(armed) = overdue.flatten() else {
        return false;
    };
    ffi::stop_timer(armed.timer);
    true
}
