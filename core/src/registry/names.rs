//! Records of key names, looked up once per request.
//!
//! Most locks have no waiters and no events, and so no record.
//!
//! Invariant: a name has a record exactly as long as it has a waiter or a pending grant, or is
//! dirty.

use alloc::boxed::Box;
use core::ops::Bound;

use ahash::RandomState;
use smallvec::SmallVec;

use super::dirty::Dirty;
use super::positions::{NameId, OwnerId, Position};
use crate::bytes::{Key, KeyRef};
use crate::collections::{NameTable, Slots, SmallSet};
use crate::kind::{Kind, Mode, PerKind};
use crate::time::Now;

/// A holder under a name with waiters: a copy from the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) token: u64,
    pub(crate) owner: OwnerId,
    pub(crate) mode: Mode,
    pub(crate) deadline_us: u64,
}

impl Holder {
    /// Whether a request of another owner in `mode` has to wait for this holder.
    pub(super) fn blocks(&self, mode: Mode, now: Now) -> bool {
        let is_shared = mode == Mode::Read && self.mode == Mode::Read;
        !is_shared && self.deadline_us > now.mono_us
    }
}

/// The state of a name.
#[cfg_attr(test, derive(Clone))]
pub(super) struct NameRecord {
    key: Key,
    pub(super) queue: SmallSet<Position>,
    /// The number of waiters for each kind.
    kinds: PerKind<u32>,
    /// In token order. Correct while `knows_holders`.
    pub(super) holders: SmallVec<[Holder; 1]>,
    pub(super) knows_holders: bool,
    /// Connected waiters are retaking their places in a new value, in parts.
    pub(super) is_rejoining: bool,
    /// Unprocessed events.
    pub(super) dirty: Option<Box<Dirty>>,
    /// It is in the registry's list of dirty names.
    pub(super) is_listed: bool,
    /// Its value may have changed without one of our commands: see `Registry::renew`.
    pub(super) is_behind: bool,
    /// Holds of its key have pending grants.
    pub(super) has_pending: bool,
}

impl NameRecord {
    /// The key.
    pub(super) fn key(&self) -> KeyRef<'_> {
        self.key.borrow()
    }

    /// Puts a request into the queue.
    pub(super) fn enter(&mut self, position: Position, kind: Kind) {
        self.queue.insert(position);
        let count = self.kinds.of_mut(kind);
        *count = count.saturating_add(1);
    }

    /// Removes a request from the queue.
    pub(super) fn leave(&mut self, position: Position, kind: Kind) {
        if self.queue.remove(position) {
            let count = self.kinds.of_mut(kind);
            *count = count.saturating_sub(1);
        }
    }

    /// Whether a request waits for a lock of this kind.
    pub(super) fn has_kind(&self, kind: Kind) -> bool {
        *self.kinds.of(kind) > 0
    }

    /// Whether a request waits for a lock of another kind.
    pub(super) fn has_other_kind(&self, kind: Kind) -> bool {
        (*self.kinds.of(kind) as usize) < self.queue.len()
    }

    /// The next holder after a token.
    pub(super) fn next_holder(&self, after: u64) -> Option<Holder> {
        let at = self.holders.partition_point(|holder| holder.token <= after);
        self.holders.get(at).copied()
    }

    pub(super) fn holder_mut(&mut self, token: u64) -> Option<&mut Holder> {
        let at = self.holders.binary_search_by_key(&token, |holder| holder.token).ok()?;
        self.holders.get_mut(at)
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.dirty.is_none() && !self.is_listed && !self.has_pending
    }
}

/// The records, by id and by key.
#[cfg_attr(test, derive(Clone))]
pub(super) struct Names {
    slots: Slots<Box<NameRecord>>,
    by_key: NameTable,
    hasher: RandomState,
    /// Counts records created and removed.
    state: u64,
}

impl Names {
    pub(super) fn new(hasher: RandomState) -> Self {
        Self { slots: Slots::default(), by_key: NameTable::default(), hasher, state: 1 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// A number that changes whenever a record is created or removed. Look-ups stay valid while it
    /// is the same.
    pub(super) fn state(&self) -> u64 {
        self.state
    }

    /// The name in a slot; `None` if there is no such slot.
    pub(super) fn in_slot(&self, slot: u32) -> Option<Option<NameId>> {
        let is_there = (slot as usize) < self.slots.capacity();
        is_there.then(|| self.get(NameId(slot)).map(|_| NameId(slot)))
    }

    pub(super) fn find(&self, key: KeyRef<'_>) -> Option<NameId> {
        if self.by_key.is_empty() {
            return None;
        }
        let is_it = |number| self.slots.get(number).is_some_and(|record| record.key() == key);
        self.by_key.find(self.hasher.hash_one(key), is_it).map(NameId)
    }

    /// Finds a record, or creates one that is idle: see [`Names::tidy`].
    pub(super) fn intern(&mut self, key: KeyRef<'_>) -> NameId {
        if let Some(known) = self.find(key) {
            return known;
        }
        let number = self.slots.insert(Box::new(NameRecord {
            key: key.to_key(),
            queue: SmallSet::default(),
            kinds: PerKind::default(),
            holders: SmallVec::new(),
            knows_holders: false,
            is_rejoining: false,
            dirty: None,
            is_listed: false,
            is_behind: false,
            has_pending: false,
        }));
        self.by_key.insert(self.hasher.hash_one(key), number);
        self.state = self.state.wrapping_add(1);
        NameId(number)
    }

    /// Removes a record if it is idle.
    pub(super) fn tidy(&mut self, id: NameId) {
        if self.get(id).is_some_and(NameRecord::is_idle)
            && let Some(record) = self.slots.remove(id.0)
        {
            self.by_key.remove(self.hasher.hash_one(record.key()), id.0);
            self.state = self.state.wrapping_add(1);
        }
    }

    pub(super) fn get(&self, id: NameId) -> Option<&NameRecord> {
        self.slots.get(id.0).map(|record| &**record)
    }

    pub(super) fn get_mut(&mut self, id: NameId) -> Option<&mut NameRecord> {
        self.slots.get_mut(id.0).map(|record| &mut **record)
    }

    /// The number of records.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is memory to free.
    pub(super) fn has_retired(&self) -> bool {
        self.slots.has_retired()
    }

    /// Frees some of that memory.
    pub(super) fn free_some(&mut self) {
        self.slots.free_some();
    }

    /// The heap bytes, computed without visiting each record.
    pub(super) fn heap_bytes(&self) -> usize {
        let records = self.slots.len().saturating_mul(size_of::<NameRecord>());
        let tables = self.slots.heap_bytes().saturating_add(self.by_key.heap_bytes());
        tables.saturating_add(records)
    }

    /// The next request in the queue of a name.
    pub(super) fn next_in_queue(&self, id: NameId, from: Bound<Position>) -> Option<Position> {
        self.get(id)?.queue.first_from(from)
    }

    /// Every record.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (NameId, &NameRecord)> {
        self.slots.iter().map(|(number, record)| (NameId(number), &**record))
    }
}
