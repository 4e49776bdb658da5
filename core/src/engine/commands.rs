//! What a client asks: acquire, release, renew, force; and what a master tells a replica: apply.

use alloc::vec::Vec;

use crate::event::{ChangeCause, EndCause, Event, Terms};
use crate::lock::{Hold, Kind};
use crate::request::{Acquire, Ask, Numbered, Refusal, Release, Renew, RequestMark, Verb};

use super::{Acquired, Engine, Turn};
use crate::keyspace::{KeyId, Keyspace, Slot};
use crate::outbox::Answer;

/// The part of ACQUIRE or RENEW that gives a hold a new lease.
struct Renewal {
    lease_ms: Option<u64>,
    session_ms: Option<u64>,
    client: Option<u64>,
    /// Propagate it even if nothing changed, so that a WAIT after it proves something.
    always: bool,
}

impl Engine {
    /// ACQUIRE. A request that waits gets a ticket; its answer comes through the outbox of a later call.
    ///
    /// # Errors
    ///
    /// [`Refusal`] says why; nothing was changed on behalf of this request.
    pub fn acquire(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        request: Acquire,
    ) -> Result<Acquired, Refusal> {
        self.settle(turn, id, false);
        let acquired = self.acquire_settled(turn, id, request);
        self.finish(turn.keys, id);
        acquired
    }

    fn acquire_settled(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        request: Acquire,
    ) -> Result<Acquired, Refusal> {
        let lock = Self::lock_of_kind(turn.keys, id, request.kind)?;
        let held = lock
            .and_then(|lock| lock.live_hold(request.owner.as_slice(), request.mode, turn.now))
            .map(|hold| (hold.token(), hold.terms()));
        if let Some((token, terms)) = held {
            let numbered = RequestMark::classify(terms.request, request.request_id, Verb::Acquire)?;
            if numbered == Numbered::Repeat {
                let renewal = Renewal {
                    lease_ms: Some(request.lease_ms),
                    session_ms: request.session_ms,
                    client: request.client,
                    always: true,
                };
                self.renew_hold(turn, id, token, terms, &renewal);
                return Ok(Acquired::Granted(token));
            }
            if request.kind != Kind::Semaphore {
                let token = self.grant(turn, id, &request)?;
                self.touch(token);
                self.stats.granted_at_once = self.stats.granted_at_once.saturating_add(1);
                return Ok(Acquired::Granted(token));
            }
        }
        if request.kind == Kind::Fair {
            return self.acquire_place(turn, id, request);
        }
        let place = self.take_over(turn, id, &request)?;
        if place.is_none() && self.is_free_for(turn, id, &request)? {
            let token = self.grant(turn, id, &request)?;
            self.stats.granted_at_once = self.stats.granted_at_once.saturating_add(1);
            return Ok(Acquired::Granted(token));
        }
        if !matches!(request.ask, Ask::Wait { .. }) {
            // A place that was taken over by a request that does not wait is given up.
            self.settle(turn, id, false);
            return Ok(Acquired::Denied);
        }
        if place.is_none() {
            self.check_waiters(turn)?;
        }
        let arrival = place.unwrap_or_else(|| self.next_number(turn.now));
        Ok(Acquired::Waiting(self.waiters.join(turn.keys.key(id), arrival, request, turn.now)))
    }

    /// Whether one more connection may wait.
    pub(super) fn check_waiters(&self, turn: &Turn<'_, impl Keyspace>) -> Result<(), Refusal> {
        let limit = turn.limits.max_waiters;
        if self.waiters.len() >= limit { Err(Refusal::MaxWaiters { limit }) } else { Ok(()) }
    }

    /// A numbered request meets an earlier one of its owner that still waits: the same id takes the place over (its
    /// arrival number is returned), a higher one ends it, a lower one is stale.
    fn take_over(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        request: &Acquire,
    ) -> Result<Option<u64>, Refusal> {
        let Some(request_id) = request.request_id else {
            return Ok(None);
        };
        let Some((ticket, waiting_id)) = self.waiters.numbered(turn.keys.key(id), &request.owner, request.mode) else {
            return Ok(None);
        };
        if request_id < waiting_id {
            return Err(Refusal::Stale { last_id: waiting_id });
        }
        // A higher id waits anew: it needs room beside all the others, also if the limit was lowered meanwhile.
        let limit = turn.limits.max_waiters;
        if request_id > waiting_id && matches!(request.ask, Ask::Wait { .. }) && self.waiters.len() > limit {
            return Err(Refusal::MaxWaiters { limit });
        }
        let earlier = self.waiters.leave(ticket);
        turn.out.answer(ticket, Answer::TakenOver);
        if request_id == waiting_id {
            return Ok(earlier.map(|waiter| waiter.arrival));
        }
        self.settle(turn, id, false);
        Ok(None)
    }

    /// Whether a newcomer can have it: nobody waits, and the lock admits it.
    fn is_free_for(&self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, request: &Acquire) -> Result<bool, Refusal> {
        if self.is_waited_for(turn.keys.key(id)) {
            return Ok(false);
        }
        let lock = Self::lock_of_kind(turn.keys, id, request.kind)?;
        Ok(lock.is_none_or(|lock| lock.admits(request.owner.as_slice(), request.mode, request.count, turn.now)))
    }

    /// RELEASE. Returns the holds left.
    ///
    /// # Errors
    ///
    /// [`Refusal`] says why; nothing was changed on behalf of this request.
    pub fn release(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        request: &Release<'_>,
    ) -> Result<u32, Refusal> {
        self.settled(turn, id, |engine, turn| engine.release_settled(turn, id, request))
    }

    fn release_settled(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        request: &Release<'_>,
    ) -> Result<u32, Refusal> {
        let hold = Self::lock_of_kind(turn.keys, id, request.kind)?
            .and_then(|lock| lock.live_hold(request.owner, request.mode, turn.now))
            .ok_or(Refusal::NotOwner)?;
        let (token, terms) = (hold.token(), hold.terms());
        let numbered = RequestMark::classify(terms.request, request.request_id, Verb::Release)?;
        if numbered == Numbered::Repeat {
            return Ok(terms.count);
        }
        let left = terms.count.checked_sub(request.count).ok_or(Refusal::CountUnderflow { held: terms.count })?;
        let event = if left == 0 {
            Event::Ended { token, cause: EndCause::Released }
        } else {
            Event::Changed {
                token,
                cause: ChangeCause::Released,
                terms: Terms {
                    count: left,
                    request: RequestMark::after(terms.request, request.request_id, Verb::Release),
                    ..terms
                },
            }
        };
        self.touch(token);
        self.commit(turn, id, event);
        self.serve_after_end(turn, id);
        Ok(left)
    }

    /// Runs a command that does not compete for the lock on the settled state of its key.
    pub(super) fn settled<K: Keyspace, R>(
        &mut self,
        turn: &mut Turn<'_, K>,
        id: KeyId,
        decide: impl FnOnce(&mut Self, &mut Turn<'_, K>) -> R,
    ) -> R {
        self.settle_noted(turn, id);
        let decided = decide(self, turn);
        self.finish(turn.keys, id);
        decided
    }

    /// RENEW. Returns the milliseconds of lease left.
    ///
    /// # Errors
    ///
    /// [`Refusal`] says why; nothing was changed on behalf of this request.
    pub fn renew(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        request: &Renew<'_>,
    ) -> Result<u64, Refusal> {
        self.settled(turn, id, |engine, turn| engine.renew_settled(turn, id, request))
    }

    fn renew_settled(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        request: &Renew<'_>,
    ) -> Result<u64, Refusal> {
        let hold = Self::lock_of_kind(turn.keys, id, request.kind)?
            .and_then(|lock| lock.live_hold(request.owner, request.mode, turn.now))
            .ok_or(Refusal::NotOwner)?;
        let (token, terms) = (hold.token(), hold.terms());
        let renewal = Renewal { lease_ms: request.lease_ms, session_ms: None, client: request.client, always: false };
        Ok(turn.now.left_ms(self.renew_hold(turn, id, token, terms, &renewal)))
    }

    /// Gives a hold a new lease; a deadline never comes nearer by it. Returns the deadline.
    fn renew_hold(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        token: u64,
        terms: Terms,
        renewal: &Renewal,
    ) -> u64 {
        let lease_ms = renewal.lease_ms.unwrap_or(terms.lease_ms);
        let renewed = Terms {
            deadline_us: terms.deadline_us.max(turn.now.after_ms(lease_ms)),
            lease_ms,
            session_ms: renewal.session_ms.or(terms.session_ms),
            ..terms
        };
        let deadline_us = renewed.deadline_us;
        self.touch(token);
        self.bind(turn.keys.key(id), renewal.client, token, &renewed);
        if renewal.always || renewed != terms {
            let event = Event::Changed { token, cause: ChangeCause::Renewed, terms: renewed };
            self.commit(turn, id, event);
        }
        deadline_us
    }

    /// FORCERELEASE: ends every live hold, or the one with `token`. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// [`Refusal::WrongType`] if the key holds something else.
    pub fn force_release(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        kind: Kind,
        token: Option<u64>,
    ) -> Result<bool, Refusal> {
        self.settled(turn, id, |engine, turn| engine.force_settled(turn, id, kind, token))
    }

    fn force_settled(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        kind: Kind,
        token: Option<u64>,
    ) -> Result<bool, Refusal> {
        let lock = Self::lock_of_kind(turn.keys, id, kind)?;
        let tokens: Vec<u64> = lock
            .into_iter()
            .flat_map(|lock| lock.live_holds(turn.now))
            .map(Hold::token)
            .filter(|held| token.is_none_or(|token| token == *held))
            .collect();
        for token in &tokens {
            let event = Event::Ended { token: *token, cause: EndCause::Forced };
            self.commit(turn, id, event);
        }
        if !tokens.is_empty() {
            self.serve_after_end(turn, id);
        }
        Ok(!tokens.is_empty())
    }

    /// After a hold ended or gave permits back: whoever can be served is.
    fn serve_after_end(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) {
        if self.is_waited_for(turn.keys.key(id)) || Self::has_places(turn.keys, id) {
            self.settle(turn, id, true);
        }
    }

    /// Applies an effect that a master decided, or that the append-only file has. Decides nothing. A value that is no
    /// lock, or a lock of another kind, is left alone; `false` says so.
    pub fn apply_effect(&mut self, keys: &mut impl Keyspace, id: KeyId, event: &Event) -> bool {
        if let Some(token) = event.token() {
            self.raise_token(token);
        }
        if let Event::Queued { arrival, .. } = event {
            self.raise_token(*arrival);
        }
        let fits = match (keys.slot(id), event) {
            (Slot::Foreign, _) => false,
            (Slot::Lock(stored), Event::Granted { kind, .. }) => stored.lock.kind() == *kind,
            (Slot::Lock(stored), Event::Queued { .. }) => stored.lock.kind() == Kind::Fair,
            (Slot::Vacant, Event::Granted { .. } | Event::Queued { .. }) | (Slot::Lock(_), _) => true,
            (Slot::Vacant, _) => false,
        };
        if fits {
            self.apply(keys, id, event);
            self.finish(keys, id);
        }
        fits
    }

    /// A command of the owner has used the hold: whatever became of the connection that it was granted to, somebody
    /// knows of it.
    fn touch(&mut self, token: u64) {
        self.fresh.retain(|fresh| fresh.token != token);
    }
}

#[cfg(test)]
mod size {
    /// Each grant moves a request into the hold and an event into the outbox: they are meant to stay small.
    #[test]
    fn requests_and_events_are_at_most_three_cache_lines() {
        assert!(size_of::<super::Acquire>() <= 192);
        assert!(size_of::<super::Event>() <= 192);
    }
}
