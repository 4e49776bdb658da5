//! The queue of a fair lock: places in order, found by owner, some with a deadline.
//!
//! An owner has at most one place. A blocked or notified waiter has its place as long as it waits.
//! The place of a polling owner expires unless the owner asks again in time.
//!
//! Taking, leaving and finding a place are O(1); setting its deadline is O(log n). Detaching visits
//! all places, of which there are at most `rlock.max-places`.
//!
//! Invariants:
//! 1. The nodes in `slots` form one doubly linked list from `first` to `last`.
//! 2. `by_owner` contains each node exactly once, by the number of its slot.
//! 3. The lock is reserved only for the first place, and the reservation ends with it.

use alloc::boxed::Box;

use ahash::RandomState;

use super::hashing::hasher;
use crate::collections::{Alarm, Deadlines, NameTable, Optional};
use crate::place::{Place, Stay};
use crate::time::{Now, US_PER_MS};

#[derive(Clone)]
struct Node {
    owner: Box<[u8]>,
    arrival: u64,
    /// 0 means none: ids count from 1.
    request_id: u64,
    grace_ms: Optional,
    previous: Alarm,
    next: Alarm,
    is_polled: bool,
}

/// When a grace that begins at `at_us` ends.
fn after_grace(at_us: u64, grace_ms: u64) -> u64 {
    at_us.saturating_add(grace_ms.saturating_mul(US_PER_MS))
}

/// The deadline of a place without one.
const NEVER_US: u64 = u64::MAX;

/// The places of one lock, in order.
#[derive(Clone)]
pub struct FairQueue {
    slots: Deadlines<Node>,
    by_owner: NameTable,
    hasher: RandomState,
    first: Alarm,
    last: Alarm,
    reserved_until_us: Option<u64>,
    connected: usize,
    /// An upper bound of the deadlines of places without a connection.
    latest_us: u64,
}

impl Default for FairQueue {
    fn default() -> Self {
        Self {
            slots: Deadlines::default(),
            by_owner: NameTable::default(),
            hasher: hasher(),
            first: Alarm::NONE,
            last: Alarm::NONE,
            reserved_until_us: None,
            connected: 0,
            latest_us: 0,
        }
    }
}

impl FairQueue {
    /// The number of places.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are no places.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The head of the queue.
    #[must_use]
    pub fn first(&self) -> Option<Place<'_>> {
        self.place(self.first)
    }

    /// The place of `owner`.
    #[must_use]
    pub fn get(&self, owner: &[u8]) -> Option<Place<'_>> {
        self.place(self.find(owner)?)
    }

    /// The places in order.
    pub fn iter(&self) -> impl Iterator<Item = Place<'_>> {
        let mut at = self.first;
        core::iter::from_fn(move || {
            let place = self.place(at)?;
            at = self.slots.get(at)?.1.next;
            Some(place)
        })
    }

    /// When the reservation for the head expires.
    #[must_use]
    pub fn reserved_until_us(&self) -> Option<u64> {
        self.reserved_until_us
    }

    /// When the next place or the reservation expires.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        let life_us = self.slots.peek().map(|(at_us, _)| at_us).filter(|at_us| *at_us != NEVER_US);
        [life_us, self.reserved_until_us].into_iter().flatten().min()
    }

    /// An expired place.
    #[must_use]
    pub fn expired_place(&self, now_us: u64) -> Option<Place<'_>> {
        let (at_us, at) = self.slots.peek()?;
        if at_us <= now_us { self.place(at) } else { None }
    }

    /// Adds a place at the end of the queue, or at its head. An owner that already has a place
    /// keeps it, with the new stay, request id and grace.
    pub(crate) fn push(&mut self, place: Place<'_>, at_head: bool) {
        let Place { owner, stay, arrival, request_id, grace_ms } = place;
        if self.find(owner).is_some() {
            self.set_stay(owner, stay, request_id, grace_ms);
            return;
        }
        let (previous, next) = if at_head { (Alarm::NONE, self.first) } else { (self.last, Alarm::NONE) };
        let is_polled = matches!(stay, Stay::Polled { .. });
        let request_id = request_id.unwrap_or(0);
        let grace_ms = grace_ms.into();
        let node = Node { owner: owner.into(), arrival, request_id, grace_ms, previous, next, is_polled };
        let at = self.slots.insert(stay.until_us().unwrap_or(NEVER_US), node);
        self.count_in(stay);
        if let Some(node) = self.slots.get_mut(previous) {
            node.next = at;
        }
        if let Some(node) = self.slots.get_mut(next) {
            node.previous = at;
        }
        if self.first == next {
            self.first = at;
            self.reserved_until_us = None;
        }
        if self.last == previous {
            self.last = at;
        }
        self.by_owner.insert(self.hasher.hash_one(owner), at.number());
    }

    /// Changes the stay, the request id and the grace of a place.
    pub(crate) fn set_stay(&mut self, owner: &[u8], stay: Stay, request_id: Option<u64>, grace_ms: Option<u64>) {
        let Some(at) = self.find(owner) else {
            return;
        };
        if let Some(place) = self.place(at) {
            self.count_out(place.stay);
            self.count_in(stay);
        }
        if let Some(node) = self.slots.get_mut(at) {
            node.is_polled = matches!(stay, Stay::Polled { .. });
            node.request_id = request_id.unwrap_or(0);
            node.grace_ms = grace_ms.into();
        }
        self.slots.set(at, stay.until_us().unwrap_or(NEVER_US));
    }

    /// Whether a place has its own `GRACE`.
    pub(crate) fn has_graces(&self) -> bool {
        self.iter().any(|place| place.grace_ms.is_some())
    }

    /// Removes a place.
    pub(crate) fn remove(&mut self, owner: &[u8]) {
        let hash = self.hasher.hash_one(owner);
        let Some(at) = self.find_hashed(hash, owner) else {
            return;
        };
        self.by_owner.remove(hash, at.number());
        if let Some(place) = self.place(at) {
            self.count_out(place.stay);
        }
        let Some(node) = self.slots.remove(at) else {
            return;
        };
        match self.slots.get_mut(node.previous) {
            Some(previous) => previous.next = node.next,
            None => {
                self.first = node.next;
                self.reserved_until_us = None;
            }
        }
        match self.slots.get_mut(node.next) {
            Some(next) => next.previous = node.previous,
            None => self.last = node.previous,
        }
    }

    /// Reserves the lock for the head.
    pub(crate) fn reserve(&mut self, until_us: u64) {
        if !self.is_empty() {
            self.reserved_until_us = Some(until_us);
        }
    }

    /// Detaches all places from their connections at `at_us`. Each then expires at `until_us`, or at
    /// the end of its own `GRACE`, counted from `at_us`; one that has more time left keeps it. Ends a
    /// reservation.
    pub(crate) fn detach_all(&mut self, until_us: u64, at_us: u64) {
        self.reserved_until_us = None;
        self.connected = 0;
        let mut at = self.first;
        while let (Some(place), Some((_, node))) = (self.place(at), self.slots.get(at)) {
            let until_us = place.grace_ms.map_or(until_us, |grace_ms| after_grace(at_us, grace_ms));
            let until_us = until_us.max(place.stay.until_us().unwrap_or(0));
            let next = node.next;
            self.slots.set(at, until_us);
            self.latest_us = self.latest_us.max(until_us);
            at = next;
        }
    }

    /// An upper bound of the deadlines of places without a connection.
    pub(crate) fn latest_us(&self) -> u64 {
        self.latest_us
    }

    /// Whether all places are known to have expired. Does not visit each, so it may return `true`
    /// late if places with later deadlines have left.
    #[must_use]
    pub fn has_expired(&self, now: Now) -> bool {
        self.connected == 0 && self.latest_us <= now.mono_us
    }

    fn count_in(&mut self, stay: Stay) {
        match stay.until_us() {
            Some(until_us) => self.latest_us = self.latest_us.max(until_us),
            None => self.connected = self.connected.saturating_add(1),
        }
    }

    fn count_out(&mut self, stay: Stay) {
        if stay == Stay::Connected {
            self.connected = self.connected.saturating_sub(1);
        }
    }

    /// The heap bytes, for MEMORY USAGE. Extrapolates from the owners of up to 64 places.
    #[must_use]
    pub(crate) fn heap_bytes(&self) -> usize {
        const SAMPLES: usize = 64;
        let sample: usize = self.iter().take(SAMPLES).map(|place| place.owner.len()).sum();
        let owners = sample.saturating_mul(self.len()).checked_div(self.len().min(SAMPLES)).unwrap_or(0);
        self.slots.heap_bytes().saturating_add(owners).saturating_add(self.by_owner.heap_bytes())
    }

    fn place(&self, at: Alarm) -> Option<Place<'_>> {
        let (until_us, node) = self.slots.get(at)?;
        let stay = match (until_us, node.is_polled) {
            (until_us, true) => Stay::Polled { until_us },
            (NEVER_US, false) => Stay::Connected,
            (until_us, false) => Stay::Grace { until_us },
        };
        Some(Place {
            owner: &node.owner,
            stay,
            arrival: node.arrival,
            request_id: Some(node.request_id).filter(|id| *id != 0),
            grace_ms: node.grace_ms.get(),
        })
    }

    fn find(&self, owner: &[u8]) -> Option<Alarm> {
        self.find_hashed(self.hasher.hash_one(owner), owner)
    }

    fn find_hashed(&self, hash: u64, owner: &[u8]) -> Option<Alarm> {
        let node = |number| self.slots.get(self.slots.alarm_in_slot(number)?).map(|(_, node)| node);
        let is_it = |number| node(number).is_some_and(|node| *node.owner == *owner);
        let number = self.by_owner.find(hash, is_it)?;
        self.slots.alarm_in_slot(number)
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

    #[test]
    #[cfg_attr(miri, ignore = "thousands of entries")]
    fn parts_of_the_owner_table_stay_small() {
        const PLACES: u32 = 80_000;
        let mut places = FairQueue::default();
        for owner in 0..PLACES {
            let owner = &owner.to_le_bytes();
            places.push(Place { owner, stay: Stay::Connected, arrival: 0, request_id: None, grace_ms: None }, false);
        }
        let most = places.by_owner.largest_part();
        assert!(most <= 4096, "{most} entries move when one part grows");
        for owner in 0..PLACES {
            places.remove(&owner.to_le_bytes());
        }
        assert!(places.is_empty() && places.by_owner.is_empty());
    }
}
