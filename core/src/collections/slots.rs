//! Values with reusable numbers, in chunks: a growing table copies at most its first chunk.

use super::chunked::Chunked;

/// No number of a slot.
pub(super) const NO_SLOT: u32 = u32::MAX;

/// The capacity that an empty table keeps.
const KEPT_SLOTS: usize = 4096;

#[derive(Clone)]
enum Slot<T> {
    Taken(T),
    /// The next free slot.
    Free(u32),
}

/// Values of type `T`, each with the number of its slot.
#[derive(Clone)]
pub(crate) struct Slots<T> {
    slots: Chunked<Slot<T>>,
    free: u32,
    len: usize,
    /// The slots of an emptied table that had many values: see [`Slots::free_some`].
    retired: Chunked<Slot<T>>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Chunked::default(), free: NO_SLOT, len: 0, retired: Chunked::default() }
    }
}

impl<T> Slots<T> {
    /// The number of slots, including free ones.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is memory to free.
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Frees some of the memory of a large table: all at once would take milliseconds.
    pub(crate) fn free_some(&mut self) {
        self.retired.drop_chunk();
        if !self.has_retired() {
            self.retired = Chunked::default();
        }
    }

    /// The number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The heap bytes, without those that the values own.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.slots.heap_bytes().saturating_add(self.retired.heap_bytes())
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.len = self.len.saturating_add(1);
        let free = self.free;
        if let Some(slot) = self.slots.get_mut(free as usize)
            && let Slot::Free(next) = *slot
        {
            *slot = Slot::Taken(value);
            self.free = next;
            return free;
        }
        // Never saturates: 2^32 values would need hundreds of gigabytes.
        let number = u32::try_from(self.slots.len()).unwrap_or(NO_SLOT);
        self.slots.push(Slot::Taken(value));
        number
    }

    /// Removes all values in one step. The memory is freed in parts.
    pub(crate) fn clear(&mut self) {
        self.retired.take_over(core::mem::take(&mut self.slots));
        (self.free, self.len) = (NO_SLOT, 0);
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        match self.slots.get(number as usize)? {
            Slot::Taken(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        match self.slots.get_mut(number as usize)? {
            Slot::Taken(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let slot = self.slots.get_mut(number as usize)?;
        if matches!(slot, Slot::Free(_)) {
            return None;
        }
        let taken = core::mem::replace(slot, Slot::Free(self.free));
        self.free = number;
        self.len = self.len.saturating_sub(1);
        if self.len == 0 && self.slots.len() > KEPT_SLOTS {
            self.clear();
        }
        match taken {
            Slot::Taken(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// The values with their numbers.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let numbers = 0..u32::try_from(self.slots.len()).unwrap_or(NO_SLOT);
        numbers.filter_map(|number| Some((number, self.get(number)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn numbers_are_reused_and_values_keep_theirs() {
        let mut slots = Slots::default();
        let numbers: Vec<u32> = (0..10).map(|value| slots.insert(value)).collect();
        assert_eq!(slots.remove(numbers[3]), Some(3));
        assert_eq!((slots.remove(numbers[3]), slots.get(numbers[3])), (None, None));
        assert_eq!(slots.insert(33), numbers[3]);
        *slots.get_mut(numbers[4]).unwrap() = 44;
        let values: Vec<i32> = slots.iter().map(|(_, value)| *value).collect();
        assert_eq!(values, [0, 1, 2, 33, 44, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn emptied_large_table_frees_its_memory_in_parts() {
        const MANY: u32 = 10_000;
        let mut slots = Slots::default();
        for value in 0..MANY {
            slots.insert(value);
        }
        let bytes = slots.heap_bytes();
        for number in 0..MANY {
            assert_eq!(slots.remove(number), Some(number));
        }
        assert!(slots.has_retired() && slots.heap_bytes() > bytes / 2, "removing the last one frees nothing");
        // New values start over.
        assert_eq!(slots.insert(7), 0);
        slots.free_some();
        assert!(slots.has_retired(), "one step does not free all of it");
        while slots.has_retired() {
            slots.free_some();
        }
        assert_eq!((slots.len(), slots.get(0), slots.get(1)), (1, Some(&7), None));
        assert!(slots.heap_bytes() < bytes / 4);
    }
}
