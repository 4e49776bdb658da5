//! The one exit of a wait that ends without a grant, whatever the reason.

use super::state::Engine;
use super::statistics::count;
use super::transaction::Transaction;
use super::waiter::Waiter;
use super::work::CHANGE;
use crate::keyspace::Keyspace;
use crate::kind::Kind;
use crate::outbox::{Answer, Outbox};

/// What becomes of the place that the waiter has on a fair lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PlaceAfter {
    /// The caller, which has the key open, sees to it.
    Open,
    /// The owner keeps it for the grace, from when the key is reconciled.
    Kept,
    /// The owner gives it up, when the key is reconciled.
    GivenUp,
}

impl Engine {
    /// Takes a waiter out of its queues and counts why. Unless the caller has its key open, the next command on the key, or the timer, serves the queue.
    pub(super) fn end_wait(&mut self, ticket: u64, why: &Answer, place: PlaceAfter) -> Option<Waiter> {
        let waiter = self.queues.leave(ticket)?;
        let kind = waiter.request().kind;
        match why {
            Answer::TimedOut => count(&mut self.stats.of(kind).timed_out),
            Answer::Refused(refusal) => self.stats.count_refusal(kind, refusal),
            Answer::Closed | Answer::Lapsed | Answer::Demoted | Answer::Moved => {
                count(&mut self.stats.of(kind).disconnected);
            }
            Answer::Granted(_)
            | Answer::GrantedMany(_)
            | Answer::Superseded
            | Answer::Continued
            | Answer::Cancelled => {}
        }
        if waiter.is_many() {
            // It left the queue of each of its keys. If the budget is too small for that, the turn ends.
            self.work.take_or_end_turn(u32::try_from(waiter.names.len()).unwrap_or(u32::MAX).saturating_mul(CHANGE));
            for name in &waiter.names {
                self.mark(*name, |_| {});
            }
        } else if let Some(name) = waiter.names.first().filter(|_| place != PlaceAfter::Open) {
            let gave_up = (place == PlaceAfter::GivenUp).then_some(waiter.arrival);
            let gone = (kind == Kind::Fair).then(|| (self.queues.owner_of(&waiter).into(), gave_up));
            self.mark(*name, |dirty| dirty.gone.extend(gone));
        }
        self.queues.owners.tidy(waiter.owner);
        Some(waiter)
    }

    /// Answers a waiter that is not granted, in a transaction with its key.
    pub(super) fn answer(&mut self, tx: &mut Transaction<'_, impl Keyspace>, ticket: u64, answer: Answer) {
        let waiter = self.end_wait(ticket, &answer, PlaceAfter::Open);
        tx.out.answer(ticket, waiter.and_then(|waiter| waiter.notice()), answer);
    }

    /// The same without its key.
    pub(super) fn answer_unopened(&mut self, out: &mut Outbox, ticket: u64, answer: Answer, place: PlaceAfter) {
        let waiter = self.end_wait(ticket, &answer, place);
        out.answer(ticket, waiter.and_then(|waiter| waiter.notice()), answer);
    }
}
