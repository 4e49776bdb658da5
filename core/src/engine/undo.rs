//! Grants that nobody heard of are taken back.
//!
//! A grant adds to the count of a hold, says how long it lasts, and perhaps with which number (`REQ`) it was asked for, and that it has a `SESSION`. Grants of
//! one hold may be lost one after the other, in any order, while others of it are under way or were heard of. So each is taken out as from a list: what it has
//! said goes, unless a later one has said it anew; and where that one is lost too, what was there before this one comes back.

use super::closed_connections::is_bound_to;
use super::dirty::{Dirty, Undelivered};
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
    /// Undoes grants whose waiters have not received the answer.
    pub(super) fn undo(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, name: NameId, dirty: &mut Dirty) {
        while !dirty.undelivered.is_empty() && self.work.take(CHANGE) {
            let Some(grant) = dirty.undelivered.pop() else {
                return;
            };
            let token = grant.token;
            let Some(terms) = terms_of(tx.keys, id, token).filter(|_| !dirty.heard.contains(&token)) else {
                continue;
            };
            let left = terms.count.saturating_sub(grant.count);
            if grant.count > 0
                && let Value::Lock(lock) = tx.keys.value(id)
            {
                count(&mut self.stats.of(lock.kind()).undone);
            }
            if left == 0 {
                self.give_place_back(tx, id, &grant);
                self.commit(tx, id, Event::Ended { token, cause: EndCause::Undone });
                continue;
            }
            let terms = Terms { count: left, ..terms };
            self.undo_in_part(tx, id, name, &mut dirty.undelivered, &grant, terms);
        }
        if dirty.undelivered.is_empty() {
            dirty.heard.clear();
        }
    }

    /// Takes a grant back that leaves something of its hold: `terms`, whose count is what is left. A deadline never comes nearer by that.
    fn undo_in_part(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        name: NameId,
        lost: &mut [Undelivered],
        grant: &Undelivered,
        terms: Terms,
    ) {
        if terms.deadline_us <= tx.now.mono_us {
            // It is over, and the deadline of the hold before would bring it back.
            return;
        }
        let token = grant.token;
        let later = self.take_out(name, lost, grant);
        let unbound = grant.client.filter(|_| grant.has_bound && later.of_client.is_none());
        if let Some(client) = unbound {
            self.unbind(tx, id, token, client);
        }
        let before = grant.before.as_deref();
        let mut undone = terms.clone();
        if grant.says.request && later.request.is_none() {
            undone.request = before.and_then(|before| before.request);
        }
        let has_session = grant.says.session && later.session.is_none();
        if has_session {
            undone.session_ms = before.and_then(|before| before.session_ms);
        }
        if let Some(before) = before {
            if grant.says.lease && later.lease.is_none() {
                undone.lease_ms = before.lease_ms;
                if before.phase == Phase::Unclaimed && undone.phase == Phase::Unclaimed {
                    // The owner has not claimed the hold, so the undone grant must not prolong it.
                    undone.deadline_us = before.deadline_us;
                }
            }
            if has_session {
                // Only the end of a session makes a deadline come nearer: that of the grant, which goes with it, or that of the hold before.
                undone.deadline_us = undone.deadline_us.max(before.deadline_us);
            }
        }
        let has_ended = undone.deadline_us > terms.deadline_us;
        if undone.session_ms.is_none() {
            self.unbind_hold(tx, id, token);
        }
        if undone != terms || grant.count > 0 {
            self.commit(tx, id, Event::Changed { token, cause: ChangeCause::Released, terms: undone });
        }
        if (unbound.is_some() || has_ended) && is_bound_to(tx.keys, id, token, <[u64]>::is_empty) {
            // The other connections have closed meanwhile.
            self.end_session(tx, id, token);
        }
    }

    /// Takes a grant out of the list of those of its hold that may be taken back. Returns which of them say anew what it has said.
    fn take_out(&mut self, name: NameId, lost: &mut [Undelivered], grant: &Undelivered) -> Later {
        let mut later = Later::default();
        self.queues.each_grant(name, grant.token, lost, |other| later.note(grant, other));
        let before = grant.before.as_deref();
        self.queues.each_grant(name, grant.token, lost, |other| {
            let is_it = |number: Option<u64>| number == Some(other.number);
            other.has_bound |= is_it(later.of_client) && grant.has_bound;
            let Some(its_before) = other.before.as_deref_mut() else {
                return;
            };
            if is_it(later.request) {
                its_before.request = before.and_then(|before| before.request);
            }
            if is_it(later.session) {
                its_before.session_ms = before.and_then(|before| before.session_ms);
            }
            if let Some(before) = before.filter(|_| is_it(later.lease)) {
                its_before.lease_ms = before.lease_ms;
            }
        });
        later
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

/// The first grants after one that say what it has said, by their numbers; and one to the same connection.
#[derive(Default)]
struct Later {
    request: Option<u64>,
    session: Option<u64>,
    lease: Option<u64>,
    of_client: Option<u64>,
}

impl Later {
    fn note(&mut self, grant: &Undelivered, other: &Undelivered) {
        if grant.client.is_some() && other.client == grant.client {
            self.of_client = Some(other.number);
        }
        if other.number <= grant.number {
            return;
        }
        let says = [
            (&mut self.request, grant.says.request && other.says.request),
            (&mut self.session, grant.says.session && other.says.session),
            (&mut self.lease, grant.says.lease && other.says.lease),
        ];
        for (first, _) in says.into_iter().filter(|(_, is_said)| *is_said) {
            *first = Some(first.map_or(other.number, |first| first.min(other.number)));
        }
    }
}
