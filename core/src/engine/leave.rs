//! A wait that ends without a grant.

use alloc::boxed::Box;

use super::state::{Engine, Transaction};
use super::statistics::count;
use super::waiter::Waiter;
use super::work::CHANGE;
use crate::keyspace::Keyspace;
use crate::kind::Kind;
use crate::outbox::Answer;

impl Engine {
    /// Takes a waiter that is not granted out of its queues. The other keys of a request for several have a queue to serve.
    pub(super) fn remove(&mut self, ticket: u64) -> Option<Waiter> {
        let waiter = self.queues.leave(ticket)?;
        for name in &waiter.names {
            if waiter.is_many() {
                self.mark(*name, |_| {});
            }
        }
        self.queues.owners.tidy(waiter.owner);
        if waiter.is_many() {
            // It was taken out of the queue of each of its keys. What is lacking for that ends the turn.
            self.work.take_whole(u32::try_from(waiter.names.len()).unwrap_or(u32::MAX).saturating_mul(CHANGE));
        }
        Some(waiter)
    }

    /// What there is to note of a waiter that is about to go: of its place on a fair lock.
    pub(super) fn gone(&self, waiter: &Waiter, gave_up: bool) -> Option<(Box<[u8]>, Option<u64>)> {
        let has_place = waiter.request().kind == Kind::Fair;
        has_place.then(|| (self.queues.owner_of(waiter).into(), gave_up.then_some(waiter.arrival)))
    }

    /// Answers a waiter that is not granted.
    pub(super) fn answer(&mut self, tx: &mut Transaction<'_, impl Keyspace>, ticket: u64, answer: Answer) {
        let waiter = self.remove(ticket);
        if let Some(request) = waiter.as_ref().map(Waiter::request) {
            match &answer {
                Answer::TimedOut => count(&mut self.stats.of(request.kind).timed_out),
                Answer::Refused(refusal) => self.stats.count_refusal(request.kind, refusal),
                Answer::Closed | Answer::Lapsed | Answer::Demoted | Answer::Moved => {
                    count(&mut self.stats.of(request.kind).disconnected);
                }
                Answer::Granted(_)
                | Answer::GrantedMany(_)
                | Answer::Superseded
                | Answer::Continued
                | Answer::Cancelled => {}
            }
        }
        tx.out.answer(ticket, waiter.and_then(|waiter| waiter.notice()), answer);
    }
}
