//! A request for an unavailable fair lock takes a place, or changes the stay of its owner's place.
//! An owner has one place.

use super::Told;
use super::fair::FairOracle;
use super::fair_places::Place;

/// The options of ACQUIRE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FairWish {
    pub(crate) lease_ms: u64,
    /// CLAIM: the lease of a hold that begins, until it is claimed.
    pub(crate) claim_ms: Option<u64>,
    /// GRACE.
    pub(crate) grace_ms: Option<u64>,
    pub(crate) stay: Stay,
    /// REQ.
    pub(crate) id: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Stay {
    No,
    /// How long it waits for a grant.
    Connected(u64),
    /// It takes a place without a connection, with this duration.
    Polled(u64),
}

impl FairOracle {
    /// Whether an owner with a place has asked with a higher number.
    pub(super) fn is_earlier(&mut self, owner: u8, id: Option<u64>) -> bool {
        let last = self.place(owner).and_then(|place| place.id);
        id.zip(last).is_some_and(|(id, last)| id < last)
    }

    /// The lock cannot be granted now.
    pub(super) fn stand_in_line(&mut self, owner: u8, wish: FairWish, now_ms: u64) -> Told {
        let FairWish { lease_ms, claim_ms, grace_ms, stay, id } = wish;
        let (is_connected, stay_ms) = match stay {
            Stay::No => {
                self.wait_no_longer(owner, id, now_ms);
                return Told::Nil;
            }
            Stay::Connected(wait_ms) => (true, wait_ms),
            Stay::Polled(life_ms) => (false, life_ms),
        };
        let until_ms = now_ms.saturating_add(stay_ms);
        let mine = Place {
            owner,
            is_connected,
            until_ms,
            is_polled: !is_connected,
            lease_ms,
            claim_ms,
            grace_ms,
            asked: id,
            id,
        };
        match self.place(owner) {
            // A repeated request keeps its place.
            Some(place) => {
                let before = std::mem::replace(place, mine);
                place.id = id.or(before.id);
                place.grace_ms = grace_ms.or(before.grace_ms);
                if before.is_connected {
                    self.answers.push((owner, Told::Superseded));
                }
            }
            None => self.line.push(mine),
        }
        if is_connected { Told::Waits } else { Told::Nil }
    }

    /// A retry of the waiting request that does not wait: its place continues without a connection.
    fn wait_no_longer(&mut self, owner: u8, id: Option<u64>, now_ms: u64) {
        if let Some(place) = self.place(owner).filter(|place| place.is_connected && id.is_some() && place.asked == id) {
            (place.is_connected, place.until_ms) = (false, now_ms + place.kept_ms());
            self.answers.push((owner, Told::Superseded));
            self.settle(now_ms);
        }
    }
}
