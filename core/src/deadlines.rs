//! Deadlines in order: a binary heap whose entries can be moved and removed.
//!
//! Insert, remove and move are O(log n), and O(1) for a deadline that is the latest or was inserted last, which is
//! the common case (an equal lease for every lock, acquired and released at once). No step is ever O(n), because this
//! runs on the server's only thread: heap and slots grow by chunks instead of being copied. (`retain` is O(n);
//! it serves FLUSHALL.)
//!
//! Invariants:
//! 1. `heap[i].at_us <= heap[j].at_us` for each child j of i (four children each: fewer cache lines per level).
//! 2. `slot(heap[i].slot).position == i` for each i; free slots are on the free list and have no value.
//!
//! An [`Alarm`] is the number of a slot. Whoever keeps one checks with [`Deadlines::get`] that the slot is still its
//! own, so a stale number does no harm.

use crate::chunked::Chunked;

const ARITY: usize = 4;
const NO_SLOT: u32 = u32::MAX;

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
}

#[derive(Clone)]
struct SlotOf<T> {
    value: Option<T>,
    /// Index into the heap, or the next free slot.
    position: u32,
}

/// A set of `T`, each with a deadline in microseconds.
#[derive(Clone)]
pub struct Deadlines<T> {
    heap: Chunked<Entry>,
    slots: Chunked<SlotOf<T>>,
    free: u32,
}

impl<T> Default for Deadlines<T> {
    fn default() -> Self {
        Self { heap: Chunked::default(), slots: Chunked::default(), free: NO_SLOT }
    }
}

impl<T> Deadlines<T> {
    /// How many deadlines there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.len() == 0
    }

    /// Adds a deadline.
    pub fn insert(&mut self, at_us: u64, value: T) -> Alarm {
        let position = self.heap.len();
        let slot = self.take_slot(value, position);
        self.heap.push(Entry { at_us, slot });
        self.sift_up(position);
        Alarm(slot)
    }

    /// What `alarm` is for, and when it is due.
    #[must_use]
    pub fn get(&self, alarm: Alarm) -> Option<(u64, &T)> {
        let slot = self.slot(alarm.0)?;
        let value = slot.value.as_ref()?;
        let entry = self.heap.get(slot.position as usize)?;
        Some((entry.at_us, value))
    }

    /// What `alarm` is for, to change it in place.
    pub fn get_mut(&mut self, alarm: Alarm) -> Option<&mut T> {
        self.slot_mut(alarm.0)?.value.as_mut()
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

    /// Removes the deadline of `alarm` and returns what it was for.
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
        self.give_slot(alarm.0)
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

    /// What the slot with this number has, if anything; `None` if there is no such slot. Who looks at all slots in turn sees
    /// every value that is there from the beginning to the end.
    #[must_use]
    pub fn slot_value(&self, slot: u32) -> Option<Option<&T>> {
        Some(self.slot(slot)?.value.as_ref())
    }

    /// Removes every deadline whose value `keep` does not want. O(n).
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        let entries = core::mem::take(&mut self.heap);
        for entry in entries.into_iter() {
            let wanted = self.slot(entry.slot).and_then(|slot| slot.value.as_ref()).is_some_and(&mut keep);
            if wanted {
                let position = self.heap.len();
                self.heap.push(entry);
                self.place(position);
                self.sift_up(position);
            } else {
                self.give_slot(entry.slot);
            }
        }
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Bytes on the heap, those behind the values apart.
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
        if let Some(slot) = self.slot_mut(entry.slot) {
            slot.position = to_u32(position);
        }
    }

    /// Writes the position of a heap entry into its slot.
    fn place(&mut self, position: usize) {
        if let Some(slot) = self.heap.get(position).map(|entry| entry.slot)
            && let Some(slot) = self.slot_mut(slot)
        {
            slot.position = to_u32(position);
        }
    }

    fn position(&self, alarm: Alarm) -> Option<usize> {
        let slot = self.slot(alarm.0)?;
        slot.value.as_ref()?;
        Some(slot.position as usize)
    }

    fn slot(&self, slot: u32) -> Option<&SlotOf<T>> {
        self.slots.get(slot as usize)
    }

    fn slot_mut(&mut self, slot: u32) -> Option<&mut SlotOf<T>> {
        self.slots.get_mut(slot as usize)
    }

    fn take_slot(&mut self, value: T, position: usize) -> u32 {
        let (value, position) = (Some(value), to_u32(position));
        let free = self.free;
        if let Some(slot) = self.slot_mut(free) {
            let next = slot.position;
            *slot = SlotOf { value, position };
            self.free = next;
            return free;
        }
        let number = to_u32(self.slots.len());
        self.slots.push(SlotOf { value, position });
        number
    }

    fn give_slot(&mut self, number: u32) -> Option<T> {
        let free = self.free;
        let slot = self.slot_mut(number)?;
        let value = slot.value.take()?;
        slot.position = free;
        self.free = number;
        Some(value)
    }
}

/// Slots and positions count to 2^32 - 2: as many locks need over 400 GiB, so the conversion never saturates.
fn to_u32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(NO_SLOT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Remove(usize),
        Set(usize, u64),
        Pop(u64),
        RetainEven,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..100u64).prop_map(Step::Insert),
            2 => any::<usize>().prop_map(Step::Remove),
            2 => (any::<usize>(), 0..100u64).prop_map(|(i, at)| Step::Set(i, at)),
            2 => (0..100u64).prop_map(Step::Pop),
            1 => Just(Step::RetainEven),
        ]
    }

    proptest! {
        /// The oracle is a map from value to deadline; the earliest is found by looking at all of them.
        #[test]
        fn agrees_with_a_plain_map(steps in prop::collection::vec(step(), 1..300)) {
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
                    Step::RetainEven => {
                        oracle.retain(|value, _| value % 2 == 0);
                        deadlines.retain(|value| value % 2 == 0);
                        if oracle.is_empty() { prop_assert!(deadlines.is_empty()); }
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
    fn slots_are_used_again() {
        let mut deadlines = Deadlines::default();
        for round in 0..10_000u64 {
            let alarm = deadlines.insert(round, ());
            deadlines.remove(alarm);
        }
        assert_eq!(deadlines.slots.len(), 1);
    }
}
