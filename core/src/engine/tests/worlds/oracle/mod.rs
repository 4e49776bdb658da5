//! Simple oracles of the locks: each lock of the core has one, and both must agree.
//!
//! [`mutex`], [`read_write`], [`semaphore`] and [`fair`] describe one kind each: what it admits,
//! which requests it grants ahead of the queue, and which owners its waiters wait for. The first
//! three are an [`Oracle`], a list of holds and a queue of waiters:
//!
//! - [`kinds`]: the interface of these modules;
//! - [`wish`]: the options of ACQUIRE;
//! - [`line`]: the waiters, and the one loop that serves the queue from its head;
//! - [`holds`]: grants, releases and renewals;
//! - [`kept`]: locks that a former owner keeps closed;
//! - [`repeats`]: retries with REQ and ONCE;
//! - [`sessions`]: holds that end with a connection;
//! - [`unheard`]: undone grants, whose answers did not arrive;
//! - [`events`]: server events, processed later;
//! - [`circles`]: deadlocks over several locks;
//! - [`several`]: the interface for several locks.
//!
//! A fair lock is a holder and a queue of places, which outlive connections: [`fair`] with
//! [`fair_asking`], [`fair_places`], [`fair_hold`] and [`fair_leaving`].
//!
//! Due work happens only with a request for the lock, with a use of a hold after a server event,
//! and with the timer.
//!
//! `verify/fuzz/` uses these files too. They know nothing of the engine, and use only modes and
//! request verbs of the crate.

pub(crate) mod circles;
mod events;
pub(crate) mod fair;
pub(crate) mod fair_asking;
mod fair_hold;
mod fair_leaving;
pub(crate) mod fair_places;
pub(crate) mod holds;
pub(crate) mod kept;
mod kinds;
pub(crate) mod line;
mod mutex;
mod read_write;
pub(crate) mod repeats;
mod semaphore;
mod sessions;
pub(crate) mod several;
mod unheard;
pub(crate) mod wish;

use std::vec::Vec;

use self::holds::Held;
use self::kept::Kept;
pub(crate) use self::kinds::Kind;
use self::line::InLine;
use self::semaphore::Idle;
use self::unheard::Grant;

/// The answer to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Told {
    Granted,
    Nil,
    Waits,
    Superseded,
    Cancelled,
    Deadlock,
    /// The request has an earlier number, or one that another request has used.
    Stale,
    Refused,
    /// It has timed out, and waits for a removed semaphore: either answer is correct.
    NilOrRefused,
    NotOwner,
    Left(u32),
    /// This number of permits; negative if more are in use than there are.
    Free(i64),
}

/// Replaces an ambiguous answer with the oracle's, so that the answers can be compared.
pub(crate) fn accept_what_is_open<Who: PartialEq>(told: &mut [(Who, Told)], expected: &[(Who, Told)]) {
    for (who, _) in expected.iter().filter(|(_, told)| *told == Told::NilOrRefused) {
        let is_either = |one: &&mut (Who, Told)| one.0 == *who && matches!(one.1, Told::Nil | Told::Refused);
        if let Some(either) = told.iter_mut().find(is_either) {
            either.1 = Told::NilOrRefused;
        }
    }
}

/// A mutex, a read-write lock or a semaphore.
#[derive(Clone)]
pub(crate) struct Oracle {
    kind: Kind,
    pub(crate) holds: Vec<Held>,
    pub(crate) kept: Option<Kept>,
    idle: Option<Idle>,
    pub(crate) line: Vec<InLine>,
    /// Unconfirmed grants after a wait.
    unheard: Vec<Grant>,
    /// Owners whose hold ended before its grant was confirmed, and that have a new hold since. When
    /// they disconnect, the lock gets an event.
    over: Vec<u8>,
    /// Grants to undo, whose answers will not arrive.
    undone: Vec<Grant>,
    /// There are unprocessed server events.
    is_told: bool,
    /// A server command removed the value, or the server was promoted, and the lock was not
    /// reviewed since: waiters here wait for no owner.
    is_gone: bool,
    /// The answers to waiters.
    pub(crate) answers: Vec<(u8, Told)>,
}

impl Oracle {
    /// Creates a lock without holds.
    pub(crate) fn new(kind: Kind) -> Self {
        let (holds, line, answers) = (Vec::new(), Vec::new(), Vec::new());
        let (unheard, over, undone) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            kind,
            holds,
            kept: None,
            idle: None,
            line,
            unheard,
            over,
            undone,
            is_told: false,
            is_gone: false,
            answers,
        }
    }
}
