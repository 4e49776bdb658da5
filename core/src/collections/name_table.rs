//! From a name to a number, for names that live elsewhere.
//!
//! A table of many is split into parts, and each entry keeps the hash of its name: a part that grows visits its own entries and
//! no names, so that no insertion takes long, however many names there are.

use alloc::vec::Vec;

use hashbrown::HashTable;

/// How many parts a table of many has: a power of two.
const PARTS: usize = 64;

/// With so many entries it is split.
const MANY: usize = 4096;

#[derive(Clone, Copy)]
struct Entry {
    hash: u64,
    number: u32,
}

/// Numbers under the hashes of their names.
#[derive(Clone, Default)]
pub(crate) struct NameTable {
    /// None, one, or [`PARTS`].
    parts: Vec<HashTable<Entry>>,
    len: usize,
}

impl NameTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number under a hash for which `is_it` says so.
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let part = self.parts.get(self.part_of(hash))?;
        part.find(hash, |entry| entry.hash == hash && is_it(entry.number)).map(|entry| entry.number)
    }

    /// Adds a number that is not there.
    pub(crate) fn insert(&mut self, hash: u64, number: u32) {
        match self.parts.len() {
            0 => self.parts.push(HashTable::new()),
            1 if self.len >= MANY => self.split(),
            _ => {}
        }
        self.insert_into_part(Entry { hash, number });
        self.len = self.len.saturating_add(1);
    }

    fn insert_into_part(&mut self, entry: Entry) {
        let at = self.part_of(entry.hash);
        if let Some(part) = self.parts.get_mut(at) {
            part.insert_unique(entry.hash, entry, |entry| entry.hash);
        }
    }

    fn split(&mut self) {
        let entries: Vec<HashTable<Entry>> = core::mem::take(&mut self.parts);
        self.parts.resize_with(PARTS, HashTable::new);
        for entry in entries.into_iter().flatten() {
            self.insert_into_part(entry);
        }
    }

    /// Removes a number. A part that has become empty gives its memory back if that is much.
    pub(crate) fn remove(&mut self, hash: u64, number: u32) {
        const KEPT_ENTRIES: usize = 64;
        let at = self.part_of(hash);
        let Some(part) = self.parts.get_mut(at) else {
            return;
        };
        if let Ok(entry) = part.find_entry(hash, |entry| entry.number == number) {
            entry.remove();
            self.len = self.len.saturating_sub(1);
        }
        if part.is_empty() && part.capacity() > KEPT_ENTRIES {
            *part = HashTable::new();
        }
        if self.is_empty() && self.parts.len() > 1 {
            self.parts = Vec::new();
        }
    }

    /// What is under a hash has another number.
    pub(crate) fn renumber(&mut self, hash: u64, number: u32, new: u32) {
        let at = self.part_of(hash);
        if let Some(entry) = self.parts.get_mut(at).and_then(|part| part.find_mut(hash, |entry| entry.number == number))
        {
            entry.number = new;
        }
    }

    /// Bytes on the heap, roughly: what the parts have room for, with a byte more an entry.
    pub(crate) fn heap_bytes(&self) -> usize {
        let entries: usize = self.parts.iter().map(HashTable::capacity).sum();
        let parts = self.parts.capacity().saturating_mul(size_of::<HashTable<Entry>>());
        entries.saturating_mul(size_of::<Entry>().saturating_add(1)).saturating_add(parts)
    }

    /// The table itself looks at the lowest bits and the highest ones.
    fn part_of(&self, hash: u64) -> usize {
        usize::try_from(hash >> 32).unwrap_or(0) & self.parts.len().saturating_sub(1)
    }
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

    #[test]
    fn what_was_there_before_the_split_is_there_after_it() {
        let hash = |number: u32| u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut table = NameTable::default();
        for number in 0..3 * MANY as u32 {
            table.insert(hash(number), number);
        }
        for number in 0..3 * MANY as u32 {
            assert_eq!(table.find(hash(number), |found| found == number), Some(number));
        }
        table.renumber(hash(7), 7, 8);
        assert_eq!(table.find(hash(7), |_| true), Some(8));
    }

    #[test]
    fn no_part_of_a_table_is_large() {
        let mut table = NameTable::default();
        for number in 0..20 * MANY as u32 {
            table.insert(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15), number);
        }
        let most = table.parts.iter().map(HashTable::len).max();
        assert!(most <= Some(MANY), "{most:?} entries move when one part grows");
    }
}
