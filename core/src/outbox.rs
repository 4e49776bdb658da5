//! What a request leaves to be done outside.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::mem;

use smallvec::SmallVec;

use crate::event::Event;
use crate::keyspace::KeyId;
use crate::request::{Channel, Refusal};

/// What a waiter is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It holds now, with this token.
    Granted(u64),
    /// It holds every key that it asked for, with these tokens, in the order of its keys.
    GrantedMany(Box<[u64]>),
    /// Its time is over.
    TimedOut,
    /// A newer request of the same owner waits for a key of this one, or has taken its place.
    Superseded,
    /// The same request was sent again, for the same channel, and is answered in its place: there is nothing to tell.
    Continued,
    /// It was ended by CANCEL.
    Cancelled,
    /// The connection that asked has closed.
    Closed,
    /// It was granted, and the lease ended before it could be told.
    Expired,
    /// This server is a replica now.
    Demoted,
    /// Another node of the cluster serves its keys now.
    Moved,
    /// What lies under the name now cannot serve it.
    Refused(Refusal),
}

/// Something that happened to a lock: to be propagated ([`Outbox::event`]), and told to the keyspace's listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The key that it is about.
    pub key: KeyId,
    /// What the keyspace's listeners are told.
    pub keyspace_event: Option<&'static CStr>,
    /// Whether an EXPIRE that a user has set on the key is cleared: see [`crate::Value::clears_expire`].
    pub clears_expire: bool,
}

/// Where the answer to a request goes that waits without a blocked connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The channel on which it is published.
    pub channel: Channel,
    /// The id of the request.
    pub id: u64,
    /// The connection that asked.
    pub client: u64,
    /// How long a hold lasts that begins with its grant: the lease, or the claim.
    pub lasts_ms: u64,
}

/// An answer to a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The ticket that [`crate::Acquired::Waiting`] gave.
    pub ticket: u64,
    /// What to tell.
    pub answer: Answer,
    /// Where to publish it; `None` for a connection that is blocked.
    pub notice: Option<Notice>,
    /// How many effects came before it.
    pub after: usize,
}

/// What a request leaves to be done outside, after the engine returned: effects, and answers to waiters, each in order.
#[derive(Debug)]
pub struct Outbox {
    effects: SmallVec<[Effect; 1]>,
    /// What happened, in the same order. Kept apart because it is large, and mostly there is none.
    events: SmallVec<[Event; 1]>,
    answers: Vec<Told>,
    is_heard: bool,
}

impl Outbox {
    /// An outbox with nothing in it. `is_heard` tells that events are to be propagated; otherwise they are not kept.
    #[must_use]
    pub fn new(is_heard: bool) -> Self {
        Self { effects: SmallVec::new(), events: SmallVec::new(), answers: Vec::new(), is_heard }
    }

    /// What happened.
    #[must_use]
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }

    /// What happened in the effect with a number. `None` if nobody wants to have it propagated.
    #[must_use]
    pub fn event(&self, number: usize) -> Option<&Event> {
        self.events.get(number)
    }

    /// What waiters are to be told.
    #[must_use]
    pub fn answers(&self) -> &[Told] {
        &self.answers
    }

    /// The answers, to be given.
    pub fn take_answers(&mut self) -> Vec<Told> {
        mem::take(&mut self.answers)
    }

    #[inline(always)]
    pub(crate) fn effect(&mut self, key: KeyId, event: &Event, clears_expire: bool) {
        self.effects.push(Effect { key, keyspace_event: event.keyspace_event(), clears_expire });
        if self.is_heard {
            self.events.push(event.clone());
        }
    }

    pub(crate) fn answer(&mut self, ticket: u64, notice: Option<Notice>, answer: Answer) {
        self.answers.push(Told { ticket, answer, notice, after: self.effects.len() });
    }
}
