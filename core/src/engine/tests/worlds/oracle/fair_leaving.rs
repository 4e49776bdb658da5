//! Server events of a fair lock: a closed connection, a removed value, a promotion. The oracle
//! records them, and processes them with the next request for the lock, the next use of the hold,
//! or the timer. A place outlives its connection for a grace, and so does the place of an owner
//! that never received its grant.

use std::vec::Vec;

use super::fair::FairOracle;
use super::fair_places::Place;

/// Unprocessed events.
#[derive(Default)]
pub(super) struct Left {
    /// Owners of connected places whose connection has closed.
    gone: Vec<u8>,
    /// A holder that will never receive its grant.
    undone: Option<u8>,
    /// Another server was promoted, which has no connections.
    moved: bool,
    /// This server was promoted, and may have connections. Until this is processed, the holder is
    /// not checked.
    pub(super) promoted: bool,
    is_told: bool,
    /// A server command removed the value: the waiters have no places in a value.
    pub(super) is_gone: bool,
    /// Owners granted after a wait that have neither received nor used the grant, even if the hold
    /// has expired by now.
    untold: Vec<u8>,
}

impl Left {
    /// Whether a place still has its connection.
    pub(super) fn is_connected(&self, place: &Place) -> bool {
        place.is_connected && !self.moved && !self.gone.contains(&place.owner)
    }
}

impl FairOracle {
    pub(super) fn settle_if_told(&mut self, now_ms: u64) {
        if self.left.is_told {
            self.settle(now_ms);
        }
    }

    pub(super) fn act_on_what_was_told(&mut self, now_ms: u64) {
        (self.left.is_told, self.left.is_gone) = (false, false);
        let (moved, promoted) = (std::mem::take(&mut self.left.moved), std::mem::take(&mut self.left.promoted));
        if moved || promoted {
            self.reserved_ms = None;
            let is_cut_off = |place: &&mut Place| moved || !place.is_connected || self.left.gone.contains(&place.owner);
            for place in self.line.iter_mut().filter(is_cut_off) {
                let until_ms = now_ms + place.kept_ms();
                place.until_ms = if place.is_polled { place.until_ms.max(until_ms) } else { until_ms };
                place.is_connected = false;
            }
        }
        // The owner of an unconfirmed grant keeps its place, even if the lease has expired by now.
        if let Some(owner) = self.left.undone.take()
            && self.holder.is_some_and(|(of, ..)| of == owner)
        {
            self.holder = None;
            let (asked, id) = (None, self.mark.map(|(id, ..)| id));
            let mut place = Place {
                owner,
                is_connected: false,
                until_ms: now_ms,
                is_polled: false,
                lease_ms: 0,
                claim_ms: None,
                grace_ms: self.unheard_grace_ms,
                asked,
                id,
            };
            place.until_ms += place.kept_ms();
            self.line.insert(0, place);
        }
        for owner in std::mem::take(&mut self.left.gone) {
            if let Some(place) = self.place(owner) {
                (place.is_connected, place.until_ms, place.is_polled) = (false, now_ms + place.kept_ms(), false);
            }
        }
    }

    /// The connection of a waiter, or of an unconfirmed grant, closed. A lock gets no event for
    /// other connections.
    pub(crate) fn leave(&mut self, owner: u8) {
        if self.place(owner).is_some_and(|place| place.is_connected) {
            if self.left.is_gone {
                self.line.retain(|place| place.owner != owner);
            } else {
                self.left.gone.push(owner);
            }
            self.left.is_told = true;
        }
        if self.unheard == Some(owner) {
            self.left.undone = self.unheard.take();
        }
        self.left.is_told |= self.left.untold.contains(&owner);
        self.left.untold.retain(|untold| *untold != owner);
    }

    /// The value was removed; connected waiters keep their order.
    pub(crate) fn delete(&mut self) {
        (self.holder, self.kept, self.reserved_ms) = (None, None, None);
        self.line.retain(|place| self.left.is_connected(place));
        self.line.iter_mut().for_each(|place| place.id = place.asked);
        self.left.gone.clear();
        self.left.moved = false;
        (self.left.is_told, self.left.is_gone) = (true, true);
    }

    /// This server was promoted: its waiters stay.
    pub(crate) fn promote(&mut self) {
        (self.left.promoted, self.left.is_told) = (true, true);
    }

    pub(crate) fn fail_over(&mut self) {
        self.hear_all();
        self.left.undone = None;
        self.left.gone.clear();
        if self.left.is_gone {
            self.line.clear();
        }
        (self.left.moved, self.left.is_told) = (true, true);
    }

    /// An owner was granted after a wait, and may close its connection before it receives the
    /// answer.
    pub(super) fn expect_to_be_heard(&mut self, owner: u8) {
        self.unheard = Some(owner);
        self.left.untold.push(owner);
    }

    /// The holder uses its hold, which confirms the grant.
    pub(super) fn hear(&mut self) {
        let heard = self.unheard.take().and_then(|owner| self.left.untold.iter().rposition(|untold| *untold == owner));
        if let Some(at) = heard {
            self.left.untold.remove(at);
        }
    }

    /// All grants were received.
    pub(crate) fn hear_all(&mut self) {
        self.unheard = None;
        self.left.untold.clear();
    }
}
