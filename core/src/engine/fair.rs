//! What only a fair lock is asked: to keep a place in its queue.
//!
//! A connected waiter of a fair lock is in both: it has a place in the value, which gives its order, and a ticket among the
//! waiters of the name, by which it is answered.

use super::Engine;
use super::transaction::{At, Transaction};
use crate::bytes::Owner;
use crate::event::Event;
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::Kind;
use crate::place::{Place, Stay};
use crate::request::{Ask, Refusal, Request};

const KEY: KeyId = KeyId(0);

/// The place of an owner that asks for a fair lock.
pub(super) struct OwnPlace {
    /// How it waits from now on.
    stay: Stay,
    /// What it was, if the owner had one.
    was: Option<Was>,
    /// Places are being made anew in a value that has arrived.
    is_rejoining: bool,
}

struct Was {
    stay: Stay,
    arrival: u64,
    request_id: Option<u64>,
    grace_ms: Option<u64>,
}

impl OwnPlace {
    /// The arrival number that the owner has already.
    pub(super) fn arrival(&self) -> Option<u64> {
        self.was.as_ref().map(|was| was.arrival)
    }
}

impl Engine {
    /// The place that a request on a fair lock takes or keeps, or `None` if it cannot have one now. The request inherits from an earlier one
    /// what it does not say.
    pub(super) fn own_place(
        &self,
        at: &mut At<'_, '_, impl Keyspace>,
        owner: &[u8],
        request: &mut Request,
    ) -> Result<Option<OwnPlace>, Refusal> {
        let stay = match request.ask {
            Ask::Queue { life_ms } => Stay::Polled { until_us: at.now.after_ms(life_ms) },
            Ask::Try | Ask::Wait { .. } => Stay::Connected,
        };
        let queue = at.value().of_kind(Kind::Fair, at.now)?.and_then(|lock| lock.queue());
        let was = queue.and_then(|queue| queue.get(owner)).map(|place| Was {
            stay: place.stay,
            arrival: place.arrival,
            request_id: place.request_id,
            grace_ms: place.grace_ms,
        });
        let limit = at.limits.max_places;
        if was.is_none() && queue.map_or(0, |queue| queue.len()) >= limit {
            return Err(Refusal::MaxPlaces { limit });
        }
        let is_rejoining = self.is_rejoining(at);
        if is_rejoining && was.is_none() && stay != Stay::Connected {
            // The places of earlier waiters are being made anew, and this one must not come before them.
            return Ok(None);
        }
        request.grace_ms = request.grace_ms.or(was.as_ref().and_then(|was| was.grace_ms));
        Ok(Some(OwnPlace { stay, was, is_rejoining }))
    }

    /// Writes the place of a request down.
    pub(super) fn keep_place(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        owner: &[u8],
        arrival: u64,
        request: &Request,
        OwnPlace { stay, was, is_rejoining }: &OwnPlace,
    ) {
        let (owner, stay, grace_ms) = (Owner::from(owner), *stay, request.grace_ms);
        let request_id = request.request_id.or(was.as_ref().and_then(|was| was.request_id));
        match was {
            // A place that is yet to be made anew comes with its waiter.
            None if *is_rejoining => {}
            None => self.commit(at, Event::Queued { owner, stay, arrival, request_id, grace_ms, at_head: false }),
            Some(was) if (was.stay, was.request_id, was.grace_ms) != (stay, request_id, grace_ms) => {
                self.commit(at, Event::Kept { owner, stay, request_id, grace_ms });
            }
            Some(_) => {}
        }
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
