//! A request begins to wait, if there is room and its owner would not wait for itself.

use smallvec::SmallVec;

use super::deadlock;
use super::positions::Rank;
use super::state::Engine;
use super::transaction::Transaction;
use super::waiter::{Entrant, RequestNames};
use crate::keyspace::Keyspace;
use crate::request::{Refusal, Request};

impl Engine {
    /// Whether one more request may wait. Waits that are cut off take no room: as many of them as it needs are ended now.
    pub(super) fn check_waiters(&mut self, tx: &mut Transaction<'_, impl Keyspace>) -> Result<(), Refusal> {
        let limit = tx.limits.max_waiters;
        while self.queues.len() >= limit {
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
        rank: Rank,
        arrival: u64,
    ) -> u64 {
        let names: RequestNames = tx.ids().map(|id| self.intern(tx.keys.key(id))).collect();
        let are_first: SmallVec<[bool; 1]> = names.iter().map(|name| self.queues.len_under(*name) == 0).collect();
        let entrant = Entrant {
            names: names.clone(),
            rank,
            arrival,
            owner,
            request: *request,
            note: tx.note,
            client: tx.keys.client(),
        };
        let ticket = self.queues.enter(entrant, tx.now);
        for ((id, name), is_first) in tx.ids().zip(names).zip(are_first) {
            if is_first {
                self.copy_holders(tx.keys, id, name);
            } else {
                self.copy_own_holds(tx.keys, id, name, owner);
            }
        }
        ticket
    }

    /// Refuses a request that has just entered its queues, and takes it out again, if its owner would wait for itself once its
    /// requests in `ends` have ended. If the searches of this turn have used their steps up, the timer looks.
    pub(super) fn check_deadlock(
        &mut self,
        tx: &Transaction<'_, impl Keyspace>,
        ticket: u64,
        ends: &[u64],
    ) -> Result<(), Refusal> {
        let checked = deadlock::check(self, ticket, ends, tx.now);
        match checked {
            deadlock::Outcome::NoCycle => Ok(()),
            deadlock::Outcome::Cycle(cycle) => {
                self.withdraw(ticket);
                Err(Refusal::Deadlock(cycle))
            }
            deadlock::Outcome::NotNow => {
                self.suspect(ticket);
                Ok(())
            }
        }
    }

    /// Takes back a request of which nobody was told.
    pub(super) fn withdraw(&mut self, ticket: u64) {
        if let Some(waiter) = self.queues.leave(ticket) {
            self.queues.owners.tidy(waiter.owner);
        }
    }
}
