//! The outbox: side effects of a request.

use alloc::vec::Vec;
use core::ffi::CStr;
use core::mem;

use smallvec::SmallVec;

use crate::event::Event;
use crate::keyspace::KeyId;
use crate::request::{Channel, Refusal};
use crate::time::US_PER_MS;

/// The tokens of a request's keys, in key order.
pub type Tokens = SmallVec<[u64; 1]>;

/// A granted request, as its owner learns of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The tokens.
    pub tokens: Tokens,
    /// Whether the request is a MACQUIRE, which may have a single key.
    pub is_many: bool,
    /// How long it can be believed, with `TIMED` or `NOTIFY`.
    pub belief: Option<Belief>,
}

/// For how long an owner can believe in a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belief {
    /// When the server received the request: at or after the owner sent it.
    pub from_us: u64,
    /// When the first of the holds ends.
    pub until_us: u64,
}

impl Belief {
    /// The milliseconds from the sending of the request, rounded down. Whatever delays the answer,
    /// a belief that ends this long after the sending ends before the holds.
    #[must_use]
    pub fn ms(self) -> u64 {
        self.until_us.saturating_sub(self.from_us) / US_PER_MS
    }
}

/// The answer to a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Granted.
    Granted(Grant),
    /// It timed out.
    TimedOut,
    /// A newer request of the same owner waits for a key of this one, or has taken its place.
    Superseded,
    /// The same request was sent again with the same channel and gets the answer, so nothing is
    /// published for this one.
    Continued,
    /// CANCEL ended it.
    Cancelled,
    /// The connection that asked has closed.
    Closed,
    /// It was granted, and the hold ended before the answer was sent.
    Ended,
    /// This server is a replica now.
    Demoted,
    /// Its shard channel has lost its listeners, nearly always because another node of the cluster
    /// serves its keys now.
    Moved,
    /// It was refused: the value cannot serve it, it would wait for itself, its user lost the
    /// permission, or no token is left.
    Refused(Refusal),
}

/// A change of a lock, to propagate ([`Outbox::event`]) and to publish as a keyspace event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The changed key.
    pub key: KeyId,
    /// The keyspace event to publish.
    pub keyspace_event: Option<&'static CStr>,
    /// Whether the change clears an EXPIRE that a user has set on the key: see
    /// [`crate::Value::clears_expire`].
    pub clears_expire: bool,
}

/// Where to publish the answer to a notified waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The channel.
    pub channel: Channel,
    /// The id of the request.
    pub id: u64,
    /// The connection that asked.
    pub client: u64,
}

/// An answer to a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The ticket from [`crate::Acquired::Waiting`].
    pub ticket: u64,
    /// The answer.
    pub answer: Answer,
    /// Where to publish it; `None` if the connection is blocked.
    pub notice: Option<Notice>,
    /// The number of effects before it.
    pub after: usize,
}

/// The side effects of a request, which the module carries out after the engine has returned:
/// effects, and answers to waiters, each in order.
#[derive(Debug)]
pub struct Outbox {
    effects: SmallVec<[Effect; 1]>,
    /// The events of the effects, in the same order. Separate because they are large and often not
    /// needed.
    events: SmallVec<[Event; 1]>,
    answers: Vec<Told>,
    keeps_events: bool,
}

impl Outbox {
    /// Creates an empty outbox. It keeps events only if `keeps_events`, for propagation.
    #[must_use]
    pub fn new(keeps_events: bool) -> Self {
        Self { effects: SmallVec::new(), events: SmallVec::new(), answers: Vec::new(), keeps_events }
    }

    /// The effects.
    #[must_use]
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }

    /// The event of an effect. `None` if events are not propagated.
    #[must_use]
    pub fn event(&self, number: usize) -> Option<&Event> {
        self.events.get(number)
    }

    /// The answers.
    #[must_use]
    pub fn answers(&self) -> &[Told] {
        &self.answers
    }

    /// Takes out the answers, to send them.
    pub fn take_answers(&mut self) -> Vec<Told> {
        mem::take(&mut self.answers)
    }

    #[inline(always)]
    pub(crate) fn effect(&mut self, key: KeyId, event: &Event, clears_expire: bool) {
        self.effects.push(Effect { key, keyspace_event: event.keyspace_event(), clears_expire });
        if self.keeps_events {
            self.events.push(event.clone());
        }
    }

    /// Whether an effect clears the EXPIRE of a key.
    pub(crate) fn clears_expire(&self, key: KeyId) -> bool {
        self.effects.iter().any(|effect| effect.key == key && effect.clears_expire)
    }

    pub(crate) fn answer(&mut self, ticket: u64, notice: Option<Notice>, answer: Answer) {
        self.answers.push(Told { ticket, answer, notice, after: self.effects.len() });
    }
}
