//! Counts ordered by key, with range sums that do not visit each entry.
//!
//! The entries are in chunks, each with the sum of its counts. A range sum visits chunks, and
//! single entries only at both ends of the range. A million entries have some thousands of chunks.
//!
//! Invariants:
//! 1. A chunk has at least one entry, and at most [`CHUNK`]. The entries of a chunk are in order,
//!    and so are the chunks.
//! 2. Two neighbours together have more than half of [`CHUNK`].

use alloc::vec::Vec;

/// The most entries that one insertion or removal moves.
const CHUNK: usize = 128;

/// A moment, and a number that distinguishes entries with the same moment.
pub(crate) type TallyKey = (u64, u64);

/// A part of a sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    /// The number of entries.
    pub(crate) entries: usize,
    /// The sum of their counts.
    pub(crate) total: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    key: TallyKey,
    count: u32,
}

#[derive(Clone, Default)]
struct Chunk {
    entries: Vec<Entry>,
    total: u64,
}

impl Chunk {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn first(&self) -> Option<TallyKey> {
        self.entries.first().map(|entry| entry.key)
    }

    fn last(&self) -> Option<TallyKey> {
        self.entries.last().map(|entry| entry.key)
    }

    /// Adds an entry with a new key.
    fn insert(&mut self, entry: Entry) {
        let at = self.entries.partition_point(|before| before.key < entry.key);
        self.entries.insert(at, entry);
        self.total = self.total.saturating_add(u64::from(entry.count));
    }

    fn remove(&mut self, key: TallyKey) {
        if let Ok(at) = self.entries.binary_search_by_key(&key, |entry| entry.key) {
            let entry = self.entries.remove(at);
            self.total = self.total.saturating_sub(u64::from(entry.count));
        }
    }

    /// Splits off the second half of a full chunk.
    fn split(&mut self) -> Option<Self> {
        if self.len() < CHUNK {
            return None;
        }
        let entries = self.entries.split_off(CHUNK / 2);
        let total = entries.iter().map(|entry| u64::from(entry.count)).sum();
        self.total = self.total.saturating_sub(total);
        Some(Self { entries, total })
    }

    fn append(&mut self, mut next: Self) {
        self.entries.append(&mut next.entries);
        self.total = self.total.saturating_add(next.total);
    }
}

/// See the module documentation.
#[derive(Clone, Default)]
pub(crate) struct Tally {
    chunks: Vec<Chunk>,
}

impl Tally {
    /// The first key.
    pub(crate) fn first(&self) -> Option<TallyKey> {
        self.chunks.first()?.first()
    }

    /// The last key.
    pub(crate) fn last(&self) -> Option<TallyKey> {
        self.chunks.last()?.last()
    }

    /// The keys in descending order.
    pub(crate) fn backwards(&self) -> impl Iterator<Item = TallyKey> {
        self.chunks.iter().rev().flat_map(|chunk| chunk.entries.iter().rev()).map(|entry| entry.key)
    }

    /// The chunk of a key.
    fn chunk_of(&self, key: TallyKey) -> usize {
        self.chunks.partition_point(|chunk| chunk.first() <= Some(key)).saturating_sub(1)
    }

    /// Adds an entry with a new key.
    pub(crate) fn insert(&mut self, key: TallyKey, count: u32) {
        let is_last = self.last().is_none_or(|last| last < key);
        if is_last && self.chunks.last().is_none_or(|chunk| chunk.len() >= CHUNK) {
            // Most insertions are in order: earlier chunks stay full.
            self.chunks.push(Chunk::default());
            if let Some(chunk) = self.chunks.last_mut() {
                chunk.insert(Entry { key, count });
            }
            return;
        }
        let at = self.chunk_of(key);
        if let Some(second) = self.chunks.get_mut(at).and_then(Chunk::split) {
            self.chunks.insert(at.saturating_add(1), second);
        }
        let at = self.chunk_of(key);
        if let Some(chunk) = self.chunks.get_mut(at) {
            chunk.insert(Entry { key, count });
        }
    }

    /// Removes an entry, if it exists.
    pub(crate) fn remove(&mut self, key: TallyKey) {
        let at = self.chunk_of(key);
        let Some(chunk) = self.chunks.get_mut(at) else {
            return;
        };
        chunk.remove(key);
        if chunk.len() == 0 {
            self.chunks.remove(at);
        } else if chunk.len() <= CHUNK / 2 {
            self.join(at);
            if let Some(before) = at.checked_sub(1) {
                self.join(before);
            }
        }
    }

    /// Joins a chunk with the next one, if they have few entries together.
    fn join(&mut self, at: usize) {
        let next = at.saturating_add(1);
        if let (Some(chunk), Some(second)) = (self.chunks.get(at), self.chunks.get(next))
            && chunk.len().saturating_add(second.len()) <= CHUNK / 2
        {
            let second = self.chunks.remove(next);
            if let Some(chunk) = self.chunks.get_mut(at) {
                chunk.append(second);
            }
        }
    }

    /// The entries behind `after`, up to `up_to`, as a few sums to be added up.
    pub(crate) fn between(&self, after: TallyKey, up_to: TallyKey) -> impl Iterator<Item = Sum> {
        let begin = self.chunks.partition_point(|chunk| chunk.last() <= Some(after));
        let chunks = self.chunks.iter().skip(begin).take_while(move |chunk| chunk.first() <= Some(up_to));
        chunks.flat_map(move |chunk| {
            let is_whole = chunk.first() > Some(after) && chunk.last() <= Some(up_to);
            let whole = is_whole.then_some(Sum { entries: chunk.len(), total: chunk.total });
            let one_by_one = if is_whole { &[] } else { chunk.entries.as_slice() };
            let within = one_by_one.iter().filter(move |entry| entry.key > after && entry.key <= up_to);
            whole.into_iter().chain(within.map(|entry| Sum { entries: 1, total: u64::from(entry.count) }))
        })
    }

    /// Drops about `count` entries. Returns whether there are more.
    pub(crate) fn drop_some(&mut self, count: usize) -> bool {
        for _ in 0..count.div_ceil(CHUNK) {
            self.chunks.pop();
        }
        !self.chunks.is_empty()
    }

    /// The heap bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        let entries: usize = self.chunks.iter().map(|chunk| chunk.entries.capacity()).sum();
        let chunks = self.chunks.capacity().saturating_mul(size_of::<Chunk>());
        entries.saturating_mul(size_of::<Entry>()).saturating_add(chunks)
    }

    /// The number of entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(Chunk::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn sum(sums: impl Iterator<Item = Sum>) -> Sum {
        sums.fold(Sum::default(), |sum, part| Sum {
            entries: sum.entries + part.entries,
            total: sum.total + part.total,
        })
    }

    impl Tally {
        fn assert_consistent(&self) {
            let keys: Vec<TallyKey> = self.chunks.iter().flat_map(|chunk| &chunk.entries).map(|it| it.key).collect();
            assert!(keys.is_sorted());
            for chunk in &self.chunks {
                assert!((1..=CHUNK).contains(&chunk.len()));
                assert_eq!(chunk.total, chunk.entries.iter().map(|entry| u64::from(entry.count)).sum());
            }
            for pair in self.chunks.windows(2) {
                assert!(pair[0].len() + pair[1].len() > CHUNK / 2, "no two neighbours are small");
            }
        }
    }

    /// More would take minutes under Miri.
    const MOST_ROWS: usize = if cfg!(miri) { 5 } else { 30 };

    proptest! {
        /// The oracle is a plain map. Each step changes a whole row of keys, so that chunks fill
        /// and empty.
        #[test]
        fn agrees_with_a_plain_map(
            steps in prop::collection::vec((any::<bool>(), 0..1000u64, 1..400u64, 1..4u64), 1..MOST_ROWS),
            ranges in prop::collection::vec((0..1500u64, 0..1500u64), 10),
        ) {
            let (mut tally, mut oracle) = (Tally::default(), BTreeMap::new());
            for (inserts, from, length, stride) in steps {
                for number in (0..length).map(|step| from + step * stride) {
                    let key = (number / 2, number % 2);
                    if inserts && !oracle.contains_key(&key) {
                        let count = u32::try_from(number).unwrap() + 1;
                        tally.insert(key, count);
                        oracle.insert(key, count);
                    } else if !inserts {
                        tally.remove(key);
                        oracle.remove(&key);
                    }
                }
                tally.assert_consistent();
                prop_assert_eq!(tally.len(), oracle.len());
                prop_assert_eq!((tally.first(), tally.last()), (
                    oracle.keys().next().copied(),
                    oracle.keys().next_back().copied(),
                ));
                prop_assert!(tally.backwards().eq(oracle.keys().rev().copied()));
                for (after, up_to) in &ranges {
                    let (after, up_to) = ((after / 2, after % 2), (up_to / 2, up_to % 2));
                    let within = oracle.iter().filter(|(key, _)| **key > after && **key <= up_to);
                    let expected = sum(within.map(|(_, count)| Sum { entries: 1, total: u64::from(*count) }));
                    prop_assert_eq!(sum(tally.between(after, up_to)), expected);
                }
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of entries")]
    fn range_sum_visits_few_chunks() {
        const MANY: u64 = 100_000;
        let mut tally = Tally::default();
        for number in 0..MANY {
            tally.insert((number, 0), 2);
        }
        let (after, up_to) = ((1, 0), (MANY - 2, 0));
        assert_eq!(sum(tally.between(after, up_to)), Sum { entries: 99_997, total: 199_994 });
        let looks = tally.between(after, up_to).count();
        assert!(looks < 1_200, "{looks} sums for {MANY} entries");
        for number in (0..MANY).filter(|number| number % 100 != 0) {
            tally.remove((number, 0));
        }
        tally.assert_consistent();
        let looks = tally.between((0, 0), (MANY, 0)).count();
        assert!(looks < 200, "{looks} sums for {} entries", tally.len());
        let mut parts = 1;
        while tally.drop_some(CHUNK) {
            parts += 1;
        }
        assert!(parts > 5, "one part does not drop all of it");
    }
}
