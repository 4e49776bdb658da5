//! What a connection leaves that has closed: grants that it has not heard of are taken back, sessions end, and places of a fair
//! lock are kept for a grace or given up.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::dirty::{Dirty, Undelivered};
use super::positions::NameId;
use super::state::{Engine, Transaction, terms_of};
use super::statistics::count;
use super::work::CHANGE;
use crate::event::{ChangeCause, EndCause, Event, LeaveCause, Terms};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::{Kind, Mode};
use crate::lock::admission::Value;
use crate::place::Stay;

impl Engine {
    /// Takes back grants that nobody heard of, the latest first. Who has a share in a hold that would end, and may hear of it
    /// yet, takes the grant over.
    pub(super) fn undo(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, name: NameId, dirty: &mut Dirty) {
        while let Some(token) = dirty.undelivered.last().map(|grant| grant.token)
            && self.work.take(CHANGE)
        {
            let Some(grant) = pop_latest(&mut dirty.undelivered, terms_of(tx.keys, id, token).as_ref()) else {
                return;
            };
            if grant.is_known {
                dirty.known.insert(token);
            }
            let Some(terms) = terms_of(tx.keys, id, token).filter(|_| !dirty.heard.contains(&token)) else {
                continue;
            };
            let left = terms.count.saturating_sub(grant.count);
            if left == 0 && dirty.known.contains(&token) {
                continue;
            }
            if left == 0
                && let Some(sharer) = self.queues.undelivered_of(name, token)
            {
                self.queues.remember(sharer, name, grant);
                continue;
            }
            if !grant.is_share()
                && let Value::Lock(lock) = tx.keys.value(id)
            {
                count(&mut self.stats.of(lock.kind()).undone);
            }
            if left == 0 {
                self.give_place_back(tx, id, &grant);
                self.commit(tx, id, Event::Ended { token, cause: EndCause::Undone });
                continue;
            }
            self.undo_in_part(tx, id, &grant, terms, left);
        }
        if dirty.undelivered.is_empty() {
            dirty.heard.clear();
            dirty.known.clear();
        }
    }

    /// Takes a grant back that leaves something of its hold. What came later stands, and a deadline never comes nearer.
    fn undo_in_part(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        grant: &Undelivered,
        terms: Terms,
        left: u32,
    ) {
        if terms.deadline_us <= tx.now.mono_us {
            // It is over, and the deadline of the hold before would bring it back.
            return;
        }
        let token = grant.token;
        let client = grant.client.filter(|_| grant.has_bound);
        if let Some(client) = client {
            self.unbind(tx, id, token, client);
        }
        let before = grant.before_and_after.as_deref().map(|(before, _)| before);
        let undone = match before.filter(|_| grant.has_left(&terms)) {
            Some(before) => {
                Terms { count: left, deadline_us: terms.deadline_us.max(before.deadline_us), ..before.clone() }
            }
            None => {
                // Others have asked since. A number is nobody else's, and whoever asks with it again is to be granted anew.
                let is_own = grant.request.is_some() && grant.request == terms.request;
                let request = if is_own { before.and_then(|before| before.request) } else { terms.request };
                Terms { count: left, request, ..terms.clone() }
            }
        };
        // Only the end of a session makes a deadline come nearer: that of the grant, which goes with it, or that of the hold before.
        let has_ended = undone.deadline_us > terms.deadline_us;
        if undone != terms {
            self.commit(tx, id, Event::Changed { token, cause: ChangeCause::Released, terms: undone });
        }
        if (client.is_some() || has_ended) && is_bound_to(tx.keys, id, token, <[u64]>::is_empty) {
            // The other connections have closed meanwhile.
            self.end_session(tx, id, token);
        }
    }

    /// A grant that is taken back leaves its owner the place that it had on a fair lock: at the head, for a grace. One that has asked again since, when the
    /// hold was over, has a place already, and somebody may wait there.
    fn give_place_back(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, grant: &Undelivered) {
        let Value::Lock(lock) = tx.keys.value(id) else {
            return;
        };
        let hold = lock.hold_with_token(grant.token).filter(|_| lock.kind() == Kind::Fair);
        if let Some(hold) = hold.filter(|hold| lock.place(hold.owner().as_slice()).is_none()) {
            let (owner, request_id) = (hold.owner().clone(), hold.request().map(|request| request.id));
            let stay = Stay::Grace { until_us: tx.now.after_ms(tx.limits.fair_grace_ms) };
            self.commit(tx, id, Event::Queued { owner, stay, arrival: grant.arrival, request_id, at_head: true });
        }
    }

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
            self.work.take_whole(CHANGE);
            self.release_abandoned(tx, id, name, owner, gave_up);
        }
        let Value::Lock(lock) = tx.keys.value(id) else {
            return;
        };
        if lock.place(owner).is_some_and(|place| !place.is_live(tx.now)) {
            self.work.take_whole(CHANGE);
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
        let owner = owner.into();
        if gave_up {
            self.commit(tx, id, Event::Left { owner, cause: LeaveCause::TimedOut });
        } else {
            let stay = Stay::Grace { until_us: tx.now.after_ms(tx.limits.fair_grace_ms) };
            self.commit(tx, id, Event::Kept { owner, stay, request_id });
        }
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
        let waits = self.queues.first_of(owner, name, Mode::Exclusive).is_some();
        (is_left && !waits).then_some(place.request_id)
    }
}

impl Undelivered {
    /// Whether the terms of its hold are as this grant left them, but for their count and deadline: then nobody has asked since, or for the same.
    fn has_left(&self, terms: &Terms) -> bool {
        let what_is_said = |terms: &Terms| (terms.request, terms.session_ms, terms.lease_ms);
        self.before_and_after.as_deref().is_some_and(|(_, after)| what_is_said(after) == what_is_said(terms))
    }
}

/// How many lost grants are looked at for the latest one of a hold: more of one owner on one hold are lost together rarely.
const LOOKED_AT: usize = 16;

/// Takes out the last of some lost grants, or another one of the same hold if that came later: connections close in any order.
fn pop_latest(undelivered: &mut Vec<Undelivered>, terms: Option<&Terms>) -> Option<Undelivered> {
    let last = undelivered.last()?;
    let is_latest = |grant: &Undelivered| grant.token == last.token && terms.is_some_and(|terms| grant.has_left(terms));
    let behind = undelivered.iter().rev().take(LOOKED_AT).position(is_latest).unwrap_or(0);
    let at = undelivered.len().checked_sub(behind.saturating_add(1))?;
    Some(undelivered.remove(at))
}

/// Whether what is asked is so of the connections that a hold is bound to.
fn is_bound_to(keys: &impl Keyspace, id: KeyId, token: u64, is_so: impl FnOnce(&[u64]) -> bool) -> bool {
    matches!(keys.value(id), Value::Lock(lock) if is_so(lock.clients(token)))
}
