//! What a client asks: acquire, release, renew, force; and what a master tells a replica: apply.

use alloc::vec::Vec;

use crate::event::{ChangeCause, EndCause, Event, Terms};
use crate::hold::Hold;
use crate::lock::{Kind, Lock, Mode};
use crate::queue::Rank;
use crate::request::{Acquire, Ask, Numbered, Refusal, Release, Renew, RequestMark};

use super::line::{Claim, Earlier};
use super::{Acquired, Engine, Turn};
use crate::keyspace::{KeyId, Keyspace, Slot};

/// The part of ACQUIRE or RENEW that gives a hold a new lease.
pub(super) struct Renewal {
    pub(super) lease_ms: Option<u64>,
    pub(super) session_ms: Option<u64>,
    pub(super) client: Option<u64>,
    /// Propagate it even if nothing changed, so that a WAIT after it proves something.
    pub(super) always: bool,
}

impl Renewal {
    /// A repeated ACQUIRE gives what it gave before.
    pub(super) fn of_repeat(request: &Acquire) -> Self {
        Self { lease_ms: Some(request.lease_ms), session_ms: request.session_ms, client: request.client, always: true }
    }
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
        self.settle_to_acquire(turn, id, request.kind);
        let acquired = self.acquire_settled(turn, id, request);
        self.finish_all(turn.keys);
        acquired
    }

    /// Settles a key for a command that competes for the lock. What is left of a lock that is over goes, so that one of
    /// another kind can come.
    pub(super) fn settle_to_acquire(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, kind: Kind) {
        self.settle(turn, id, false);
        self.make_room(turn, id, kind);
        self.finish(turn.keys, id);
    }

    fn acquire_settled(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        request: Acquire,
    ) -> Result<Acquired, Refusal> {
        let now = turn.now;
        let lock = Self::lock_of_kind(turn, id, request.kind)?;
        let permits = lock.map(Lock::permits);
        let held = lock
            .and_then(|lock| lock.live_hold(request.owner.as_slice(), request.mode, now))
            .map(|hold| (hold.token(), hold.terms()));
        if let Some((token, terms)) = held {
            let numbered = RequestMark::classify(terms.request, request.request_id, request.verb)?;
            if numbered == Numbered::Repeat {
                self.renew_hold(turn, id, token, terms, &Renewal::of_repeat(&request));
                return Ok(Acquired::Granted(token));
            }
            if request.kind != Kind::Semaphore {
                // Earlier requests of the owner that still wait have to do with its ids also if this one need not wait.
                self.take_over(turn, &[id], &request, None)?;
                let token = self.grant(turn, id, &request)?;
                self.touch(token);
                self.stats.granted_at_once = self.stats.granted_at_once.saturating_add(1);
                return Ok(Acquired::Granted(token));
            }
        }
        if let Some(permits) = permits.filter(|permits| request.count > *permits) {
            return Err(Refusal::TooManyPermits { permits });
        }
        if request.kind == Kind::Fair {
            return self.acquire_place(turn, id, request);
        }
        let claim = Self::claim(turn, id, &request)?;
        let rank = if claim == Claim::Upgrade { Rank::Upgrade } else { Rank::Newcomer };
        let earlier = self.take_over(turn, &[id], &request, Some(rank))?;
        if !matches!(earlier, Earlier::Repeated(_)) && self.is_free_for(turn, id, &request, claim)? {
            let token = self.grant(turn, id, &request)?;
            self.stats.granted_at_once = self.stats.granted_at_once.saturating_add(1);
            return Ok(Acquired::Granted(token));
        }
        if !matches!(request.ask, Ask::Wait { .. }) {
            // A place that was taken over by a request that does not wait is given up.
            self.settle(turn, id, false);
            return Ok(Acquired::Denied);
        }
        Ok(Acquired::Waiting(self.stand_in_line(turn, &[id], request, rank, earlier)?))
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
        let (token, terms) =
            Self::live_terms(turn, id, request.kind, request.owner, request.mode)?.ok_or(Refusal::NotOwner)?;
        let numbered = RequestMark::classify(terms.request, request.request_id, request.verb)?;
        if numbered == Numbered::Repeat {
            return Ok(terms.count);
        }
        let left = terms.count.checked_sub(request.count).ok_or(Refusal::CountUnderflow { held: terms.count })?;
        self.give_back(turn, id, request, token, terms, left);
        self.serve_after_end(turn, id);
        Ok(left)
    }

    /// The token and the terms of the live hold of `owner`.
    pub(super) fn live_terms(
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        kind: Kind,
        owner: &[u8],
        mode: Mode,
    ) -> Result<Option<(u64, Terms)>, Refusal> {
        let now = turn.now;
        let lock = Self::lock_of_kind(turn, id, kind)?;
        Ok(lock.and_then(|lock| lock.live_hold(owner, mode, now)).map(|hold| (hold.token(), hold.terms())))
    }

    /// Leaves a hold with `left` of its count, or ends it.
    pub(super) fn give_back(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        request: &Release<'_>,
        token: u64,
        terms: Terms,
        left: u32,
    ) {
        let event = if left == 0 {
            Event::Ended { token, cause: EndCause::Released }
        } else {
            Event::Changed {
                token,
                cause: ChangeCause::Released,
                terms: Terms {
                    count: left,
                    request: RequestMark::after(terms.request, request.request_id, request.verb),
                    ..terms
                },
            }
        };
        self.touch(token);
        self.commit(turn, id, event);
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
        self.finish_all(turn.keys);
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
        let (token, terms) =
            Self::live_terms(turn, id, request.kind, request.owner, request.mode)?.ok_or(Refusal::NotOwner)?;
        let renewal = Renewal { lease_ms: request.lease_ms, session_ms: None, client: request.client, always: false };
        Ok(turn.now.left_ms(self.renew_hold(turn, id, token, terms, &renewal)))
    }

    /// Gives a hold a new lease; a deadline never comes nearer by it. Returns the deadline.
    pub(super) fn renew_hold(
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
        let now = turn.now;
        let tokens: Vec<u64> = Self::lock_of_kind(turn, id, kind)?
            .into_iter()
            .flat_map(|lock| lock.live_holds(now))
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
    pub(super) fn serve_after_end(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) {
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
            (Slot::Lock(stored), Event::Sized { .. }) => stored.lock.kind() == Kind::Semaphore,
            (Slot::Vacant, Event::Granted { .. } | Event::Queued { .. } | Event::Sized { .. }) | (Slot::Lock(_), _) => {
                true
            }
            (Slot::Vacant, _) => false,
        };
        if fits {
            self.apply(keys, id, event);
            self.finish(keys, id);
        }
        fits
    }

    /// A command of the owner has used the hold: whatever became of the connection that it was granted to, somebody
    /// knows of it, and of the other holds that were granted together with this one.
    pub(super) fn touch(&mut self, token: u64) {
        self.fresh.touch(token);
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
