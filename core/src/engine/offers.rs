//! Offers: a MACQUIRE waiter at the head of one of its queues is *offered* its keys once all are
//! available. The grant follows at once, in a transaction in which all of the keys are open.

use alloc::vec::Vec;

use super::Engine;
use super::serve::granted_after_wait;
use super::transaction::Transaction;
use crate::backlog::Offer;
use crate::budget::{ANSWER, CHANGE};
use crate::bytes::{Key, KeyRef, Owner};
use crate::keyspace::{KeyId, Keyspace};
use crate::limits::MayGrant;
use crate::lock::admission::{self, Ahead, Decision};
use crate::outbox::{Answer, Tokens};
use crate::registry::{Left, NameId, Waiter};
use crate::request::Refusal;
use crate::statistics::count;

impl Engine {
    /// Offers a MACQUIRE waiter its keys, if all are available. Opens no key: the registry's copies
    /// of the holders show which keys are unavailable.
    pub(super) fn offer(&mut self, tx: &Transaction<'_, impl Keyspace>, ticket: u64, hold_ended: bool) {
        let Some(waiter) = self.registry.get(ticket) else {
            return;
        };
        if self.backlog.last_offer().is_some_and(|offer| offer.ticket == ticket) {
            // A command that frees several keys of this waiter would otherwise add an offer for
            // each.
            return;
        }
        let names = waiter.names();
        let from = waiter.blocked_by();
        let in_turn = (0..names.len()).map(|step| step.saturating_add(from).checked_rem(names.len()).unwrap_or(0));
        let is_blocked =
            |index: &usize| names.get(*index).is_some_and(|name| !self.is_available(tx, *name, ticket, waiter));
        match in_turn.clone().find(is_blocked) {
            Some(index) => self.registry.set_blocked_by(ticket, index),
            None => self.backlog.push_offer(Offer { ticket, hold_ended }),
        }
    }

    /// Whether the waiter's owner holds a key, or the key is free with the waiter first in its
    /// queue. `false` also if unknown: then the key is dirty or has an expired lease, and its
    /// reconciliation offers the keys again.
    fn is_available(&self, tx: &Transaction<'_, impl Keyspace>, name: NameId, ticket: u64, waiter: &Waiter) -> bool {
        if !self.registry.knows_holders(name) {
            return false;
        }
        let is_first = self.registry.first_position(name).is_some_and(|first| first.ticket == ticket);
        self.registry.is_held_by_owner(name, waiter, tx.now) || (self.registry.holders(name).is_empty() && is_first)
    }

    /// Whether there are offers.
    #[must_use]
    pub fn has_offers(&self) -> bool {
        self.backlog.first_offer().is_some()
    }

    /// The next offer, with the keys to open for [`Engine::take_offer`]. `None` also if
    /// `can_be_opened` rejects the first key, or if the budget of this turn is used up. All keys of
    /// an offer are in one database, and in a cluster in one slot. The timer takes the remaining
    /// offers.
    pub fn next_offer(&mut self, can_be_opened: impl FnOnce(KeyRef<'_>) -> bool) -> Option<(Offer, Vec<Key>)> {
        let (offer, waiter) = loop {
            let offer = self.backlog.first_offer()?;
            if let Some(waiter) = self.registry.get(offer.ticket) {
                break (offer, waiter);
            }
            self.backlog.pop_offer();
        };
        let keys = || waiter.names().iter().filter_map(|name| self.registry.key(*name));
        let changes = u32::try_from(waiter.names().len()).unwrap_or(u32::MAX).saturating_mul(CHANGE);
        if !keys().next().is_some_and(can_be_opened) || !self.budget.take_or_end_turn(changes.saturating_add(ANSWER)) {
            return None;
        }
        self.backlog.pop_offer();
        Some((offer, keys().map(KeyRef::to_key).collect()))
    }

    /// Grants a MACQUIRE waiter. Its keys are open, in the order of the request. If one of them
    /// turns out to be unavailable, the waiter keeps waiting.
    pub fn take_offer(&mut self, tx: &mut Transaction<'_, impl Keyspace>, offer: Offer) {
        self.budget.begin_timer();
        self.take_offer_of(tx, offer);
        self.close(tx);
    }

    fn take_offer_of(&mut self, tx: &mut Transaction<'_, impl Keyspace>, Offer { ticket, hold_ended }: Offer) {
        if self.answer_if_wait_ended(&mut tx.at(KeyId(0)), ticket) {
            return;
        }
        // When holds may begin again, the engine reviews the names of all waiters, which repeats
        // the offer.
        let Some(waiter) = self.registry.get(ticket).filter(|_| tx.limits.may_grant == MayGrant::Yes) else {
            return;
        };
        let (owner, request) = (Owner::from(self.registry.owner_of(waiter)), waiter.request());
        let mut decisions = Vec::with_capacity(tx.keys.count());
        for id in tx.ids() {
            let first = self.name(&mut tx.at(id)).and_then(|name| self.registry.first_position(name));
            let is_first = first.is_some_and(|first| first.ticket == ticket);
            let ahead = Ahead { any: !is_first, ..Ahead::default() };
            match admission::decide(tx.keys.value(id), ahead, owner.as_slice(), &request, tx.now) {
                Decision::Refuse(refusal) => return self.answer(tx, ticket, Answer::Refused(refusal)),
                Decision::Wait => return,
                _ if self.is_dirty_beyond_offers(&mut tx.at(id)) => {
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
        let Some(Left { waiter, .. }) = self.registry.leave(ticket) else {
            return;
        };
        let mut tokens = Tokens::with_capacity(decisions.len());
        for (id, decision) in tx.ids().zip(&decisions) {
            match self.grant_pending(&mut tx.at(id), ticket, owner.as_slice(), &waiter, decision) {
                Ok(token) => tokens.push(token),
                Err(refusal) => {
                    // Each key admitted the request above. If a grant fails nevertheless, the
                    // others are undone.
                    tx.out.answer(ticket, waiter.notice(), Answer::Refused(refusal));
                    return self.waiter_left(ticket, true);
                }
            }
        }
        self.stats.count_wait(waiter.request().kind, waiter.since_us(), tx.now);
        if hold_ended {
            count(&mut self.stats.of(waiter.request().kind).handed_over);
        }
        self.pending.expect(ticket, waiter.client(), waiter.request().notify.is_some());
        let grant = granted_after_wait(tx, &waiter, tx.ids(), tokens);
        tx.out.answer(ticket, waiter.notice(), Answer::Granted(grant));
    }
}
