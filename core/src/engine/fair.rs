//! Requests for fair locks only: keeping a place in the queue.
//!
//! A connected waiter of a fair lock has both a place in the value, which determines its order, and
//! a ticket among the waiters of the name, which identifies its answer.

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
    /// The owner's previous place, if it had one.
    previous: Option<Previous>,
    /// Waiters are retaking their places in an imported value.
    is_rejoining: bool,
}

struct Previous {
    stay: Stay,
    arrival: u64,
    request_id: Option<u64>,
    grace_ms: Option<u64>,
}

impl OwnPlace {
    /// The arrival number of the owner's previous place.
    pub(super) fn arrival(&self) -> Option<u64> {
        self.previous.as_ref().map(|previous| previous.arrival)
    }
}

impl Engine {
    /// The place that a request on a fair lock takes or keeps, or `None` if it cannot have one now.
    /// Takes the options that the request lacks from the previous place.
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
        let previous = queue.and_then(|queue| queue.get(owner)).map(|place| Previous {
            stay: place.stay,
            arrival: place.arrival,
            request_id: place.request_id,
            grace_ms: place.grace_ms,
        });
        let limit = at.limits.max_places;
        if previous.is_none() && queue.map_or(0, |queue| queue.len()) >= limit {
            return Err(Refusal::MaxPlaces { limit });
        }
        let is_rejoining = self.name(at).is_some_and(|name| self.registry.is_rejoining(name));
        if is_rejoining && previous.is_none() && stay != Stay::Connected {
            // Earlier waiters are still retaking their places, and this one must not get ahead of
            // them.
            return Ok(None);
        }
        request.grace_ms = request.grace_ms.or(previous.as_ref().and_then(|previous| previous.grace_ms));
        Ok(Some(OwnPlace { stay, previous, is_rejoining }))
    }

    /// Stores the place of a request.
    pub(super) fn keep_place(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        owner: &[u8],
        arrival: u64,
        request: &Request,
        OwnPlace { stay, previous, is_rejoining }: &OwnPlace,
    ) {
        let (owner, stay, grace_ms) = (Owner::from(owner), *stay, request.grace_ms);
        let request_id = request.request_id.or(previous.as_ref().and_then(|previous| previous.request_id));
        match previous {
            // The waiter's `rejoin` will create the place.
            None if *is_rejoining => {}
            None => self.commit(at, Event::Queued { owner, stay, arrival, request_id, grace_ms, at_head: false }),
            Some(previous)
                if (previous.stay, previous.request_id, previous.grace_ms) != (stay, request_id, grace_ms) =>
            {
                self.commit(at, Event::Kept { owner, stay, request_id, grace_ms });
            }
            Some(_) => {}
        }
    }
}

/// Whether an owner that is about to be granted has a place.
pub(super) fn has_place(tx: &Transaction<'_, impl Keyspace>, owner: &[u8], kind: Kind) -> bool {
    kind == Kind::Fair && place_of(tx, owner).is_ok_and(|place| place.is_some())
}

/// The place of an owner on the fair lock that a request is about.
pub(super) fn place_of<'a>(tx: &'a Transaction<'_, impl Keyspace>, owner: &[u8]) -> Result<Option<Place<'a>>, Refusal> {
    Ok(tx.keys.value(KEY).of_kind(Kind::Fair, tx.now)?.and_then(|lock| lock.place(owner)))
}
