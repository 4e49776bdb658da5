//! Grants a waiter for many keys, with all of them open.

use alloc::vec::Vec;

use super::offers::Offer;
use super::state::Engine;
use super::statistics::count;
use super::transaction::Transaction;
use crate::bytes::Owner;
use crate::keyspace::{KeyId, Keyspace};
use crate::lock::admission::{self, Ahead, Decision};
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
        if self.end_if_over(&mut tx.at(KeyId(0)), ticket) {
            return;
        }
        let Some(waiter) = self.queues.get(ticket) else {
            return;
        };
        let (owner, request) = (Owner::from(self.queues.owner_of(waiter)), waiter.request());
        let mut decisions = Vec::with_capacity(tx.keys.count());
        for id in tx.ids() {
            let is_first = self
                .name(&mut tx.at(id))
                .and_then(|name| self.queues.first(name))
                .is_some_and(|(first, _)| first == ticket);
            let ahead = Ahead { any: !is_first, ..Ahead::default() };
            match admission::decide(tx.keys.value(id), ahead, owner.as_slice(), &request, tx.now) {
                Decision::Refuse(refusal) => return self.answer(tx, ticket, Answer::Refused(refusal)),
                Decision::Wait => return,
                _ if self.is_unsettled(&mut tx.at(id)) => {
                    let name = self.intern(tx.keys.key(id));
                    return self.mark(name, |dirty| dirty.offers.push(ticket));
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
        let Some(waiter) = self.queues.leave(ticket) else {
            return;
        };
        let mut tokens = Vec::with_capacity(decisions.len());
        for (id, decision) in tx.ids().zip(&decisions) {
            match self.give(&mut tx.at(id), ticket, owner.as_slice(), &waiter, decision) {
                Ok(token) => tokens.push(token),
                Err(refusal) => {
                    // Each key has said that it admits the request. If that was not so, what was given is taken back.
                    tx.out.answer(ticket, waiter.notice(), Answer::Refused(refusal));
                    return self.waiter_left(ticket, true);
                }
            }
        }
        self.stats.count_wait(waiter.request().kind, waiter.since_us, tx.now);
        if freed {
            count(&mut self.stats.of(waiter.request().kind).handed_over);
        }
        self.pending.expect(ticket, waiter.client(), waiter.request().notify.is_some());
        tx.out.answer(ticket, waiter.notice(), Answer::GrantedMany(tokens.into()));
        self.queues.owners.tidy(waiter.owner);
    }
}
