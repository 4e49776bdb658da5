//! Settling a key: what is owed to it, leases that ended, and the queue from its head.

use crate::bytes::KeyRef;
use crate::event::{ChangeCause, EndCause, Event, Terms};
use crate::lock::{Hold, Kind, Lock};
use crate::queue::Waiter;
use crate::time::{MAX_LEASE_MS, Now};

use super::pending::{Details, Fresh};
use super::{Engine, Turn};
use crate::keyspace::{KeyId, Keyspace, Slot};
use crate::outbox::{Answer, Outbox};

impl Engine {
    /// Settles a key whose turn has come, by the timer.
    pub fn settle_key(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) {
        self.settle(turn, id, false);
        self.finish(turn.keys, id);
    }

    /// Does what is pending on a key, so that what is decided next meets its true state. `freed` tells that the caller
    /// has just ended a hold.
    pub(super) fn settle(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, freed: bool) {
        self.settle_owed(turn, id);
        let expired = self.expire(turn, id);
        if Self::has_places(turn.keys, id) {
            self.serve_places(turn, id, freed || expired);
        } else {
            self.serve(turn, id, freed || expired);
        }
    }

    /// Settles a key if the server told something about it. What commands do that do not compete for the lock: to them a
    /// lease that ended is just not there, and the queue can wait for the timer.
    pub(super) fn settle_noted(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) {
        if self.is_pending(turn.keys.key(id)) {
            self.settle(turn, id, false);
        }
    }

    /// Decides what the server's notes about this key come to.
    fn settle_owed(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) {
        let Some(mut owed) = self.pending.take(turn.keys.key(id)) else {
            return;
        };
        let details = owed.take_details();
        if owed.arrived || owed.replaced {
            self.refuse_misfits(turn, id);
        }
        if owed.arrived {
            self.settle_arrival(turn, id);
        }
        for token in &details.sessions_ended {
            // A later command may have bound it to another connection.
            if !self.sessions.is_bound(*token, turn.keys.key(id)) {
                self.end_session(turn, id, *token);
            }
        }
        self.undo(turn, id, &details);
        self.settle_places(turn, id, &owed, &details);
    }

    /// Answers the waiters that what lies under their name now cannot serve.
    fn refuse_misfits(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) {
        for ticket in self.waiters.tickets(turn.keys.key(id)) {
            let Some(kind) = self.waiters.get(ticket).map(|waiter| waiter.request.kind) else {
                continue;
            };
            if let Err(refusal) = Self::lock_of_kind(turn.keys, id, kind).map(|_| ()) {
                self.waiters.leave(ticket);
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
        let kind = stored.lock.kind();
        let holds = collect(stored.lock.holds().iter().cloned());
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
            if kind != Kind::Semaphore && hold.is_live(turn.now) {
                self.serve_siblings(turn, id, hold);
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

    /// Takes back grants that nobody heard of.
    fn undo(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, details: &Details) {
        for fresh in &details.undo {
            let token = fresh.token;
            let Some(terms) = terms_of(turn.keys, id, token) else {
                continue;
            };
            let left = terms.count.saturating_sub(fresh.count);
            if left == 0 {
                self.undo_place(turn, id, fresh);
                self.commit(turn, id, Event::Ended { token, cause: EndCause::Undone });
            } else {
                let terms = Terms { count: left, ..terms };
                self.commit(turn, id, Event::Changed { token, cause: ChangeCause::Released, terms });
            }
        }
    }

    /// Ends every hold whose lease is over. Returns whether there was one.
    fn expire(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) -> bool {
        let mut expired = false;
        while let Slot::Lock(stored) = turn.keys.slot(id)
            && let Some(token) = stored.lock.lapsed_hold(turn.now).map(Hold::token)
        {
            let cause = EndCause::Expired;
            self.commit(turn, id, Event::Ended { token, cause });
            expired = true;
        }
        expired
    }

    /// Serves the queue from its head, as far as the lock admits: the hand-over.
    fn serve(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, freed: bool) {
        while let Some((ticket, waiter)) = self.waiters.first(turn.keys.key(id)) {
            let request = &waiter.request;
            let answer = if waiter.is_over(turn.now) {
                self.stats.timed_out = self.stats.timed_out.saturating_add(1);
                Answer::TimedOut
            } else {
                match Self::lock_of_kind(turn.keys, id, request.kind) {
                    Err(refusal) => Answer::Refused(refusal),
                    Ok(Some(lock)) if !admits(lock, waiter, turn.now) => return,
                    Ok(_) => {
                        self.serve_waiter(turn, id, ticket, freed);
                        continue;
                    }
                }
            };
            self.waiters.leave(ticket);
            turn.out.answer(ticket, answer);
        }
    }

    /// Grants the lock to a waiter, and to the other requests of its owner as re-entries.
    fn serve_waiter(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, ticket: u64, freed: bool) {
        let Some(waiter) = self.waiters.leave(ticket) else {
            return;
        };
        let Some(token) = self.grant_to_waiter(turn, id, ticket, &waiter) else {
            return;
        };
        if freed {
            self.stats.handed_over = self.stats.handed_over.saturating_add(1);
        }
        if waiter.request.kind == Kind::Semaphore || self.waiters.len_on(turn.keys.key(id)) == 0 {
            return;
        }
        if let Slot::Lock(stored) = turn.keys.slot(id)
            && let Some(hold) = stored.lock.hold_with_token(token).cloned()
        {
            self.serve_siblings(turn, id, &hold);
        }
    }

    /// Grants the requests with which the owner of `hold` waits for what it has: they are re-entries.
    fn serve_siblings(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, hold: &Hold) {
        let tickets = self.waiters.of_owner(turn.keys.key(id), hold.owner(), hold.mode());
        for ticket in tickets {
            let Some(waiter) = self.waiters.leave(ticket) else {
                continue;
            };
            if waiter.is_over(turn.now) {
                self.stats.timed_out = self.stats.timed_out.saturating_add(1);
                turn.out.answer(ticket, Answer::TimedOut);
            } else {
                self.grant_to_waiter(turn, id, ticket, &waiter);
            }
        }
    }

    pub(super) fn grant_to_waiter(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        ticket: u64,
        waiter: &Waiter,
    ) -> Option<u64> {
        match self.grant(turn, id, &waiter.request) {
            Ok(token) => {
                self.stats.granted_after_waiting = self.stats.granted_after_waiting.saturating_add(1);
                self.fresh.push(Fresh {
                    ticket,
                    client: waiter.request.client,
                    key: waiter.key.clone(),
                    token,
                    count: waiter.request.count,
                    arrival: waiter.arrival,
                });
                turn.out.answer(ticket, Answer::Granted(token));
                Some(token)
            }
            Err(refusal) => {
                turn.out.answer(ticket, Answer::Refused(refusal));
                None
            }
        }
    }

    /// The next key with something to settle: noted ones first, then those with a deadline that is due. Waiters whose
    /// time is over are answered on the way.
    pub fn next_due(&mut self, now: Now, out: &mut Outbox) -> Option<crate::bytes::Key> {
        if let Some(key) = self.next_pending() {
            return Some(key);
        }
        if let Some(key) = self.leases.pop_due(now.mono_us) {
            return Some(key);
        }
        let ticket = self.waiters.next_over(now)?;
        let waiter = self.waiters.leave(ticket)?;
        self.stats.timed_out = self.stats.timed_out.saturating_add(1);
        out.answer(ticket, Answer::TimedOut);
        if waiter.request.kind == Kind::Fair {
            self.pending.entry(waiter.key.clone()).details().gave_up.push(waiter.request.owner);
        }
        Some(waiter.key)
    }

    /// The next key that the server told something about.
    pub fn next_pending(&mut self) -> Option<crate::bytes::Key> {
        self.pending.next()
    }

    /// When there is something to do next; `None` if nothing is ever due.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        if !self.pending.order.is_empty() {
            return Some(0);
        }
        let lease_us = self.leases.peek().map(|(at_us, _)| at_us);
        let wait_us = self.waiters.next_deadline_us();
        match (lease_us, wait_us) {
            (Some(lease_us), Some(wait_us)) => Some(lease_us.min(wait_us)),
            (lease_us, wait_us) => lease_us.or(wait_us),
        }
    }

    /// Whether anybody waits under `key`.
    pub(super) fn is_waited_for(&self, key: KeyRef<'_>) -> bool {
        self.waiters.len_on(key) > 0
    }
}

fn admits(lock: &Lock, waiter: &Waiter, now: Now) -> bool {
    let request = &waiter.request;
    lock.admits(request.owner.as_slice(), request.mode, request.count, now)
}

fn terms_of(keys: &mut impl Keyspace, id: KeyId, token: u64) -> Option<Terms> {
    match keys.slot(id) {
        Slot::Lock(stored) => stored.lock.hold_with_token(token).map(Hold::terms),
        _ => None,
    }
}

fn collect(holds: impl Iterator<Item = Hold>) -> smallvec::SmallVec<[Hold; 1]> {
    holds.collect()
}
