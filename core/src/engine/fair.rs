//! What only a fair lock is asked: to keep a place in its queue.
//!
//! A connected waiter of a fair lock is in both: it has a place in the value, which gives its order, and a ticket among the
//! waiters of the name, by which it is answered.

use super::Engine;
use super::transaction::Transaction;
use crate::bytes::Owner;
use crate::event::Event;
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::Kind;
use crate::outbox::Answer;
use crate::place::{Place, Stay};
use crate::registry::Rank;
use crate::registry::Waiter;
use crate::request::{Ask, Refusal, Request};

const KEY: KeyId = KeyId(0);

impl Engine {
    /// ACQUIRE on a fair lock that cannot be granted now: the owner takes a place, or keeps the one that it has. `earlier` is
    /// the request of this owner that waits here. Returns a ticket if the new one waits.
    pub(super) fn queue_up(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
        earlier: Option<u64>,
    ) -> Result<Option<u64>, Refusal> {
        let stay = match request.ask {
            Ask::Try => {
                self.detach_repeated(tx, owner, request, earlier);
                return Ok(None);
            }
            Ask::Queue { life_ms } => Stay::Polled { until_us: tx.now.after_ms(life_ms) },
            Ask::Wait { .. } => Stay::Connected,
        };
        let queue = tx.keys.value(KEY).of_kind(Kind::Fair, tx.now)?.and_then(|lock| lock.queue());
        let mine = queue.and_then(|queue| queue.get(owner));
        let mine = mine.map(|place| (place.stay, place.arrival, place.request_id, place.grace_ms));
        let limit = tx.limits.max_places;
        if mine.is_none() && queue.map_or(0, |queue| queue.len()) >= limit {
            return Err(Refusal::MaxPlaces { limit });
        }
        let is_rejoining = self.is_rejoining(&mut tx.at(KEY));
        if is_rejoining && mine.is_none() && stay != Stay::Connected {
            // The places of those who waited before are being made anew, and this one must not come before them.
            return Ok(None);
        }
        if stay == Stay::Connected && earlier.is_none() {
            self.check_waiters(tx)?;
        }
        // Who waits already has come when that request came, also if its place is yet to be made anew.
        let waiter = earlier.and_then(|ticket| self.registry.get(ticket));
        let waits_since = waiter.filter(|waiter| waiter.request().kind == Kind::Fair);
        let arrival = match (mine, waits_since) {
            (Some((_, arrival, ..)), _) => arrival,
            (None, Some(waiter)) => waiter.arrival(),
            (None, None) => self.next_number(tx.now)?,
        };
        let known_id = mine.and_then(|(_, _, request_id, _)| request_id);
        let request_id = request.request_id.or(known_id);
        let known_grace_ms = mine.and_then(|(.., grace_ms)| grace_ms);
        let grace_ms = request.grace_ms.or(known_grace_ms);
        let ticket = match stay {
            Stay::Connected => {
                let request = Request { grace_ms, ..*request };
                let ticket = self.enter(tx, owner, &request, Rank::Newcomer, arrival);
                self.check_deadlock(tx, ticket, earlier.as_slice())?;
                Some(ticket)
            }
            _ => None,
        };
        if let Some((earlier, waiter)) = earlier.and_then(|ticket| Some((ticket, self.registry.get(ticket)?))) {
            let answer = waiter.answer_to_succeeded(request);
            self.answer(tx, earlier, answer);
        }
        let owner = Owner::from(owner);
        match mine {
            // A place that is yet to be made anew comes with its waiter.
            None if is_rejoining => {}
            None => self
                .commit(&mut tx.at(KEY), Event::Queued { owner, stay, arrival, request_id, grace_ms, at_head: false }),
            Some((was, ..)) if was != stay || request_id != known_id || grace_ms != known_grace_ms => {
                self.commit(&mut tx.at(KEY), Event::Kept { owner, stay, request_id, grace_ms });
            }
            Some(_) => {}
        }
        Ok(ticket)
    }

    /// The request that an owner waits with was sent again, and does not want to wait: its place goes on without a connection.
    fn detach_repeated(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
        earlier: Option<u64>,
    ) {
        let is_it = |ticket: &u64| {
            let waiting = self.registry.get(*ticket).map(Waiter::request);
            waiting.is_some_and(|waiting| waiting.kind == Kind::Fair && waiting.request_id == request.request_id)
        };
        let Some(ticket) = earlier.filter(|_| request.request_id.is_some()).filter(is_it) else {
            return;
        };
        let request_id = request.request_id;
        self.answer(tx, ticket, Answer::Superseded);
        if self.place_of(tx, owner).is_ok_and(|place| place.is_some()) {
            self.release_place(&mut tx.at(KEY), owner, request_id, false);
        }
        self.reconcile(&mut tx.at(KEY), false);
    }

    /// Whether an owner that is about to be granted has had a place.
    pub(super) fn has_place(&self, tx: &Transaction<'_, impl Keyspace>, owner: &[u8], kind: Kind) -> bool {
        kind == Kind::Fair && self.place_of(tx, owner).is_ok_and(|place| place.is_some())
    }

    pub(super) fn place_of<'a>(
        &self,
        tx: &'a Transaction<'_, impl Keyspace>,
        owner: &[u8],
    ) -> Result<Option<Place<'a>>, Refusal> {
        Ok(tx.keys.value(KEY).of_kind(Kind::Fair, tx.now)?.and_then(|lock| lock.place(owner)))
    }
}
