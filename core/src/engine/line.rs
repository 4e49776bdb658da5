//! How a request comes to wait: what its owner has and has asked before, whether anything is free, its place in line.

use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::bytes::Owner;
use crate::keyspace::{KeyId, Keyspace};
use crate::lock::Mode;
use crate::outbox::Answer;
use crate::queue::{Rank, RequestKeys, Standing};
use crate::request::{Acquire, Ask, Refusal};

use super::{Engine, Turn, deadlock};

/// What became of the requests of the same owner that waited when a numbered one came.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Earlier {
    /// There was none.
    None,
    /// The same one: its place is taken over.
    Repeated(Standing),
    /// Lower ones, which have ended.
    Ended,
}

/// What a request is to what its owner holds already in another mode.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// Nothing: it stands in line like everybody.
    New,
    /// A reader asks for WRITE: it goes ahead of the queue, which waits for it.
    Upgrade,
    /// The writer asks for READ: nobody can mind.
    Downgrade,
}

impl Engine {
    /// Lets a request wait at the end of its rank, or where an earlier one waited.
    pub(super) fn stand_in_line(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        ids: &[KeyId],
        request: Acquire,
        rank: Rank,
        earlier: Earlier,
    ) -> Result<u64, Refusal> {
        if earlier == Earlier::None {
            self.check_waiters(turn)?;
        }
        let owner = request.owner.clone();
        let standing = match earlier {
            Earlier::Repeated(standing) => standing,
            Earlier::None | Earlier::Ended => Standing { rank, arrival: self.next_number(turn.now) },
        };
        let ticket = self.wait(turn, ids, standing, request);
        if earlier == Earlier::None {
            self.check_deadlock(turn, &owner, ticket, &[])?;
        }
        Ok(ticket)
    }

    /// Lets a request wait in the queue of each of its keys.
    pub(super) fn wait(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        ids: &[KeyId],
        standing: Standing,
        request: Acquire,
    ) -> u64 {
        let keys: RequestKeys = ids.iter().map(|id| turn.keys.key(*id).to_key()).collect();
        let is_first: SmallVec<[bool; 1]> = keys.iter().map(|key| !self.is_waited_for(key.borrow())).collect();
        let owner = request.owner.clone();
        let ticket = self.waiters.join(keys, standing, request, turn.now);
        for (id, is_first) in ids.iter().zip(is_first) {
            if is_first {
                self.note_holders(turn.keys, *id);
            } else {
                self.note_own_holds(turn.keys, *id, &owner);
            }
        }
        ticket
    }

    /// Refuses a request that has just come in line if its owner would wait for itself once its requests in `ends` have
    /// ended.
    pub(super) fn check_deadlock(
        &mut self,
        turn: &Turn<'_, impl Keyspace>,
        owner: &Owner,
        ticket: u64,
        ends: &[u64],
    ) -> Result<(), Refusal> {
        let is_semaphore = self.waiters.get(ticket).is_none_or(|waiter| waiter.request.mode == Mode::Permits);
        if is_semaphore {
            return Ok(());
        }
        let checked = deadlock::check(&self.waiters, owner, ends, &self.hasher, turn.now);
        if checked.is_err() {
            self.waiters.withdraw(ticket);
        }
        checked
    }

    /// What the request is to what its owner holds already.
    pub(super) fn claim(turn: &mut Turn<'_, impl Keyspace>, id: KeyId, request: &Acquire) -> Result<Claim, Refusal> {
        let now = turn.now;
        let lock = Self::lock_of_kind(turn, id, request.kind)?;
        let holds = |mode| lock.is_some_and(|lock| lock.live_hold(request.owner.as_slice(), mode, now).is_some());
        Ok(match request.mode {
            Mode::Read if holds(Mode::Write) => Claim::Downgrade,
            Mode::Write if holds(Mode::Read) => Claim::Upgrade,
            _ => Claim::New,
        })
    }

    /// Whether one more connection may wait.
    pub(super) fn check_waiters(&self, turn: &Turn<'_, impl Keyspace>) -> Result<(), Refusal> {
        let limit = turn.limits.max_waiters;
        if self.waiters.len() >= limit { Err(Refusal::MaxWaiters { limit }) } else { Ok(()) }
    }

    /// A numbered request meets earlier ones of its owner that still wait: the same one takes the place over (its
    /// standing is kept), a higher id ends them, a lower one is stale. `rank` is where it would wait; without one it does not. An id that waits for other keys is used up.
    pub(super) fn take_over(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        ids: &[KeyId],
        request: &Acquire,
        rank: Option<Rank>,
    ) -> Result<Earlier, Refusal> {
        let Some(request_id) = request.request_id else {
            return Ok(Earlier::None);
        };
        let earlier = self.numbered_earlier(turn, ids, request, request_id)?;
        if earlier.is_empty() {
            return Ok(Earlier::None);
        }
        let is_repeat = earlier.iter().any(|(_, waiting_id)| *waiting_id == request_id);
        // A higher id waits anew: it needs room beside all the others, also if the limit was lowered meanwhile.
        let limit = turn.limits.max_waiters;
        let rank = rank.filter(|_| matches!(request.ask, Ask::Wait { .. }));
        if !is_repeat && rank.is_some() && self.waiters.len().saturating_sub(earlier.len()) >= limit {
            return Err(Refusal::MaxWaiters { limit });
        }
        if let Some(rank) = rank.filter(|_| !is_repeat) {
            let ends: Vec<u64> = earlier.iter().map(|(ticket, _)| *ticket).collect();
            let ticket = self.wait(turn, ids, Standing { rank, arrival: u64::MAX }, request.clone());
            self.check_deadlock(turn, &request.owner, ticket, &ends)?;
            self.waiters.withdraw(ticket);
        }
        let mut standing = None;
        for (ticket, _) in earlier {
            standing = self.retire(ticket).map(|waiter| waiter.standing);
            turn.out.answer(ticket, Answer::TakenOver);
        }
        if let Some(standing) = standing.filter(|_| is_repeat) {
            return Ok(Earlier::Repeated(standing));
        }
        for id in ids {
            self.settle(turn, *id, false);
        }
        Ok(Earlier::Ended)
    }

    /// The numbered requests of the same owner and mode that wait for any of the keys, each once, with their ids.
    fn numbered_earlier(
        &self,
        turn: &mut Turn<'_, impl Keyspace>,
        ids: &[KeyId],
        request: &Acquire,
        request_id: u64,
    ) -> Result<Vec<(u64, u64)>, Refusal> {
        let mut earlier: Vec<(u64, u64)> = Vec::new();
        for id in ids {
            let numbered = self.waiters.numbered(turn.keys.key(*id), &request.owner, request.mode);
            let Some((ticket, waiting_id)) = numbered.filter(|numbered| !earlier.contains(numbered)) else {
                continue;
            };
            let is_same_request = || {
                let waiter = self.waiters.get(ticket);
                waiter.is_some_and(|waiter| {
                    (waiter.request.verb, waiter.request.count) == (request.verb, request.count)
                        && waiter.keys.len() == ids.len()
                        && ids.iter().all(|id| waiter.keys.iter().any(|key| key.borrow() == turn.keys.key(*id)))
                })
            };
            if request_id < waiting_id || (request_id == waiting_id && !is_same_request()) {
                return Err(Refusal::Stale { last_id: waiting_id });
            }
            earlier.push((ticket, waiting_id));
        }
        Ok(earlier)
    }

    /// Whether the request can have it now: nobody is to be served before it, and the lock admits it.
    pub(super) fn is_free_for(
        &self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        request: &Acquire,
        claim: Claim,
    ) -> Result<bool, Refusal> {
        let first = self.waiters.first(turn.keys.key(id));
        let is_next = match claim {
            Claim::New => first.is_none(),
            Claim::Upgrade => first.is_none_or(|(_, waiter)| waiter.standing.rank != Rank::Upgrade),
            Claim::Downgrade => true,
        };
        let now = turn.now;
        let lock = Self::lock_of_kind(turn, id, request.kind)?;
        Ok(is_next && lock.is_none_or(|lock| lock.admits(request.owner.as_slice(), request.mode, request.count, now)))
    }
}
