//! From a name to a number, for names that live elsewhere.
//!
//! It is split into parts, and each entry keeps half of the hash of its name: a part that grows visits its own entries and no
//! names, so that no insertion takes long, however many names there are. Half of it is enough to tell nearly all names apart,
//! and takes half of the room.

use hashbrown::HashTable;

/// How many parts there are: a power of two.
const PARTS: usize = 64;

#[derive(Clone, Copy)]
struct Entry {
    half: u32,
    number: u32,
}

/// Numbers under the hashes of their names.
pub(crate) struct NameTable {
    parts: [HashTable<Entry>; PARTS],
    len: usize,
}

impl Default for NameTable {
    fn default() -> Self {
        Self { parts: [const { HashTable::new() }; PARTS], len: 0 }
    }
}

impl NameTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.parts.iter().map(HashTable::allocation_size).sum()
    }

    /// The number under a hash for which `is_it` says so.
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let half = half_of(hash);
        let part = self.parts.get(part_of(half))?;
        part.find(spread(half), |entry| entry.half == half && is_it(entry.number)).map(|entry| entry.number)
    }

    /// Adds a number that is not there.
    pub(crate) fn insert(&mut self, hash: u64, number: u32) {
        let half = half_of(hash);
        if let Some(part) = self.parts.get_mut(part_of(half)) {
            part.insert_unique(spread(half), Entry { half, number }, |entry| spread(entry.half));
            self.len = self.len.saturating_add(1);
        }
    }

    /// Removes a number. A part that has become empty gives its memory back if that is much.
    pub(crate) fn remove(&mut self, hash: u64, number: u32) {
        const KEPT_ENTRIES: usize = 64;
        let half = half_of(hash);
        let Some(part) = self.parts.get_mut(part_of(half)) else {
            return;
        };
        if let Ok(entry) = part.find_entry(spread(half), |entry| entry.number == number) {
            entry.remove();
            self.len = self.len.saturating_sub(1);
        }
        if part.is_empty() && part.capacity() > KEPT_ENTRIES {
            *part = HashTable::new();
        }
    }
}

fn half_of(hash: u64) -> u32 {
    u32::try_from(hash >> u32::BITS).unwrap_or(0)
}

/// The tables look at the lowest bits and the seven highest ones.
fn spread(half: u32) -> u64 {
    (u64::from(half) << u32::BITS) | u64::from(half)
}

/// By bits that a table looks at only if it has a great many entries.
fn part_of(half: u32) -> usize {
    (half >> 19) as usize % PARTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_one_hash_are_told_apart() {
        let mut table = NameTable::default();
        for number in 0..1000u32 {
            table.insert(u64::from(number % 10) << 40, number);
        }
        for number in 0..1000u32 {
            let hash = u64::from(number % 10) << 40;
            assert_eq!(table.find(hash, |found| found == number), Some(number));
            table.remove(hash, number);
            assert_eq!(table.find(hash, |found| found == number), None);
        }
        assert!(table.is_empty());
    }
}
