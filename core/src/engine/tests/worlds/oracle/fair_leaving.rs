//! What the server tells a fair lock: a connection has closed, the value is gone, this server takes over. It is noted here, and acted upon when
//! somebody asks for the lock or uses the hold, or when the timer goes off. A place outlives its connection for a grace, and so does that of
//! who was granted and never heard of it.

use std::vec::Vec;

use super::fair::FairOracle;
use super::fair_places::Place;

/// What was told and not acted upon.
#[derive(Default)]
pub(super) struct Left {
    /// Owners whose connected place has lost its connection.
    gone: Vec<u8>,
    /// A holder that will never hear of its grant.
    undone: Option<u8>,
    /// Another server has taken over, to which nobody is connected.
    moved: bool,
    /// This server has taken over, to which somebody may be. Until that is acted upon, who holds is not asked.
    pub(super) promoted: bool,
    is_told: bool,
    /// A command of the server's has removed the value: those in line are in no value.
    pub(super) is_gone: bool,
    /// Whoever was granted after a wait and has neither heard of it nor used it, also if that hold is over by now.
    untold: Vec<u8>,
}

impl Left {
    /// Whether a place has its connection still.
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
        // The place of who never heard of its grant is kept, also if the lease has ended by now.
        if let Some(owner) = self.left.undone.take()
            && self.holder.is_some_and(|(of, ..)| of == owner)
        {
            self.holder = None;
            let (asked, id) = (None, self.mark.map(|(id, _)| id));
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

    /// The connection of a waiter, or of a grant that was not heard of, is gone. Of the end of any other one the lock is told nothing.
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

    /// The value is gone, and who waits with a connection is in line as before.
    pub(crate) fn delete(&mut self) {
        (self.holder, self.kept, self.reserved_ms) = (None, None, None);
        self.line.retain(|place| self.left.is_connected(place));
        self.line.iter_mut().for_each(|place| place.id = place.asked);
        self.left.gone.clear();
        self.left.moved = false;
        (self.left.is_told, self.left.is_gone) = (true, true);
    }

    /// This server takes over: who waits on it goes on.
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

    /// An owner is granted after a wait, and may close its connection before it hears of that.
    pub(super) fn expect_to_be_heard(&mut self, owner: u8) {
        self.unheard = Some(owner);
        self.left.untold.push(owner);
    }

    /// The holder uses its hold, and so knows of it.
    pub(super) fn hear(&mut self) {
        let heard = self.unheard.take().and_then(|owner| self.left.untold.iter().rposition(|untold| *untold == owner));
        if let Some(at) = heard {
            self.left.untold.remove(at);
        }
    }

    /// What was granted has reached everybody.
    pub(crate) fn hear_all(&mut self) {
        self.unheard = None;
        self.left.untold.clear();
    }
}
