//! What locks do, as plainly as it can be said: beside each lock of the core stands one of these, and both have to come to the same.
//!
//! What is special to a kind is a page: [`mutex`], [`read_write`], [`semaphore`] and [`fair`] say what it admits, whom it lets pass, and for
//! whom its waiters wait. The first three are an [`Oracle`], a list of holds and a line of waiters:
//!
//! - [`kinds`]: what is asked of these pages;
//! - [`wish`]: what ACQUIRE asks for;
//! - [`line`]: who waits, and the one loop that serves the line from its head;
//! - [`holds`]: what is granted, given back and renewed;
//! - [`kept`]: locks that a former owner keeps closed;
//! - [`repeats`]: requests that are sent again, by REQ and ONCE;
//! - [`sessions`]: holds that end with a connection;
//! - [`unheard`]: grants that are taken back, because nobody has heard of them;
//! - [`events`]: what the server tells, to be acted upon later;
//! - [`circles`]: who waits for itself, over several locks;
//! - [`several`]: what is asked of one of them.
//!
//! A fair lock is a holder and a line of places, which outlive connections: [`fair`] with [`fair_asking`], [`fair_places`], [`fair_hold`]
//! and [`fair_leaving`].
//!
//! Nothing is done by the way: what is due is done when somebody asks for the lock, when somebody uses a hold after the server has told
//! something, and when the timer goes off.
//!
//! `verify/fuzz/` uses these files too: they know nothing of the engine, and of the crate only modes, and verbs of requests.

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

/// What somebody is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Told {
    Granted,
    Nil,
    Waits,
    Superseded,
    Cancelled,
    Deadlock,
    /// An earlier request, or another one with a number that was used.
    Stale,
    Refused,
    /// Its time is over, and it waits for what is not there any more: which of both it is told is open.
    NilOrRefused,
    NotOwner,
    Left(u32),
    /// So many permits; fewer than none if more are in use than there are.
    Free(i64),
}

/// Says what was open as the oracle does, so that the answers can be compared.
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
    /// Grants after a wait of which it is not known that they were heard.
    unheard: Vec<Grant>,
    /// Of these, whose hold was over before anybody heard of it, and who holds anew: when they leave, the lock is told something.
    over: Vec<u8>,
    /// Grants that nobody will hear of, to be taken back.
    undone: Vec<Grant>,
    /// The server has told something that was not acted upon.
    is_told: bool,
    /// A command of the server's has removed the value, or the server has taken over, and the lock was not looked at since: nobody waits here for
    /// anybody.
    is_gone: bool,
    /// What waiters were answered.
    pub(crate) answers: Vec<(u8, Told)>,
}

impl Oracle {
    /// A lock that nobody holds.
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
