//! ACQUIRE and MACQUIRE: a request for one key or for many, all of them or none.
//!
//! The way of a request: each key is brought up to date; each says what it admits ([`admission::decide`]); earlier requests of
//! the owner that still wait are dealt with; and then the request is granted, denied, or waits in the queue of each key.
//!
//! A request for several keys stands in the queue of each of them at the same position, and is granted in one step: when
//! each key is held by its owner already, or is free with the request first in its queue. So two requests never wait for
//! each other, and nobody passes one that waits.

use smallvec::{SmallVec, smallvec};

use super::Engine;
use super::fair::OwnPlace;
use super::grant::Way;
use super::transaction::{At, Transaction};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::Kind;
use crate::lock::admission::{self, Ahead, Decision};
use crate::registry::Waiter;
use crate::registry::{NameId, Position, Rank};
use crate::request::{Ask, Refusal, Request, Verb};
use crate::statistics::count;

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

/// The key of a request that has one.
const KEY: KeyId = KeyId(0);

type Decisions = SmallVec<[Decision; 1]>;

/// The requests of the same owner that wait for a key of a new request.
#[derive(Default)]
struct Earlier {
    tickets: SmallVec<[u64; 1]>,
    /// The place that the new request takes over, if it is for the same thing.
    place: Option<Place>,
    /// The new request repeats the one that waits.
    is_repeat: bool,
}

/// Where a waiter stands.
#[derive(Clone, Copy)]
struct Place {
    rank: Rank,
    arrival: u64,
    /// It may close a cycle: its search is pending, or the earlier wait had timed out or was cut off and so made no edges.
    is_suspected: bool,
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
        let decided = self.decide_at_rest(tx, owner, request);
        match decided {
            Some(Decision::Grant) => return self.acquire_at_rest(tx, owner, request),
            Some(Decision::Wait) if request.ask == Ask::Try => {
                count(&mut self.stats.of(request.kind).denied);
                return Ok(Acquired::Denied);
            }
            _ => {}
        }
        let acquired =
            self.run_competing(tx, request.kind, |engine, tx| engine.acquire_reconciled(tx, owner, request, decided));
        match &acquired {
            Ok(Acquired::Denied) if request.ask == Ask::Try => count(&mut self.stats.of(request.kind).denied),
            Ok(_) => {}
            Err(refusal) => self.stats.count_refusal(request.kind, refusal),
        }
        acquired
    }

    /// The decision about the most frequent request: for one key, with nothing to bring up to date and no waiters, so that what the
    /// lock admits is the answer. `None` for any other request, and for a refusal, which may be due to a lock that is over.
    fn decide_at_rest(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
    ) -> Option<Decision> {
        if tx.keys.count() != 1 || request.request_id.is_some() || !self.is_at_rest(&mut tx.at(KEY)) {
            return None;
        }
        let decision = admission::decide(tx.keys.value(KEY), Ahead::default(), owner, request, tx.now);
        (!matches!(decision, Decision::Refuse(_))).then_some(decision)
    }

    fn acquire_at_rest(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
    ) -> Result<Acquired, Refusal> {
        let token = self.grant_key(&mut tx.at(KEY), owner, request, &Decision::Grant);
        self.close_key(tx.keys, KEY);
        let token = token?;
        count(&mut self.stats.of(request.kind).granted_at_once);
        Ok(Acquired::Granted(smallvec![token]))
    }

    /// ACQUIRE on keys that are up to date. `decided` is what [`Engine::decide_at_rest`] has decided.
    fn acquire_reconciled(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
        decided: Option<Decision>,
    ) -> Result<Acquired, Refusal> {
        if request.kind == Kind::Fair {
            self.release_own_place(&mut tx.at(KEY), owner);
        }
        let mut decisions = match decided {
            Some(decision) => smallvec![decision],
            None => self.decide(tx, owner, request, Position::LAST)?,
        };
        check_claim(tx, owner, request, &decisions)?;
        if let [Decision::Repeat(token)] = decisions.as_slice() {
            let (client, note) = (tx.keys.client(), tx.note);
            self.confirm(&mut tx.at(KEY), *token);
            self.repeat(&mut tx.at(KEY), *token, request, client, note);
            return Ok(Acquired::Granted(smallvec![*token]));
        }
        let earlier = self.earlier(tx, owner, request)?;
        if let Some(place) = earlier.place {
            decisions = self.decide(tx, owner, request, Position::new(place.rank, place.arrival, u64::MIN))?;
        }
        if is_granted(&decisions) {
            self.check_tokens(tx, owner, request)?;
            self.supersede(tx, &earlier, request);
            return self.grant_all(tx, owner, request, &decisions).map(Acquired::Granted);
        }
        if request.ask != Ask::Try {
            return self.wait(tx, owner, request, &earlier);
        }
        if earlier.is_repeat {
            // The request that waits was sent again, and does not want to wait any more.
            self.supersede(tx, &earlier, request);
            if self.has_place(tx, owner, request.kind) {
                self.release_place(&mut tx.at(KEY), owner, request.request_id, false);
            }
            for id in tx.ids() {
                self.reconcile(&mut tx.at(id), false);
            }
        }
        Ok(Acquired::Denied)
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
            let ahead = self.ahead(&mut tx.at(id), request.kind, position);
            match admission::decide(tx.keys.value(id), ahead, owner, request, tx.now) {
                Decision::Refuse(refusal) => return Err(refusal),
                decision => decisions.push(decision),
            }
        }
        Ok(decisions)
    }

    /// Who waits ahead of a request at a position.
    pub(super) fn ahead(&self, at: &mut At<'_, '_, impl Keyspace>, kind: Kind, position: Position) -> Ahead {
        let waiting = self.name(at).and_then(|name| Some((name, self.registry.first_position(name)?)));
        let Some((name, first)) = waiting.filter(|(_, first)| *first < position) else {
            return Ahead::default();
        };
        Ahead {
            any: true,
            upgrade: first.rank() == Rank::Upgrade,
            other_kind: self.registry.has_other_kind(name, kind),
        }
    }

    /// Grants each key what it has decided.
    fn grant_all(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
        decisions: &[Decision],
    ) -> Result<Tokens, Refusal> {
        let had_place = self.has_place(tx, owner, request.kind);
        let mut tokens = Tokens::new();
        for (id, decision) in tx.ids().zip(decisions) {
            tokens.push(self.grant_key(&mut tx.at(id), owner, request, decision)?);
        }
        let stats = self.stats.of(request.kind);
        count(if had_place { &mut stats.granted_after_waiting } else { &mut stats.granted_at_once });
        Ok(tokens)
    }

    /// Grants one key what it has decided, and returns the token.
    #[inline(always)]
    fn grant_key(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
        decision: &Decision,
    ) -> Result<u64, Refusal> {
        let client =
            if request.session_ms.is_some() || has_session(at, owner, request) { at.keys.client() } else { None };
        if let Decision::Repeat(token) | Decision::Held(token) = decision {
            self.confirm(at, *token);
            self.repeat(at, *token, request, client, at.note);
            return Ok(*token);
        }
        let token = self.grant(at, owner, request, client, Way::AtOnce)?;
        self.confirm(at, token);
        Ok(token)
    }

    /// Lets a request wait: where an earlier one of its owner for the same thing waited, or else at the end of its rank. On a fair lock
    /// it takes a place, or keeps the one that its owner has; `QUEUE` does only that. It is refused before anything has changed.
    fn wait(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
        earlier: &Earlier,
    ) -> Result<Acquired, Refusal> {
        let mut request = *request;
        let mut place = None;
        if request.kind == Kind::Fair {
            let Some(own) = self.own_place(&mut tx.at(KEY), owner, &mut request)? else {
                return Ok(Acquired::Denied);
            };
            place = Some(own);
        }
        let waits = matches!(request.ask, Ask::Wait { .. });
        if waits && earlier.tickets.is_empty() {
            self.check_waiters(tx)?;
        }
        let arrived = place.as_ref().and_then(OwnPlace::arrival).or(earlier.place.map(|place| place.arrival));
        let arrival = match arrived {
            Some(arrival) => arrival,
            None => self.next_number(tx.now)?,
        };
        let mut ticket = None;
        match earlier.place {
            Some(Place { rank, is_suspected, .. }) if waits => {
                self.supersede(tx, earlier, &request);
                let entered = self.enter(tx, owner, &request, rank, arrival);
                if is_suspected {
                    self.suspect(entered);
                }
                ticket = Some(entered);
            }
            _ => {
                if waits {
                    let rank = rank_of(tx, owner, &request);
                    let entered = self.enter(tx, owner, &request, rank, arrival);
                    // The earlier requests stay if this one would close a cycle, so the search runs with both in the queue.
                    self.check_deadlock(tx, entered, &earlier.tickets)?;
                    ticket = Some(entered);
                }
                self.supersede(tx, earlier, &request);
            }
        }
        if let Some(place) = place {
            self.keep_place(&mut tx.at(KEY), owner, arrival, &request, &place);
        }
        Ok(ticket.map_or(Acquired::Denied, Acquired::Waiting))
    }

    /// Ends the earlier requests of the owner. Unless the new request takes their place, the timer then serves the queue: other
    /// waiters may no longer be blocked. The timer does it and not this call, because serving the queue may refuse the new
    /// request, and at that moment the earlier ones are gone already.
    fn supersede(&mut self, tx: &mut Transaction<'_, impl Keyspace>, earlier: &Earlier, request: &Request) {
        for ticket in &earlier.tickets {
            if let Some(waiter) = self.registry.get(*ticket) {
                let answer = waiter.answer_to_succeeded(request);
                self.answer(tx, *ticket, answer);
            }
        }
        if !earlier.tickets.is_empty() && earlier.place.is_none() {
            for id in tx.ids() {
                self.leave_to_timer(tx.keys.key(id));
            }
        }
    }

    /// The requests of the same owner that a new request ends: it waits with one request for a key at most. A request that
    /// does not wait ends only its own repetition. Of numbered requests, a lower id is stale.
    fn earlier(
        &self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
    ) -> Result<Earlier, Refusal> {
        let mut earlier = Earlier::default();
        if self.registry.waiting() == 0 {
            return Ok(earlier);
        }
        let names: SmallVec<[Option<NameId>; 1]> = tx.ids().map(|id| self.name(&mut tx.at(id))).collect();
        for name in names.iter().flatten() {
            let ticket = self.registry.own_wait(owner, *name);
            let Some(ticket) = ticket.filter(|ticket| !earlier.tickets.contains(ticket)) else {
                continue;
            };
            let Some(waiter) = self.registry.get(ticket) else {
                continue;
            };
            let is_same = is_same_thing(waiter, request, &names);
            let waiting_id = waiter.request().request_id;
            if let (Some(id), Some(waiting_id)) = (request.request_id, waiting_id)
                && (id < waiting_id || (id == waiting_id && !is_same))
            {
                return Err(Refusal::Stale { last_id: waiting_id });
            }
            let is_repeat = request.request_id.is_some() && waiting_id == request.request_id;
            // Whoever is granted a fair lock leaves its queue.
            let is_at_place = (request.kind, waiter.request().kind) == (Kind::Fair, Kind::Fair);
            if request.ask == Ask::Try && !is_repeat && !is_at_place {
                continue;
            }
            earlier.is_repeat |= is_repeat;
            if is_same {
                let is_suspected = waiter.is_suspected() || self.registry.is_wait_over(waiter, tx.now);
                earlier.place = Some(Place { rank: waiter.rank(), arrival: waiter.arrival(), is_suspected });
            }
            earlier.tickets.push(ticket);
        }
        Ok(earlier)
    }
}

/// Whether a request asks for what a waiter waits for: in the same way, for the same keys.
fn is_same_thing(waiter: &Waiter, request: &Request, names: &[Option<NameId>]) -> bool {
    let waiting = waiter.request();
    (waiting.verb, waiting.kind, waiting.mode, waiting.count)
        == (request.verb, request.kind, request.mode, request.count)
        && waiter.names().len() == names.len()
        && names.iter().all(|name| name.is_some_and(|name| waiter.names().contains(&name)))
}

/// Refuses `CLAIM` on a MACQUIRE whose owner holds some of the keys: a claim limits a new hold, and here only some would be new.
fn check_claim(
    tx: &Transaction<'_, impl Keyspace>,
    owner: &[u8],
    request: &Request,
    decisions: &[Decision],
) -> Result<(), Refusal> {
    let is_had = decisions.iter().all(|decision| matches!(decision, Decision::Repeat(_) | Decision::Held(_)));
    if request.claim_ms.is_none() || request.verb != Verb::AcquireMany || is_had {
        return Ok(());
    }
    let is_held = |id: &KeyId| {
        let hold = tx.keys.value(*id).hold(request.kind, owner, request.mode, tx.now);
        hold.is_ok_and(|hold| hold.is_some())
    };
    tx.ids().find(is_held).map_or(Ok(()), |id| Err(Refusal::ClaimsHeld { position: id.0 }))
}

fn is_granted(decisions: &[Decision]) -> bool {
    decisions.iter().all(|decision| matches!(decision, Decision::Grant | Decision::Repeat(_) | Decision::Held(_)))
}

fn rank_of(tx: &Transaction<'_, impl Keyspace>, owner: &[u8], request: &Request) -> Rank {
    let is_upgrade = admission::is_upgrade(tx.keys.value(KeyId(0)), owner, request, tx.now);
    if is_upgrade { Rank::Upgrade } else { Rank::Newcomer }
}

/// Whether the owner has a hold with a session, which is bound to each connection that uses it.
fn has_session(at: &At<'_, '_, impl Keyspace>, owner: &[u8], request: &Request) -> bool {
    let hold = at.value().hold(request.kind, owner, request.mode, at.now);
    hold.is_ok_and(|hold| hold.is_some_and(|hold| hold.session_ms().is_some()))
}
