//! Cleans up after closed connections: ends sessions, and keeps places of a fair lock for the grace
//! or gives them up. `undo.rs` undoes the grants whose answers a connection did not receive.

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
    /// Unbinds holds from closed connections, and ends the session of each hold that is then bound
    /// to none.
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

    /// Shortens the lease of a hold to its `SESSION` time, because its last connection has closed.
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

    /// Releases the places of fair-lock waiters that have left. A waiter that timed out gives up
    /// its place; any other keeps it for the grace.
    pub(super) fn release_places(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        name: NameId,
        gone: &mut BTreeMap<Box<[u8]>, Option<u64>>,
    ) {
        while !gone.is_empty() && self.budget.take(CHANGE) {
            let Some((owner, timed_out)) = gone.pop_first() else {
                return;
            };
            self.release_abandoned(at, name, &owner, timed_out);
        }
    }

    fn release_abandoned(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        name: NameId,
        owner: &[u8],
        timed_out: Option<u64>,
    ) {
        if let Some(request_id) = self.abandoned_request(at, name, owner, timed_out) {
            self.release_place(at, owner, request_id, timed_out.is_some());
        }
    }

    /// Brings the place of an owner that asks for a fair lock up to date, even beyond the budget.
    /// The owner loses the place if its wait timed out or the place has expired.
    pub(super) fn release_own_place(&mut self, at: &mut At<'_, '_, impl Keyspace>, owner: &[u8]) {
        let Some(name) = self.name(at) else {
            return;
        };
        if let Some(timed_out) = self.registry.dirty_mut(name).and_then(|dirty| dirty.gone.remove(owner)) {
            self.budget.take_or_end_turn(CHANGE);
            self.release_abandoned(at, name, owner, timed_out);
        }
        let Some(lock) = at.lock() else {
            return;
        };
        // A waiter keeps its place, even if `rejoin` has not marked it as connected yet.
        let waits = self.registry.own_place(owner, name).is_some();
        let until_us = lock.place(owner).filter(|place| !place.is_live(at.now)).and_then(|place| place.stay.until_us());
        if !waits && until_us.is_some_and(|until_us| !self.begins_again(at, until_us)) {
            self.budget.take_or_end_turn(CHANGE);
            self.commit(at, Event::Left { owner: owner.into(), cause: LeaveCause::Expired });
        }
    }

    pub(super) fn release_place(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        owner: &[u8],
        request_id: Option<u64>,
        timed_out: bool,
    ) {
        let Some(lock) = at.lock() else {
            return;
        };
        let own_ms = lock.place(owner).and_then(|place| place.grace_ms);
        let grace_ms = own_ms.unwrap_or(at.limits.fair_grace_ms);
        let owner = owner.into();
        let event = match grace_ms {
            _ if timed_out => Event::Left { owner, cause: LeaveCause::TimedOut },
            0 => Event::Left { owner, cause: LeaveCause::Expired },
            _ => {
                let stay = Stay::Grace { until_us: at.now.after_ms(grace_ms) };
                Event::Kept { owner, stay, request_id, grace_ms: own_ms }
            }
        };
        self.commit(at, event);
    }

    /// The request id of an abandoned place; `None` if the place is not abandoned. A place is
    /// abandoned if no request of its owner waits there although it is marked as connected. A
    /// detached place is abandoned if it was that of the timed-out waiter with the arrival number
    /// `timed_out`.
    fn abandoned_request(
        &self,
        at: &At<'_, '_, impl Keyspace>,
        name: NameId,
        owner: &[u8],
        timed_out: Option<u64>,
    ) -> Option<Option<u64>> {
        let place = at.lock()?.place(owner)?;
        let is_left = match place.stay {
            Stay::Connected => true,
            Stay::Grace { .. } => timed_out == Some(place.arrival),
            Stay::Polled { .. } => false,
        };
        let waits = self.registry.own_place(owner, name).is_some();
        (is_left && !waits).then_some(place.request_id)
    }
}
