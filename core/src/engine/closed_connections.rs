//! What a connection leaves that has closed: sessions end, and places of a fair lock are kept for a grace or given up. Grants that it has not heard
//! of are taken back in `undo.rs`.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Engine;
use super::transaction::At;
use crate::budget::CHANGE;
use crate::event::{ChangeCause, Event, LeaveCause, Terms};
use crate::keyspace::Keyspace;
use crate::place::Stay;
use crate::registry::NameId;

impl Engine {
    /// Unbinds holds from connections that have closed, and ends the sessions of those that are bound to no other.
    pub(super) fn end_sessions(&mut self, at: &mut At<'_, '_, impl Keyspace>, unbound: &mut Vec<(u64, u64)>) {
        while !unbound.is_empty() && self.budget.take(CHANGE) {
            let Some((token, client)) = unbound.pop() else {
                return;
            };
            if at.clients(token).contains(&client) {
                self.unbind(at, token, client);
                if at.is_unbound(token) {
                    self.end_session(at, token);
                }
            }
        }
    }

    /// Brings the deadline of a hold that lost its last connection nearer.
    pub(super) fn end_session(&mut self, at: &mut At<'_, '_, impl Keyspace>, token: u64) {
        let Some(terms) = at.terms_of(token) else {
            return;
        };
        let Some(session_ms) = terms.session_ms else {
            return;
        };
        let deadline_us = terms.deadline_us.min(at.now.after_ms(session_ms));
        if deadline_us < terms.deadline_us {
            let terms = Terms { deadline_us, ..terms };
            self.commit(at, Event::Changed { token, cause: ChangeCause::SessionEnded, terms });
        }
    }

    /// The places of waiters of a fair lock that are gone: who got nil gives its place up, the others keep theirs for a grace.
    pub(super) fn release_places(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        name: NameId,
        gone: &mut BTreeMap<Box<[u8]>, Option<u64>>,
    ) {
        while !gone.is_empty() && self.budget.take(CHANGE) {
            let Some((owner, gave_up)) = gone.pop_first() else {
                return;
            };
            self.release_abandoned(at, name, &owner, gave_up);
        }
    }

    fn release_abandoned(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        name: NameId,
        owner: &[u8],
        gave_up: Option<u64>,
    ) {
        if let Some(request_id) = self.abandoned(at, name, owner, gave_up) {
            self.release_place(at, owner, request_id, gave_up.is_some());
        }
    }

    /// Brings the place of an owner that asks for a fair lock up to date, whatever the allowance has left to be done: who was answered nil, or whose
    /// place is over, has none any more.
    pub(super) fn release_own_place(&mut self, at: &mut At<'_, '_, impl Keyspace>, owner: &[u8]) {
        let Some(name) = self.name(at) else {
            return;
        };
        if let Some(gave_up) = self.registry.dirty_mut(name).and_then(|dirty| dirty.gone.remove(owner)) {
            self.budget.take_or_end_turn(CHANGE);
            self.release_abandoned(at, name, owner, gave_up);
        }
        let Some(lock) = at.lock() else {
            return;
        };
        // A waiter keeps its place, even if `rejoin` has not marked it as connected yet.
        let waits = self.registry.own_place(owner, name).is_some();
        if !waits && lock.place(owner).is_some_and(|place| !place.is_live(at.now)) {
            self.budget.take_or_end_turn(CHANGE);
            self.commit(at, Event::Left { owner: owner.into(), cause: LeaveCause::Expired });
        }
    }

    pub(super) fn release_place(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        owner: &[u8],
        request_id: Option<u64>,
        gave_up: bool,
    ) {
        let Some(lock) = at.lock() else {
            return;
        };
        let own_ms = lock.place(owner).and_then(|place| place.grace_ms);
        let grace_ms = own_ms.unwrap_or(at.limits.fair_grace_ms);
        let owner = owner.into();
        let event = match grace_ms {
            _ if gave_up => Event::Left { owner, cause: LeaveCause::TimedOut },
            0 => Event::Left { owner, cause: LeaveCause::Expired },
            _ => {
                let stay = Stay::Grace { until_us: at.now.after_ms(grace_ms) };
                Event::Kept { owner, stay, request_id, grace_ms: own_ms }
            }
        };
        self.commit(at, event);
    }

    /// Whether no connection of an owner waits any more at its place: one that is connected, or that of the waiter with this arrival, which has been
    /// cut off from its connection since. And the id of the request that it stands for.
    fn abandoned(
        &self,
        at: &At<'_, '_, impl Keyspace>,
        name: NameId,
        owner: &[u8],
        gave_up: Option<u64>,
    ) -> Option<Option<u64>> {
        let place = at.lock()?.place(owner)?;
        let is_left = match place.stay {
            Stay::Connected => true,
            Stay::Grace { .. } => gave_up == Some(place.arrival),
            Stay::Polled { .. } => false,
        };
        let waits = self.registry.own_place(owner, name).is_some();
        (is_left && !waits).then_some(place.request_id)
    }
}
