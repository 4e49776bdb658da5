//! An index over the holds of a lock that many hold at once, so that no command walks through all of them.
//!
//! A lock with a few holds has none: looking at them is faster. Positions are those in the lock's list of holds, which
//! every method is given.
//!
//! Invariant: the index says the same as the list.

use alloc::collections::BTreeMap;
use core::cell::Cell;

use ahash::RandomState;
use hashbrown::{HashMap, HashTable};

use super::hashing::hasher;
use super::hold::Hold;
use crate::kind::Mode;

/// With so many holds a lock gets an index.
pub(crate) const MIN_INDEXED: usize = 16;

/// With so few it loses it again.
pub(crate) const MAX_FEW: usize = 8;

/// An entry of the table by owner. It keeps the hash, so that growing the table does not have to visit every hold.
#[derive(Clone, Copy)]
struct Entry {
    hash: u64,
    at: usize,
}

#[derive(Clone)]
pub(crate) struct HoldIndex {
    by_owner: HashTable<Entry>,
    by_token: HashMap<u64, usize, RandomState>,
    /// (deadline, token), and the count.
    deadlines: BTreeMap<(u64, u64), u32>,
    live: Cell<Live>,
    /// The token of the hold for writing.
    writer: Option<u64>,
}

/// The holds that end after a moment. As time passes they become fewer: each is taken off once, by whoever asks first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Live {
    after_us: u64,
    /// The sum of their counts.
    pub(crate) total: u64,
    /// How many they are.
    pub(crate) holds: usize,
}

impl Live {
    fn add(&mut self, count: u32) {
        self.total = self.total.saturating_add(u64::from(count));
        self.holds = self.holds.saturating_add(1);
    }

    fn take_off(&mut self, count: u32) {
        self.total = self.total.saturating_sub(u64::from(count));
        self.holds = self.holds.saturating_sub(1);
    }
}

impl HoldIndex {
    pub(crate) fn of(holds: &[Hold]) -> Self {
        let mut index = Self {
            by_owner: HashTable::new(),
            by_token: HashMap::with_hasher(hasher()),
            deadlines: BTreeMap::new(),
            live: Cell::default(),
            writer: None,
        };
        for at in 0..holds.len() {
            index.add(holds, at);
        }
        index
    }

    fn hash(&self, owner: &[u8], mode: Mode) -> u64 {
        self.by_token.hasher().hash_one((owner, mode))
    }

    /// The position of the hold of an owner in a mode.
    pub(crate) fn find(&self, holds: &[Hold], owner: &[u8], mode: Mode) -> Option<usize> {
        let hash = self.hash(owner, mode);
        let is_it = |entry: &Entry| {
            let hold = holds.get(entry.at).filter(|_| entry.hash == hash);
            hold.is_some_and(|hold| hold.mode() == mode && hold.owner().as_slice() == owner)
        };
        self.by_owner.find(hash, is_it).map(|entry| entry.at)
    }

    /// The position of the hold with a token.
    pub(crate) fn find_token(&self, token: u64) -> Option<usize> {
        self.by_token.get(&token).copied()
    }

    /// The token of a hold that ends at `now_us` or before.
    pub(crate) fn first_lapsed(&self, now_us: u64) -> Option<u64> {
        let ((deadline_us, token), _) = self.deadlines.first_key_value()?;
        (*deadline_us <= now_us).then_some(*token)
    }

    /// The earliest deadline.
    pub(crate) fn first_deadline_us(&self) -> Option<u64> {
        self.deadlines.first_key_value().map(|((deadline_us, _), _)| *deadline_us)
    }

    /// The latest deadline.
    pub(crate) fn last_deadline_us(&self) -> Option<u64> {
        self.deadlines.last_key_value().map(|((deadline_us, _), _)| *deadline_us)
    }

    /// The tokens of the holds that end after `now_us`, the one that ends last first.
    pub(crate) fn latest_first(&self, now_us: u64) -> impl Iterator<Item = u64> {
        let latest = self.deadlines.keys().rev();
        latest.take_while(move |(deadline_us, _)| *deadline_us > now_us).map(|(_, token)| *token)
    }

    /// The holds that end after `now_us`.
    pub(crate) fn live(&self, now_us: u64) -> Live {
        let mut live = self.live.get();
        if now_us > live.after_us {
            if self.last_deadline_us().is_none_or(|last_us| last_us <= now_us) {
                // However many have ended together, nobody has to look at each of them.
                live = Live::default();
            } else {
                for (_, count) in self.deadlines.range((live.after_us, u64::MAX)..=(now_us, u64::MAX)) {
                    live.take_off(*count);
                }
            }
            live.after_us = now_us;
            self.live.set(live);
        }
        live
    }

    /// The token of the hold for writing, live or not.
    pub(crate) fn writer(&self) -> Option<u64> {
        self.writer
    }

    /// The hold at a position was added to the list.
    pub(crate) fn add(&mut self, holds: &[Hold], at: usize) {
        let Some(hold) = holds.get(at) else {
            return;
        };
        let hash = self.hash(hold.owner().as_slice(), hold.mode());
        self.by_owner.insert_unique(hash, Entry { hash, at }, |entry| entry.hash);
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
        if let Ok(entry) = self.by_owner.find_entry(hash, |entry| entry.at == at) {
            entry.remove();
        }
        if at == last_at {
            return;
        }
        if let Some(last) = holds.get(last_at) {
            self.by_token.insert(last.token(), at);
            let hash = self.hash(last.owner().as_slice(), last.mode());
            if let Some(entry) = self.by_owner.find_mut(hash, |entry| entry.at == last_at) {
                entry.at = at;
            }
        }
    }

    /// A hold is about to have other terms.
    pub(crate) fn count_out(&mut self, hold: &Hold) {
        self.deadlines.remove(&(hold.deadline_us(), hold.token()));
        let live = self.live.get_mut();
        if hold.deadline_us() > live.after_us {
            live.take_off(hold.count());
        }
        if self.writer == Some(hold.token()) {
            self.writer = None;
        }
    }

    /// A hold has other terms.
    pub(crate) fn count_in(&mut self, hold: &Hold) {
        self.deadlines.insert((hold.deadline_us(), hold.token()), hold.count());
        let live = self.live.get_mut();
        if hold.deadline_us() > live.after_us {
            live.add(hold.count());
        }
        if hold.mode() == Mode::Write {
            self.writer = Some(hold.token());
        }
    }

    /// Drops a part of the index of holds that are no longer part of a lock. Returns whether there is more.
    pub(crate) fn drop_some(&mut self, count: usize) -> bool {
        for _ in 0..count {
            if self.deadlines.pop_first().is_none() {
                return false;
            }
        }
        true
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.deadlines.len()
    }

    /// Bytes on the heap, roughly: what the tables have room for, and a tree of two numbers an entry.
    pub(crate) fn heap_bytes(&self) -> usize {
        const BY_OWNER: usize = size_of::<Entry>() + 1;
        const BY_TOKEN: usize = size_of::<(u64, usize)>() + 1;
        const IN_TREE: usize = size_of::<((u64, u64), u32)>() * 3 / 2;
        let by_owner = self.by_owner.capacity().saturating_mul(BY_OWNER);
        let by_token = self.by_token.capacity().saturating_mul(BY_TOKEN);
        by_owner.saturating_add(by_token).saturating_add(self.deadlines.len().saturating_mul(IN_TREE))
    }
}
