//! Deadlines in order: a binary heap whose entries can be moved and removed.
//!
//! Insert, remove and move are O(log n). Inserting the latest deadline, and removing it soon after,
//! is O(1). That is the common case: locks with equal leases that are released quickly. No step
//! except [`Deadlines::stamps_mut`] is ever O(n), because this runs on the server's only thread:
//! heap and slots grow by chunks instead of being copied.
//!
//! Invariants:
//! 1. `heap[i].at_us <= heap[j].at_us` for each child j of i (four children each: fewer cache lines
//!    per level).
//! 2. `slot(heap[i].slot).position == i` for each i; free slots have no value.
//!
//! An [`Alarm`] is the number of a slot. Callers check with [`Deadlines::get`] that the slot still
//! has their value, so a stale number does no harm.

use super::chunked::Chunked;
use super::slots::{NO_SLOT, Slots};

const ARITY: usize = 4;

/// The number of a deadline's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alarm(u32);

impl Alarm {
    /// No alarm is set.
    pub const NONE: Self = Self(NO_SLOT);
}

#[derive(Clone, Copy)]
struct Entry {
    at_us: u64,
    slot: u32,
    /// A number that callers may store beside the deadline. It takes no memory beyond the padding.
    stamp: u32,
}

#[derive(Clone)]
struct SlotOf<T, S> {
    value: T,
    /// A small part of the value that fits beside the position.
    side: S,
    /// Index into the heap.
    position: u32,
}

/// A view of a deadline.
pub struct DeadlineRef<'a, T, S> {
    /// The value.
    pub value: &'a T,
    /// A small part of the value that fits beside its position in the order.
    pub side: S,
    /// The number that the caller has stored beside the deadline.
    pub stamp: u32,
}

/// A set of `T`, each with a deadline in microseconds.
#[derive(Clone)]
pub struct Deadlines<T, S = ()> {
    heap: Chunked<Entry>,
    slots: Slots<SlotOf<T, S>>,
}

impl<T, S> Default for Deadlines<T, S> {
    fn default() -> Self {
        Self { heap: Chunked::default(), slots: Slots::default() }
    }
}

impl<T> Deadlines<T> {
    /// Adds a deadline.
    pub fn insert(&mut self, at_us: u64, value: T) -> Alarm {
        self.insert_with(at_us, value, (), 0)
    }
}

impl<T, S: Copy> Deadlines<T, S> {
    /// The number of deadlines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether there are no deadlines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Adds a deadline with its side and stamp.
    pub fn insert_with(&mut self, at_us: u64, value: T, side: S, stamp: u32) -> Alarm {
        let position = self.heap.len();
        let slot = self.slots.insert(SlotOf { value, side, position: to_u32(position) });
        self.heap.push(Entry { at_us, slot, stamp });
        self.sift_up(position);
        Alarm(slot)
    }

    /// Sets the side and the stamp of a deadline.
    pub fn set_side_and_stamp(&mut self, alarm: Alarm, side: S, stamp: u32) {
        if let Some(position) = self.position(alarm)
            && let Some(entry) = self.heap.get_mut(position)
            && let Some(slot) = self.slots.get_mut(alarm.0)
        {
            (entry.stamp, slot.side) = (stamp, side);
        }
    }

    /// The stamps of all deadlines. They are close together in memory, so it takes few milliseconds
    /// to visit a million.
    pub fn stamps_mut(&mut self) -> impl Iterator<Item = &mut u32> {
        self.heap.iter_mut().map(|entry| &mut entry.stamp)
    }

    /// The deadline and the value of `alarm`.
    #[must_use]
    pub fn get(&self, alarm: Alarm) -> Option<(u64, &T)> {
        let slot = self.slots.get(alarm.0)?;
        let entry = self.heap.get(slot.position as usize)?;
        Some((entry.at_us, &slot.value))
    }

    /// The complete entry of `alarm`.
    #[must_use]
    pub fn entry(&self, alarm: Alarm) -> Option<DeadlineRef<'_, T, S>> {
        let SlotOf { value, side, position } = self.slots.get(alarm.0)?;
        let Entry { stamp, .. } = *self.heap.get(*position as usize)?;
        Some(DeadlineRef { value, side: *side, stamp })
    }

    /// The value of `alarm`, to change it in place.
    pub fn get_mut(&mut self, alarm: Alarm) -> Option<&mut T> {
        self.slots.get_mut(alarm.0).map(|slot| &mut slot.value)
    }

    /// Moves the deadline of `alarm`.
    pub fn set(&mut self, alarm: Alarm, at_us: u64) {
        let Some(position) = self.position(alarm) else {
            return;
        };
        let Some(entry) = self.heap.get_mut(position) else {
            return;
        };
        let earlier = at_us < entry.at_us;
        entry.at_us = at_us;
        if earlier {
            self.sift_up(position);
        } else {
            self.sift_down(position);
        }
    }

    /// Removes `alarm` and returns its value.
    pub fn remove(&mut self, alarm: Alarm) -> Option<T> {
        let position = self.position(alarm)?;
        let last = self.heap.len().saturating_sub(1);
        if position < last {
            self.swap(position, last);
        }
        self.heap.pop();
        if position < last {
            self.sift_up(position);
            self.sift_down(position);
        }
        self.slots.remove(alarm.0).map(|slot| slot.value)
    }

    /// Removes all deadlines in one step. The memory is freed in parts, see
    /// [`Deadlines::free_some`].
    pub fn clear(&mut self) {
        self.heap = Chunked::default();
        self.slots.clear();
    }

    /// Whether there is memory to free.
    #[must_use]
    pub fn has_retired(&self) -> bool {
        self.slots.has_retired()
    }

    /// Frees some of the memory of a large set: all at once would take milliseconds.
    pub fn free_some(&mut self) {
        self.slots.free_some();
    }

    /// The earliest deadline.
    #[must_use]
    pub fn peek(&self) -> Option<(u64, Alarm)> {
        let entry = self.heap.get(0)?;
        Some((entry.at_us, Alarm(entry.slot)))
    }

    /// Removes the earliest deadline if it is due at `now_us`.
    pub fn pop_due(&mut self, now_us: u64) -> Option<T> {
        let (at_us, alarm) = self.peek()?;
        if at_us <= now_us { self.remove(alarm) } else { None }
    }

    /// The alarm in the slot with this number; `None` if there is no such slot. A scan of all slots
    /// visits every alarm that exists during the whole scan.
    #[must_use]
    pub fn alarm_in_slot(&self, slot: u32) -> Option<Alarm> {
        ((slot as usize) < self.slots.capacity()).then_some(Alarm(slot))
    }

    /// The heap bytes, without those that the values own.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.heap.heap_bytes().saturating_add(self.slots.heap_bytes())
    }

    fn sift_up(&mut self, mut position: usize) {
        while position > 0 {
            let parent = position.saturating_sub(1) / ARITY;
            if !self.is_before(position, parent) {
                break;
            }
            self.swap(position, parent);
            position = parent;
        }
    }

    fn sift_down(&mut self, mut position: usize) {
        loop {
            let first = position.saturating_mul(ARITY).saturating_add(1);
            let mut earliest = position;
            for child in first..first.saturating_add(ARITY) {
                if self.is_before(child, earliest) {
                    earliest = child;
                }
            }
            if earliest == position {
                return;
            }
            self.swap(position, earliest);
            position = earliest;
        }
    }

    fn is_before(&self, a: usize, b: usize) -> bool {
        match (self.heap.get(a), self.heap.get(b)) {
            (Some(a), Some(b)) => a.at_us < b.at_us,
            _ => false,
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        let (Some(entry_a), Some(entry_b)) = (self.heap.get(a).copied(), self.heap.get(b).copied()) else {
            return;
        };
        self.put(a, entry_b);
        self.put(b, entry_a);
    }

    fn put(&mut self, position: usize, entry: Entry) {
        if let Some(place) = self.heap.get_mut(position) {
            *place = entry;
        }
        if let Some(slot) = self.slots.get_mut(entry.slot) {
            slot.position = to_u32(position);
        }
    }

    fn position(&self, alarm: Alarm) -> Option<usize> {
        self.slots.get(alarm.0).map(|slot| slot.position as usize)
    }
}

/// Slots and positions are at most 2^32 - 2: more locks need over 400 GiB, so the conversion never
/// saturates.
fn to_u32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(NO_SLOT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Remove(usize),
        Set(usize, u64),
        Pop(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..100u64).prop_map(Step::Insert),
            2 => any::<usize>().prop_map(Step::Remove),
            2 => (any::<usize>(), 0..100u64).prop_map(|(i, at)| Step::Set(i, at)),
            2 => (0..100u64).prop_map(Step::Pop),
        ]
    }

    /// More steps would take minutes under Miri.
    const MOST_STEPS: usize = if cfg!(miri) { 30 } else { 300 };

    proptest! {
        /// The oracle is a map from value to deadline; a full scan finds the earliest.
        #[test]
        fn agrees_with_a_plain_map(steps in prop::collection::vec(step(), 1..MOST_STEPS)) {
            let mut deadlines = Deadlines::default();
            let mut oracle = BTreeMap::<u32, (u64, Alarm)>::new();
            for (number, step) in steps.into_iter().enumerate() {
                let nth = |i: usize, oracle: &BTreeMap<u32, (u64, Alarm)>| {
                    oracle.keys().nth(i % oracle.len().max(1)).copied()
                };
                match step {
                    Step::Insert(at_us) => {
                        let value = u32::try_from(number).unwrap();
                        oracle.insert(value, (at_us, deadlines.insert(at_us, value)));
                    }
                    Step::Remove(i) => if let Some(value) = nth(i, &oracle) {
                        let (_, alarm) = oracle.remove(&value).unwrap();
                        prop_assert_eq!(deadlines.remove(alarm), Some(value));
                    },
                    Step::Set(i, at_us) => if let Some(value) = nth(i, &oracle) {
                        let entry = oracle.get_mut(&value).unwrap();
                        entry.0 = at_us;
                        deadlines.set(entry.1, at_us);
                    },
                    Step::Pop(now_us) => {
                        let due = oracle.values().map(|entry| entry.0).min().filter(|at| *at <= now_us);
                        let popped = deadlines.pop_due(now_us);
                        prop_assert_eq!(popped.map(|value| oracle.remove(&value).unwrap().0), due);
                    }
                }
                prop_assert_eq!(deadlines.len(), oracle.len());
                prop_assert_eq!(
                    deadlines.peek().map(|(at, _)| at),
                    oracle.values().map(|entry| entry.0).min()
                );
                for (value, (at_us, alarm)) in &oracle {
                    prop_assert_eq!(deadlines.get(*alarm), Some((*at_us, value)));
                }
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of entries")]
    fn slots_are_reused() {
        let mut deadlines = Deadlines::default();
        for round in 0..10_000u64 {
            let alarm = deadlines.insert(round, ());
            deadlines.remove(alarm);
        }
        assert_eq!(deadlines.slots.capacity(), 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of entries")]
    fn emptied_large_set_frees_its_memory() {
        let mut deadlines = Deadlines::default();
        let alarms: Vec<_> = (0..10_000).map(|at_us| deadlines.insert(at_us, ())).collect();
        for alarm in alarms {
            deadlines.remove(alarm);
        }
        let before = deadlines.heap_bytes();
        deadlines.free_some();
        assert!((1..before).contains(&deadlines.heap_bytes()), "in parts");
        while deadlines.has_retired() {
            deadlines.free_some();
        }
        assert!(deadlines.heap_bytes() < 40_000, "the heap keeps two chunks");
    }

    #[test]
    fn alarm_of_a_key_has_the_documented_size() {
        assert_eq!(size_of::<SlotOf<crate::bytes::KeyName, u32>>(), 40);
        assert_eq!(size_of::<Entry>(), 16);
    }

    #[test]
    fn side_and_stamp_stay_with_their_deadline() {
        let mut deadlines = Deadlines::<u8, u32>::default();
        let late = deadlines.insert_with(9, 1, 10, 100);
        let early = deadlines.insert_with(5, 2, 20, 200);
        let kept = |deadlines: &Deadlines<u8, u32>, alarm| deadlines.entry(alarm).map(|it| (it.side, it.stamp));
        deadlines.set_side_and_stamp(late, 11, 101);
        deadlines.set(late, 1);
        assert_eq!(kept(&deadlines, late), Some((11, 101)));
        assert_eq!(kept(&deadlines, early), Some((20, 200)));
        deadlines.stamps_mut().for_each(|stamp| *stamp += 5);
        assert_eq!([late, early].map(|alarm| kept(&deadlines, alarm)), [Some((11, 106)), Some((20, 205))]);
        deadlines.remove(late);
        assert_eq!(kept(&deadlines, late), None);
    }
}
