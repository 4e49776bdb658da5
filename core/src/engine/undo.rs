//! Pending grants are confirmed or undone: see `pending_grants.rs`.

use super::closed_connections::is_bound_to;
use super::dirty::Dirty;
use super::pending_grants::{PendingGrant, Undone};
use super::positions::NameId;
use super::state::{Engine, Transaction, terms_of};
use super::statistics::count;
use super::work::CHANGE;
use crate::event::{ChangeCause, EndCause, Event, Phase, Terms};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::Kind;
use crate::lock::admission::Value;
use crate::place::Stay;

impl Engine {
    /// Adds a pending grant to a hold. `before` are the terms of the hold before it, if it was there.
    pub(super) fn add_pending(&mut self, name: NameId, token: u64, before: Option<Terms>, grant: PendingGrant) {
        self.pending.add(grant.ticket, name, token);
        if let Some(record) = self.queues.names.get_mut(name) {
            record.pending.add(token, before, grant);
        }
    }

    /// The answers of the tickets for which `is_answered` holds were written, and connections that could not take theirs
    /// were told of before: their grants are confirmed.
    pub fn confirm_grants(&mut self, is_answered: impl Fn(u64) -> bool) {
        for ticket in self.pending.take_written(is_answered) {
            self.confirm_ticket(ticket);
        }
    }

    /// The answer to a ticket was published to somebody: its grants are confirmed.
    pub fn published(&mut self, ticket: u64) {
        self.confirm_ticket(ticket);
    }

    /// Whether there are answers of which it is not known that they were written.
    #[must_use]
    pub fn has_pending_answers(&self) -> bool {
        self.pending.has_written()
    }

    /// The owner of a hold has used it: it knows of it, and of all that was granted together with it.
    pub(super) fn confirm(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, token: u64) {
        if let Some(name) = self.name(tx, id) {
            self.confirm_under(name, token);
        }
    }

    /// [`Engine::confirm`], for a hold under a name.
    pub(super) fn confirm_under(&mut self, name: NameId, token: u64) {
        let Some(record) = self.queues.names.get_mut(name).filter(|record| !record.pending.is_empty()) else {
            return;
        };
        for ticket in record.pending.confirm_all(token) {
            self.confirm_ticket(ticket);
        }
        self.queues.names.tidy(name);
    }

    pub(super) fn confirm_ticket(&mut self, ticket: u64) {
        for (name, token) in self.pending.take(ticket) {
            if let Some(record) = self.queues.names.get_mut(name) {
                record.pending.confirm(token, ticket);
            }
            self.queues.names.tidy(name);
        }
    }

    /// The answer to a ticket did not reach its waiter: its grants are undone, when each key is reconciled.
    pub fn undo_grants(&mut self, ticket: u64) {
        for (name, token) in self.pending.take(ticket) {
            self.mark(name, |dirty| dirty.undone.push((token, ticket)));
        }
    }

    /// Nobody listened on the channel on which the answer to a ticket was published: [`Engine::undo_grants`].
    pub fn nobody_listened(&mut self, ticket: u64) {
        count(&mut self.stats.unheard);
        self.undo_grants(ticket);
    }

    /// Undoes the grants of a name that are to be undone, as far as the budget goes.
    pub(super) fn undo(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, name: NameId, dirty: &mut Dirty) {
        while !dirty.undone.is_empty() && self.work.take(CHANGE) {
            let Some((token, ticket)) = dirty.undone.pop() else {
                return;
            };
            let undone = self.queues.names.get_mut(name).and_then(|record| record.pending.undo(token, ticket));
            let (Some(undone), Some(terms)) = (undone, terms_of(tx.keys, id, token)) else {
                continue;
            };
            if undone.grant.count > 0
                && let Value::Lock(lock) = tx.keys.value(id)
            {
                count(&mut self.stats.of(lock.kind()).undone);
            }
            let count = terms.count.saturating_sub(undone.grant.count);
            if count == 0 {
                self.give_place_back(tx, id, token, &undone.grant);
                self.commit(tx, id, Event::Ended { token, cause: EndCause::Undone });
            } else {
                self.undo_in_part(tx, id, token, &undone, Terms { count, ..terms });
            }
        }
    }

    /// Undoes a grant that leaves something of its hold: `terms`, whose count is what is left. A deadline never comes nearer by that.
    fn undo_in_part(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        token: u64,
        undone: &Undone,
        terms: Terms,
    ) {
        if terms.deadline_us <= tx.now.mono_us {
            // It has expired, and the deadline without the grant would bring it back.
            return;
        }
        let Some(left) = undone.left.as_ref() else {
            return;
        };
        if let Some(client) = undone.unbinds {
            self.unbind(tx, id, token, client);
        }
        let mut deadline_us = terms.deadline_us;
        if undone.is_last && (left.phase, terms.phase) == (Phase::Unclaimed, Phase::Unclaimed) {
            // The owner has not claimed the hold, so the undone grant must not prolong it.
            deadline_us = left.deadline_us;
        }
        if undone.ends_session {
            // Only the end of a session makes a deadline come nearer: that of the grant, which goes with it.
            deadline_us = deadline_us.max(left.deadline_us);
        }
        let changed = Terms { count: terms.count, deadline_us, phase: terms.phase, ..left.clone() };
        let is_longer = changed.deadline_us > terms.deadline_us;
        if changed.session_ms.is_none() {
            self.unbind_hold(tx, id, token);
        }
        if changed != terms || undone.grant.count > 0 {
            self.commit(tx, id, Event::Changed { token, cause: ChangeCause::Released, terms: changed });
        }
        if (undone.unbinds.is_some() || is_longer) && is_bound_to(tx.keys, id, token, <[u64]>::is_empty) {
            // The other connections have closed meanwhile.
            self.end_session(tx, id, token);
        }
    }

    /// A grant that is undone leaves its owner the place that it had on a fair lock: at the head, for a grace. One that has asked again since, when the
    /// hold had expired, has a place already, and somebody may wait there.
    fn give_place_back(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        token: u64,
        grant: &PendingGrant,
    ) {
        let Value::Lock(lock) = tx.keys.value(id) else {
            return;
        };
        let hold = lock.hold_with_token(token).filter(|_| lock.kind() == Kind::Fair);
        if let Some(hold) = hold.filter(|hold| lock.place(hold.owner().as_slice()).is_none()) {
            let (owner, request_id) = (hold.owner().clone(), hold.request().map(|request| request.id));
            let grace_ms = grant.grace_ms.unwrap_or(tx.limits.fair_grace_ms);
            if grace_ms == 0 {
                return;
            }
            let stay = Stay::Grace { until_us: tx.now.after_ms(grace_ms) };
            let (arrival, grace_ms) = (grant.arrival, grant.grace_ms);
            self.commit(tx, id, Event::Queued { owner, stay, arrival, request_id, grace_ms, at_head: true });
        }
    }
}
