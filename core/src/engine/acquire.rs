//! ACQUIRE and MACQUIRE: a request for one key or for many, all of them or none.
//!
//! The way of a request: each key is brought up to date; each says what it admits ([`admission::decide`]); earlier requests of
//! the owner that still wait are dealt with; and then the request is granted, denied, or waits in the queue of each key.
//!
//! A request for several keys stands in the queue of each of them at the same position, and is granted in one step: when
//! each key is held by its owner already, or is free with the request first in its queue. So two requests never wait for
//! each other, and nobody passes one that waits.

use alloc::vec::Vec;

use smallvec::{SmallVec, smallvec};

use super::positions::{NameId, Position, Rank};
use super::state::{Engine, Transaction};
use super::statistics::count;
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::{Kind, Mode};
use crate::lock::admission::{self, Ahead, Decision};
use crate::request::{Ask, Refusal, Request};

/// The tokens of a request's keys, in their order.
pub type Tokens = SmallVec<[u64; 1]>;

/// The answer to ACQUIRE and MACQUIRE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The owner holds, with these tokens.
    Granted(Tokens),
    /// Not granted, and the request does not wait.
    Denied,
    /// The request waits under this ticket.
    Waiting(u64),
}

type Decisions = SmallVec<[Decision; 1]>;

/// What became of the requests of the same owner that waited when a numbered one came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Earlier {
    /// There was none.
    None,
    /// The same one: its place is taken over. `is_suspected` if it may close a circle: the search was still to come, or its time was over.
    Repeated { rank: Rank, arrival: u64, is_suspected: bool },
    /// Lower ones, which have ended.
    Ended,
}

impl Engine {
    /// ACQUIRE, MACQUIRE. A request that waits gets a ticket; its answer comes through the outbox of a later call.
    ///
    /// # Errors
    ///
    /// [`Refusal`] says why; nothing was changed on behalf of this request.
    pub fn acquire(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
    ) -> Result<Acquired, Refusal> {
        if let Some(acquired) = self.acquire_at_rest(tx, owner, request) {
            return acquired;
        }
        let acquired = self.run_competing(tx, request.kind, |engine, tx| engine.acquire_reconciled(tx, owner, request));
        match &acquired {
            Ok(Acquired::Denied) if request.ask == Ask::Try => count(&mut self.stats.of(request.kind).denied),
            Ok(_) => {}
            Err(refusal) => self.stats.count_refusal(request.kind, refusal),
        }
        acquired
    }

    /// The short way of the most frequent request: for one key, with nothing to bring up to date and nobody who waits, so that
    /// what the lock says is the answer. `None` if it is not so.
    fn acquire_at_rest(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
    ) -> Option<Result<Acquired, Refusal>> {
        const KEY: KeyId = KeyId(0);
        if tx.keys.count() != 1 || request.request_id.is_some() || !self.is_at_rest(tx, KEY) {
            return None;
        }
        match admission::decide(tx.keys.value(KEY), Ahead::default(), owner, request, tx.now) {
            Decision::Grant => {
                let granted = self.grant_key(tx, KEY, owner, request, &Decision::Grant);
                self.close_key(tx.keys, KEY);
                Some(granted.map(|token| {
                    count(&mut self.stats.of(request.kind).granted_at_once);
                    Acquired::Granted(smallvec![token])
                }))
            }
            Decision::Wait if request.ask == Ask::Try => {
                count(&mut self.stats.of(request.kind).denied);
                Some(Ok(Acquired::Denied))
            }
            Decision::Wait | Decision::Repeat(_) | Decision::Held(_) | Decision::Refuse(_) => None,
        }
    }

    fn acquire_reconciled(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
    ) -> Result<Acquired, Refusal> {
        if request.kind == Kind::Fair {
            self.release_own_place(tx, KeyId(0), owner);
        }
        let mut decisions = self.decide(tx, owner, request, Position::LAST)?;
        if let [Decision::Repeat(token)] = decisions.as_slice() {
            let client = tx.keys.client();
            self.confirm(tx, KeyId(0), *token);
            self.repeat(tx, KeyId(0), *token, request, client);
            return Ok(Acquired::Granted(smallvec![*token]));
        }
        let earlier = self.supersede(tx, owner, request)?;
        if earlier != Earlier::None {
            let position = match earlier {
                Earlier::Repeated { rank, arrival, .. } => Position::new(rank, arrival, u64::MIN),
                Earlier::None | Earlier::Ended => Position::LAST,
            };
            decisions = self.decide(tx, owner, request, position)?;
        }
        if is_granted(&decisions) {
            return self.grant_all(tx, owner, request, &decisions).map(Acquired::Granted);
        }
        if request.kind == Kind::Fair {
            let ticket = self.queue_up(tx, owner, request)?;
            return Ok(ticket.map_or(Acquired::Denied, Acquired::Waiting));
        }
        if !matches!(request.ask, Ask::Wait { .. }) {
            if earlier != Earlier::None {
                // A place that was taken over by a request that does not wait is given up.
                self.reconcile_all(tx);
            }
            return Ok(Acquired::Denied);
        }
        self.wait(tx, owner, request, earlier).map(Acquired::Waiting)
    }

    fn reconcile_all(&mut self, tx: &mut Transaction<'_, impl Keyspace>) {
        for id in tx.ids() {
            self.reconcile(tx, id, false);
        }
    }

    /// What each key says to a request at a position. The first that refuses decides for all.
    fn decide(
        &self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
        position: Position,
    ) -> Result<Decisions, Refusal> {
        let mut decisions = Decisions::new();
        for id in tx.ids() {
            let ahead = self.ahead(tx, id, request.kind, position);
            match admission::decide(tx.keys.value(id), ahead, owner, request, tx.now) {
                Decision::Refuse(refusal) => return Err(refusal),
                decision => decisions.push(decision),
            }
        }
        Ok(decisions)
    }

    /// Who waits ahead of a request at a position.
    pub(super) fn ahead(
        &self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        kind: Kind,
        position: Position,
    ) -> Ahead {
        let record = self.name(tx, id).and_then(|name| self.queues.names.get(name));
        let waiting = record.and_then(|record| Some((record, record.queue.first()?)));
        let Some((record, first)) = waiting.filter(|(_, first)| *first < position) else {
            return Ahead::default();
        };
        Ahead { any: true, upgrade: first.rank() == Rank::Upgrade, other_kind: record.has_other_kind(kind) }
    }

    /// Grants each key what it has decided.
    fn grant_all(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
        decisions: &[Decision],
    ) -> Result<Tokens, Refusal> {
        self.check_tokens(tx, owner, request)?;
        let had_place = self.has_place(tx, owner, request.kind);
        let mut tokens = Tokens::new();
        for (id, decision) in tx.ids().zip(decisions) {
            tokens.push(self.grant_key(tx, id, owner, request, decision)?);
        }
        let stats = self.stats.of(request.kind);
        count(if had_place { &mut stats.granted_after_waiting } else { &mut stats.granted_at_once });
        Ok(tokens)
    }

    /// Grants one key what it has decided, and returns the token.
    #[inline(always)]
    fn grant_key(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        owner: &[u8],
        request: &Request,
        decision: &Decision,
    ) -> Result<u64, Refusal> {
        let client =
            if request.session_ms.is_some() || has_session(tx, id, owner, request) { tx.keys.client() } else { None };
        if let Decision::Repeat(token) | Decision::Held(token) = decision {
            self.confirm(tx, id, *token);
            self.repeat(tx, id, *token, request, client);
            return Ok(*token);
        }
        let token = self.grant(tx, id, owner, request, client)?;
        if let Some(name) = self.name(tx, id) {
            self.confirm_under(name, token);
            // The queue may have been left to the timer with the owner at its head.
            self.grant_siblings(tx, id, owner, request.mode);
        }
        Ok(token)
    }

    /// Lets a request wait at the end of its rank, or where an earlier one waited.
    fn wait(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
        earlier: Earlier,
    ) -> Result<u64, Refusal> {
        if earlier == Earlier::None {
            self.check_waiters(tx, &[])?;
        }
        let (rank, arrival) = match earlier {
            Earlier::Repeated { rank, arrival, .. } => (rank, arrival),
            Earlier::None | Earlier::Ended => (rank_of(tx, owner, request), self.next_number(tx.now)?),
        };
        let ticket = self.enter(tx, owner, request, rank, arrival);
        match earlier {
            Earlier::None => self.check_deadlock(tx, ticket, &[])?,
            Earlier::Repeated { is_suspected: false, .. } => {}
            // The search was still to come, or may have been put off. The earlier request has gone, so this one is not refused but answered.
            Earlier::Repeated { .. } | Earlier::Ended => self.suspect(ticket),
        }
        Ok(ticket)
    }

    /// A numbered request meets earlier ones of its owner that still wait: the same one takes the place over, a higher id ends
    /// them, a lower one is stale. An id that waits for other keys is used up.
    fn supersede(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
    ) -> Result<Earlier, Refusal> {
        let Some(request_id) = request.request_id.filter(|_| self.queues.len() > 0) else {
            return Ok(Earlier::None);
        };
        let is_own = self.holds_all(tx, owner, request);
        if request.kind == Kind::Fair && !is_own {
            // An owner has one place on a fair lock, and each of its requests takes it over.
            return Ok(Earlier::None);
        }
        let earlier = self.earlier(tx, owner, request, request_id)?;
        if earlier.is_empty() {
            return Ok(Earlier::None);
        }
        let is_repeat = earlier.iter().any(|(_, waiting_id)| *waiting_id == request_id);
        if !is_repeat && !is_own && matches!(request.ask, Ask::Wait { .. }) {
            // A higher id waits anew: it needs room beside all the others, also if the limit was lowered meanwhile; and it is
            // refused before anything has ended.
            let ends: SmallVec<[u64; 4]> = earlier.iter().map(|(ticket, _)| *ticket).collect();
            self.check_waiters(tx, &ends)?;
            let rank = rank_of(tx, owner, request);
            let ticket = self.enter(tx, owner, request, rank, u64::MAX);
            self.check_deadlock(tx, ticket, &ends)?;
            self.withdraw(ticket);
        }
        let mut place = None;
        for (ticket, _) in earlier {
            let Some(waiter) = self.queues.get(ticket) else {
                continue;
            };
            // One whose time was over was in nobody's way. It goes on now, and may close a circle that was none before.
            let may_close_a_circle = waiter.is_suspected || waiter.is_over(tx.now);
            place = Some((waiter.rank, waiter.arrival, may_close_a_circle));
            let answer = waiter.answer_to_succeeded(request);
            self.answer(tx, ticket, answer);
        }
        if let Some((rank, arrival, is_suspected)) = place.filter(|_| is_repeat && !is_own) {
            return Ok(Earlier::Repeated { rank, arrival, is_suspected });
        }
        self.reconcile_all(tx);
        Ok(Earlier::Ended)
    }

    /// The numbered requests of the same owner and mode that wait for any of the keys, each once, with their ids.
    fn earlier(
        &self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
        request_id: u64,
    ) -> Result<Vec<(u64, u64)>, Refusal> {
        let mut earlier: Vec<(u64, u64)> = Vec::new();
        let names: SmallVec<[Option<NameId>; 1]> = tx.ids().map(|id| self.name(tx, id)).collect();
        for name in names.iter().flatten() {
            let numbered = self.queues.numbered(owner, *name, request.mode);
            let Some((ticket, waiting_id)) = numbered.filter(|numbered| !earlier.contains(numbered)) else {
                continue;
            };
            let is_same_request = || {
                self.queues.get(ticket).is_some_and(|waiter| {
                    (waiter.request().verb, waiter.request().count) == (request.verb, request.count)
                        && waiter.names.len() == names.len()
                        && names.iter().all(|name| name.is_some_and(|name| waiter.names.contains(&name)))
                })
            };
            if request_id < waiting_id || (request_id == waiting_id && !is_same_request()) {
                return Err(Refusal::Stale { last_id: waiting_id });
            }
            earlier.push((ticket, waiting_id));
        }
        Ok(earlier)
    }

    /// Whether the owner of a request holds what it need not wait for any more: a re-entry never waits.
    fn holds_all(&self, tx: &Transaction<'_, impl Keyspace>, owner: &[u8], request: &Request) -> bool {
        let holds = |mode| matches!(Self::live_terms(tx, KeyId(0), request.kind, owner, mode), Ok(Some(_)));
        tx.keys.count() == 1 && Mode::ALL.into_iter().any(|held| request.is_met_by(held) && holds(held))
    }
}

fn is_granted(decisions: &[Decision]) -> bool {
    decisions.iter().all(|decision| matches!(decision, Decision::Grant | Decision::Repeat(_) | Decision::Held(_)))
}

fn rank_of(tx: &Transaction<'_, impl Keyspace>, owner: &[u8], request: &Request) -> Rank {
    let is_upgrade = admission::is_upgrade(tx.keys.value(KeyId(0)), owner, request, tx.now);
    if is_upgrade { Rank::Upgrade } else { Rank::Newcomer }
}

/// Whether the owner has a hold with a session, which is bound to each connection that uses it.
fn has_session(tx: &Transaction<'_, impl Keyspace>, id: KeyId, owner: &[u8], request: &Request) -> bool {
    let hold = tx.keys.value(id).hold(request.kind, owner, request.mode, tx.now);
    hold.is_ok_and(|hold| hold.is_some_and(|hold| hold.session_ms().is_some()))
}
