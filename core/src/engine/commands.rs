//! What a client asks: acquire, release, renew, force; and what a master tells a replica: apply.

use alloc::vec::Vec;

use crate::event::{ChangeCause, EndCause, Event, Terms};
use crate::lock::{Hold, Kind};
use crate::request::{Acquire, Numbered, Refusal, Release, Renew, RequestMark, Verb};
use crate::time::Now;

use super::{Acquired, Answer, Engine, KeyId, Keyspace, Outbox, Slot};

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
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        request: Acquire,
        out: &mut Outbox,
    ) -> Result<Acquired, Refusal> {
        self.settle(now, keys, id, false, out);
        let acquired = self.acquire_settled(now, keys, id, request, out);
        self.finish(keys, id);
        acquired
    }

    fn acquire_settled(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        request: Acquire,
        out: &mut Outbox,
    ) -> Result<Acquired, Refusal> {
        let lock = Self::lock_of_kind(keys, id, request.kind)?;
        let held = lock
            .and_then(|lock| lock.live_hold(request.owner.as_slice(), request.mode, now))
            .map(|hold| (hold.token(), hold.terms()));
        if let Some((token, terms)) = held {
            let numbered =
                RequestMark::classify(terms.request, request.request_id, Verb::Acquire)?;
            if numbered == Numbered::Repeat {
                let renewal = Renewal {
                    lease_ms: Some(request.lease_ms),
                    session_ms: request.session_ms,
                    client: request.client,
                    always: true,
                };
                self.renew_hold(now, keys, id, token, terms, &renewal, out);
                return Ok(Acquired::Granted(token));
            }
            if request.kind != Kind::Semaphore {
                let token = self.grant(now, keys, id, &request, out)?;
                self.touch(token);
                self.stats.granted_at_once = self.stats.granted_at_once.saturating_add(1);
                return Ok(Acquired::Granted(token));
            }
        }
        let place = self.take_over(now, keys, id, &request, out)?;
        if place.is_none() && self.is_free_for(now, keys, id, &request)? {
            let token = self.grant(now, keys, id, &request, out)?;
            self.stats.granted_at_once = self.stats.granted_at_once.saturating_add(1);
            return Ok(Acquired::Granted(token));
        }
        let Some(wait) = request.wait else {
            // A place that was taken over by a request that does not wait is given up.
            self.settle(now, keys, id, false, out);
            return Ok(Acquired::Denied);
        };
        if self.waiters.len() >= wait.max_waiters {
            let limit = wait.max_waiters;
            return Err(Refusal::MaxWaiters { limit });
        }
        Ok(Acquired::Waiting(self.waiters.join(
            keys.key(id),
            place,
            request,
            now,
        )))
    }

    /// A numbered request meets an earlier one of its owner that still waits: the same id takes the place over (its
    /// arrival number is returned), a higher one ends it, a lower one is stale.
    fn take_over(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        request: &Acquire,
        out: &mut Outbox,
    ) -> Result<Option<u64>, Refusal> {
        let Some(request_id) = request.request_id else {
            return Ok(None);
        };
        let Some((ticket, waiting_id)) =
            self.waiters
                .numbered(keys.key(id), &request.owner, request.mode)
        else {
            return Ok(None);
        };
        if request_id < waiting_id {
            return Err(Refusal::Stale {
                last_id: waiting_id,
            });
        }
        let earlier = self.waiters.leave(ticket);
        out.answer(ticket, Answer::TakenOver);
        if request_id == waiting_id {
            return Ok(earlier.map(|waiter| waiter.arrival));
        }
        self.settle(now, keys, id, false, out);
        Ok(None)
    }

    /// Whether a newcomer can have it: nobody waits, and the lock admits it.
    fn is_free_for(
        &self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        request: &Acquire,
    ) -> Result<bool, Refusal> {
        if self.is_waited_for(keys.key(id)) {
            return Ok(false);
        }
        let lock = Self::lock_of_kind(keys, id, request.kind)?;
        Ok(lock.is_none_or(|lock| {
            lock.admits(request.owner.as_slice(), request.mode, request.count, now)
        }))
    }

    /// RELEASE. Returns the holds left.
    ///
    /// # Errors
    ///
    /// [`Refusal`] says why; nothing was changed on behalf of this request.
    pub fn release(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        request: &Release<'_>,
        out: &mut Outbox,
    ) -> Result<u32, Refusal> {
        self.settle_noted(now, keys, id, out);
        let left = self.release_settled(now, keys, id, request, out);
        self.finish(keys, id);
        left
    }

    fn release_settled(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        request: &Release<'_>,
        out: &mut Outbox,
    ) -> Result<u32, Refusal> {
        let hold = Self::lock_of_kind(keys, id, request.kind)?
            .and_then(|lock| lock.live_hold(request.owner, request.mode, now))
            .ok_or(Refusal::NotOwner)?;
        let (token, terms) = (hold.token(), hold.terms());
        let numbered = RequestMark::classify(terms.request, request.request_id, Verb::Release)?;
        if numbered == Numbered::Repeat {
            return Ok(terms.count);
        }
        let left = terms
            .count
            .checked_sub(request.count)
            .ok_or(Refusal::CountUnderflow { held: terms.count })?;
        let event = if left == 0 {
            Event::Ended {
                token,
                cause: EndCause::Released,
            }
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
        self.commit(keys, id, event, out);
        self.serve_after_end(now, keys, id, out);
        Ok(left)
    }

    /// RENEW. Returns the milliseconds of lease left.
    ///
    /// # Errors
    ///
    /// [`Refusal`] says why; nothing was changed on behalf of this request.
    pub fn renew(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        request: &Renew<'_>,
        out: &mut Outbox,
    ) -> Result<u64, Refusal> {
        self.settle_noted(now, keys, id, out);
        let left_ms = self.renew_settled(now, keys, id, request, out);
        self.finish(keys, id);
        left_ms
    }

    fn renew_settled(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        request: &Renew<'_>,
        out: &mut Outbox,
    ) -> Result<u64, Refusal> {
        let hold = Self::lock_of_kind(keys, id, request.kind)?
            .and_then(|lock| lock.live_hold(request.owner, request.mode, now))
            .ok_or(Refusal::NotOwner)?;
        let (token, terms) = (hold.token(), hold.terms());
        let renewal = Renewal {
            lease_ms: request.lease_ms,
            session_ms: None,
            client: request.client,
            always: false,
        };
        Ok(now.left_ms(self.renew_hold(now, keys, id, token, terms, &renewal, out)))
    }

    /// Gives a hold a new lease; a deadline never comes nearer by it. Returns the deadline.
    fn renew_hold(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        token: u64,
        terms: Terms,
        renewal: &Renewal,
        out: &mut Outbox,
    ) -> u64 {
        let lease_ms = renewal.lease_ms.unwrap_or(terms.lease_ms);
        let renewed = Terms {
            deadline_us: terms.deadline_us.max(now.after_ms(lease_ms)),
            lease_ms,
            session_ms: renewal.session_ms.or(terms.session_ms),
            ..terms
        };
        let deadline_us = renewed.deadline_us;
        self.touch(token);
        self.bind(keys.key(id), renewal.client, token, &renewed);
        if renewal.always || renewed != terms {
            let event = Event::Changed {
                token,
                cause: ChangeCause::Renewed,
                terms: renewed,
            };
            self.commit(keys, id, event, out);
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
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        kind: Kind,
        token: Option<u64>,
        out: &mut Outbox,
    ) -> Result<bool, Refusal> {
        self.settle_noted(now, keys, id, out);
        let forced = self.force_settled(now, keys, id, kind, token, out);
        self.finish(keys, id);
        forced
    }

    fn force_settled(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        kind: Kind,
        token: Option<u64>,
        out: &mut Outbox,
    ) -> Result<bool, Refusal> {
        let lock = Self::lock_of_kind(keys, id, kind)?;
        let tokens: Vec<u64> = lock
            .into_iter()
            .flat_map(|lock| lock.live_holds(now))
            .map(Hold::token)
            .filter(|held| token.is_none_or(|token| token == *held))
            .collect();
        for token in &tokens {
            let event = Event::Ended {
                token: *token,
                cause: EndCause::Forced,
            };
            self.commit(keys, id, event, out);
        }
        if !tokens.is_empty() {
            self.serve_after_end(now, keys, id, out);
        }
        Ok(!tokens.is_empty())
    }

    /// After a hold ended or gave permits back: whoever can be served is.
    fn serve_after_end(
        &mut self,
        now: Now,
        keys: &mut impl Keyspace,
        id: KeyId,
        out: &mut Outbox,
    ) {
        if self.is_waited_for(keys.key(id)) {
            self.settle(now, keys, id, true, out);
        }
    }

    /// Applies an effect that a master decided, or that the append-only file has. Decides nothing. A value that is no
    /// lock, or a lock of another kind, is left alone; `false` says so.
    pub fn apply_effect(&mut self, keys: &mut impl Keyspace, id: KeyId, event: &Event) -> bool {
        self.raise_token(event.token());
        let fits = match (keys.slot(id), event) {
            (Slot::Foreign, _) => false,
            (Slot::Lock(stored), Event::Granted { kind, .. }) => stored.lock.kind() == *kind,
            (Slot::Vacant, Event::Granted { .. }) | (Slot::Lock(_), _) => true,
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
