//! A map from names to numbers, for names stored elsewhere.
//!
//! A large table is split into parts, and each entry keeps half of the hash of its name. A growing
//! part visits only its own entries and no names, so no insertion takes long, regardless of the
//! number of names. Half a hash distinguishes nearly all names, and takes half the space.

use alloc::vec::Vec;
use core::{mem, slice};

use hashbrown::HashTable;

/// The number of parts of a large table: a power of two.
const PARTS: usize = 64;

/// The number of entries at which a table is split.
const MANY: usize = 4096;

#[derive(Clone, Copy)]
struct Entry {
    half: u32,
    number: u32,
}

/// Numbers by the hashes of their names.
#[derive(Clone, Default)]
pub(crate) struct NameTable {
    parts: Parts,
    len: usize,
}

#[derive(Clone)]
enum Parts {
    /// Inline, without an allocation of its own: most tables have few entries.
    One(HashTable<Entry>),
    /// [`PARTS`] tables.
    Many(Vec<HashTable<Entry>>),
}

impl Default for Parts {
    fn default() -> Self {
        Self::One(HashTable::new())
    }
}

impl Parts {
    fn all(&self) -> &[HashTable<Entry>] {
        match self {
            Self::One(part) => slice::from_ref(part),
            Self::Many(parts) => parts,
        }
    }

    /// The part for a hash, selected by bits that the table of a part uses only if it has very many
    /// entries.
    fn of(&mut self, half: u32) -> Option<&mut HashTable<Entry>> {
        match self {
            Self::One(part) => Some(part),
            Self::Many(parts) => parts.get_mut(number_of_part(half)),
        }
    }
}

impl NameTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number under a hash for which `is_it` returns true.
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let half = half_of(hash);
        let part = match &self.parts {
            Parts::One(part) => part,
            Parts::Many(parts) => parts.get(number_of_part(half))?,
        };
        part.find(spread(half), |entry| entry.half == half && is_it(entry.number)).map(|entry| entry.number)
    }

    /// Adds a new number.
    pub(crate) fn insert(&mut self, hash: u64, number: u32) {
        if self.len >= MANY
            && let Parts::One(part) = &mut self.parts
        {
            let entries = mem::take(part);
            self.split(entries);
        }
        self.insert_into_part(Entry { half: half_of(hash), number });
        self.len = self.len.saturating_add(1);
    }

    fn insert_into_part(&mut self, entry: Entry) {
        if let Some(part) = self.parts.of(entry.half) {
            part.insert_unique(spread(entry.half), entry, |entry| spread(entry.half));
        }
    }

    fn split(&mut self, entries: HashTable<Entry>) {
        let mut parts = Vec::new();
        parts.resize_with(PARTS, HashTable::new);
        self.parts = Parts::Many(parts);
        for entry in entries {
            self.insert_into_part(entry);
        }
    }

    /// Removes a number. An emptied part frees its memory if it is large.
    pub(crate) fn remove(&mut self, hash: u64, number: u32) {
        const KEPT_ENTRIES: usize = 64;
        let half = half_of(hash);
        let Some(part) = self.parts.of(half) else {
            return;
        };
        if let Ok(entry) = part.find_entry(spread(half), |entry| entry.number == number) {
            entry.remove();
            self.len = self.len.saturating_sub(1);
        }
        if part.is_empty() && part.capacity() > KEPT_ENTRIES {
            *part = HashTable::new();
        }
        if self.is_empty() && matches!(self.parts, Parts::Many(_)) {
            self.parts = Parts::default();
        }
    }

    /// Changes the number of an entry.
    pub(crate) fn renumber(&mut self, hash: u64, number: u32, new: u32) {
        let half = half_of(hash);
        let part = self.parts.of(half);
        if let Some(entry) = part.and_then(|part| part.find_mut(spread(half), |entry| entry.number == number)) {
            entry.number = new;
        }
    }

    /// The approximate heap bytes: the capacity of the parts, with one control byte per entry.
    pub(crate) fn heap_bytes(&self) -> usize {
        let entries: usize = self.parts.all().iter().map(HashTable::capacity).sum();
        let parts = if let Parts::Many(parts) = &self.parts { parts.capacity() } else { 0 };
        let parts = parts.saturating_mul(size_of::<HashTable<Entry>>());
        entries.saturating_mul(size_of::<Entry>().saturating_add(1)).saturating_add(parts)
    }

    /// The number of entries in the largest part, which are visited when it grows.
    #[cfg(test)]
    pub(crate) fn largest_part(&self) -> usize {
        self.parts.all().iter().map(HashTable::len).max().unwrap_or(0)
    }
}

fn number_of_part(half: u32) -> usize {
    (half >> 19) as usize % PARTS
}

fn half_of(hash: u64) -> u32 {
    u32::try_from(hash >> u32::BITS).unwrap_or(0)
}

/// The hash of an entry within its part: hashbrown uses the lowest bits and the seven highest ones.
fn spread(half: u32) -> u64 {
    (u64::from(half) << u32::BITS) | u64::from(half)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise each look-up in a part compares all of its names.
    #[test]
    fn parts_distinguish_hashes() {
        let distinct = |parts: Vec<u64>| parts.into_iter().collect::<std::collections::BTreeSet<_>>().len();
        assert_eq!(distinct((0..256).map(|low| spread(low) % 256).collect()), 256);
        assert_eq!(distinct((0..128).map(|high| spread(high << 25) >> 57).collect()), 128);
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of entries")]
    fn numbers_with_the_same_hash_are_distinguished() {
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

    #[test]
    #[cfg_attr(miri, ignore = "thousands of entries")]
    fn split_keeps_all_entries() {
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
    fn small_table_takes_little_memory() {
        let mut table = NameTable::default();
        for number in 0..20 {
            table.insert(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15), number);
        }
        assert!(table.heap_bytes() < 500, "{} bytes", table.heap_bytes());
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of entries")]
    fn parts_of_a_table_stay_small() {
        let mut table = NameTable::default();
        for number in 0..20 * MANY as u32 {
            table.insert(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15), number);
        }
        let most = table.largest_part();
        assert!(most <= MANY, "{most} entries move when one part grows");
    }
}
