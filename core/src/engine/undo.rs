//! Confirms and undoes pending grants: see `pending_grants.rs`.

use super::Engine;
use super::transaction::At;
use crate::budget::CHANGE;
use crate::event::{ChangeCause, EndCause, Event, Phase, Terms};
use crate::keyspace::Keyspace;
use crate::kind::Kind;
use crate::pending_grants::PendingGrant;
use crate::place::Stay;
use crate::registry::{Dirty, NameId};
use crate::statistics::count;

impl Engine {
    /// Confirms the grants of the tickets for which `is_sent` is true. Connections that closed
    /// before must be reported first, with [`Engine::client_closed`] or [`Engine::waiter_left`].
    pub fn confirm_grants(&mut self, is_sent: impl Fn(u64) -> bool) {
        for ticket in self.pending.take_sent(is_sent) {
            self.confirm_ticket(ticket);
        }
    }

    /// Whether there are answers that may not have been sent yet.
    #[must_use]
    pub fn has_pending_answers(&self) -> bool {
        self.pending.has_unsent()
    }

    /// Confirms the grant of a hold, with the other grants of its request, because the owner has
    /// used the hold.
    pub(super) fn confirm(&mut self, at: &mut At<'_, '_, impl Keyspace>, token: u64) {
        if self.pending.is_empty() {
            return;
        }
        // Takes out this grant even if it is marked to be undone: when the budget of a turn is used
        // up, an owner may use its hold before that.
        let grant = self.name(at).and_then(|name| self.take_grant(name, token, |_| true));
        if let Some(grant) = grant {
            self.confirm_ticket(grant.ticket);
        }
    }

    /// A waiter is about to be granted a hold with these `terms` again. The new grant will replace
    /// the pending grant of the hold, if it has one, whose count and request id then stay.
    ///
    /// Since its answer may arrive or be lost, we keep the longer lease, and the longer SESSION if
    /// there was one before, or else none. Otherwise the hold would end while its owner relies on
    /// it, for example with a connection although no answered request had a SESSION. For the same
    /// reason the grants of its request on other keys stay pending.
    pub(super) fn settle_earlier(&mut self, at: &mut At<'_, '_, impl Keyspace>, token: u64, terms: &mut Terms) {
        let earlier = self.name(at).and_then(|name| self.pending.of_hold(name, token));
        if let Some(earlier) = earlier.filter(|earlier| !earlier.is_over).cloned() {
            let longer = |before: Terms| Terms {
                lease_ms: before.lease_ms.max(terms.lease_ms),
                session_ms: before.session_ms.zip(terms.session_ms).map(|(before, set)| before.max(set)),
                ..before
            };
            let before = earlier.before.map(longer);
            let has_bound = None;
            let options = PendingGrant { before, count: 0, has_request: false, has_note: false, has_bound, ..earlier };
            self.undo_in_part(at, token, options, terms.clone());
            *terms = at.terms_of(token).unwrap_or_else(|| terms.clone());
        }
    }

    /// Whether the holds that a ticket was granted may still exist, so that its waiter may be told.
    /// Commands that ran since may have ended them.
    #[must_use]
    pub fn may_tell(&self, ticket: u64) -> bool {
        self.pending.holds(ticket).all(|(name, token)| {
            let is_over = self.pending.of_hold(*name, *token).is_some_and(|grant| grant.is_over);
            let has_changed = self.registry.dirty(*name).is_some_and(|dirty| dirty.imported || dirty.replaced);
            !is_over && !has_changed && !self.registry.is_behind(*name)
        })
    }

    fn take_grant(&mut self, name: NameId, token: u64, is_meant: impl FnOnce(u64) -> bool) -> Option<PendingGrant> {
        let grant = self.pending.take_grant(name, token, is_meant);
        self.registry.set_pending(name, self.pending.has(name));
        grant
    }

    /// Confirms the grants of a ticket, whose answer was sent, or was published and received by at
    /// least one client.
    pub fn confirm_ticket(&mut self, ticket: u64) {
        for (name, token) in self.pending.take(ticket) {
            self.take_grant(name, token, |of| of == ticket);
        }
    }

    /// The answer to a ticket cannot reach its waiter. Marks its grants; each is undone when its
    /// key is reconciled.
    pub fn undo_grants(&mut self, ticket: u64) {
        for (name, token) in self.pending.take(ticket) {
            self.mark(name, |dirty| dirty.undone.push((token, ticket)));
        }
    }

    /// No client was subscribed to the channel of the published answer to a ticket: see
    /// [`Engine::undo_grants`].
    pub fn nobody_listened(&mut self, ticket: u64) {
        self.stats.count_unheard();
        self.undo_grants(ticket);
    }

    /// Undoes the grants that are marked under a name, as far as the budget goes.
    pub(super) fn undo(&mut self, at: &mut At<'_, '_, impl Keyspace>, name: NameId, dirty: &mut Dirty) {
        while !dirty.undone.is_empty() && self.budget.take(CHANGE) {
            let Some((token, ticket)) = dirty.undone.pop() else {
                return;
            };
            // The owner may have used the hold since, and may have been granted it again.
            let undone = self.take_grant(name, token, |of| of == ticket);
            let (Some(undone), Some(terms)) = (undone.filter(|undone| !undone.is_over), at.terms_of(token)) else {
                continue;
            };
            if undone.count > 0
                && let Some(lock) = at.lock()
            {
                count(&mut self.stats.of(lock.kind()).undone);
            }
            let count = terms.count.saturating_sub(undone.count);
            if count == 0 {
                self.give_place_back(at, token, &undone);
                self.commit(at, Event::Ended { token, cause: EndCause::Undone });
            } else {
                self.undo_in_part(at, token, undone, Terms { count, ..terms });
            }
        }
    }

    /// Undoes a grant without ending the hold. `terms` are those of the hold with the reduced
    /// count. The deadline stays or becomes later. Only an unclaimed hold that loses a count gets
    /// its earlier deadline back.
    fn undo_in_part(&mut self, at: &mut At<'_, '_, impl Keyspace>, token: u64, undone: PendingGrant, terms: Terms) {
        if terms.deadline_us <= at.now.mono_us {
            // The hold has expired. `before` may have a later deadline, which would make it
            // live again: see `has_session` below.
            return;
        }
        // A hold that began with the grant had none of its options before.
        let began = || Terms { request: None, session_ms: None, note: None, ..terms.clone() };
        let before = undone.before.unwrap_or_else(began);
        if let Some(client) = undone.has_bound {
            self.unbind(at, token, client);
        }
        let mut deadline_us = terms.deadline_us;
        if terms.phase == Phase::Unclaimed && undone.count > 0 {
            deadline_us = before.deadline_us;
        }
        if undone.has_session {
            // The end of this session may have shortened the deadline.
            deadline_us = deadline_us.max(before.deadline_us);
        }
        // Restores only the fields that the grant set: the value may have been replaced since, so
        // its other fields may differ from those before.
        let changed = Terms {
            deadline_us,
            lease_ms: before.lease_ms,
            request: if undone.has_request { before.request } else { terms.request },
            session_ms: if undone.has_session { before.session_ms } else { terms.session_ms },
            note: if undone.has_note { before.note } else { terms.note.clone() },
            ..terms
        };
        let is_longer = changed.deadline_us > terms.deadline_us;
        if changed.session_ms.is_none() {
            self.unbind_hold(at, token);
        }
        if changed != terms || undone.count > 0 {
            self.commit(at, Event::Changed { token, cause: ChangeCause::Released, terms: changed });
        }
        if (undone.has_bound.is_some() || is_longer) && at.is_unbound(token) {
            // The other connections have closed meanwhile.
            self.end_session(at, token);
        }
    }

    /// Returns the owner of an undone grant of a fair lock to the head of the queue, for the grace
    /// (not with `GRACE 0`). An owner that asked again after the hold expired already has a place,
    /// where it may wait.
    fn give_place_back(&mut self, at: &mut At<'_, '_, impl Keyspace>, token: u64, grant: &PendingGrant) {
        let Some(lock) = at.lock() else {
            return;
        };
        let hold = lock.hold_with_token(token).filter(|_| lock.kind() == Kind::Fair);
        if let Some(hold) = hold.filter(|hold| lock.place(hold.owner().as_slice()).is_none()) {
            let (owner, request_id) = (hold.owner().clone(), hold.request().map(|request| request.id));
            let grace_ms = grant.grace_ms.unwrap_or(at.limits.fair_grace_ms);
            if grace_ms == 0 {
                return;
            }
            let stay = Stay::Grace { until_us: at.now.after_ms(grace_ms) };
            let (arrival, grace_ms) = (grant.arrival, grant.grace_ms);
            self.commit(at, Event::Queued { owner, stay, arrival, request_id, grace_ms, at_head: true });
        }
    }
}
