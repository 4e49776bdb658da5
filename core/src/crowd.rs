//! An index over the holds of a lock that many hold at once, so that no command walks through all of them.
//!
//! A lock with a few holds has none: looking at them is faster. Positions are those in the lock's list of holds, which
//! every method is given.
//!
//! Invariant: the index says the same as the list.

use alloc::collections::BTreeSet;

use ahash::RandomState;
use hashbrown::{HashMap, HashTable};

use crate::hold::Hold;
use crate::lock::Mode;
use crate::places;

/// With so many holds a lock gets an index.
pub(crate) const MIN_CROWD: usize = 16;

/// With so few it loses it again.
pub(crate) const MAX_FEW: usize = 8;

#[derive(Clone)]
pub(crate) struct Crowd {
    by_owner: HashTable<usize>,
    by_token: HashMap<u64, usize, RandomState>,
    /// (deadline, token)
    deadlines: BTreeSet<(u64, u64)>,
    /// The sum of the counts.
    total: u64,
    writers: usize,
}

impl Crowd {
    pub(crate) fn of(holds: &[Hold]) -> Self {
        let mut crowd = Self {
            by_owner: HashTable::new(),
            by_token: HashMap::with_hasher(places::hasher()),
            deadlines: BTreeSet::new(),
            total: 0,
            writers: 0,
        };
        for at in 0..holds.len() {
            crowd.add(holds, at);
        }
        crowd
    }

    fn hash(&self, owner: &[u8], mode: Mode) -> u64 {
        self.by_token.hasher().hash_one((owner, mode))
    }

    fn hash_at(hasher: &RandomState, holds: &[Hold], at: usize) -> u64 {
        holds.get(at).map_or(0, |hold| hasher.hash_one((hold.owner().as_slice(), hold.mode())))
    }

    /// The position of the hold of an owner in a mode.
    pub(crate) fn find(&self, holds: &[Hold], owner: &[u8], mode: Mode) -> Option<usize> {
        let is_it =
            |at: &usize| holds.get(*at).is_some_and(|hold| hold.mode() == mode && hold.owner().as_slice() == owner);
        self.by_owner.find(self.hash(owner, mode), is_it).copied()
    }

    /// The position of the hold with a token.
    pub(crate) fn find_token(&self, token: u64) -> Option<usize> {
        self.by_token.get(&token).copied()
    }

    /// The earliest deadline, and the token of its hold.
    pub(crate) fn first_deadline(&self) -> Option<(u64, u64)> {
        self.deadlines.first().copied()
    }

    /// The sum of the counts of the holds that end after `now_us`.
    pub(crate) fn live_total(&self, holds: &[Hold], now_us: u64) -> u64 {
        let over = self.deadlines.range(..=(now_us, u64::MAX)).filter_map(|(_, token)| {
            let hold = holds.get(self.find_token(*token)?)?;
            Some(u64::from(hold.count()))
        });
        self.total.saturating_sub(over.sum())
    }

    /// Whether any of them is for writing, live or not.
    pub(crate) fn has_writer(&self) -> bool {
        self.writers > 0
    }

    /// The hold at a position was added to the list.
    pub(crate) fn add(&mut self, holds: &[Hold], at: usize) {
        let Some(hold) = holds.get(at) else {
            return;
        };
        let hasher = self.by_token.hasher().clone();
        let hash = Self::hash_at(&hasher, holds, at);
        self.by_owner.insert_unique(hash, at, |at| Self::hash_at(&hasher, holds, *at));
        self.by_token.insert(hold.token(), at);
        self.count_in(hold);
    }

    /// The hold at a position is about to leave the list, and the last one takes its place.
    pub(crate) fn remove(&mut self, holds: &[Hold], at: usize) {
        let (Some(hold), Some(last_at)) = (holds.get(at), holds.len().checked_sub(1)) else {
            return;
        };
        self.count_out(hold);
        self.by_token.remove(&hold.token());
        let hash = self.hash(hold.owner().as_slice(), hold.mode());
        if let Ok(entry) = self.by_owner.find_entry(hash, |candidate| *candidate == at) {
            entry.remove();
        }
        if at == last_at {
            return;
        }
        if let Some(last) = holds.get(last_at) {
            self.by_token.insert(last.token(), at);
            let hash = self.hash(last.owner().as_slice(), last.mode());
            if let Some(place) = self.by_owner.find_mut(hash, |candidate| *candidate == last_at) {
                *place = at;
            }
        }
    }

    /// A hold is about to have other terms.
    pub(crate) fn count_out(&mut self, hold: &Hold) {
        self.deadlines.remove(&(hold.deadline_us(), hold.token()));
        self.total = self.total.saturating_sub(u64::from(hold.count()));
        if hold.mode() == Mode::Write {
            self.writers = self.writers.saturating_sub(1);
        }
    }

    /// A hold has other terms.
    pub(crate) fn count_in(&mut self, hold: &Hold) {
        self.deadlines.insert((hold.deadline_us(), hold.token()));
        self.total = self.total.saturating_add(u64::from(hold.count()));
        if hold.mode() == Mode::Write {
            self.writers = self.writers.saturating_add(1);
        }
    }

    /// Bytes on the heap, roughly: what the tables have room for, and a tree of two numbers an entry.
    pub(crate) fn heap_bytes(&self) -> usize {
        const BY_OWNER: usize = size_of::<usize>() + 1;
        const BY_TOKEN: usize = size_of::<(u64, usize)>() + 1;
        const IN_TREE: usize = size_of::<(u64, u64)>() * 3 / 2;
        let by_owner = self.by_owner.capacity().saturating_mul(BY_OWNER);
        let by_token = self.by_token.capacity().saturating_mul(BY_TOKEN);
        by_owner.saturating_add(by_token).saturating_add(self.deadlines.len().saturating_mul(IN_TREE))
    }
}
