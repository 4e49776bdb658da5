//! Settling a key: what is owed to it, leases that ended, and the queue from its head.

use alloc::vec::Vec;

use crate::bytes::{Key, KeyRef, Owner};
use crate::event::{ChangeCause, EndCause, Event, Terms};
use crate::hold::Hold;
use crate::lock::{Kind, Lock, Mode};
use crate::queue::Waiter;
use crate::request::Refusal;
use crate::time::{MAX_LEASE_MS, Now};

use super::fresh::Fresh;
use super::many::{Ids, Served};
use super::pending::Details;
use super::{Engine, Turn, deadlock};
use crate::keyspace::{KeyId, Keyspace, Slot};
use crate::outbox::{Answer, Outbox};

/// How many alarms the sweep passes over at once.
const SLOTS_AT_ONCE: usize = 1000;

/// How many holds of one lock end in one step.
const HOLDS_AT_ONCE: usize = 1000;

impl Engine {
    /// Settles a key whose turn has come, by the timer.
    pub fn settle_key(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) {
        self.settle(turn, id, false);
        self.finish_all(turn.keys);
    }

    /// Does what is pending on a key, so that what is decided next meets its true state. `freed` tells that the caller
    /// has just ended a hold.
    pub(super) fn settle(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, freed: bool) {
        let (deferred, was_over) = self.settle_owed(turn, id);
        let expired = self.expire(turn, id) || was_over;
        self.drop_dead_queue(turn, id);
        if Self::has_places(turn.keys, id) {
            self.serve_places(turn, id, freed || expired);
        } else {
            self.serve(turn, id, freed || expired);
        }
        for ticket in deferred {
            self.serve_deferred(turn, ticket);
        }
    }

    /// Settles a key if the server told something about it. What commands do that do not compete for the lock: to them a
    /// lease that ended is just not there, and the queue can wait for the timer.
    pub(super) fn settle_noted(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) {
        if self.has_notes(turn, id) {
            self.settle(turn, id, false);
        }
    }

    /// Whether the server told something about a key, or about all keys of its database, that was not settled yet.
    pub(super) fn has_notes(&self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) -> bool {
        self.is_pending(turn.keys.key(id)) || self.is_behind(turn.keys, id)
    }

    fn is_behind(&self, keys: &mut impl Keyspace, id: KeyId) -> bool {
        let generation = self.databases.generation(keys.key(id).db);
        matches!(keys.slot(id), Slot::Lock(stored) if stored.generation < generation)
    }

    /// Decides what the server's notes about this key come to. Returns the requests that found it unsettled, and whether a
    /// lease of what came was over.
    fn settle_owed(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) -> (Vec<u64>, bool) {
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

    /// Whether a request for `count` could ever be granted what lies under the key.
    pub(super) fn fits(turn: &mut Turn<'_, impl Keyspace>, id: KeyId, kind: Kind, count: u32) -> Result<(), Refusal> {
        match Self::lock_of_kind(turn, id, kind)?.map(Lock::permits) {
            Some(permits) if count > permits => Err(Refusal::TooManyPermits { permits }),
            _ => Ok(()),
        }
    }

    /// Takes a waiter out of line that was not granted. The other keys of a request for several have a queue to serve.
    pub(super) fn retire(&mut self, ticket: u64) -> Option<Waiter> {
        let waiter = self.waiters.leave(ticket)?;
        if waiter.is_many() {
            for key in &waiter.keys {
                self.pending.entry(key.clone());
            }
        }
        let request = &waiter.request;
        for mode in modes_granted_with(request.mode) {
            for key in &waiter.keys {
                if let Some(next) = self.waiters.of_owner(key.borrow(), &request.owner, *mode).first() {
                    self.pending.entry(key.clone()).details().bereft.push(*next);
                }
            }
        }
        Some(waiter)
    }

    /// A value that came by other means than a grant: none of its holds is bound to a connection, and an owner that
    /// waits for what it turns out to hold need not wait.
    fn settle_arrival(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) {
        let Slot::Lock(stored) = turn.keys.slot(id) else {
            return;
        };
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

    /// Whether a lease under the key is over and was not settled yet.
    pub(super) fn has_lapsed_hold(turn: &mut Turn<'_, impl Keyspace>, id: KeyId) -> bool {
        matches!(turn.keys.slot(id), Slot::Lock(stored) if stored.lock.lapsed_hold(turn.now).is_some())
    }

    /// A queue whose places are all over goes in one step, however many there are.
    fn drop_dead_queue(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) {
        let now = turn.now;
        if matches!(turn.keys.slot(id), Slot::Lock(stored) if stored.lock.places().is_some_and(|places| places.are_over(now)))
        {
            self.commit(turn, id, Event::Lapsed);
        }
    }

    /// Ends holds whose lease is over. Returns whether there was one. Any number of holds of one lock may end together: what
    /// is left has no effect any more, and its alarm goes off again at once.
    fn expire(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) -> bool {
        (0..HOLDS_AT_ONCE).take_while(|_| self.expire_one(turn, id)).count() > 0
    }

    /// Ends one hold whose lease is over. Returns whether there was one.
    pub(super) fn expire_one(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) -> bool {
        let Slot::Lock(stored) = turn.keys.slot(id) else {
            return false;
        };
        let Some(token) = stored.lock.lapsed_hold(turn.now).map(Hold::token) else {
            return false;
        };
        self.commit(turn, id, Event::Ended { token, cause: EndCause::Expired });
        true
    }

    /// Serves the queue from its head, as far as the lock admits: the hand-over.
    fn serve(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, freed: bool) {
        while let Some((ticket, waiter)) = self.waiters.first(turn.keys.key(id)) {
            let (owner, mode) = (waiter.request.owner.clone(), waiter.request.mode);
            match self.serve_waiter(turn, id, ticket) {
                Served::Waits => return,
                Served::Answered => {}
                Served::Granted(new) => {
                    if freed {
                        self.stats.handed_over = self.stats.handed_over.saturating_add(1);
                    }
                    self.serve_siblings(turn, new, &owner, mode);
                }
            }
        }
    }

    /// Serves the head of a queue.
    fn serve_waiter(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, ticket: u64) -> Served {
        let now = turn.now;
        let Some(waiter) = self.waiters.get(ticket) else {
            return Served::Answered;
        };
        if waiter.is_over(now) {
            return self.time_out(turn, ticket);
        }
        if waiter.is_many() {
            return self.serve_many(turn, ticket);
        }
        let request = &waiter.request;
        if let Err(refusal) = Self::fits(turn, id, request.kind, request.count) {
            self.waiters.leave(ticket);
            turn.out.answer(ticket, Answer::Refused(refusal));
            return Served::Answered;
        }
        if matches!(turn.keys.slot(id), Slot::Lock(stored)
            if !stored.lock.admits(request.owner.as_slice(), request.mode, request.count, now))
        {
            return Served::Waits;
        }
        match self.waiters.leave(ticket).and_then(|waiter| self.grant_to_waiter(turn, id, ticket, &waiter)) {
            Some(_) => Served::Granted([id].into_iter().collect()),
            None => Served::Answered,
        }
    }

    fn time_out(&mut self, turn: &mut Turn<'_, impl Keyspace>, ticket: u64) -> Served {
        self.retire(ticket);
        self.stats.timed_out = self.stats.timed_out.saturating_add(1);
        turn.out.answer(ticket, Answer::TimedOut);
        Served::Answered
    }

    /// Grants the requests with which an owner waits for what it holds now, under the keys that are new to it: they are
    /// re-entries. A writer's READ is granted as well, as if it asked now. Requests for several keys may bring further
    /// new keys; they are looked at in turn, not by recursion, because an owner may have any number of them.
    fn serve_siblings(&mut self, turn: &mut Turn<'_, impl Keyspace>, mut new: Ids, owner: &Owner, mode: Mode) {
        let modes = modes_granted_with(mode);
        while let Some(id) = new.pop() {
            for mode in modes {
                for ticket in self.waiters.of_owner(turn.keys.key(id), owner, *mode) {
                    if let Served::Granted(more) = self.serve_sibling(turn, id, ticket) {
                        new.extend(more);
                    }
                }
            }
        }
    }

    fn serve_deferred(&mut self, turn: &mut Turn<'_, impl Keyspace>, ticket: u64) {
        let Some(owner) = self.waiters.get(ticket).map(|waiter| waiter.request.owner.clone()) else {
            return;
        };
        if let Served::Granted(new) = self.serve_many(turn, ticket) {
            self.serve_siblings(turn, new, &owner, Mode::Exclusive);
        }
    }

    fn serve_sibling(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, ticket: u64) -> Served {
        let Some(waiter) = self.waiters.get(ticket) else {
            return Served::Answered;
        };
        if waiter.is_over(turn.now) {
            return self.time_out(turn, ticket);
        }
        if waiter.is_many() {
            return self.serve_many(turn, ticket);
        }
        if let Some(waiter) = self.waiters.leave(ticket) {
            self.grant_to_waiter(turn, id, ticket, &waiter);
        }
        Served::Answered
    }

    pub(super) fn grant_to_waiter(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        ticket: u64,
        waiter: &Waiter,
    ) -> Option<u64> {
        let before = self.before_grant(turn, id, waiter);
        match self.grant(turn, id, &waiter.request) {
            Ok(token) => {
                self.stats.granted_after_waiting = self.stats.granted_after_waiting.saturating_add(1);
                self.remember_fresh(turn, id, ticket, token, waiter, before);
                turn.out.answer(ticket, Answer::Granted(token));
                Some(token)
            }
            Err(refusal) => {
                turn.out.answer(ticket, Answer::Refused(refusal));
                None
            }
        }
    }

    /// What the owner of a waiter has before it is granted: the terms, and whether it is bound to the waiter's connection.
    pub(super) fn before_grant(
        &self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        waiter: &Waiter,
    ) -> Option<(Terms, bool)> {
        let request = &waiter.request;
        let held = Self::live_terms(turn, id, request.kind, request.owner.as_slice(), request.mode);
        let (token, terms) = held.ok().flatten()?;
        let is_bound = request.client.is_some_and(|client| self.sessions.is_bound_to(client, token, turn.keys.key(id)));
        Some((terms, is_bound))
    }

    /// Remembers a grant until it is known that its waiter has heard of it.
    pub(super) fn remember_fresh(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        ticket: u64,
        token: u64,
        waiter: &Waiter,
        before: Option<(Terms, bool)>,
    ) {
        let request = &waiter.request;
        let was_bound = before.as_ref().is_some_and(|(_, is_bound)| *is_bound);
        let key = turn.keys.key(id).to_key();
        let is_bound = request.client.is_some_and(|client| self.sessions.is_bound_to(client, token, key.borrow()));
        let after = before.as_ref().and_then(|_| terms_of(turn.keys, id, token));
        self.fresh.add(Fresh {
            ticket,
            client: request.client,
            key,
            token,
            count: request.count,
            arrival: waiter.standing.arrival,
            before: before.map(|(terms, _)| terms),
            after,
            has_bound: is_bound && !was_bound,
        });
    }

    /// The next key with something to settle: noted ones first, then those with a deadline that is due. Waiters whose
    /// time is over are answered on the way.
    pub fn next_due(&mut self, now: Now, out: &mut Outbox) -> Option<Key> {
        if let Some(key) = self.next_pending() {
            return Some(key);
        }
        if let Some(key) = self.leases.pop_due(now.mono_us) {
            return Some(self.databases.to_current(key));
        }
        self.next_over(now, out).or_else(|| self.next_swept())
    }

    /// Answers a waiter whose time is over, and tells its key.
    fn next_over(&mut self, now: Now, out: &mut Outbox) -> Option<Key> {
        let ticket = self.waiters.next_over(now)?;
        let waiter = self.retire(ticket)?;
        self.stats.timed_out = self.stats.timed_out.saturating_add(1);
        out.answer(ticket, Answer::TimedOut);
        let key = waiter.keys.into_iter().next()?;
        if waiter.request.kind == Kind::Fair {
            self.pending.entry(key.clone()).details().gave_up.push(waiter.request.owner);
        }
        Some(key)
    }

    /// The next key of the sweep over all values with an alarm. `None` does not mean that it is at its end.
    fn next_swept(&mut self) -> Option<Key> {
        let sweep = self.sweep.as_mut()?;
        for _ in 0..SLOTS_AT_ONCE {
            let Some(slot) = self.leases.slot_value(sweep.slot) else {
                self.sweep = None;
                return None;
            };
            sweep.slot = sweep.slot.saturating_add(1);
            if let Some(key) = slot {
                let db = self.databases.current(key.db);
                if self.databases.concerns(*sweep, db) {
                    return Some(Key { db, name: key.name.clone() });
                }
            }
        }
        None
    }

    /// The next key that the server told something about.
    pub fn next_pending(&mut self) -> Option<Key> {
        self.pending.next()
    }

    /// When there is something to do next; `None` if nothing is ever due.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        if !self.pending.order.is_empty() || self.sweep.is_some() {
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

/// In which modes the requests of an owner are granted as soon as it holds in `mode`.
fn modes_granted_with(mode: Mode) -> &'static [Mode] {
    match mode {
        Mode::Permits => &[],
        Mode::Write => &[Mode::Write, Mode::Read],
        Mode::Read => &[Mode::Read],
        Mode::Exclusive => &[Mode::Exclusive],
    }
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
