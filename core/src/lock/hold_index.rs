//! An index of the holds of a lock that has many, so that no command visits all of them.
//!
//! A lock with few holds has none: scanning them is faster. Positions refer to the lock's list of
//! holds, which is passed to every method.
//!
//! Invariant: the index matches the list.

use alloc::collections::BTreeMap;

use ahash::RandomState;

use super::hashing::hasher;
use super::hold::Hold;
use crate::collections::{NameTable, bytes_in_set};
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
    /// The counts of the holds, by deadline and token.
    deadlines: BTreeMap<(u64, u64), u32>,
    /// The sum of these counts.
    total: u64,
}

impl HoldIndex {
    pub(crate) fn of(holds: &[Hold]) -> Self {
        let mut index = Self {
            by_owner: NameTable::default(),
            by_token: NameTable::default(),
            hasher: hasher(),
            deadlines: BTreeMap::new(),
            total: 0,
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
    pub(crate) fn find(&self, holds: &[Hold], owner: &[u8], mode: Mode) -> Option<usize> {
        let hash = self.hash(owner, mode);
        let is_it = |at: u32| {
            let hold = holds.get(at as usize);
            hold.is_some_and(|hold| hold.mode() == mode && hold.owner().as_slice() == owner)
        };
        self.by_owner.find(hash, is_it).map(|at| at as usize)
    }

    /// The position of the hold with a token.
    pub(crate) fn find_token(&self, holds: &[Hold], token: u64) -> Option<usize> {
        let is_it = |at: u32| holds.get(at as usize).is_some_and(|hold| hold.token() == token);
        self.by_token.find(self.hasher.hash_one(token), is_it).map(|at| at as usize)
    }

    /// The token of a hold that expires at `now_us` or before.
    pub(crate) fn first_expired(&self, now_us: u64) -> Option<u64> {
        self.expired(now_us).next().map(|((_, token), _)| *token)
    }

    fn expired(&self, now_us: u64) -> impl Iterator<Item = (&(u64, u64), &u32)> {
        self.deadlines.range(..=(now_us, u64::MAX))
    }

    /// The earliest deadline.
    pub(crate) fn first_deadline_us(&self) -> Option<u64> {
        self.deadlines.first_key_value().map(|((deadline_us, _), _)| *deadline_us)
    }

    /// The latest deadline.
    pub(crate) fn last_deadline_us(&self) -> Option<u64> {
        self.deadlines.last_key_value().map(|((deadline_us, _), _)| *deadline_us)
    }

    /// The sum of the counts of the holds that expire after `now_us`. Visits the expired ones,
    /// which the engine soon removes.
    pub(crate) fn live_total(&self, now_us: u64) -> u64 {
        self.total.saturating_sub(self.expired(now_us).map(|(_, count)| u64::from(*count)).sum())
    }

    /// Adds the hold at a position, which was added to the list.
    pub(crate) fn add(&mut self, holds: &[Hold], at: usize) {
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
    pub(crate) fn remove(&mut self, holds: &[Hold], at: usize) {
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
        self.deadlines.remove(&(hold.deadline_us(), hold.token()));
        self.total = self.total.saturating_sub(u64::from(hold.count()));
    }

    /// Adds a hold's count after its terms changed.
    pub(crate) fn count_in(&mut self, hold: &Hold) {
        self.deadlines.insert((hold.deadline_us(), hold.token()), hold.count());
        self.total = self.total.saturating_add(u64::from(hold.count()));
    }

    /// The approximate heap bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        let tables = self.by_owner.heap_bytes().saturating_add(self.by_token.heap_bytes());
        tables.saturating_add(bytes_in_set::<((u64, u64), u32)>(self.deadlines.len()))
    }
}

/// Positions are at most 2^32 - 2: more holds need over 300 GiB, so the conversion never saturates.
fn to_u32(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Terms;
    use std::collections::BTreeMap;

    /// The index keeps 32 bits of each hash. Two of about 80,000 names share them.
    #[test]
    #[cfg_attr(miri, ignore = "thousands of names")]
    fn owners_with_the_same_half_hash_are_distinguished() {
        let mut holds = Vec::new();
        let empty = HoldIndex::of(&holds);
        let mut seen = BTreeMap::new();
        let (first, second) = (0_u32..)
            .find_map(|owner| {
                Some((seen.insert(empty.hash(&owner.to_le_bytes(), Mode::Read) >> u32::BITS, owner)?, owner))
            })
            .unwrap();
        assert!(second > 1_000, "the names before it have different hashes");
        let terms = Terms::plain(1, 1);
        holds.push(Hold::new(first.to_le_bytes().as_slice().into(), Mode::Read, 1, &terms));
        let index = HoldIndex::of(&holds);
        let found = [first, second].map(|owner| index.find(&holds, &owner.to_le_bytes(), Mode::Read));
        assert_eq!(found, [Some(0), None]);
    }
}
