//! The other requests with which an owner waits for what it holds now: they are re-entries, and need not wait.

use alloc::vec::Vec;

use super::dirty::Siblings;
use super::positions::{NameId, Position};
use super::state::{Engine, Transaction};
use super::work::{ANSWER, CHANGE};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::{Kind, Mode};
use crate::lock::admission::{self, Ahead, Decision, Value};

impl Engine {
    /// Grants the other requests with which an owner waits for what it holds now: they are re-entries. A writer's READ is granted
    /// as well, as if it asked now. On a semaphore each request is one of its own, unless it says `ONCE`.
    pub(super) fn grant_siblings(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        owner: &[u8],
        mode: Mode,
    ) {
        let Some(name) = self.name(tx, id) else {
            return;
        };
        for mode in mode.covers() {
            self.grant_siblings_behind(tx, id, name, (owner, *mode), None);
        }
        if mode == Mode::Permits && self.queues.asks_once(owner) {
            self.grant_siblings_behind(tx, id, name, (owner, mode), None);
        }
    }

    fn grant_siblings_behind(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        name: NameId,
        (owner, mode): (&[u8], Mode),
        behind: Option<Position>,
    ) {
        let mut behind = behind;
        while let Some(owner_id) = self.queues.owners.find(owner)
            && let Some(position) = self.queues.next_of_owner(owner_id, name, mode, behind)
        {
            let Some(request) = self.queues.get(position.ticket).map(|waiter| waiter.request) else {
                return;
            };
            let is_passed = mode == Mode::Permits && !request.is_once;
            // On a fair lock it is one at most, and its place must not be made anew beside the hold.
            if request.kind != Kind::Fair && !self.work.take(if is_passed { CHANGE } else { ANSWER }) {
                let left = Siblings { owner: owner.into(), mode, behind };
                return self.mark(name, |dirty| dirty.granted.push(left));
            }
            behind = Some(position);
            if !is_passed {
                self.grant_sibling(tx, id, position.ticket, false);
            }
        }
    }

    /// Goes on with those that were left to the timer, if their owner still holds.
    pub(super) fn go_on_with_siblings(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        name: NameId,
        left: &mut Vec<Siblings>,
    ) {
        for Siblings { owner, mode, behind } in core::mem::take(left) {
            let covers = |held: &Mode| *held == mode || held.covers().contains(&mode);
            let lock = if let Value::Lock(lock) = tx.keys.value(id) { Some(lock) } else { None };
            let holds = |held| lock.is_some_and(|lock| lock.live_hold(&owner, held, tx.now).is_some());
            if Mode::ALL.into_iter().filter(covers).any(holds) {
                self.grant_siblings_behind(tx, id, name, (&owner, mode), behind);
            }
        }
    }

    /// Grants a request of an owner that holds already, wherever it stands.
    pub(super) fn grant_sibling(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        ticket: u64,
        freed: bool,
    ) {
        if self.end_if_out(tx, id, ticket) {
            return;
        }
        let Some(waiter) = self.queues.get(ticket) else {
            return;
        };
        if waiter.is_many() {
            return self.offer(tx, ticket, freed);
        }
        let owner = self.queues.owner_of(waiter);
        match admission::decide(tx.keys.value(id), Ahead::default(), owner, &waiter.request, tx.now) {
            Decision::Wait => {}
            decision => {
                self.serve(tx, id, ticket, decision);
            }
        }
    }
}
