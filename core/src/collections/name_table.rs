//! From a name to a number, for names that live elsewhere.
//!
//! It is split into parts, and each entry keeps the hash of its name: a part that grows visits its own entries and no
//! names, so that no insertion takes long, however many names there are.

use hashbrown::HashTable;

/// How many parts there are: a power of two.
const PARTS: usize = 64;

#[derive(Clone, Copy)]
struct Entry {
    hash: u64,
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

    /// The number under a hash for which `is_it` says so.
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let part = self.parts.get(part_of(hash))?;
        part.find(hash, |entry| entry.hash == hash && is_it(entry.number)).map(|entry| entry.number)
    }

    /// Adds a number that is not there.
    pub(crate) fn insert(&mut self, hash: u64, number: u32) {
        if let Some(part) = self.parts.get_mut(part_of(hash)) {
            part.insert_unique(hash, Entry { hash, number }, |entry| entry.hash);
            self.len = self.len.saturating_add(1);
        }
    }

    /// Removes a number. A part that has become empty gives its memory back if that is much.
    pub(crate) fn remove(&mut self, hash: u64, number: u32) {
        const KEPT_ENTRIES: usize = 64;
        let Some(part) = self.parts.get_mut(part_of(hash)) else {
            return;
        };
        if let Ok(entry) = part.find_entry(hash, |entry| entry.number == number) {
            entry.remove();
            self.len = self.len.saturating_sub(1);
        }
        if part.is_empty() && part.capacity() > KEPT_ENTRIES {
            *part = HashTable::new();
        }
    }
}

/// The table itself looks at the lowest bits and the highest ones.
fn part_of(hash: u64) -> usize {
    usize::try_from(hash >> 32).unwrap_or(0) % PARTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_one_hash_are_told_apart() {
        let mut table = NameTable::default();
        for number in 0..1000u32 {
            table.insert(u64::from(number % 10) << 30, number);
        }
        for number in 0..1000u32 {
            let hash = u64::from(number % 10) << 30;
            assert_eq!(table.find(hash, |found| found == number), Some(number));
            table.remove(hash, number);
            assert_eq!(table.find(hash, |found| found == number), None);
        }
        assert!(table.is_empty());
    }
}
