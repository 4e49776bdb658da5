//! ACQUIRE and MACQUIRE: a request for one or several keys, all of them or none.
//!
//! The engine reconciles each key, asks each for an admission decision ([`admission::decide`]), and
//! ends earlier requests of the owner that still wait. Then it grants the request, denies it, or
//! puts it into the queue of each key.
//!
//! A request for several keys has the same position in the queue of each. The engine grants all
//! keys in one step, once each is available: already held by the owner, or free with the request
//! first in its queue. So two such requests never wait for each other, and neither passes a request
//! ahead of it.

use smallvec::{SmallVec, smallvec};

use super::Engine;
use super::fair::{OwnPlace, has_place};
use super::grant::GrantTiming;
use super::transaction::{At, Transaction};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::{Kind, Mode};
use crate::limits::MayGrant;
use crate::lock::admission::{self, Ahead, Decision, Value};
use crate::outbox::{Belief, Grant, Tokens};
use crate::registry::{NameId, Position, Rank, Waiter};
use crate::request::{Ask, Refusal, Request, Verb};
use crate::statistics::count;

/// The answer to ACQUIRE and MACQUIRE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The owner holds the lock.
    Granted(Grant),
    /// Not granted, and the request does not wait.
    Denied,
    /// The request waits under this ticket.
    Waiting(u64),
}

/// The key of a request for one key.
const KEY: KeyId = KeyId(0);

type Decisions = SmallVec<[Decision; 1]>;

/// Waiting requests of the same owner that a new request ends.
#[derive(Default)]
struct Earlier {
    tickets: SmallVec<[u64; 1]>,
    /// The position that the new request takes over, if it asks for the same thing.
    place: Option<Standing>,
    /// The new request repeats the one that waits.
    is_repeat: bool,
}

/// The position of a waiter in each of its queues.
#[derive(Clone, Copy)]
pub(super) struct Standing {
    pub(super) rank: Rank,
    pub(super) arrival: u64,
    /// See [`Waiter::since_us`].
    pub(super) since_us: u64,
    /// The request may close a cycle: a search is pending, or the earlier request made no edges,
    /// because it had timed out or was cut off.
    is_suspected: bool,
}

impl Engine {
    /// ACQUIRE, MACQUIRE. A request that waits gets a ticket; a later call leaves its answer in the
    /// outbox.
    ///
    /// # Errors
    ///
    /// [`Refusal`] gives the reason; nothing was changed on behalf of this request.
    pub fn acquire(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
    ) -> Result<Acquired, Refusal> {
        let acquired = if self.is_alone(tx, request) {
            self.acquire_alone(tx, owner, request)
        } else {
            self.run_competing(tx, request.kind, |engine, tx| engine.acquire_among_others(tx, owner, request))
        };
        match &acquired {
            Ok(Acquired::Denied) if request.ask == Ask::Try => count(&mut self.stats.of(request.kind).denied),
            Ok(_) => {}
            Err(refusal) => self.stats.count_refusal(request.kind, refusal),
        }
        acquired
    }

    /// Whether a request is of the most frequent kind: one key, nothing to reconcile and no
    /// waiters.
    fn is_alone(&self, tx: &mut Transaction<'_, impl Keyspace>, request: &Request) -> bool {
        tx.keys.count() == 1
            && request.request_id.is_none()
            && tx.limits.may_grant == MayGrant::Yes
            && self.is_uncontended(&mut tx.at(KEY))
    }

    fn acquire_alone(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
    ) -> Result<Acquired, Refusal> {
        match admission::decide(tx.keys.value(KEY), Ahead::default(), owner, request, tx.now) {
            Decision::Refuse(refusal) => Err(refusal),
            Decision::Wait if request.ask == Ask::Try => Ok(Acquired::Denied),
            Decision::Wait => {
                self.budget.begin_command(1);
                let waits = self.wait(tx, owner, request, &Earlier::default());
                self.close(tx);
                waits
            }
            decision => {
                let token = self.grant_key(&mut tx.at(KEY), owner, request, &decision);
                self.close_key(tx.keys, KEY);
                let tokens = smallvec![token?];
                count(&mut self.stats.of(request.kind).granted_at_once);
                Ok(granted_at_once(tx, request, tokens))
            }
        }
    }

    /// ACQUIRE on reconciled keys.
    fn acquire_among_others(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
    ) -> Result<Acquired, Refusal> {
        if request.kind == Kind::Fair {
            self.release_own_place(&mut tx.at(KEY), owner);
        }
        let mut decisions = self.decide(tx, owner, request, Position::LAST)?;
        if tx.limits.may_grant != MayGrant::Yes {
            return self.acquire_later(tx, owner, request);
        }
        if let [Decision::Repeat(token)] = decisions.as_slice() {
            let (client, note) = (tx.keys.client(), tx.note);
            self.confirm(&mut tx.at(KEY), *token);
            self.repeat(&mut tx.at(KEY), *token, request, client, note);
            return Ok(granted_at_once(tx, request, smallvec![*token]));
        }
        let earlier = self.earlier(tx, owner, request)?;
        if let Some(place) = earlier.place {
            decisions = self.decide(tx, owner, request, Position::new(place.rank, place.arrival, u64::MIN))?;
        }
        if is_granted(&decisions) {
            self.check_tokens(tx, owner, request)?;
            self.supersede(tx, &earlier, request);
            let tokens = self.grant_all(tx, owner, request, &decisions)?;
            return Ok(granted_at_once(tx, request, tokens));
        }
        if request.ask != Ask::Try {
            return self.wait(tx, owner, request, &earlier);
        }
        if earlier.is_repeat {
            // A retry without BLOCK ends the wait of the request that it repeats.
            self.supersede(tx, &earlier, request);
            if has_place(tx, owner, request.kind) {
                self.release_place(&mut tx.at(KEY), owner, request.request_id, false);
            }
            for id in tx.ids() {
                self.reconcile(&mut tx.at(id), false);
            }
        }
        Ok(Acquired::Denied)
    }

    /// ACQUIRE while no hold may begin. A request that waits enters the queue, even if the lock is
    /// free. A request that does not wait is refused. An owner that already holds one of the keys
    /// is refused, too, because it must learn that it cannot rely on that hold now.
    fn acquire_later(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
    ) -> Result<Acquired, Refusal> {
        let holds = |id: KeyId| {
            let Value::Lock(lock) = tx.keys.value(id) else {
                return false;
            };
            Mode::ALL.iter().any(|mode| lock.live_hold(owner, *mode, tx.now).is_some())
        };
        if request.ask == Ask::Try || tx.ids().any(holds) {
            tx.limits.may_grant.check()?;
        }
        let earlier = self.earlier(tx, owner, request)?;
        self.wait(tx, owner, request, &earlier)
    }

    /// The decision of each key about a request at a position. The first refusal refuses the
    /// request.
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

    /// The requests that wait ahead of a position.
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

    /// Applies the decision of each key.
    fn grant_all(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
        decisions: &[Decision],
    ) -> Result<Tokens, Refusal> {
        let had_place = has_place(tx, owner, request.kind);
        let mut tokens = Tokens::new();
        for (id, decision) in tx.ids().zip(decisions) {
            tokens.push(self.grant_key(&mut tx.at(id), owner, request, decision)?);
        }
        let stats = self.stats.of(request.kind);
        count(if had_place { &mut stats.granted_after_waiting } else { &mut stats.granted_at_once });
        Ok(tokens)
    }

    /// Applies the decision of one key and returns the token.
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
        let token = self.grant(at, owner, request, client, GrantTiming::AtOnce)?;
        self.confirm(at, token);
        Ok(token)
    }

    /// Puts a request into its queues: at the position of its owner's earlier request for the same
    /// thing, or at the end of its rank. On a fair lock the owner also takes a place, or keeps the
    /// one it has. A `QUEUE` request enters no queue, and only takes or keeps a place. All refusals
    /// come before any change.
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
        if waits {
            let standing = earlier.place.unwrap_or_else(|| {
                let rank = rank_of(tx, owner, &request);
                Standing { rank, arrival, since_us: tx.now.mono_us, is_suspected: false }
            });
            let entered = self.enter(tx, owner, &request, Standing { arrival, ..standing });
            match earlier.place {
                // The edges of the earlier request were searched, or a search is pending. On a fair
                // lock the value may have been replaced since, so its edges are searched again.
                Some(place) if request.kind != Kind::Fair => {
                    if place.is_suspected {
                        self.suspect(entered);
                    }
                }
                // If this request would close a cycle, the earlier ones stay, so the search runs
                // with both in the queue.
                _ => self.check_deadlock(tx, entered, &earlier.tickets)?,
            }
            ticket = Some(entered);
        }
        self.supersede(tx, earlier, &request);
        if let Some(place) = place {
            self.keep_place(&mut tx.at(KEY), owner, arrival, &request, &place);
        }
        Ok(ticket.map_or(Acquired::Denied, Acquired::Waiting))
    }

    /// Ends the earlier requests of the owner. Unless the new request takes over their position,
    /// other waiters may now be first in a queue. The timer serves them: serving them here might
    /// refuse the new request after the earlier ones have ended.
    fn supersede(&mut self, tx: &mut Transaction<'_, impl Keyspace>, earlier: &Earlier, request: &Request) {
        for ticket in &earlier.tickets {
            if let Some(waiter) = self.registry.get(*ticket) {
                let answer = waiter.answer_when_superseded_by(request);
                self.answer(tx, *ticket, answer);
            }
        }
        if !earlier.tickets.is_empty() && earlier.place.is_none() {
            for id in tx.ids() {
                self.defer_to_timer(tx.keys.key(id));
            }
        }
    }

    /// The requests of the same owner that a new request ends. An owner waits with at most one
    /// request for a key. A request that does not wait ends only a request that it retries. A
    /// request whose id is below that of the waiting request is stale.
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
            // On a fair lock a grant removes the owner's place, and so ends its wait.
            let is_at_place = (request.kind, waiter.request().kind) == (Kind::Fair, Kind::Fair);
            if request.ask == Ask::Try && !is_repeat && !is_at_place {
                continue;
            }
            earlier.is_repeat |= is_repeat;
            if is_same {
                let is_suspected = waiter.is_suspected() || self.registry.has_wait_ended(waiter, tx.now);
                // A message counts from the first copy of the request: its owner cannot know which
                // copy has led to the message. A reply counts from the copy that it answers.
                let is_copy = is_repeat && request.notify.is_some();
                let since_us = if is_copy { waiter.since_us() } else { tx.now.mono_us };
                let (rank, arrival) = (waiter.rank(), waiter.arrival());
                earlier.place = Some(Standing { rank, arrival, since_us, is_suspected });
            }
            earlier.tickets.push(ticket);
        }
        Ok(earlier)
    }
}

/// Whether a request asks for the same as a waiter: the same command, mode, count and keys.
fn is_same_thing(waiter: &Waiter, request: &Request, names: &[Option<NameId>]) -> bool {
    let waiting = waiter.request();
    (waiting.verb, waiting.kind, waiting.mode, waiting.count)
        == (request.verb, request.kind, request.mode, request.count)
        && waiter.names().len() == names.len()
        && names.iter().all(|name| name.is_some_and(|name| waiter.names().contains(&name)))
}

/// The answer to a request that is granted without waiting.
fn granted_at_once(tx: &Transaction<'_, impl Keyspace>, request: &Request, tokens: Tokens) -> Acquired {
    let holds = tx.ids().zip(tokens.iter().copied());
    let belief = request.is_timed.then(|| Belief { from_us: tx.now.mono_us, until_us: tx.ends_us(holds) });
    Acquired::Granted(Grant { tokens, is_many: request.verb == Verb::AcquireMany, belief })
}

fn is_granted(decisions: &[Decision]) -> bool {
    decisions.iter().all(|decision| matches!(decision, Decision::Grant | Decision::Repeat(_) | Decision::Held(_)))
}

fn rank_of(tx: &Transaction<'_, impl Keyspace>, owner: &[u8], request: &Request) -> Rank {
    let is_upgrade = admission::is_upgrade(tx.keys.value(KeyId(0)), owner, request, tx.now);
    if is_upgrade { Rank::Upgrade } else { Rank::Newcomer }
}

/// Whether the owner has a hold with a session. Such a hold is bound to each connection that uses
/// it.
fn has_session(at: &At<'_, '_, impl Keyspace>, owner: &[u8], request: &Request) -> bool {
    let hold = at.value().hold(request.kind, owner, request.mode, at.now);
    hold.is_ok_and(|hold| hold.is_some_and(|hold| hold.session_ms().is_some()))
}
