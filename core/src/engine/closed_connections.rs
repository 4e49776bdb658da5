//! What a connection leaves that has closed: sessions end, and places of a fair lock are kept for a grace or given up. Grants that it has not heard
//! of are taken back in `undo.rs`.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::positions::NameId;
use super::state::{Engine, Transaction, terms_of};
use super::work::CHANGE;
use crate::event::{ChangeCause, Event, LeaveCause, Terms};
use crate::keyspace::{KeyId, Keyspace};
use crate::lock::admission::Value;
use crate::place::Stay;

impl Engine {
    /// Unbinds holds from connections that have closed, and ends the sessions of those that are bound to no other.
    pub(super) fn end_sessions(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        unbound: &mut Vec<(u64, u64)>,
    ) {
        while !unbound.is_empty() && self.work.take(CHANGE) {
            let Some((token, client)) = unbound.pop() else {
                return;
            };
            if is_bound_to(tx.keys, id, token, |clients| clients.contains(&client)) {
                self.unbind(tx, id, token, client);
                if is_bound_to(tx.keys, id, token, <[u64]>::is_empty) {
                    self.end_session(tx, id, token);
                }
            }
        }
    }

    /// Brings the deadline of a hold that lost its last connection nearer.
    pub(super) fn end_session(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, token: u64) {
        let Some(terms) = terms_of(tx.keys, id, token) else {
            return;
        };
        let Some(session_ms) = terms.session_ms else {
            return;
        };
        let deadline_us = terms.deadline_us.min(tx.now.after_ms(session_ms));
        if deadline_us < terms.deadline_us {
            let terms = Terms { deadline_us, ..terms };
            self.commit(tx, id, Event::Changed { token, cause: ChangeCause::SessionEnded, terms });
        }
    }

    /// The places of waiters of a fair lock that are gone: who got nil gives its place up, the others keep theirs for a grace.
    pub(super) fn release_places(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        name: NameId,
        gone: &mut BTreeMap<Box<[u8]>, Option<u64>>,
    ) {
        while !gone.is_empty() && self.work.take(CHANGE) {
            let Some((owner, gave_up)) = gone.pop_first() else {
                return;
            };
            self.release_abandoned(tx, id, name, &owner, gave_up);
        }
    }

    fn release_abandoned(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        name: NameId,
        owner: &[u8],
        gave_up: Option<u64>,
    ) {
        if let Some(request_id) = self.abandoned(tx, id, name, owner, gave_up) {
            self.release_place(tx, id, owner, request_id, gave_up.is_some());
        }
    }

    /// Brings the place of an owner that asks for a fair lock up to date, whatever the allowance has left to be done: who was answered nil, or whose
    /// place is over, has none any more.
    pub(super) fn release_own_place(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, owner: &[u8]) {
        let Some(name) = self.name(tx, id) else {
            return;
        };
        let dirty = self.queues.names.get_mut(name).and_then(|record| record.dirty.as_mut());
        if let Some(gave_up) = dirty.and_then(|dirty| dirty.gone.remove(owner)) {
            self.work.take_or_end_turn(CHANGE);
            self.release_abandoned(tx, id, name, owner, gave_up);
        }
        let Value::Lock(lock) = tx.keys.value(id) else {
            return;
        };
        // A waiter keeps its place, even if `rejoin` has not marked it as connected yet.
        let waits = self.queues.own_place(owner, name).is_some();
        if !waits && lock.place(owner).is_some_and(|place| !place.is_live(tx.now)) {
            self.work.take_or_end_turn(CHANGE);
            self.commit(tx, id, Event::Left { owner: owner.into(), cause: LeaveCause::Lapsed });
        }
    }

    pub(super) fn release_place(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        owner: &[u8],
        request_id: Option<u64>,
        gave_up: bool,
    ) {
        let Value::Lock(lock) = tx.keys.value(id) else {
            return;
        };
        let own_ms = lock.place(owner).and_then(|place| place.grace_ms);
        let grace_ms = own_ms.unwrap_or(tx.limits.fair_grace_ms);
        let owner = owner.into();
        let event = match grace_ms {
            _ if gave_up => Event::Left { owner, cause: LeaveCause::TimedOut },
            0 => Event::Left { owner, cause: LeaveCause::Lapsed },
            _ => {
                let stay = Stay::Grace { until_us: tx.now.after_ms(grace_ms) };
                Event::Kept { owner, stay, request_id, grace_ms: own_ms }
            }
        };
        self.commit(tx, id, event);
    }

    /// Whether no connection of an owner waits any more at its place: one that is connected, or that of the waiter with this arrival, which has been
    /// cut off from its connection since. And the id of the request that it stands for.
    fn abandoned(
        &self,
        tx: &Transaction<'_, impl Keyspace>,
        id: KeyId,
        name: NameId,
        owner: &[u8],
        gave_up: Option<u64>,
    ) -> Option<Option<u64>> {
        let Value::Lock(lock) = tx.keys.value(id) else {
            return None;
        };
        let place = lock.place(owner)?;
        let is_left = match place.stay {
            Stay::Connected => true,
            Stay::Grace { .. } => gave_up == Some(place.arrival),
            Stay::Polled { .. } => false,
        };
        let waits = self.queues.own_place(owner, name).is_some();
        (is_left && !waits).then_some(place.request_id)
    }
}

/// Whether what is asked is so of the connections that a hold is bound to.
pub(super) fn is_bound_to(keys: &impl Keyspace, id: KeyId, token: u64, is_so: impl FnOnce(&[u64]) -> bool) -> bool {
    matches!(keys.value(id), Value::Lock(lock) if is_so(lock.clients(token)))
}
