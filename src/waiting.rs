//! Clients that wait: from the block to the answer.
//!
//! A ticket is in the table from the moment its client is blocked until the answer is written or the client is gone,
//! whichever comes first; so a handle in the table is valid.

use std::collections::BTreeMap;

use rlock_core::Answer;

use crate::ffi::{self, Arg, Blocked, Ctx, MainThread};
use crate::reply;
use crate::state;
use crate::timer;

struct Waiting {
    handle: Blocked,
    /// What to answer, once that is known.
    answer: Option<Answer>,
}

/// By their tickets. A tree, because a hash table rehashes all that wait when one more comes, and keeps its memory when they are gone.
static WAITING: MainThread<BTreeMap<u64, Waiting>> = MainThread::new(BTreeMap::new());

/// Blocks the client of this command under `ticket`. `false` if the server does not want to, or if a listener of the
/// events of this very command has changed the lock so that the ticket was served already; the engine has been told.
pub(crate) fn start(ctx: Ctx<'_>, key: Arg<'_>, ticket: u64) -> bool {
    if state::with_engine(|engine| engine.is_waiting(ticket)) != Some(true) {
        return false;
    }
    match ffi::block(ctx, key, ticket) {
        Some(handle) => {
            let waiting = Waiting { handle, answer: None };
            WAITING.with(|table| table.insert(ticket, waiting));
            true
        }
        None => {
            left(ticket, true);
            false
        }
    }
}

/// Answers a waiter.
pub(crate) fn finish(ticket: u64, answer: Answer) {
    let handle = WAITING.with(|table| {
        let waiting = table.get_mut(&ticket)?;
        waiting.answer = Some(answer);
        Some(waiting.handle)
    });
    match handle.flatten() {
        Some(handle) => ffi::unblock(handle),
        // It is gone: the engine takes back what it was granted.
        None => left(ticket, false),
    }
}

/// The server asks for the answer of a ticket: because of `finish`, or because of CLIENT UNBLOCK … TIMEOUT.
pub(crate) fn on_answer(ctx: Ctx<'_>, ticket: u64) {
    let Some(waiting) = WAITING.with(|table| table.remove(&ticket)).flatten() else {
        return;
    };
    match waiting.answer {
        Some(answer) => reply::answer(ctx, answer),
        None => {
            ctx.reply_nil();
            left(ticket, true);
        }
    }
}

/// The client of a ticket is gone, if it was not answered before.
pub(crate) fn on_gone(ticket: u64) {
    if WAITING.with(|table| table.remove(&ticket)).flatten().is_some() {
        left(ticket, false);
    }
}

/// The server has forgotten a ticket. `unheard` tells that its client did not hear its answer, even if one was written.
pub(crate) fn on_freed(ticket: u64, unheard: bool) {
    on_gone(ticket);
    if unheard {
        left(ticket, false);
    }
}

/// Whether the answer of a ticket was written.
pub(crate) fn is_answered(ticket: u64) -> bool {
    WAITING.with(|table| !table.contains_key(&ticket)).unwrap_or(false)
}

/// Tells the engine that a waiter is gone; `gave_up` that it was answered nil.
fn left(ticket: u64, gave_up: bool) {
    state::tell(|engine| engine.waiter_left(ticket, gave_up));
    timer::arm_soon();
}
