//! The queue of a fair lock: places in order, found by owner, some with a deadline.
//!
//! An owner has at most one place. A blocked or notified waiter has its place as long as it waits.
//! The place of a polling owner expires unless the owner asks again in time.
//!
//! Taking, leaving and finding a place are O(log n). Detaching visits all places, of which there
//! are at most `rlock.max-places`.
//!
//! Invariants:
//! 1. `by_owner` has the number of each place, and `deadlines` each deadline with the number.
//! 2. The lock is reserved only for the first place, and the reservation ends with it.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};

use ahash::RandomState;
use hashbrown::HashMap;

use super::hashing::hasher;
use crate::collections::bytes_in_set;
use crate::place::{Place, Stay};
use crate::time::{Now, US_PER_MS};

#[derive(Clone)]
struct Node {
    owner: Box<[u8]>,
    stay: Stay,
    arrival: u64,
    request_id: Option<u64>,
    grace_ms: Option<u64>,
}

impl Node {
    fn place(&self) -> Place<'_> {
        let Self { owner, stay, arrival, request_id, grace_ms } = self;
        Place { owner, stay: *stay, arrival: *arrival, request_id: *request_id, grace_ms: *grace_ms }
    }
}

/// The places of one lock, in order.
#[derive(Clone)]
pub struct FairQueue {
    /// By a number that rises toward the end of the queue.
    places: BTreeMap<i64, Node>,
    by_owner: HashMap<Box<[u8]>, i64, RandomState>,
    /// The deadlines of places without a connection, each with the number of the place.
    deadlines: BTreeSet<(u64, i64)>,
    reserved_until_us: Option<u64>,
}

impl Default for FairQueue {
    fn default() -> Self {
        Self {
            places: BTreeMap::new(),
            by_owner: HashMap::with_hasher(hasher()),
            deadlines: BTreeSet::new(),
            reserved_until_us: None,
        }
    }
}

impl FairQueue {
    /// The number of places.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are no places.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The head of the queue.
    #[must_use]
    pub fn first(&self) -> Option<Place<'_>> {
        self.places.first_key_value().map(|(_, node)| node.place())
    }

    /// The place of `owner`.
    #[must_use]
    pub fn get(&self, owner: &[u8]) -> Option<Place<'_>> {
        self.places.get(self.by_owner.get(owner)?).map(Node::place)
    }

    /// The places in order.
    pub fn iter(&self) -> impl Iterator<Item = Place<'_>> {
        self.places.values().map(Node::place)
    }

    /// When the reservation for the head expires.
    #[must_use]
    pub fn reserved_until_us(&self) -> Option<u64> {
        self.reserved_until_us
    }

    /// When the next place or the reservation expires.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        let life_us = self.deadlines.first().map(|(until_us, _)| *until_us);
        [life_us, self.reserved_until_us].into_iter().flatten().min()
    }

    /// The latest deadline of a place without a connection; 0 if no place has a deadline.
    pub(crate) fn latest_us(&self) -> u64 {
        self.deadlines.last().map_or(0, |(until_us, _)| *until_us)
    }

    /// Whether all places have expired.
    #[must_use]
    pub fn has_expired(&self, now: Now) -> bool {
        self.deadlines.len() == self.places.len() && self.latest_us() <= now.mono_us
    }

    /// An expired place.
    #[must_use]
    pub fn expired_place(&self, now_us: u64) -> Option<Place<'_>> {
        let (_, number) = self.deadlines.first().filter(|(until_us, _)| *until_us <= now_us)?;
        self.places.get(number).map(Node::place)
    }

    /// Adds a place at the end of the queue, or at its head. An owner that already has a place
    /// keeps it, with the new stay, request id and grace.
    pub(crate) fn push(&mut self, place: Place<'_>, at_head: bool) {
        let Place { owner, stay, arrival, request_id, grace_ms } = place;
        if self.by_owner.contains_key(owner) {
            return self.set_stay(owner, stay, request_id, grace_ms);
        }
        let number = if at_head {
            self.places.first_key_value().map_or(0, |(first, _)| first.saturating_sub(1))
        } else {
            self.places.last_key_value().map_or(0, |(last, _)| last.saturating_add(1))
        };
        if at_head {
            self.reserved_until_us = None;
        }
        self.places.insert(number, Node { owner: owner.into(), stay, arrival, request_id, grace_ms });
        self.by_owner.insert(owner.into(), number);
        self.deadlines.extend(stay.until_us().map(|until_us| (until_us, number)));
    }

    /// Changes the stay, the request id and the grace of a place.
    pub(crate) fn set_stay(&mut self, owner: &[u8], stay: Stay, request_id: Option<u64>, grace_ms: Option<u64>) {
        if let Some(number) = self.by_owner.get(owner)
            && let Some(node) = self.places.get_mut(number)
        {
            if let Some(until_us) = node.stay.until_us() {
                self.deadlines.remove(&(until_us, *number));
            }
            self.deadlines.extend(stay.until_us().map(|until_us| (until_us, *number)));
            (node.stay, node.request_id, node.grace_ms) = (stay, request_id, grace_ms);
        }
    }

    /// Whether a place has its own `GRACE`.
    pub(crate) fn has_graces(&self) -> bool {
        self.iter().any(|place| place.grace_ms.is_some())
    }

    /// Removes a place.
    pub(crate) fn remove(&mut self, owner: &[u8]) {
        let Some(number) = self.by_owner.remove(owner) else {
            return;
        };
        if self.places.first_key_value().is_some_and(|(first, _)| *first == number) {
            self.reserved_until_us = None;
        }
        if let Some(until_us) = self.places.remove(&number).and_then(|node| node.stay.until_us()) {
            self.deadlines.remove(&(until_us, number));
        }
    }

    /// Reserves the lock for the head.
    pub(crate) fn reserve(&mut self, until_us: u64) {
        if !self.is_empty() {
            self.reserved_until_us = Some(until_us);
        }
    }

    /// Detaches all places from their connections at `at_us`. Each then expires at `until_us`, or
    /// at the end of its own `GRACE`, counted from `at_us`; one that has more time left keeps it.
    /// Ends a reservation.
    pub(crate) fn detach_all(&mut self, until_us: u64, at_us: u64) {
        self.reserved_until_us = None;
        self.deadlines.clear();
        for (number, node) in &mut self.places {
            let after_grace = |grace_ms: u64| at_us.saturating_add(grace_ms.saturating_mul(US_PER_MS));
            let until_us = node.grace_ms.map_or(until_us, after_grace).max(node.stay.until_us().unwrap_or(0));
            node.stay = match node.stay {
                Stay::Polled { .. } => Stay::Polled { until_us },
                Stay::Grace { .. } | Stay::Connected => Stay::Grace { until_us },
            };
            self.deadlines.insert((until_us, *number));
        }
    }

    /// The heap bytes, for MEMORY USAGE. Extrapolates from the owners of up to 64 places.
    #[must_use]
    pub(crate) fn heap_bytes(&self) -> usize {
        const SAMPLES: usize = 64;
        let sample: usize = self.iter().take(SAMPLES).map(|place| place.owner.len()).sum();
        let owners = sample.saturating_mul(self.len()).checked_div(self.len().min(SAMPLES)).unwrap_or(0);
        let table = self.by_owner.capacity().saturating_mul(size_of::<(Box<[u8]>, i64)>().saturating_add(1));
        owners
            .saturating_mul(2)
            .saturating_add(table)
            .saturating_add(bytes_in_set::<(i64, Node)>(self.len()))
            .saturating_add(bytes_in_set::<(u64, i64)>(self.deadlines.len()))
    }
}

/// Two queues are equal if they have the same places in the same order, and the same reservation.
impl PartialEq for FairQueue {
    fn eq(&self, other: &Self) -> bool {
        self.reserved_until_us == other.reserved_until_us && self.iter().eq(other.iter())
    }
}

impl Eq for FairQueue {}

impl core::fmt::Debug for FairQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "reserved {:?} ", self.reserved_until_us)?;
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u8, Stay, bool, Option<u64>),
        Stay(u8, Stay, Option<u64>),
        Remove(u8),
        Reserve(u64),
        DetachAll(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let stay = || {
            prop_oneof![
                Just(Stay::Connected),
                (1..50u64).prop_map(|until_us| Stay::Polled { until_us }),
                (1..50u64).prop_map(|until_us| Stay::Grace { until_us }),
            ]
        };
        let grace_ms = || proptest::option::weighted(0.3, 0..2u64);
        prop_oneof![
            4 => (0..12u8, stay(), any::<bool>(), grace_ms())
                .prop_map(|(owner, stay, at_head, grace_ms)| Step::Push(owner, stay, at_head, grace_ms)),
            2 => (0..12u8, stay(), grace_ms()).prop_map(|(owner, stay, grace_ms)| Step::Stay(owner, stay, grace_ms)),
            3 => (0..12u8).prop_map(Step::Remove),
            1 => (1..50u64).prop_map(Step::Reserve),
            1 => (1..50u64, 1..50u64).prop_map(|(until_us, at_us)| Step::DetachAll(until_us, at_us)),
        ]
    }

    proptest! {
        /// The oracle is a list that is searched from its head.
        #[test]
        fn agrees_with_a_plain_list(steps in prop::collection::vec(step(), 1..100)) {
            let mut places = FairQueue::default();
            let mut list: Vec<(u8, Stay, Option<u64>)> = Vec::new();
            let mut reserved = None;
            for step in steps {
                let head = list.first().map(|place| place.0);
                match step {
                    Step::Push(owner, stay, at_head, grace_ms) => {
                        places.push(Place { owner: &[owner], stay, arrival: 0, request_id: None, grace_ms }, at_head);
                        match list.iter_mut().find(|place| place.0 == owner) {
                            Some(place) => (place.1, place.2) = (stay, grace_ms),
                            None if at_head => list.insert(0, (owner, stay, grace_ms)),
                            None => list.push((owner, stay, grace_ms)),
                        }
                    }
                    Step::Stay(owner, stay, grace_ms) => {
                        places.set_stay(&[owner], stay, None, grace_ms);
                        for place in list.iter_mut().filter(|place| place.0 == owner) {
                            (place.1, place.2) = (stay, grace_ms);
                        }
                    }
                    Step::Remove(owner) => {
                        places.remove(&[owner]);
                        list.retain(|place| place.0 != owner);
                    }
                    Step::Reserve(until_us) => {
                        places.reserve(until_us);
                        reserved = (!list.is_empty()).then_some(until_us);
                    }
                    Step::DetachAll(until_us, at_us) => {
                        places.detach_all(until_us, at_us);
                        reserved = None;
                        for (_, stay, grace_ms) in &mut list {
                            let grace_us = grace_ms.map_or(until_us, |grace_ms| at_us + grace_ms * 1000);
                            let until_us = stay.until_us().unwrap_or(0).max(grace_us);
                            *stay = match *stay {
                                Stay::Polled { .. } => Stay::Polled { until_us },
                                _ => Stay::Grace { until_us },
                            };
                        }
                    }
                }
                if list.first().map(|place| place.0) != head {
                    reserved = None;
                }
                let seen: Vec<_> = places.iter().map(|place| (place.owner[0], place.stay, place.grace_ms)).collect();
                prop_assert_eq!(&seen, &list);
                prop_assert_eq!(places.len(), list.len());
                prop_assert_eq!(places.reserved_until_us(), reserved);
                let lives = list.iter().filter_map(|place| place.1.until_us());
                let next_us = lives.chain(reserved).min();
                prop_assert_eq!(places.next_deadline_us(), next_us);
                let expired = places.expired_place(25).map(|place| place.stay.until_us());
                prop_assert!(expired.is_none_or(|until_us| until_us.is_some_and(|until_us| until_us <= 25)));
                prop_assert_eq!(expired.is_some(), list.iter().any(|place| place.1.until_us().is_some_and(|until_us| until_us <= 25)));
                for owner in 0..12u8 {
                    let expected = list.iter().find(|place| place.0 == owner).map(|place| place.1);
                    prop_assert_eq!(places.get(&[owner]).map(|place| place.stay), expected);
                }
            }
        }
    }
}
