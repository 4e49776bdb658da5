//! Grants a waiter for many keys, with all of them open.

use alloc::vec::Vec;

use super::dirty::Siblings;
use super::offers::Offer;
use super::positions::{NameId, Position};
use super::state::{Engine, Transaction};
use super::statistics::count;
use crate::bytes::Owner;
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::Mode;
use crate::lock::admission::{self, Ahead, Decision, Value};
use crate::outbox::Answer;
use crate::request::Refusal;

impl Engine {
    /// Grants a waiter for many keys, which are open in its order. If one of them turns out not to be to be had, it goes on
    /// waiting.
    pub fn take_offer(&mut self, tx: &mut Transaction<'_, impl Keyspace>, offer: Offer) {
        self.work.begin_timer();
        self.take_offer_of(tx, offer);
        self.close(tx);
    }

    fn take_offer_of(&mut self, tx: &mut Transaction<'_, impl Keyspace>, Offer { ticket, freed }: Offer) {
        if self.end_if_out(tx, KeyId(0), ticket) {
            return;
        }
        let Some(waiter) = self.queues.get(ticket) else {
            return;
        };
        let (owner, request) = (Owner::from(self.queues.owner_of(waiter)), waiter.request);
        let mut decisions = Vec::with_capacity(tx.keys.count());
        for id in tx.ids() {
            let is_first =
                self.name(tx, id).and_then(|name| self.queues.first(name)).is_some_and(|(first, _)| first == ticket);
            let ahead = Ahead { any: !is_first, ..Ahead::default() };
            match admission::decide(tx.keys.value(id), ahead, owner.as_slice(), &request, tx.now) {
                Decision::Refuse(refusal) => return self.answer(tx, ticket, Answer::Refused(refusal)),
                Decision::Wait => return,
                _ if self.is_unsettled(tx, id) => {
                    let name = self.intern(tx.keys.key(id));
                    return self.offer_again(name, ticket);
                }
                decision => decisions.push(decision),
            }
        }
        if !self.is_permitted(tx, ticket) {
            return self.answer(tx, ticket, Answer::Refused(Refusal::NoPermission));
        }
        if let Err(refusal) = self.check_tokens(tx, owner.as_slice(), &request) {
            return self.answer(tx, ticket, Answer::Refused(refusal));
        }
        let held_before: Vec<bool> = tx.ids().map(|id| self.holds(tx, id, owner.as_slice())).collect();
        let Some(waiter) = self.queues.leave_for_grant(ticket) else {
            return;
        };
        let mut tokens = Vec::with_capacity(decisions.len());
        for (id, decision) in tx.ids().zip(&decisions) {
            match self.give(tx, id, ticket, owner.as_slice(), &waiter, decision) {
                Ok(token) => tokens.push(token),
                Err(refusal) => {
                    // Each key has said that it admits the request. If that was not so, what was given is taken back.
                    tx.out.answer(ticket, waiter.notice(), Answer::Refused(refusal));
                    return self.waiter_left(ticket, true);
                }
            }
        }
        self.stats.count_wait(waiter.request.kind, waiter.since_us, tx.now);
        if freed {
            count(&mut self.stats.of(waiter.request.kind).handed_over);
        }
        self.expect_delivery(ticket, &waiter);
        tx.out.answer(ticket, waiter.notice(), Answer::GrantedMany(tokens.into()));
        for (id, held_before) in tx.ids().zip(held_before) {
            if !held_before {
                self.grant_siblings(tx, id, owner.as_slice(), Mode::Exclusive);
            }
        }
        self.queues.owners.tidy(waiter.owner);
    }

    /// Offers a waiter a key again when what the server has told of it was acted upon: that brings back the head of its queue,
    /// and who holds it already.
    fn offer_again(&mut self, name: NameId, ticket: u64) {
        let Some(waiter) = self.queues.get(ticket) else {
            return;
        };
        let siblings = just_before(self.queues.owner_of(waiter), waiter.position(ticket));
        self.mark(name, |dirty| dirty.granted.push(siblings));
    }

    fn holds(&self, tx: &Transaction<'_, impl Keyspace>, id: KeyId, owner: &[u8]) -> bool {
        matches!(tx.keys.value(id), Value::Lock(lock) if lock.live_hold(owner, Mode::Exclusive, tx.now).is_some())
    }
}

/// The requests of an owner from `position` on.
fn just_before(owner: &[u8], position: Position) -> Siblings {
    let behind = Position { ticket: position.ticket.saturating_sub(1), ..position };
    Siblings { owner: owner.into(), mode: Mode::Exclusive, behind: Some(behind) }
}
