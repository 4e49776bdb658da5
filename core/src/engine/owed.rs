//! What the server's notes about a key come to when it is settled: values that came by other means than a grant, connections
//! that closed, grants that nobody heard of.

use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::event::{ChangeCause, EndCause, Event, Terms};
use crate::hold::Hold;
use crate::keyspace::{KeyId, Keyspace, Slot};
use crate::outbox::Answer;
use crate::time::MAX_LEASE_MS;

use super::pending::Details;
use super::settle::{HOLDS_AT_ONCE, terms_of};
use super::{Engine, Turn, deadlock};

impl Engine {
    /// Decides what the server's notes about this key come to. Returns the requests that found it unsettled, and whether a
    /// lease of what came was over.
    pub(super) fn settle_owed(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) -> (Vec<u64>, bool) {
        let owed = self.pending.take(turn.keys.key(id));
        let is_behind = self.is_behind(turn.keys, id);
        if owed.is_none() && !is_behind {
            return (Vec::new(), false);
        }
        let generation = self.databases.generation(turn.keys.key(id).db);
        if let Slot::Lock(stored) = turn.keys.slot(id) {
            stored.generation = generation;
        }
        let mut owed = owed.unwrap_or_default();
        owed.arrived |= is_behind;
        let mut was_over = false;
        let details = owed.take_details();
        if owed.arrived || owed.replaced {
            self.note_holders(turn.keys, id);
            self.refuse_misfits(turn, id);
            // A lock that was over when it came goes at once: waiters of another kind need the name free, here and on each
            // copy.
            was_over = self.expire(turn, id);
            self.finish(turn.keys, id);
        }
        if owed.arrived {
            self.settle_arrival(turn, id);
        }
        // First: a grant that is taken back takes its SESSION along.
        self.undo(turn, id, &details);
        self.end_sessions(turn, id, &details);
        self.check_bereft(turn, &details);
        self.settle_places(turn, id, &owed, &details);
        (details.deferred, was_over)
    }

    /// Answers the waiters that what lies under their name now cannot serve.
    pub(super) fn refuse_misfits(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) {
        for ticket in self.waiters.tickets(turn.keys.key(id)) {
            let Some((kind, count)) =
                self.waiters.get(ticket).map(|waiter| (waiter.request.kind, waiter.request.count))
            else {
                continue;
            };
            if let Err(refusal) = Self::fits(turn, id, kind, count) {
                self.retire(ticket);
                turn.out.answer(ticket, Answer::Refused(refusal));
            }
        }
    }

    /// A value that came by other means than a grant: none of its holds is bound to a connection, and an owner that
    /// waits for what it turns out to hold need not wait.
    fn settle_arrival(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) {
        let Slot::Lock(stored) = turn.keys.slot(id) else {
            return;
        };
        let holds: SmallVec<[Hold; 1]> = stored.lock.holds().iter().cloned().collect();
        let latest_us = turn.now.after_ms(MAX_LEASE_MS);
        for hold in &holds {
            if hold.deadline_us() > latest_us {
                // A file that somebody made by hand: no lock is immortal.
                let terms = Terms { deadline_us: latest_us, ..hold.terms() };
                self.commit(turn, id, Event::Changed { token: hold.token(), cause: ChangeCause::Renewed, terms });
            }
            self.sessions.forget_at(turn.keys.key(id), hold.token());
            if hold.session_ms().is_some() {
                self.end_session(turn, id, hold.token());
            }
        }
        for hold in &holds {
            if hold.is_live(turn.now) {
                self.serve_siblings(turn, [id].into_iter().collect(), hold.owner(), hold.mode());
            }
        }
    }

    /// Ends the sessions of holds whose last connection has closed, some at once: one connection may have had any number
    /// of holds on one lock.
    fn end_sessions(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, details: &Details) {
        let (now, later) = details.sessions_ended.split_at(details.sessions_ended.len().min(HOLDS_AT_ONCE));
        for token in now {
            // A later command may have bound it to another connection.
            if !self.sessions.is_bound(*token, turn.keys.key(id)) {
                self.end_session(turn, id, *token);
            }
        }
        if !later.is_empty() {
            self.pending.entry(turn.keys.key(id).to_key()).details().sessions_ended.extend_from_slice(later);
        }
    }

    /// Answers requests that close a circle now that an earlier one of their owner, with which they would have been granted, is
    /// gone.
    fn check_bereft(&mut self, turn: &mut Turn<'_, impl Keyspace>, details: &Details) {
        for ticket in &details.bereft {
            let Some(owner) = self.waiters.get(*ticket).map(|waiter| waiter.request.owner.clone()) else {
                continue;
            };
            if let Err(refusal) = deadlock::check(&self.waiters, &owner, &[], &self.hasher, turn.now) {
                self.retire(*ticket);
                turn.out.answer(*ticket, Answer::Refused(refusal));
            }
        }
    }

    /// Brings the deadline of a hold that lost its last connection nearer.
    fn end_session(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, token: u64) {
        let Some(terms) = terms_of(turn.keys, id, token) else {
            return;
        };
        let Some(session_ms) = terms.session_ms else {
            return;
        };
        let deadline_us = terms.deadline_us.min(turn.now.after_ms(session_ms));
        if deadline_us < terms.deadline_us {
            let event =
                Event::Changed { token, cause: ChangeCause::SessionEnded, terms: Terms { deadline_us, ..terms } };
            self.commit(turn, id, event);
        }
    }

    /// Takes back grants that nobody heard of, the latest first.
    fn undo(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, details: &Details) {
        for fresh in details.undo.iter().rev() {
            let token = fresh.token;
            let Some(terms) = terms_of(turn.keys, id, token) else {
                continue;
            };
            let left = terms.count.saturating_sub(fresh.count);
            if left == 0 {
                self.undo_place(turn, id, fresh);
                self.commit(turn, id, Event::Ended { token, cause: EndCause::Undone });
                continue;
            }
            if let Some(client) = fresh.client.filter(|_| fresh.has_bound) {
                self.sessions.unbind(client, token, turn.keys.key(id));
            }
            // What came later stands. A deadline never comes nearer.
            let is_last = fresh.after.as_ref().is_some_and(|after| {
                (after.request, after.session_ms, after.lease_ms) == (terms.request, terms.session_ms, terms.lease_ms)
            });
            let terms = match &fresh.before {
                Some(before) if is_last => {
                    Terms { count: left, deadline_us: terms.deadline_us.max(before.deadline_us), ..before.clone() }
                }
                _ => Terms { count: left, ..terms },
            };
            self.commit(turn, id, Event::Changed { token, cause: ChangeCause::Released, terms });
        }
    }
}
