//! Clients that wait: from the block to the answer.
//!
//! A ticket is in the table from the moment its client is blocked until the answer stands in the client's buffer or the client is gone,
//! whichever comes first; so a handle in the table is valid.
//!
//! Redis before 7.4 lets a client go within the command that hands it the lock, and if that command is a script which goes on for long, sends the
//! answer before anything is propagated. There the clients are let go when the turn ends. Valkey asks for the answer within the command as
//! well, but keeps it back until the turn ends.

use std::collections::BTreeMap;
use std::mem;

use rlock_core::Answer;

use crate::ffi::{self, Arg, Blocked, Ctx, MainThread};
use crate::reply;
use crate::state;
use crate::timer;
use crate::turn;

struct Waiting {
    handle: Blocked,
    /// What to answer, once that is known.
    answer: Option<Answer>,
    /// The server was told the answer, and keeps it back.
    is_kept_back: bool,
}

/// By their tickets. A tree, because a hash table rehashes all that wait when one more comes, and keeps its memory when they are gone.
static WAITING: MainThread<BTreeMap<u64, Waiting>> = MainThread::new(BTreeMap::new());

/// Tickets whose clients are to be let go when the turn ends.
static DUE: MainThread<Vec<u64>> = MainThread::new(Vec::new());

/// Blocks the client of this command under `ticket`. `false` if the server does not want to, or if a listener of the
/// events of this very command has changed the lock so that the ticket was served already; the engine has been told.
pub(crate) fn start(ctx: Ctx<'_>, key: Arg<'_>, ticket: u64) -> bool {
    if state::with_engine(|engine| engine.is_waiting(ticket)) != Some(true) {
        return false;
    }
    match ffi::block(ctx, key, ticket) {
        Some(handle) => {
            let waiting = Waiting { handle, answer: None, is_kept_back: false };
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
        let waiting = table.get_mut(&ticket).filter(|waiting| !waiting.is_kept_back)?;
        waiting.answer = Some(answer);
        Some(waiting.handle)
    });
    match handle.flatten() {
        Some(_) if ffi::answers_at_once() => {
            DUE.with(|due| due.push(ticket));
            turn::expect_more();
        }
        Some(handle) => ffi::unblock(handle),
        // It is gone: the engine takes back what it was granted.
        None => left(ticket, false),
    }
}

/// The turn ends: lets those go that were to wait for it.
pub(crate) fn on_turn_end() {
    for ticket in DUE.with(mem::take).unwrap_or_default() {
        // Its client may have gone meanwhile.
        let handle = WAITING.with(|table| table.get(&ticket).map(|waiting| waiting.handle)).flatten();
        if let Some(handle) = handle {
            ffi::unblock(handle);
        }
    }
}

/// The server asks for the answer of a ticket: because of `finish`, or because of CLIENT UNBLOCK … TIMEOUT.
pub(crate) fn on_answer(ctx: Ctx<'_>, ticket: u64) {
    let Some(answer) = WAITING.with(|table| take_answer(table, ticket)).flatten() else {
        return;
    };
    match answer {
        Some(answer) => reply::answer(ctx, answer),
        None => {
            ctx.reply_nil();
            left(ticket, true);
        }
    }
}

/// What there is to answer. `None` if the server has asked before.
fn take_answer(table: &mut BTreeMap<u64, Waiting>, ticket: u64) -> Option<Option<Answer>> {
    if !ffi::keeps_answers_back() {
        return Some(table.remove(&ticket)?.answer);
    }
    let waiting = table.get_mut(&ticket).filter(|waiting| !waiting.is_kept_back)?;
    waiting.is_kept_back = true;
    Some(waiting.answer.take())
}

/// The client of a ticket is gone, if it was not answered before.
pub(crate) fn on_gone(ticket: u64) {
    if WAITING.with(|table| table.remove(&ticket)).flatten().is_some() {
        left(ticket, false);
    }
}

/// The server has forgotten a ticket. What it kept back stands in the client's buffer now, if the client `is_there`.
pub(crate) fn on_freed(ticket: u64, is_there: bool) {
    let waiting = WAITING.with(|table| table.remove(&ticket)).flatten();
    if waiting.is_some_and(|waiting| !(waiting.is_kept_back && is_there)) {
        left(ticket, false);
    }
}

/// Whether the answer of a ticket stands in its client's buffer, or was sent.
pub(crate) fn is_answered(ticket: u64) -> bool {
    WAITING.with(|table| !table.contains_key(&ticket)).unwrap_or(false)
}

/// Tells the engine that a waiter is gone; `gave_up` that it was answered nil.
fn left(ticket: u64, gave_up: bool) {
    state::tell(|engine| engine.waiter_left(ticket, gave_up));
    timer::arm_soon();
}
