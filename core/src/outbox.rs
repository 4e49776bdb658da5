//! What a request leaves to be done outside.

use alloc::boxed::Box;

use smallvec::SmallVec;

use crate::event::Event;
use crate::keyspace::KeyId;
use crate::request::Refusal;

/// What a waiter is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It holds now, with this token.
    Granted(u64),
    /// It holds every key that it asked for, with these tokens, in the order of its keys.
    GrantedMany(Box<[u64]>),
    /// Its time is over.
    TimedOut,
    /// The same owner asked again, and that request stands in its place.
    TakenOver,
    /// Its place was given up by CANCEL.
    Cancelled,
    /// What lies under the name now cannot serve it.
    Refused(Refusal),
}

/// Something to do outside, after the engine returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Propagate the event and tell the keyspace's listeners.
    Effect {
        /// The key that it is about.
        key: KeyId,
        /// What happened.
        event: Event,
    },
    /// Answer a waiter.
    Answer {
        /// The ticket that [`crate::Acquired::Waiting`] gave.
        ticket: u64,
        /// What to tell.
        answer: Answer,
    },
}

/// What a request leaves to be done, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    outputs: SmallVec<[Output; 2]>,
}

impl Outbox {
    /// What is to be done, in order; the outbox is empty afterwards.
    pub fn drain(&mut self) -> impl Iterator<Item = Output> + '_ {
        self.outputs.drain(..)
    }

    /// What is to be done, in order.
    #[must_use]
    pub fn as_slice(&self) -> &[Output] {
        &self.outputs
    }

    pub(crate) fn effect(&mut self, key: KeyId, event: Event) {
        self.outputs.push(Output::Effect { key, event });
    }

    pub(crate) fn answer(&mut self, ticket: u64, answer: Answer) {
        self.outputs.push(Output::Answer { ticket, answer });
    }
}
