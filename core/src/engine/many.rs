//! Many keys at once: MACQUIRE, MRELEASE, MRENEW on mutexes.
//!
//! A request for several keys stands in the queue of each of them, everywhere at the same position, and is granted in
//! one step: when each key is held by its owner already, or is free with the request first in its queue. So two
//! requests never wait for each other, and nobody passes one that waits.
//!
//! Whatever makes the last of its keys available settles that key, finds the request at its head (or as a request of
//! the owner that was just granted it), and looks at its other keys.

use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::bytes::{Key, Owner};
use crate::event::Terms;
use crate::lock::Kind;
use crate::outbox::Answer;
use crate::queue::{Rank, RequestKeys};
use crate::request::{Acquire, Ask, Numbered, Refusal, Release, Renew, RequestMark};

use super::commands::Renewal;
use super::line::Earlier;
use super::{Acquired, Engine, Turn};
use crate::keyspace::{KeyId, Keyspace};

/// Open keys.
pub(super) type Ids = SmallVec<[KeyId; 4]>;

/// What became of a request that waits.
pub(super) enum Served {
    /// It goes on waiting.
    Waits,
    /// It was answered, but not with something that its owner did not hold before.
    Answered,
    /// It was granted. These keys its owner did not hold before.
    Granted(Ids),
}

impl Engine {
    /// MACQUIRE: all of the keys or none.
    ///
    /// # Errors
    ///
    /// [`Refusal`] says why; nothing was changed on behalf of this request.
    pub fn acquire_many(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        ids: &[KeyId],
        request: Acquire,
    ) -> Result<Acquired<Vec<u64>>, Refusal> {
        for id in ids {
            self.settle_to_acquire(turn, *id, request.kind);
        }
        let acquired = self.acquire_many_settled(turn, ids, request);
        self.finish_all(turn.keys);
        acquired
    }

    fn acquire_many_settled(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        ids: &[KeyId],
        request: Acquire,
    ) -> Result<Acquired<Vec<u64>>, Refusal> {
        self.check_many(turn, ids, &request)?;
        let earlier = self.take_over(turn, ids, &request, Some(Rank::Newcomer))?;
        if !matches!(earlier, Earlier::Repeated(_)) && self.is_free_for_many(turn, ids, &request.owner, None)? {
            let tokens = self.grant_many(turn, ids, &request)?;
            for token in &tokens {
                self.touch(*token);
            }
            self.stats.granted_at_once = self.stats.granted_at_once.saturating_add(1);
            return Ok(Acquired::Granted(tokens));
        }
        if !matches!(request.ask, Ask::Wait { .. }) {
            // A place that was taken over by a request that does not wait is given up.
            for id in ids {
                self.settle(turn, *id, false);
            }
            return Ok(Acquired::Denied);
        }
        Ok(Acquired::Waiting(self.stand_in_line(turn, ids, request, Rank::Newcomer, earlier)?))
    }

    /// Whether the holds that the owner has already go with the request.
    fn check_many(&self, turn: &mut Turn<'_, impl Keyspace>, ids: &[KeyId], request: &Acquire) -> Result<(), Refusal> {
        for id in ids {
            let Some((_, terms)) = Self::live_terms(turn, *id, request.kind, request.owner.as_slice(), request.mode)?
            else {
                continue;
            };
            let numbered = RequestMark::classify(terms.request, request.request_id, request.verb)?;
            if numbered == Numbered::New && terms.count == u32::MAX {
                return Err(Refusal::CountOverflow);
            }
        }
        Ok(())
    }

    /// Whether each key is held by the owner already, or is free with `ticket` first in its queue (a newcomer: with
    /// nobody in it).
    fn is_free_for_many(
        &self,
        turn: &mut Turn<'_, impl Keyspace>,
        ids: &[KeyId],
        owner: &Owner,
        ticket: Option<u64>,
    ) -> Result<bool, Refusal> {
        let now = turn.now;
        for id in ids {
            let first = self.waiters.first(turn.keys.key(*id)).map(|(first, _)| first);
            let Some(lock) = Self::lock_of_kind(turn, *id, Kind::Mutex)? else {
                if first != ticket {
                    return Ok(false);
                }
                continue;
            };
            let is_own = lock.live_holds(now).any(|hold| hold.owner() == owner);
            let is_free = lock.holds().is_empty() && first == ticket;
            if !is_own && !is_free {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Grants every key. A key whose hold carries the id of this very request is only renewed.
    fn grant_many(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        ids: &[KeyId],
        request: &Acquire,
    ) -> Result<Vec<u64>, Refusal> {
        self.check_many(turn, ids, request)?;
        let mut tokens = Vec::with_capacity(ids.len());
        for id in ids {
            let held = Self::live_terms(turn, *id, request.kind, request.owner.as_slice(), request.mode)?;
            let repeated = held.filter(|(_, terms)| is_repeat(terms, request));
            tokens.push(match repeated {
                Some((token, terms)) => {
                    self.renew_hold(turn, *id, token, terms, &Renewal::of_repeat(request));
                    token
                }
                None => self.grant(turn, *id, request)?,
            });
        }
        Ok(tokens)
    }

    /// Grants a waiting request for several keys if all of them are available. If one of them has something to settle,
    /// that comes first, and the request is looked at again then.
    pub(super) fn serve_many(&mut self, turn: &mut Turn<'_, impl Keyspace>, ticket: u64) -> Served {
        let Some(waiter) = self.waiters.get(ticket) else {
            return Served::Waits;
        };
        let (keys, owner, is_over) = (waiter.keys.clone(), waiter.request.owner.clone(), waiter.is_over(turn.now));
        if is_over {
            return Served::Waits;
        }
        let ids = match self.open_settled(turn, &keys) {
            Ok(ids) => ids,
            Err(unsettled) => {
                let deferred = &mut self.pending.entry(unsettled).details().deferred;
                if !deferred.contains(&ticket) {
                    deferred.push(ticket);
                }
                return Served::Waits;
            }
        };
        match self.is_free_for_many(turn, &ids, &owner, Some(ticket)) {
            Ok(true) => {}
            Ok(false) => return Served::Waits,
            Err(refusal) => {
                self.retire(ticket);
                turn.out.answer(ticket, Answer::Refused(refusal));
                return Served::Answered;
            }
        }
        let Some(waiter) = self.waiters.leave(ticket) else {
            return Served::Waits;
        };
        let before: Vec<_> = ids.iter().map(|id| self.before_grant(turn, *id, &waiter)).collect();
        match self.grant_many(turn, &ids, &waiter.request) {
            Ok(tokens) => {
                self.stats.granted_after_waiting = self.stats.granted_after_waiting.saturating_add(1);
                let new = ids.iter().zip(&before).filter(|(_, before)| before.is_none()).map(|(id, _)| *id).collect();
                for ((id, token), before) in ids.iter().zip(&tokens).zip(before) {
                    // A repeat has given nothing that could be taken back.
                    if before.as_ref().is_none_or(|(terms, _)| !is_repeat(terms, &waiter.request)) {
                        self.remember_fresh(turn, *id, ticket, *token, &waiter, before);
                    }
                }
                turn.out.answer(ticket, Answer::GrantedMany(tokens.into()));
                Served::Granted(new)
            }
            Err(refusal) => {
                for key in waiter.keys {
                    self.pending.entry(key);
                }
                turn.out.answer(ticket, Answer::Refused(refusal));
                Served::Answered
            }
        }
    }

    /// Opens the keys if none of them has anything to settle; tells the one that has. So has a key that another node of
    /// the cluster serves now.
    fn open_settled(&self, turn: &mut Turn<'_, impl Keyspace>, keys: &RequestKeys) -> Result<Ids, Key> {
        let mut ids = Ids::new();
        for key in keys {
            match turn.keys.open(key.borrow()) {
                Some(id) if !self.has_notes(turn, id) && !Self::has_lapsed_hold(turn, id) => ids.push(id),
                _ => return Err(key.clone()),
            }
        }
        Ok(ids)
    }

    /// MRELEASE. Returns the holds left of each key. Once part of it was done, a repeat counts a key that is held no
    /// longer as done.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotOwnerOf`] names the first key that is not held; nothing was changed.
    pub fn release_many(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        ids: &[KeyId],
        request: &Release<'_>,
    ) -> Result<Vec<u32>, Refusal> {
        self.all_settled(turn, ids, |engine, turn| {
            let mut holds = Vec::with_capacity(ids.len());
            for id in ids {
                let held = Self::live_terms(turn, *id, request.kind, request.owner, request.mode)?;
                holds.push(match held {
                    None => None,
                    Some((token, terms)) => {
                        let numbered = RequestMark::classify(terms.request, request.request_id, request.verb)?;
                        Some((token, terms, numbered))
                    }
                });
            }
            let was_done = holds.iter().flatten().any(|(_, _, numbered)| *numbered == Numbered::Repeat);
            if let Some(position) = holds.iter().position(Option::is_none).filter(|_| !was_done) {
                return Err(Refusal::NotOwnerOf { position });
            }
            let mut left = Vec::with_capacity(ids.len());
            for (id, hold) in ids.iter().zip(holds) {
                left.push(match hold {
                    None => 0,
                    Some((_, terms, Numbered::Repeat)) => terms.count,
                    Some((token, terms, Numbered::New)) => {
                        let left = terms.count.saturating_sub(1);
                        engine.give_back(turn, *id, request, token, terms, left);
                        left
                    }
                });
            }
            for id in ids {
                engine.serve_after_end(turn, *id);
            }
            Ok(left)
        })
    }

    /// MRENEW. Returns the smallest lease left, in milliseconds.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotOwnerOf`] names the first key that is not held; nothing was changed.
    pub fn renew_many(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        ids: &[KeyId],
        request: &Renew<'_>,
    ) -> Result<u64, Refusal> {
        self.all_settled(turn, ids, |engine, turn| {
            let mut holds = Vec::with_capacity(ids.len());
            for (position, id) in ids.iter().enumerate() {
                let held = Self::live_terms(turn, *id, request.kind, request.owner, request.mode)?;
                holds.push(held.ok_or(Refusal::NotOwnerOf { position })?);
            }
            let renewal =
                Renewal { lease_ms: request.lease_ms, session_ms: None, client: request.client, always: false };
            let mut smallest_us = u64::MAX;
            for (id, (token, terms)) in ids.iter().zip(holds) {
                smallest_us = smallest_us.min(engine.renew_hold(turn, *id, token, terms, &renewal));
            }
            Ok(turn.now.left_ms(smallest_us))
        })
    }

    /// [`Engine::settled`] for several keys.
    fn all_settled<K: Keyspace, R>(
        &mut self,
        turn: &mut Turn<'_, K>,
        ids: &[KeyId],
        decide: impl FnOnce(&mut Self, &mut Turn<'_, K>) -> R,
    ) -> R {
        for id in ids {
            self.settle_noted(turn, *id);
        }
        let decided = decide(self, turn);
        self.finish_all(turn.keys);
        decided
    }
}

fn is_repeat(terms: &Terms, request: &Acquire) -> bool {
    matches!(RequestMark::classify(terms.request, request.request_id, request.verb), Ok(Numbered::Repeat))
}
