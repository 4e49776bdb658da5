//! The begin and the end of a wait. `serve.rs` ends a wait with a grant.

use super::Engine;
use super::acquire::Standing;
use super::transaction::Transaction;
use crate::budget::{ANSWER, CHANGE, PARTS_PER_CHANGE};
use crate::keyspace::Keyspace;
use crate::kind::Kind;
use crate::outbox::{Answer, Outbox};
use crate::registry::{Entrant, Left, Outcome, RequestNames, Waiter, search_deadlock};
use crate::request::{Channel, Refusal, Request};
use crate::statistics::count;
use crate::time::Now;

/// What becomes of the waiter's place on a fair lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PlaceAfter {
    /// The caller has the key open and handles the place.
    Open,
    /// The owner keeps the place for the grace, from when the key is reconciled.
    Kept,
    /// The owner gives up the place when the key is reconciled.
    GivenUp,
}

impl Engine {
    /// Checks that one more request may wait. Cut-off waits do not count: ends as many of them as
    /// necessary.
    pub(super) fn check_waiters(&mut self, tx: &mut Transaction<'_, impl Keyspace>) -> Result<(), Refusal> {
        let limit = tx.limits.max_waiters;
        while self.registry.waiting() >= limit {
            if !self.end_next_cut_off(tx.out) {
                return Err(Refusal::MaxWaiters { limit });
            }
        }
        Ok(())
    }

    /// Puts a request into the queue of each of its keys.
    pub(super) fn enter(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
        Standing { rank, arrival, since_us, .. }: Standing,
    ) -> u64 {
        let names: RequestNames = tx.ids().map(|id| self.intern(tx.keys.key(id))).collect();
        let entrant = Entrant {
            names: names.clone(),
            rank,
            arrival,
            owner,
            request: *request,
            note: tx.note,
            client: tx.keys.client(),
            since_us,
        };
        let ticket = self.registry.enter(entrant);
        for (id, name) in tx.ids().zip(names) {
            if self.registry.len_under(name) == 1 {
                self.copy_holders(tx.keys, id, name);
            }
        }
        ticket
    }

    /// Refuses and removes a request that has just entered its queues, if its owner would wait for
    /// itself. `ends` are the tickets of the owner's requests that the new one ends; they count as
    /// ended. If the searches of this turn have used up their steps, the timer searches.
    pub(super) fn check_deadlock(
        &mut self,
        tx: &Transaction<'_, impl Keyspace>,
        ticket: u64,
        ends: &[u64],
    ) -> Result<(), Refusal> {
        match self.search_deadlock(ticket, ends, tx.now) {
            Outcome::NoCycle => Ok(()),
            Outcome::Cycle(cycle) => {
                // This wait was never reported, so it is not counted as ended.
                self.registry.leave(ticket);
                Err(Refusal::Deadlock(cycle))
            }
            Outcome::NotNow => {
                self.suspect(ticket);
                Ok(())
            }
        }
    }

    /// Searches for a cycle that a waiter closes.
    pub(super) fn search_deadlock(&mut self, ticket: u64, ends: &[u64], now: Now) -> Outcome {
        let steps_left = self.budget.search_steps();
        let (outcome, steps) = search_deadlock(&self.registry, ticket, ends, now, steps_left);
        self.budget.take_search_steps(steps);
        outcome
    }

    /// The only exit of a wait that ends without a grant: removes the waiter from its queues and
    /// counts the reason. Unless the caller has its key open, the next command on the key, or the
    /// timer, serves the queue.
    pub(super) fn end_wait(&mut self, ticket: u64, why: &Answer, place: PlaceAfter) -> Option<Waiter> {
        let Left { waiter, owner } = self.registry.leave(ticket)?;
        let kind = waiter.request().kind;
        match why {
            Answer::TimedOut => count(&mut self.stats.of(kind).timed_out),
            Answer::Refused(refusal) => self.stats.count_refusal(kind, refusal),
            Answer::Closed | Answer::Ended | Answer::Demoted | Answer::Moved => {
                count(&mut self.stats.of(kind).disconnected);
            }
            Answer::Granted(_) | Answer::Superseded | Answer::Continued | Answer::Cancelled => {}
        }
        if waiter.is_many() {
            // It left the queue of each of its keys. If the budget is too small for that, the turn
            // ends.
            self.budget
                .take_or_end_turn(u32::try_from(waiter.names().len()).unwrap_or(u32::MAX).saturating_mul(CHANGE));
            for name in waiter.names() {
                self.mark(*name, |_| {});
            }
        } else if let Some(name) = waiter.names().first().filter(|_| place != PlaceAfter::Open) {
            let timed_out = (place == PlaceAfter::GivenUp).then_some(waiter.arrival());
            let gone = (kind == Kind::Fair).then(|| (owner.as_slice().into(), timed_out));
            self.mark(*name, |dirty| dirty.gone.extend(gone));
        }
        Some(waiter)
    }

    /// Answers a waiter that is not granted, in a transaction with its key.
    pub(super) fn answer(&mut self, tx: &mut Transaction<'_, impl Keyspace>, ticket: u64, answer: Answer) {
        self.answer_with(tx.out, ticket, answer, PlaceAfter::Open);
    }

    /// Answers a waiter that is not granted, while its key is not open.
    pub(super) fn answer_with(&mut self, out: &mut Outbox, ticket: u64, answer: Answer, place: PlaceAfter) {
        let waiter = self.end_wait(ticket, &answer, place);
        out.answer(ticket, waiter.and_then(|waiter| waiter.notice()), answer);
    }

    /// A shard channel has lost its listeners, nearly always because its slot moved to another
    /// node. Cuts off the waits whose answers would go there.
    pub fn channel_gone(&mut self, channel: Channel) {
        self.registry.notified_mut().channel_gone(channel);
    }

    /// Ends cut-off waits on a replica, as far as the budget goes. On a master the timer does it.
    pub fn end_cut_off(&mut self, out: &mut Outbox) {
        self.budget.begin_timer();
        while self.end_next_cut_off(out) {}
    }

    /// Whether cut-off waits have not ended yet.
    #[must_use]
    pub fn has_cut_off(&self) -> bool {
        self.registry.notified().has_work()
    }

    pub(super) fn end_next_cut_off(&mut self, out: &mut Outbox) -> bool {
        if !self.has_cut_off() || !self.budget.take(ANSWER) {
            return false;
        }
        // A scan for a channel mostly visits waits on other channels. The cost of one answer pays
        // for skipping this many.
        let mut looks = ANSWER.saturating_mul(PARTS_PER_CHANGE);
        let (ticket, answer) = loop {
            let Some(ticket) = self.registry.notified_mut().next() else {
                return false;
            };
            let waiter = self.registry.get(ticket);
            if let Some(answer) = waiter.and_then(|waiter| self.registry.cut_off(waiter)) {
                break (ticket, answer);
            }
            looks = looks.saturating_sub(1);
            if looks == 0 {
                return true;
            }
        };
        self.answer_with(out, ticket, answer, PlaceAfter::Kept);
        true
    }
}
