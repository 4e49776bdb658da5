//! Owners that wait, or hold a lock with waiters: the nodes of the wait-for graph.
//!
//! Invariant: an owner has a record exactly as long as it waits, or holds under a name with
//! waiters.

use alloc::boxed::Box;

use ahash::RandomState;

use super::positions::{NameId, OwnerId, Position};
use crate::collections::{NameTable, Slots, SmallSet};

/// A waiting request of an owner, under one of the request's names. An owner has at most one under
/// each name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wait {
    pub(super) name: NameId,
    pub(super) position: Position,
}

/// A hold of an owner under a name with waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holding {
    pub(super) name: NameId,
    pub(super) token: u64,
}

/// The waits and the holds of an owner.
#[cfg_attr(test, derive(Clone))]
pub(super) struct OwnerRecord {
    bytes: Box<[u8]>,
    pub(super) waits: SmallSet<Wait>,
    pub(super) holdings: SmallSet<Holding>,
    /// How many of `waits` have another request behind them in their queue, of this owner or of
    /// another one.
    pub(super) followed: u32,
}

impl OwnerRecord {
    /// Whether another owner may wait for this one: for one of its holds, or behind one of its
    /// requests.
    pub(super) fn is_waited_for(&self) -> bool {
        self.followed > 0 || !self.holdings.is_empty()
    }
}

/// The owners, by id and by name.
#[cfg_attr(test, derive(Clone))]
pub(super) struct Owners {
    slots: Slots<OwnerRecord>,
    by_bytes: NameTable,
    hasher: RandomState,
    /// The total length of all names.
    bytes_of_names: usize,
}

impl Owners {
    pub(super) fn new(hasher: RandomState) -> Self {
        Self { slots: Slots::default(), by_bytes: NameTable::default(), hasher, bytes_of_names: 0 }
    }

    pub(super) fn find(&self, bytes: &[u8]) -> Option<OwnerId> {
        if self.by_bytes.is_empty() {
            return None;
        }
        let is_it = |number| self.slots.get(number).is_some_and(|record| *record.bytes == *bytes);
        self.by_bytes.find(self.hasher.hash_one(bytes), is_it).map(OwnerId)
    }

    /// Finds an owner, or creates a record without waits and holds: see [`Owners::tidy`].
    pub(super) fn intern(&mut self, bytes: &[u8]) -> OwnerId {
        if let Some(known) = self.find(bytes) {
            return known;
        }
        let (waits, holdings) = (SmallSet::default(), SmallSet::default());
        let number = self.slots.insert(OwnerRecord { bytes: bytes.into(), waits, holdings, followed: 0 });
        self.by_bytes.insert(self.hasher.hash_one(bytes), number);
        self.bytes_of_names = self.bytes_of_names.saturating_add(bytes.len());
        OwnerId(number)
    }

    /// Removes an owner that neither waits nor holds.
    pub(super) fn tidy(&mut self, id: OwnerId) {
        let is_idle = |record: &OwnerRecord| record.waits.is_empty() && record.holdings.is_empty();
        if self.slots.get(id.0).is_some_and(is_idle)
            && let Some(record) = self.slots.remove(id.0)
        {
            self.by_bytes.remove(self.hasher.hash_one(&*record.bytes), id.0);
            self.bytes_of_names = self.bytes_of_names.saturating_sub(record.bytes.len());
        }
    }

    pub(super) fn get(&self, id: OwnerId) -> Option<&OwnerRecord> {
        self.slots.get(id.0)
    }

    pub(super) fn get_mut(&mut self, id: OwnerId) -> Option<&mut OwnerRecord> {
        self.slots.get_mut(id.0)
    }

    /// The name of an owner.
    pub(super) fn bytes(&self, id: OwnerId) -> &[u8] {
        self.get(id).map_or(&[], |record| &record.bytes)
    }

    /// Whether there is memory to free.
    pub(super) fn has_retired(&self) -> bool {
        self.slots.has_retired()
    }

    /// Frees some of that memory.
    pub(super) fn free_some(&mut self) {
        self.slots.free_some();
    }

    /// The heap bytes, computed without visiting each owner.
    pub(super) fn heap_bytes(&self) -> usize {
        let tables = self.slots.heap_bytes().saturating_add(self.by_bytes.heap_bytes());
        tables.saturating_add(self.bytes_of_names)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (OwnerId, &OwnerRecord)> {
        self.slots.iter().map(|(number, record)| (OwnerId(number), record))
    }
}
