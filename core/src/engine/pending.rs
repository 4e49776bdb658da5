//! What is owed to keys.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::fresh::Fresh;
use crate::bytes::{Key, KeyRef, Owner};
use ahash::RandomState;
use hashbrown::HashMap;

/// What is owed to a key because of something that the server told, to be decided by the next command on it or by the
/// timer.
#[derive(Default)]
pub(super) struct Owed {
    /// The value came here by RESTORE, RENAME and the like: its holds are bound to no connection.
    pub(super) arrived: bool,
    /// Another value may lie under the name, or none.
    pub(super) replaced: bool,
    /// It is in the order of the keys to settle.
    is_in_order: bool,
    /// What is rarely owed lives apart: a promotion makes an entry for every lock.
    details: Option<Box<Details>>,
}

/// The part of [`Owed`] that few keys have.
#[derive(Default)]
pub(super) struct Details {
    /// Grants whose waiter was gone before it could hear of them.
    pub(super) undo: Vec<Fresh>,
    /// Holds whose last connection closed.
    pub(super) sessions_ended: Vec<u64>,
    /// Owners whose connected waiter gave up: they got nil.
    pub(super) gave_up: Vec<Owner>,
    /// Owners whose connected waiter is gone.
    pub(super) disconnected: Vec<Owner>,
    /// Requests for several keys that found this one not settled.
    pub(super) deferred: Vec<u64>,
    /// Requests that stood behind another one of their owner, which is gone: they may close a circle now.
    pub(super) bereft: Vec<u64>,
}

impl Owed {
    pub(super) fn details(&mut self) -> &mut Details {
        self.details.get_or_insert_default()
    }

    /// The value came here with what is owed to it. Requests stay with the name that they wait for.
    pub(super) fn take_over(&mut self, mut other: Self) {
        if let Some(details) = &mut other.details {
            details.deferred.clear();
            details.bereft.clear();
        }
        *self = Self { is_in_order: self.is_in_order, ..other };
    }

    pub(super) fn take_details(&mut self) -> Details {
        self.details.take().map(|details| *details).unwrap_or_default()
    }
}

/// For how many entries room is kept.
const KEPT_ENTRIES: usize = 1024;

/// The keys to settle, each once, in the order in which they were noted.
pub(super) struct Pending {
    pub(super) owed: HashMap<Key, Owed, RandomState>,
    pub(super) order: VecDeque<Key>,
}

impl Pending {
    pub(super) fn entry(&mut self, key: Key) -> &mut Owed {
        let order = &mut self.order;
        let owed = self.owed.entry(key.clone()).or_default();
        if !owed.is_in_order {
            owed.is_in_order = true;
            order.push_back(key);
        }
        owed
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
            if let Some(owed) = self.owed.get_mut(&key) {
                // If it cannot be settled now, somebody notes it again.
                owed.is_in_order = false;
                return Some(key);
            }
        }
        // After a promotion there was an entry for every lock: that memory goes back.
        self.order.shrink_to(KEPT_ENTRIES);
        self.owed.shrink_to(KEPT_ENTRIES);
        None
    }
}
