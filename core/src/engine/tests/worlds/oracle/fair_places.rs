//! The places in the queue of a fair lock: with a connection until the wait times out, or without
//! one until they expire.
//!
//! A timed-out wait ends when the timer runs, or when it would be granted. Until then it exists:
//! its owner may take over the place, or give it up.

use std::vec::Vec;

use super::Told;
use super::fair::FairOracle;

/// How long a place outlives its connection, and a free lock is reserved for the head of its queue.
pub(crate) const GRACE_MS: u64 = 20;

#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) owner: u8,
    pub(crate) is_connected: bool,
    /// When a connected place times out, or another one expires.
    pub(crate) until_ms: u64,
    pub(super) is_polled: bool,
    /// The lease that a connected place asks for.
    pub(super) lease_ms: u64,
    /// The duration of its hold, if it is granted and not claimed.
    pub(super) claim_ms: Option<u64>,
    /// GRACE: how long it is kept without a connection; [`GRACE_MS`] by default.
    pub(super) grace_ms: Option<u64>,
    /// The id of the waiting request, of a connected place.
    pub(super) asked: Option<u64>,
    /// The last request id of its owner.
    pub(crate) id: Option<u64>,
}

impl Place {
    pub(super) fn kept_ms(&self) -> u64 {
        self.grace_ms.unwrap_or(GRACE_MS)
    }

    /// How long a free lock is reserved for this place. GRACE 0 does not apply to a place that
    /// `QUEUE` made.
    pub(super) fn reserved_for_ms(&self) -> u64 {
        self.grace_ms.filter(|grace_ms| *grace_ms > 0).unwrap_or(GRACE_MS)
    }
}

impl FairOracle {
    /// Removes expired places.
    pub(super) fn end_places(&mut self, now_ms: u64, is_timer: bool) {
        let first = self.line.first().map(|place| place.owner);
        let ends = |place: &mut Place| place.until_ms <= now_ms && (is_timer || !place.is_connected);
        let over: Vec<Place> = self.line.extract_if(.., ends).collect();
        self.answers.extend(over.iter().filter(|place| place.is_connected).map(|place| (place.owner, Told::Nil)));
        if first != self.line.first().map(|place| place.owner) {
            self.reserved_ms = None;
        }
    }

    /// Gives up a request, or the one with this id. CANCEL returns whether it has ended anything, so
    /// it does due work first: a place that has expired by then is gone, and a later failover gives
    /// it no new grace.
    pub(crate) fn cancel(&mut self, owner: u8, id: Option<u64>, now_ms: u64) {
        self.settle(now_ms);
        let is_meant = |place: &Place| place.owner == owner && (id.is_none() || place.id == id);
        if let Some(at) = self.line.iter().position(is_meant) {
            if self.line[at].is_connected {
                self.answers.push((owner, Told::Cancelled));
            }
            if at == 0 {
                self.reserved_ms = None;
            }
            self.line.remove(at);
        }
        self.cancel_hold(owner, id);
        self.settle(now_ms);
    }

    pub(super) fn place(&mut self, owner: u8) -> Option<&mut Place> {
        self.line.iter_mut().find(|place| place.owner == owner)
    }

    pub(super) fn remove_first(&mut self) -> u8 {
        self.reserved_ms = None;
        self.line.remove(0).owner
    }

    /// When something is due next.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        let places = self.line.iter().map(|place| place.until_ms);
        let reserved = if self.holder.is_none() && self.kept.is_none() { self.reserved_ms } else { None };
        let opens = self.kept.map(|kept| kept.until_ms);
        places.chain(self.holder.map(|(_, _, until_ms)| until_ms)).chain(opens).chain(reserved).min()
    }
}
