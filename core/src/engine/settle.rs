//! Settling a key: what is owed to it, leases that ended, and the queue from its head.

use crate::bytes::KeyRef;
use crate::event::{ChangeCause, EndCause, Event, Terms};
use crate::lock::{Hold, Kind, Lock};
use crate::queue::Waiter;
use crate::request::Refusal;
use crate::time::Now;

use super::{Answer, Engine, Fresh, KeyId, Keyspace, Outbox, Owed, Slot};

impl Engine {
    /// Settles a key whose turn has come, by the timer.
    pub fn settle_key(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        out: &mut Outbox,
    ) {
        self.settle(now, keys, id, false, out);
        self.finish(keys, id);
    }

    /// Does what is pending on a key, so that what is decided next meets its true state. `freed` tells that the caller
    /// has just ended a hold.
    pub(super) fn settle(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        freed: bool,
        out: &mut Outbox,
    ) {
        self.settle_owed(now, keys, id, out);
        let expired = self.expire(now, keys, id, out);
        self.serve(now, keys, id, freed || expired, out);
    }

    /// Settles a key if the server told something about it. What commands do that do not compete for the lock: to them a
    /// lease that ended is just not there, and the queue can wait for the timer.
    pub(super) fn settle_noted(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        out: &mut Outbox,
    ) {
        if self.is_pending(keys.key(id)) {
            self.settle(now, keys, id, false, out);
        }
    }

    /// Decides what the server's notes about this key come to.
    fn settle_owed(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        out: &mut Outbox,
    ) {
        let Some(owed) = self.pending.take(keys.key(id)) else {
            return;
        };
        if owed.arrived {
            self.settle_arrival(now, keys, id, out);
        }
        for token in &owed.sessions_ended {
            // A later command may have bound it to another connection.
            if !self.sessions.is_bound(*token) {
                self.end_session(now, keys, id, *token, out);
            }
        }
        self.undo(keys, id, &owed, out);
    }

    /// A value that came by other means than a grant: none of its holds is bound to a connection, and an owner that
    /// waits for what it turns out to hold need not wait.
    fn settle_arrival(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        out: &mut Outbox,
    ) {
        let Slot::Lock(stored) = keys.slot(id) else {
            return;
        };
        let kind = stored.lock.kind();
        let holds = collect(stored.lock.holds().iter().cloned());
        for hold in &holds {
            self.sessions.forget_at(keys.key(id), hold.token());
            if hold.session_ms().is_some() {
                self.end_session(now, keys, id, hold.token(), out);
            }
        }
        for hold in &holds {
            if kind != Kind::Semaphore && hold.is_live(now) {
                self.serve_siblings(now, keys, id, hold, out);
            }
        }
    }

    /// Brings the deadline of a hold that lost its last connection nearer.
    fn end_session(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        token: u64,
        out: &mut Outbox,
    ) {
        let Some(terms) = terms_of(keys, id, token) else {
            return;
        };
        let Some(session_ms) = terms.session_ms else {
            return;
        };
        let deadline_us = terms.deadline_us.min(now.after_ms(session_ms));
        if deadline_us < terms.deadline_us {
            let event = Event::Changed {
                token,
                cause: ChangeCause::SessionEnded,
                terms: Terms {
                    deadline_us,
                    ..terms
                },
            };
            self.commit(keys, id, event, out);
        }
    }

    /// Takes back grants that nobody heard of.
    fn undo(&mut self, keys: &mut impl Keyspace, id: KeyId, owed: &Owed, out: &mut Outbox) {
        for (token, count) in &owed.undo {
            let Some(terms) = terms_of(keys, id, *token) else {
                continue;
            };
            let left = terms.count.saturating_sub(*count);
            let event = if left == 0 {
                Event::Ended {
                    token: *token,
                    cause: EndCause::Undone,
                }
            } else {
                Event::Changed {
                    token: *token,
                    cause: ChangeCause::Released,
                    terms: Terms {
                        count: left,
                        ..terms
                    },
                }
            };
            self.commit(keys, id, event, out);
        }
    }

    /// Ends every hold whose lease is over. Returns whether there was one.
    fn expire(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        out: &mut Outbox,
    ) -> bool {
        let mut expired = false;
        while let Slot::Lock(stored) = keys.slot(id)
            && let Some(token) = stored.lock.lapsed_hold(now).map(Hold::token)
        {
            let cause = EndCause::Expired;
            self.commit(keys, id, Event::Ended { token, cause }, out);
            expired = true;
        }
        expired
    }

    /// Serves the queue from its head, as far as the lock admits: the hand-over.
    fn serve(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        freed: bool,
        out: &mut Outbox,
    ) {
        while let Some((ticket, waiter)) = self.waiters.first(keys.key(id)) {
            let request = &waiter.request;
            let answer = if waiter.is_over(now) {
                self.stats.timed_out = self.stats.timed_out.saturating_add(1);
                Answer::TimedOut
            } else {
                match Self::lock_of_kind(keys, id, request.kind) {
                    Err(refusal) => Answer::Refused(refusal),
                    Ok(Some(lock)) if !admits(lock, waiter, now) => return,
                    Ok(_) => {
                        self.serve_waiter(now, keys, id, ticket, freed, out);
                        continue;
                    }
                }
            };
            self.waiters.leave(ticket);
            out.answer(ticket, answer);
        }
    }

    /// Grants the lock to a waiter, and to the other requests of its owner as re-entries.
    fn serve_waiter(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        ticket: u64,
        freed: bool,
        out: &mut Outbox,
    ) {
        let Some(waiter) = self.waiters.leave(ticket) else {
            return;
        };
        let Some(token) = self.grant_to_waiter(now, keys, id, ticket, &waiter, out) else {
            return;
        };
        if freed {
            self.stats.handed_over = self.stats.handed_over.saturating_add(1);
        }
        if waiter.request.kind == Kind::Semaphore || self.waiters.len_on(keys.key(id)) == 0 {
            return;
        }
        if let Slot::Lock(stored) = keys.slot(id)
            && let Some(hold) = stored.lock.hold_with_token(token).cloned()
        {
            self.serve_siblings(now, keys, id, &hold, out);
        }
    }

    /// Grants the requests with which the owner of `hold` waits for what it has: they are re-entries.
    fn serve_siblings(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        hold: &Hold,
        out: &mut Outbox,
    ) {
        let tickets = self
            .waiters
            .of_owner(keys.key(id), hold.owner(), hold.mode());
        for ticket in tickets {
            let Some(waiter) = self.waiters.leave(ticket) else {
                continue;
            };
            if waiter.is_over(now) {
                self.stats.timed_out = self.stats.timed_out.saturating_add(1);
                out.answer(ticket, Answer::TimedOut);
            } else {
                self.grant_to_waiter(now, keys, id, ticket, &waiter, out);
            }
        }
    }

    fn grant_to_waiter(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        ticket: u64,
        waiter: &Waiter,
        out: &mut Outbox,
    ) -> Option<u64> {
        match self.grant(now, keys, id, &waiter.request, out) {
            Ok(token) => {
                self.stats.granted_after_waiting =
                    self.stats.granted_after_waiting.saturating_add(1);
                self.fresh.push(Fresh {
                    ticket,
                    client: waiter.request.client,
                    key: waiter.key.clone(),
                    token,
                    count: waiter.request.count,
                });
                out.answer(ticket, Answer::Granted(token));
                Some(token)
            }
            Err(refusal) => {
                out.answer(ticket, Answer::Refused(refusal));
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

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
