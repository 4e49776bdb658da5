//! Values under numbers that are used again, in chunks that stay where they are.

use super::chunked::Chunked;

const NO_SLOT: u32 = u32::MAX;

/// For how many values room is kept when there is none.
const KEPT_SLOTS: usize = 4096;

enum Slot<T> {
    Taken(T),
    /// The next free slot.
    Free(u32),
}

/// Values of type `T`, each under the number of its slot.
pub(crate) struct Slots<T> {
    slots: Chunked<Slot<T>>,
    free: u32,
    len: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Chunked::default(), free: NO_SLOT, len: 0 }
    }
}

impl<T> Slots<T> {
    /// How many slots there are, free ones included.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Whether a table that is empty has room for so many that it is better made anew.
    pub(crate) fn is_oversized(&self) -> bool {
        self.len == 0 && self.slots.len() > KEPT_SLOTS
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes on the heap, those behind the values apart.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.slots.heap_bytes()
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
        // As many values as there are numbers would need terabytes.
        let number = u32::try_from(self.slots.len()).unwrap_or(NO_SLOT);
        self.slots.push(Slot::Taken(value));
        number
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
    fn numbers_are_used_again_and_values_stay_under_theirs() {
        let mut slots = Slots::default();
        let numbers: Vec<u32> = (0..10).map(|value| slots.insert(value)).collect();
        assert_eq!(slots.remove(numbers[3]), Some(3));
        assert_eq!((slots.remove(numbers[3]), slots.get(numbers[3])), (None, None));
        assert_eq!(slots.insert(33), numbers[3]);
        *slots.get_mut(numbers[4]).unwrap() = 44;
        let values: Vec<i32> = slots.iter().map(|(_, value)| *value).collect();
        assert_eq!(values, [0, 1, 2, 33, 44, 5, 6, 7, 8, 9]);
    }
}
