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

    /// Confirms the grants of a ticket: at least one client has received the published answer.
    pub fn published(&mut self, ticket: u64) {
        self.confirm_ticket(ticket);
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
        if let Some(name) = self.name(at) {
            for name in self.pending.confirm_hold(name, token) {
                self.registry.set_pending(name, self.pending.has(name));
            }
        }
    }

    pub(super) fn confirm_ticket(&mut self, ticket: u64) {
        for name in self.pending.confirm_ticket(ticket) {
            self.registry.set_pending(name, self.pending.has(name));
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
            let undone = self.pending.take_grant(name, token, ticket);
            self.registry.set_pending(name, self.pending.has(name));
            let (Some(undone), Some(terms)) = (undone, at.terms_of(token)) else {
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
                self.undo_in_part(at, token, &undone, Terms { count, ..terms });
            }
        }
    }

    /// Undoes a grant without ending the hold. `terms` are those of the hold with the reduced
    /// count. The deadline stays or becomes later. Only an unclaimed hold gets its earlier deadline
    /// back.
    fn undo_in_part(&mut self, at: &mut At<'_, '_, impl Keyspace>, token: u64, undone: &PendingGrant, terms: Terms) {
        if terms.deadline_us <= at.now.mono_us {
            // The hold has expired. `before` may have a later deadline, which would make it
            // live again: see `has_session` below.
            return;
        }
        let Some(before) = undone.before.as_ref() else {
            return;
        };
        if let Some(client) = undone.has_bound {
            self.unbind(at, token, client);
        }
        let mut deadline_us = terms.deadline_us;
        if terms.phase == Phase::Unclaimed {
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
            note: if undone.has_note { before.note.clone() } else { terms.note.clone() },
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
