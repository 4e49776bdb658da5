//! Serves the queue of a key from its head, as far as the lock admits: the hand-over. One loop for all kinds.
//!
//! The queue of a fair lock is part of the value, and some of its places have no connection:
//!
//! | the lock is | the head is | then |
//! |---|---|---|
//! | held | | wait |
//! | free | a waiter | it is granted |
//! | free | a place without a connection, nothing reserved | the lock is reserved for it, and an event says so |
//! | free | a place without a connection, reserved for it | wait |
//! | free | a place without a connection, the reservation is over | it has missed it, and loses its place |
//! | | a place at the end of its life | it loses its place, wherever it stands |
//!
//! A waiter for many keys at the head of one of them is *offered* all of them, once all are to be had: it is granted right
//! after, in a transaction in which all of them are open ([`Engine::next_offer`]).

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::dirty::{Siblings, Undelivered};
use super::names::{NameId, Position};
use super::state::{Engine, Transaction};
use super::statistics::count;
use super::wait_queues::Waiter;
use super::work::{ANSWER, CHANGE};
use crate::bytes::{Key, Owner};
use crate::event::{Event, LeaveCause, Terms};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::{Kind, Mode};
use crate::lock::admission::{self, Ahead, Decision, Value};
use crate::outbox::Answer;
use crate::place::Stay;
use crate::request::Refusal;

/// Who or what is first in a queue.
enum Head {
    /// Nobody that could be served.
    Nobody,
    Waiter(u64),
    /// A place without a connection, for which the lock is to be reserved.
    Reserve {
        owner: Owner,
        until_us: u64,
    },
    /// A place that is lost.
    Drop {
        owner: Owner,
        cause: LeaveCause,
    },
    /// A place whose connection is gone, which is not known to it yet.
    Abandoned {
        owner: Owner,
        request_id: Option<u64>,
    },
}

/// What became of a waiter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    Waits,
    Answered,
}

impl Engine {
    /// See the head of this file. `freed` tells that a hold has just ended.
    pub(super) fn grant_next(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, freed: bool) {
        self.drop_lapsed_places(tx, id);
        loop {
            match self.head(tx, id) {
                Head::Nobody => return,
                Head::Waiter(ticket) => {
                    if self.serve_head(tx, id, ticket, freed) == Served::Waits {
                        return;
                    }
                }
                _ if !self.work.take(CHANGE) => return self.leave_to_timer(tx, id),
                Head::Reserve { owner, until_us } => {
                    return self.commit(tx, id, Event::Reserved { owner, until_us });
                }
                Head::Drop { owner, cause } => self.commit(tx, id, Event::Left { owner, cause }),
                Head::Abandoned { owner, request_id } => {
                    self.release_place(tx, id, owner.as_slice(), request_id, false);
                }
            }
        }
    }

    /// The allowance is used up: the timer goes on.
    fn leave_to_timer(&mut self, tx: &Transaction<'_, impl Keyspace>, id: KeyId) {
        let name = self.intern(tx.keys.key(id));
        self.mark(name, |_| {});
    }

    fn head(&self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId) -> Head {
        let name = self.name(tx, id);
        let (now, now_us) = (tx.now, tx.now.mono_us);
        let queue = match tx.keys.value(id) {
            Value::Lock(lock) if lock.queue().is_some() => {
                if lock.is_held(now) {
                    return Head::Nobody;
                }
                lock.queue()
            }
            _ => None,
        };
        let Some((queue, first)) = queue.and_then(|queue| Some((queue, queue.first()?))) else {
            let first = name.and_then(|name| self.queues.first(name));
            return first.map_or(Head::Nobody, |(ticket, _)| Head::Waiter(ticket));
        };
        let owner = Owner::from(first.owner);
        if !first.is_live(now) {
            return Head::Drop { owner, cause: LeaveCause::Lapsed };
        }
        if let Some(ticket) = name.and_then(|name| self.queues.first_of(first.owner, name, Mode::Exclusive)) {
            return Head::Waiter(ticket);
        }
        if first.stay == Stay::Connected {
            return Head::Abandoned { owner, request_id: first.request_id };
        }
        match queue.reserved_until_us() {
            Some(until_us) if until_us <= now_us => Head::Drop { owner, cause: LeaveCause::Missed },
            Some(_) => Head::Nobody,
            None => {
                let grace_us = now.after_ms(tx.limits.fair_grace_ms);
                let until_us = first.stay.until_us().map_or(grace_us, |life_us| life_us.min(grace_us));
                Head::Reserve { owner, until_us }
            }
        }
    }

    /// Removes places whose life is over, so that nobody counts or shows them.
    fn drop_lapsed_places(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId) {
        loop {
            let Value::Lock(lock) = tx.keys.value(id) else {
                return;
            };
            let Some(place) = lock.queue().and_then(|queue| queue.over(tx.now.mono_us)) else {
                return;
            };
            let owner = Owner::from(place.owner);
            if !self.work.take(CHANGE) {
                // Its timer is due, and goes off again at once.
                return;
            }
            self.commit(tx, id, Event::Left { owner, cause: LeaveCause::Lapsed });
        }
    }

    /// Serves the head of a queue.
    fn serve_head(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, ticket: u64, freed: bool) -> Served {
        let Some(waiter) = self.queues.get(ticket) else {
            return Served::Waits;
        };
        let owner = self.queues.owner_of(waiter);
        let is_over = waiter.is_over(tx.now);
        let decision = admission::decide(tx.keys.value(id), Ahead::default(), owner, &waiter.request, tx.now);
        if !is_over && decision == Decision::Wait {
            return Served::Waits;
        }
        let is_offer = !is_over && waiter.is_many() && !matches!(decision, Decision::Refuse(_));
        if is_offer {
            self.offer(tx, ticket, freed);
            return Served::Waits;
        }
        if !self.work.take(ANSWER) {
            self.leave_to_timer(tx, id);
            return Served::Waits;
        }
        match decision {
            _ if is_over => self.time_out(tx, id, ticket),
            Decision::Refuse(refusal) => self.answer(tx, ticket, Answer::Refused(refusal)),
            _ if !self.is_permitted(tx, ticket) => self.answer(tx, ticket, Answer::Refused(Refusal::NoPermission)),
            decision => self.grant_to_waiter(tx, id, ticket, &decision, freed),
        }
        Served::Answered
    }

    /// Whether a waiter still may have what it waits for: its user's rights may have been taken away meanwhile.
    fn is_permitted(&self, tx: &Transaction<'_, impl Keyspace>, ticket: u64) -> bool {
        let waiter = self.queues.get(ticket).and_then(|waiter| Some((waiter.client?, &waiter.request)));
        waiter.is_none_or(|(client, request)| tx.keys.is_permitted(client, request))
    }

    /// Takes a waiter out of line that is not granted. The other keys of a request for several have a queue to serve, and other
    /// requests of its owner stand for themselves from now on.
    pub(super) fn remove(&mut self, ticket: u64) -> Option<Waiter> {
        let waiter = self.queues.leave(ticket)?;
        for name in &waiter.names {
            if waiter.is_many() {
                self.mark(*name, |_| {});
            }
            for mode in waiter.request.mode.covers() {
                if let Some(next) = self.queues.next_of_owner(waiter.owner, *name, *mode, None) {
                    self.suspect(next.ticket);
                }
            }
        }
        self.queues.owners.tidy(waiter.owner);
        Some(waiter)
    }

    /// Answers a waiter that is not granted.
    pub(super) fn answer(&mut self, tx: &mut Transaction<'_, impl Keyspace>, ticket: u64, answer: Answer) {
        if let Some(waiter) = self.remove(ticket) {
            match &answer {
                Answer::TimedOut => count(&mut self.stats.of(waiter.request.kind).timed_out),
                Answer::Refused(refusal) => self.stats.count_refusal(waiter.request.kind, refusal),
                Answer::Granted(_) | Answer::GrantedMany(_) | Answer::TakenOver | Answer::Cancelled => {}
            }
        }
        tx.out.answer(ticket, answer);
    }

    fn time_out(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, ticket: u64) {
        let waiter = self.queues.get(ticket).filter(|waiter| waiter.request.kind == Kind::Fair);
        let owner: Option<Owner> = waiter.map(|waiter| self.queues.owner_of(waiter).into());
        self.answer(tx, ticket, Answer::TimedOut);
        if let Some(owner) = owner {
            self.commit(tx, id, Event::Left { owner, cause: LeaveCause::TimedOut });
        }
    }

    /// Grants a waiter what was decided.
    fn grant_to_waiter(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        ticket: u64,
        decision: &Decision,
        freed: bool,
    ) {
        let Some(waiter) = self.queues.get(ticket) else {
            return;
        };
        let (owner, kind) = (Owner::from(self.queues.owner_of(waiter)), waiter.request.kind);
        self.make_room(tx, id, kind);
        let Some(waiter) = self.queues.leave_for_grant(ticket) else {
            return;
        };
        match self.give(tx, id, ticket, owner.as_slice(), &waiter, decision) {
            Ok(token) => {
                self.stats.count_wait(waiter.request.kind, waiter.since_us, tx.now);
                if freed {
                    count(&mut self.stats.of(waiter.request.kind).handed_over);
                }
                self.expect_delivery(ticket, waiter.client);
                tx.out.answer(ticket, Answer::Granted(token));
                self.grant_siblings(tx, id, owner.as_slice(), waiter.request.mode);
            }
            Err(refusal) => {
                self.queues.take_undelivered(ticket);
                tx.out.answer(ticket, Answer::Refused(refusal));
                if kind == Kind::Fair {
                    self.commit(tx, id, Event::Left { owner, cause: LeaveCause::TimedOut });
                }
            }
        }
        self.queues.owners.tidy(waiter.owner);
    }

    /// Gives a waiter one of the keys that it is granted, and remembers what it takes to undo that.
    fn give(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        ticket: u64,
        owner: &[u8],
        waiter: &Waiter,
        decision: &Decision,
    ) -> Result<u64, Refusal> {
        let request = &waiter.request;
        if let Decision::Repeat(token) | Decision::Held(token) = decision {
            // It has given nothing that could be taken back.
            self.repeat(tx, id, *token, request, waiter.client);
            return Ok(*token);
        }
        let before = Self::live_terms(tx, id, request.kind, owner, request.mode)?;
        let is_bound =
            |keys: &_, token| waiter.client.is_some_and(|client| clients_of(keys, id, token).contains(&client));
        let was_bound = before.as_ref().is_some_and(|(token, _)| is_bound(&*tx.keys, *token));
        let token = self.grant(tx, id, owner, request, waiter.client)?;
        let after = before.as_ref().and_then(|_| super::reconcile::terms_of(tx.keys, id, token));
        let undelivered = Undelivered {
            token,
            count: request.count,
            arrival: waiter.arrival,
            client: waiter.client,
            has_bound: !was_bound && is_bound(&*tx.keys, token),
            before_and_after: before.map(|(_, terms): (u64, Terms)| terms).zip(after).map(Box::new),
        };
        if let Some(name) = self.name(tx, id) {
            self.queues.remember(ticket, name, undelivered);
        }
        Ok(token)
    }

    /// A grant is under way to its waiter.
    fn expect_delivery(&mut self, ticket: u64, client: Option<u64>) {
        if !self.queues.is_undelivered(ticket) {
            // A repeat has given nothing that could be taken back.
            self.queues.take_undelivered(ticket);
            return;
        }
        if let Some(client) = client {
            self.connections.grant(client, ticket);
        }
        self.undelivered.push(ticket);
    }

    /// Grants the other requests with which an owner waits for what it holds now: they are re-entries. A writer's READ is granted
    /// as well, as if it asked now. On a semaphore each request is one of its own, unless it says `ONCE`.
    pub(super) fn grant_siblings(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        owner: &[u8],
        mode: Mode,
    ) {
        let Some(name) = self.name(tx, id) else {
            return;
        };
        for mode in mode.covers() {
            self.grant_siblings_behind(tx, id, name, (owner, *mode), None);
        }
        if mode == Mode::Permits && self.queues.asks_once(owner) {
            self.grant_siblings_behind(tx, id, name, (owner, mode), None);
        }
    }

    fn grant_siblings_behind(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        name: NameId,
        (owner, mode): (&[u8], Mode),
        behind: Option<Position>,
    ) {
        let mut behind = behind;
        while let Some(owner_id) = self.queues.owners.find(owner)
            && let Some(position) = self.queues.next_of_owner(owner_id, name, mode, behind)
        {
            let Some(request) = self.queues.get(position.ticket).map(|waiter| waiter.request) else {
                return;
            };
            let is_passed = mode == Mode::Permits && !request.is_once;
            // On a fair lock it is one at most, and its place must not be made anew beside the hold.
            if request.kind != Kind::Fair && !self.work.take(if is_passed { CHANGE } else { ANSWER }) {
                let left = Siblings { owner: owner.into(), mode, behind };
                return self.mark(name, |dirty| dirty.granted.push(left));
            }
            behind = Some(position);
            if !is_passed {
                self.grant_sibling(tx, id, position.ticket, false);
            }
        }
    }

    /// Goes on with those that were left to the timer, if their owner still holds.
    pub(super) fn go_on_with_siblings(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        name: NameId,
        left: &mut Vec<Siblings>,
    ) {
        for Siblings { owner, mode, behind } in core::mem::take(left) {
            let covers = |held: &Mode| *held == mode || held.covers().contains(&mode);
            let lock = if let Value::Lock(lock) = tx.keys.value(id) { Some(lock) } else { None };
            let holds = |held| lock.is_some_and(|lock| lock.live_hold(&owner, held, tx.now).is_some());
            if Mode::ALL.into_iter().filter(covers).any(holds) {
                self.grant_siblings_behind(tx, id, name, (&owner, mode), behind);
            }
        }
    }

    /// Grants a request of an owner that holds already, wherever it stands.
    pub(super) fn grant_sibling(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        ticket: u64,
        freed: bool,
    ) {
        let Some(waiter) = self.queues.get(ticket) else {
            return;
        };
        if waiter.is_over(tx.now) {
            return self.time_out(tx, id, ticket);
        }
        if waiter.is_many() {
            return self.offer(tx, ticket, freed);
        }
        let owner = self.queues.owner_of(waiter);
        match admission::decide(tx.keys.value(id), Ahead::default(), owner, &waiter.request, tx.now) {
            Decision::Wait => {}
            Decision::Refuse(refusal) => self.answer(tx, ticket, Answer::Refused(refusal)),
            _ if !self.is_permitted(tx, ticket) => self.answer(tx, ticket, Answer::Refused(Refusal::NoPermission)),
            decision => {
                let Some(waiter) = self.queues.get(ticket) else {
                    return;
                };
                let owner = Owner::from(self.queues.owner_of(waiter));
                let Some(waiter) = self.queues.leave_for_grant(ticket) else {
                    return;
                };
                let given = self.give(tx, id, ticket, owner.as_slice(), &waiter, &decision);
                if given.is_ok() {
                    self.stats.count_wait(waiter.request.kind, waiter.since_us, tx.now);
                    self.expect_delivery(ticket, waiter.client);
                } else {
                    self.queues.take_undelivered(ticket);
                }
                tx.out.answer(ticket, given.map_or_else(Answer::Refused, Answer::Granted));
                self.queues.owners.tidy(waiter.owner);
            }
        }
    }

    /// Offers a waiter for many keys all of them, if all are to be had. Nothing is opened for that: what is known beside the
    /// queues is enough to see that a key is not to be had.
    pub(super) fn offer(&mut self, tx: &Transaction<'_, impl Keyspace>, ticket: u64, freed: bool) {
        let Some(waiter) = self.queues.get(ticket) else {
            return;
        };
        let keys = waiter.names.len();
        let in_turn = (0..keys).map(|step| step.saturating_add(waiter.held_up_by).checked_rem(keys).unwrap_or(0));
        let held_up_by = in_turn
            .clone()
            .find(|index| waiter.names.get(*index).is_some_and(|name| !self.is_to_be_had(tx, *name, ticket, waiter)));
        match held_up_by {
            Some(index) => {
                if let Some(waiter) = self.queues.get_mut(ticket) {
                    waiter.held_up_by = index;
                }
            }
            None => self.grantable.push_back((ticket, freed)),
        }
    }

    /// Whether a key is held by the waiter's owner already, or is free with the waiter first in its queue. `false` also if that is
    /// not known: then the key is dirty, or has a lease that is over, and brings the waiter back when it is reconciled.
    fn is_to_be_had(&self, tx: &Transaction<'_, impl Keyspace>, name: NameId, ticket: u64, waiter: &Waiter) -> bool {
        let Some(record) = self.queues.names.get(name).filter(|_| self.knows_holders(name)) else {
            return false;
        };
        if record.holders.iter().any(|holder| holder.owner == waiter.owner && holder.deadline_us > tx.now.mono_us) {
            return true;
        }
        record.holders.is_empty() && record.queue.first().is_some_and(|first| first.ticket == ticket)
    }

    /// Whether a waiter was offered something.
    #[must_use]
    pub fn has_offers(&self) -> bool {
        !self.grantable.is_empty()
    }

    /// The keys of a waiter that was offered all of them, to be opened for [`Engine::take_offer`]. `None` also if enough was done
    /// for this turn: the timer begins the next one with the rest.
    pub fn next_offer(&mut self) -> Option<(Offer, Vec<Key>)> {
        while let Some((ticket, freed)) = self.grantable.front().copied() {
            if let Some(waiter) = self.queues.get(ticket) {
                let changes = u32::try_from(waiter.names.len()).unwrap_or(u32::MAX).saturating_mul(CHANGE);
                if !self.work.take_whole(changes.saturating_add(ANSWER)) {
                    return None;
                }
                self.grantable.pop_front();
                let keys = waiter.names.iter().filter_map(|name| Some(self.queues.names.get(*name)?.key().to_key()));
                return Some((Offer { ticket, freed }, keys.collect()));
            }
            self.grantable.pop_front();
        }
        None
    }

    /// Offers a waiter a key again when what the server has told of it was acted upon: that brings back the head of its queue,
    /// and who holds it already.
    fn offer_again(&mut self, name: NameId, ticket: u64) {
        let Some(waiter) = self.queues.get(ticket) else {
            return;
        };
        let siblings = just_before(self.queues.owner_of(waiter), waiter.position(ticket));
        self.mark(name, |dirty| dirty.granted.push(siblings));
    }

    /// Grants a waiter for many keys, which are open in its order. If one of them turns out not to be to be had, it goes on
    /// waiting.
    pub fn take_offer(&mut self, tx: &mut Transaction<'_, impl Keyspace>, offer: Offer) {
        self.work.begin_timer();
        self.take_offer_of(tx, offer);
        self.close(tx);
    }

    fn take_offer_of(&mut self, tx: &mut Transaction<'_, impl Keyspace>, Offer { ticket, freed }: Offer) {
        let Some(waiter) = self.queues.get(ticket) else {
            return;
        };
        let (owner, request) = (Owner::from(self.queues.owner_of(waiter)), waiter.request);
        if waiter.is_over(tx.now) {
            return self.time_out(tx, KeyId(0), ticket);
        }
        let mut decisions = Vec::with_capacity(tx.keys.count());
        for id in tx.ids() {
            let is_first =
                self.name(tx, id).and_then(|name| self.queues.first(name)).is_some_and(|(first, _)| first == ticket);
            let ahead = Ahead { any: !is_first, ..Ahead::default() };
            match admission::decide(tx.keys.value(id), ahead, owner.as_slice(), &request, tx.now) {
                Decision::Refuse(refusal) => return self.answer(tx, ticket, Answer::Refused(refusal)),
                Decision::Wait => return,
                _ if self.is_unsettled(tx, id) => {
                    let name = self.intern(tx.keys.key(id));
                    return self.offer_again(name, ticket);
                }
                decision => decisions.push(decision),
            }
        }
        if !self.is_permitted(tx, ticket) {
            return self.answer(tx, ticket, Answer::Refused(Refusal::NoPermission));
        }
        if let Err(refusal) = self.check_tokens(tx, owner.as_slice(), &request) {
            return self.answer(tx, ticket, Answer::Refused(refusal));
        }
        let held_before: Vec<bool> = tx.ids().map(|id| self.holds(tx, id, owner.as_slice())).collect();
        let Some(waiter) = self.queues.leave_for_grant(ticket) else {
            return;
        };
        let mut tokens = Vec::with_capacity(decisions.len());
        for (id, decision) in tx.ids().zip(&decisions) {
            match self.give(tx, id, ticket, owner.as_slice(), &waiter, decision) {
                Ok(token) => tokens.push(token),
                Err(refusal) => {
                    // Each key has said that it admits the request. If that was not so, what was given is taken back.
                    tx.out.answer(ticket, Answer::Refused(refusal));
                    return self.waiter_left(ticket, true);
                }
            }
        }
        self.stats.count_wait(waiter.request.kind, waiter.since_us, tx.now);
        if freed {
            count(&mut self.stats.of(waiter.request.kind).handed_over);
        }
        self.expect_delivery(ticket, waiter.client);
        tx.out.answer(ticket, Answer::GrantedMany(tokens.into()));
        for (id, held_before) in tx.ids().zip(held_before) {
            if !held_before {
                self.grant_siblings(tx, id, owner.as_slice(), Mode::Exclusive);
            }
        }
        self.queues.owners.tidy(waiter.owner);
    }

    fn holds(&self, tx: &Transaction<'_, impl Keyspace>, id: KeyId, owner: &[u8]) -> bool {
        matches!(tx.keys.value(id), Value::Lock(lock) if lock.live_hold(owner, Mode::Exclusive, tx.now).is_some())
    }
}

/// A waiter for many keys that may have all of them.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    ticket: u64,
    freed: bool,
}

/// The requests of an owner from `position` on.
fn just_before(owner: &[u8], position: Position) -> Siblings {
    let behind = Position { ticket: position.ticket.saturating_sub(1), ..position };
    Siblings { owner: owner.into(), mode: Mode::Exclusive, behind: Some(behind) }
}

fn clients_of(keys: &impl Keyspace, id: KeyId, token: u64) -> &[u64] {
    match keys.value(id) {
        Value::Lock(lock) => lock.clients(token),
        Value::Vacant | Value::Foreign => &[],
    }
}
