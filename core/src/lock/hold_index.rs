//! An index of the holds of a lock that has many, so that no command visits all of them.
//!
//! A lock with few holds has none: scanning them is faster. Positions refer to the lock's list of
//! holds, which is passed to every method.
//!
//! Invariant: the index matches the list.

use core::cell::Cell;

use ahash::RandomState;

use super::hashing::hasher;
use super::hold::{Hold, Holds};
use crate::collections::{NameTable, Sum, Tally};
use crate::kind::Mode;

/// With this many holds a lock gets an index.
pub(crate) const MIN_INDEXED: usize = 16;

/// With this few holds it loses the index.
pub(crate) const MAX_FEW: usize = 8;

#[derive(Clone)]
pub(crate) struct HoldIndex {
    by_owner: NameTable,
    by_token: NameTable,
    hasher: RandomState,
    /// The counts of the holds, by (deadline, token).
    deadlines: Tally,
    live: Cell<Live>,
}

/// The holds that expire after `after_us`. [`HoldIndex::live`] advances `after_us`, and subtracts
/// the holds that have expired since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Live {
    after_us: u64,
    /// The sum of their counts.
    pub(crate) total: u64,
    /// Their number.
    pub(crate) holds: usize,
}

impl Live {
    fn add(&mut self, count: u32) {
        self.total = self.total.saturating_add(u64::from(count));
        self.holds = self.holds.saturating_add(1);
    }

    fn subtract(&mut self, ended: Sum) {
        self.total = self.total.saturating_sub(ended.total);
        self.holds = self.holds.saturating_sub(ended.entries);
    }
}

impl HoldIndex {
    pub(crate) fn of(holds: Holds<'_>) -> Self {
        let mut index = Self {
            by_owner: NameTable::default(),
            by_token: NameTable::default(),
            hasher: hasher(),
            deadlines: Tally::default(),
            live: Cell::default(),
        };
        for at in 0..holds.len() {
            index.add(holds, at);
        }
        index
    }

    fn hash(&self, owner: &[u8], mode: Mode) -> u64 {
        self.hasher.hash_one((owner, mode))
    }

    /// The position of the hold of an owner in a mode.
    pub(crate) fn find(&self, holds: Holds<'_>, owner: &[u8], mode: Mode) -> Option<usize> {
        let hash = self.hash(owner, mode);
        let is_it = |at: u32| {
            let hold = holds.get(at as usize);
            hold.is_some_and(|hold| hold.mode() == mode && hold.owner().as_slice() == owner)
        };
        self.by_owner.find(hash, is_it).map(|at| at as usize)
    }

    /// The position of the hold with a token.
    pub(crate) fn find_token(&self, holds: Holds<'_>, token: u64) -> Option<usize> {
        let is_it = |at: u32| holds.get(at as usize).is_some_and(|hold| hold.token() == token);
        self.by_token.find(self.hasher.hash_one(token), is_it).map(|at| at as usize)
    }

    /// The token of a hold that expires at `now_us` or before.
    pub(crate) fn first_expired(&self, now_us: u64) -> Option<u64> {
        let (deadline_us, token) = self.deadlines.first()?;
        (deadline_us <= now_us).then_some(token)
    }

    /// The earliest deadline.
    pub(crate) fn first_deadline_us(&self) -> Option<u64> {
        self.deadlines.first().map(|(deadline_us, _)| deadline_us)
    }

    /// The latest deadline.
    pub(crate) fn last_deadline_us(&self) -> Option<u64> {
        self.deadlines.last().map(|(deadline_us, _)| deadline_us)
    }

    /// The tokens of the holds that expire after `now_us`, the last to expire first.
    pub(crate) fn latest_first(&self, now_us: u64) -> impl Iterator<Item = u64> {
        let latest = self.deadlines.backwards();
        latest.take_while(move |(deadline_us, _)| *deadline_us > now_us).map(|(_, token)| token)
    }

    /// The holds that expire after `now_us`.
    pub(crate) fn live(&self, now_us: u64) -> Live {
        let mut live = self.live.get();
        if now_us > live.after_us {
            self.ended(live.after_us, now_us).for_each(|ended| live.subtract(ended));
            live.after_us = now_us;
            self.live.set(live);
        }
        live
    }

    /// The holds that expire after `after_us`, and at `now_us` or before, as a few sums regardless
    /// of their number.
    fn ended(&self, after_us: u64, now_us: u64) -> impl Iterator<Item = Sum> {
        self.deadlines.between((after_us, u64::MAX), (now_us, u64::MAX))
    }

    /// Adds the hold at a position, which was added to the list.
    pub(crate) fn add(&mut self, holds: Holds<'_>, at: usize) {
        let Some(hold) = holds.get(at) else {
            return;
        };
        let hash = self.hash(hold.owner().as_slice(), hold.mode());
        self.by_owner.insert(hash, to_u32(at));
        self.by_token.insert(self.hasher.hash_one(hold.token()), to_u32(at));
        self.count_in(hold);
    }

    /// Removes the hold at a position, which is about to leave the list; the last hold takes its
    /// position.
    pub(crate) fn remove(&mut self, holds: Holds<'_>, at: usize) {
        let (Some(hold), Some(last_at)) = (holds.get(at), holds.len().checked_sub(1)) else {
            return;
        };
        self.count_out(hold);
        let hash = self.hash(hold.owner().as_slice(), hold.mode());
        self.by_owner.remove(hash, to_u32(at));
        self.by_token.remove(self.hasher.hash_one(hold.token()), to_u32(at));
        if let Some(last) = holds.get(last_at).filter(|_| at != last_at) {
            let hash = self.hash(last.owner().as_slice(), last.mode());
            self.by_owner.renumber(hash, to_u32(last_at), to_u32(at));
            self.by_token.renumber(self.hasher.hash_one(last.token()), to_u32(last_at), to_u32(at));
        }
    }

    /// Removes a hold's count before its terms change.
    pub(crate) fn count_out(&mut self, hold: &Hold) {
        self.deadlines.remove((hold.deadline_us(), hold.token()));
        let live = self.live.get_mut();
        if hold.deadline_us() > live.after_us {
            live.subtract(Sum { entries: 1, total: u64::from(hold.count()) });
        }
    }

    /// Adds a hold's count after its terms changed.
    pub(crate) fn count_in(&mut self, hold: &Hold) {
        self.deadlines.insert((hold.deadline_us(), hold.token()), hold.count());
        let live = self.live.get_mut();
        if hold.deadline_us() > live.after_us {
            live.add(hold.count());
        }
    }

    /// Drops a part of the index of removed holds. Returns whether there is more.
    pub(crate) fn drop_some(&mut self, count: usize) -> bool {
        self.deadlines.drop_some(count)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.deadlines.len()
    }

    /// The approximate heap bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        let tables = self.by_owner.heap_bytes().saturating_add(self.by_token.heap_bytes());
        tables.saturating_add(self.deadlines.heap_bytes())
    }
}

/// Positions are at most 2^32 - 2: more holds need over 300 GiB, so the conversion never saturates.
fn to_u32(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collections::Chunked;
    use crate::event::Terms;
    use std::collections::BTreeMap;

    #[test]
    #[cfg_attr(miri, ignore = "thousands of holds")]
    fn live_count_sums_few_chunks() {
        const MANY: u32 = 20_000;
        let mut holds = Chunked::default();
        for number in 0..MANY {
            let deadline_us = u64::from(number) / 100 + 1;
            let terms = Terms::plain(2, deadline_us);
            let owner = number.to_le_bytes().as_slice().into();
            holds.push(Hold::new(owner, Mode::Permits, u64::from(number) + 1, &terms));
        }
        let index = HoldIndex::of(Holds::of_many(&holds));
        let before_last_us = u64::from(MANY) / 100 - 1;
        let looks = index.ended(0, before_last_us).count();
        assert!(looks < 500, "{looks} sums for {MANY} holds");
        let Live { total, holds, .. } = index.live(before_last_us);
        assert_eq!((holds, total), (100, 200));
    }

    /// The index keeps 32 bits of each hash. Two of about 80,000 names share them.
    #[test]
    #[cfg_attr(miri, ignore = "thousands of names")]
    fn owners_with_the_same_half_hash_are_distinguished() {
        let mut holds = Chunked::default();
        let empty = HoldIndex::of(Holds::of_many(&holds));
        let mut seen = BTreeMap::new();
        let (first, second) = (0_u32..)
            .find_map(|owner| {
                Some((seen.insert(empty.hash(&owner.to_le_bytes(), Mode::Read) >> u32::BITS, owner)?, owner))
            })
            .unwrap();
        assert!(second > 1_000, "the names before it have different hashes");
        let terms = Terms::plain(1, 1);
        holds.push(Hold::new(first.to_le_bytes().as_slice().into(), Mode::Read, 1, &terms));
        let index = HoldIndex::of(Holds::of_many(&holds));
        let found = [first, second].map(|owner| index.find(Holds::of_many(&holds), &owner.to_le_bytes(), Mode::Read));
        assert_eq!(found, [Some(0), None]);
    }
}
