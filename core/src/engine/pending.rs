//! What is owed to keys, and grants that nobody may have heard of.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use ahash::RandomState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::bytes::{Key, KeyRef, Owner};

/// What is owed to a key because of something that the server told, to be decided by the next command on it or by the
/// timer.
#[derive(Default)]
pub(super) struct Owed {
    /// Grants whose waiter was gone before it could hear of them.
    pub(super) undo: Vec<Fresh>,
    /// Holds whose last connection closed.
    pub(super) sessions_ended: SmallVec<[u64; 1]>,
    /// Owners whose connected waiter gave up: they got nil.
    pub(super) gave_up: SmallVec<[Owner; 1]>,
    /// Owners whose connected waiter is gone.
    pub(super) disconnected: SmallVec<[Owner; 1]>,
    /// Another value may lie under the name, or none.
    pub(super) replaced: bool,
    /// The value came here by RESTORE, RENAME and the like: its holds are bound to no connection.
    pub(super) arrived: bool,
}

/// The keys to settle, each once, in the order in which they were noted.
pub(super) struct Pending {
    pub(super) owed: HashMap<Key, Owed, RandomState>,
    pub(super) order: VecDeque<Key>,
}

impl Pending {
    pub(super) fn entry(&mut self, key: Key) -> &mut Owed {
        if !self.owed.contains_key(&key) {
            self.order.push_back(key.clone());
        }
        self.owed.entry(key).or_default()
    }

    pub(super) fn take(&mut self, key: KeyRef<'_>) -> Option<Owed> {
        if self.owed.is_empty() {
            return None;
        }
        self.owed.remove(&key)
    }

    pub(super) fn take_dbs(&mut self, concerned: impl Fn(u32) -> bool) -> Vec<(Key, Owed)> {
        self.owed.extract_if(|key, _| concerned(key.db)).collect()
    }

    pub(super) fn next(&mut self) -> Option<Key> {
        while let Some(key) = self.order.pop_front() {
            if self.owed.contains_key(&key) {
                return Some(key);
            }
        }
        None
    }
}

/// A grant to a waiter that may not have heard of it yet.
pub(super) struct Fresh {
    pub(super) ticket: u64,
    pub(super) client: Option<u64>,
    pub(super) key: Key,
    pub(super) token: u64,
    pub(super) count: u32,
    /// The waiter's arrival number.
    pub(super) arrival: u64,
}
