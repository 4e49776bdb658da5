//! Blocked clients: from the block to the answer.
//!
//! Invariant: the table has a ticket from the moment its client is blocked until the answer is in
//! the client's buffer, or the client has disconnected. So each handle in the table is valid.
//!
//! Redis before 7.4 and Valkey 7.2 ask for the answer of a client within the command that hands
//! over the lock. If that command is a long script, they send the answer before the effects are
//! propagated. On these servers the module unblocks clients at the end of the turn. Valkey 8.0 and
//! newer also ask for the answer within the command, but hold it back until the end of the turn.

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
    /// The answer, once the engine has given it.
    answer: Option<Answer>,
    /// The server has the answer, and holds it back.
    is_held_back: bool,
}

/// The blocked clients by ticket. A hash table would rehash all entries when it grows, and keep its
/// memory when they are gone; a tree does neither.
static WAITING: MainThread<BTreeMap<u64, Waiting>> = MainThread::new(BTreeMap::new());

/// The tickets to unblock at the end of the turn.
static DUE: MainThread<Vec<u64>> = MainThread::new(Vec::new());

/// Blocks the client of this command under `ticket`.
///
/// `false` if the server refuses, which is reported to the engine, or if the wait is over already:
/// a listener of this command's keyspace events may have changed the lock.
pub(crate) fn start(ctx: Ctx<'_>, key: Arg<'_>, ticket: u64) -> bool {
    if state::with_engine(|engine| engine.is_waiting(ticket)) != Some(true) {
        return false;
    }
    match ffi::block(ctx, key, ticket) {
        Some(handle) => {
            let waiting = Waiting { handle, answer: None, is_held_back: false };
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
        let waiting = table.get_mut(&ticket).filter(|waiting| !waiting.is_held_back)?;
        waiting.answer = Some(answer);
        Some(waiting.handle)
    });
    match handle.flatten() {
        Some(_) if ffi::answers_at_once() => {
            DUE.with(|due| due.push(ticket));
            turn::expect_more();
        }
        Some(handle) => ffi::unblock(handle),
        // The client has disconnected: the engine undoes its grant.
        None => left(ticket, false),
    }
}

/// The turn ends: unblocks the clients that the engine has answered in it.
pub(crate) fn on_turn_end() {
    for ticket in DUE.with(mem::take).unwrap_or_default() {
        // The client may have disconnected meanwhile.
        let handle = WAITING.with(|table| table.get(&ticket).map(|waiting| waiting.handle)).flatten();
        if let Some(handle) = handle {
            ffi::unblock(handle);
        }
    }
}

/// The server asks for the answer of a ticket, because of `finish` or CLIENT UNBLOCK … TIMEOUT.
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

/// The answer of a ticket, if it has one. The outer `None` says that the server has asked before.
fn take_answer(table: &mut BTreeMap<u64, Waiting>, ticket: u64) -> Option<Option<Answer>> {
    if !ffi::holds_answers_back() {
        return Some(table.remove(&ticket)?.answer);
    }
    let waiting = table.get_mut(&ticket).filter(|waiting| !waiting.is_held_back)?;
    waiting.is_held_back = true;
    Some(waiting.answer.take())
}

/// The client of a ticket has disconnected. Does nothing if it got its answer before.
pub(crate) fn on_disconnected(ticket: u64) {
    if WAITING.with(|table| table.remove(&ticket)).flatten().is_some() {
        left(ticket, false);
    }
}

/// The server has freed the handle of a ticket. If the client `is_connected`, an answer that was
/// held back is in its buffer now.
pub(crate) fn on_freed(ticket: u64, is_connected: bool) {
    let waiting = WAITING.with(|table| table.remove(&ticket)).flatten();
    if waiting.is_some_and(|waiting| !(waiting.is_held_back && is_connected)) {
        left(ticket, false);
    }
}

/// Whether the answer of a ticket is in its client's buffer, or was sent.
pub(crate) fn is_answered(ticket: u64) -> bool {
    WAITING.with(|table| !table.contains_key(&ticket)).unwrap_or(false)
}

/// Reports to the engine that a waiter has left. `gave_up` means that it got nil.
fn left(ticket: u64, gave_up: bool) {
    state::tell(|engine| engine.waiter_left(ticket, gave_up));
    timer::arm_soon();
}
