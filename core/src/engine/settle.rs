//! Settling a key: what is owed to it, leases that ended, and the queue from its head.

use crate::bytes::{KeyRef, Owner};
use crate::event::{EndCause, Event, Terms};
use crate::hold::Hold;
use crate::lock::{Kind, Lock, Mode};
use crate::queue::Waiter;
use crate::request::Refusal;

use super::fresh::Fresh;
use super::many::{Ids, Served};
use super::{Engine, Turn};
use crate::keyspace::{KeyId, Keyspace, Slot};
use crate::outbox::Answer;

/// How many holds of one lock end in one step.
pub(super) const HOLDS_AT_ONCE: usize = 1000;

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

    pub(super) fn is_behind(&self, keys: &mut impl Keyspace, id: KeyId) -> bool {
        let generation = self.databases.generation(keys.key(id).db);
        matches!(keys.slot(id), Slot::Lock(stored) if stored.generation < generation)
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

    /// Whether a lease under the key is over and was not settled yet.
    pub(super) fn has_lapsed_hold(turn: &mut Turn<'_, impl Keyspace>, id: KeyId) -> bool {
        matches!(turn.keys.slot(id), Slot::Lock(stored) if stored.lock.lapsed_hold(turn.now).is_some())
    }

    /// Removes what is left of a lock of another kind that is over: `kind` cannot be granted on its value.
    pub(super) fn make_room(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, kind: Kind) {
        let now = turn.now;
        let is_left_over = matches!(turn.keys.slot(id), Slot::Lock(stored)
            if stored.lock.kind() != kind && !stored.lock.is_live(now));
        if is_left_over {
            while self.expire_one(turn, id) {}
            self.drop_dead_queue(turn, id);
            self.finish(turn.keys, id);
        }
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
    pub(super) fn expire(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) -> bool {
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
        let kind = request.kind;
        self.make_room(turn, id, kind);
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
    pub(super) fn serve_siblings(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        mut new: Ids,
        owner: &Owner,
        mode: Mode,
    ) {
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

pub(super) fn terms_of(keys: &mut impl Keyspace, id: KeyId, token: u64) -> Option<Terms> {
    match keys.slot(id) {
        Slot::Lock(stored) => stored.lock.hold_with_token(token).map(Hold::terms),
        _ => None,
    }
}
