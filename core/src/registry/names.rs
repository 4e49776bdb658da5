//! Names of keys for which there is more to know than their value: one record for each, looked up once per request.
//!
//! There is none for a lock that nobody waits for and that the server has told nothing about: most of all locks.
//!
//! Invariant: a name has a record exactly as long as it has a waiter or a pending grant, or is dirty.

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

/// How many holders are kept beside a queue: noting them, and forgetting all of them in one step, must not take long. As many again
/// are kept of those who wait there themselves.
pub(crate) const MAX_COPIED: usize = 1024;

/// Who holds under a name that somebody waits for: a copy of what the value says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) token: u64,
    pub(crate) owner: OwnerId,
    pub(crate) mode: Mode,
    pub(crate) deadline_us: u64,
}

impl Holder {
    /// Whether a request in `mode` of another owner has to wait for it.
    pub(super) fn is_in_the_way_of(&self, mode: Mode, now: Now) -> bool {
        let is_shared = mode == Mode::Read && self.mode == Mode::Read;
        !is_shared && self.deadline_us > now.mono_us
    }
}

/// What is known of a name.
pub(super) struct NameRecord {
    key: Key,
    pub(super) queue: SmallSet<Position>,
    /// How many wait for a lock of each kind.
    kinds: PerKind<u32>,
    /// In the order of their tokens. True while `knows_holders`, and complete but for locks with very many holders: see `holders.rs`.
    pub(super) holders: SmallVec<[Holder; 1]>,
    pub(super) knows_holders: bool,
    /// Places of connected waiters are being brought into a new value, in parts.
    pub(super) is_rejoining: bool,
    /// What the server has told, and was not acted upon yet.
    pub(super) dirty: Option<Box<Dirty>>,
    /// It is in the engine's list of dirty names.
    pub(super) is_listed: bool,
    /// The generation of its database in which it was last reconciled: see `databases.rs`.
    pub(super) generation: u32,
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

    /// Takes a request out of the queue.
    pub(super) fn leave(&mut self, position: Position, kind: Kind) {
        if self.queue.remove(position) {
            let count = self.kinds.of_mut(kind);
            *count = count.saturating_sub(1);
        }
    }

    /// Whether anybody waits for a lock of a kind.
    pub(super) fn has_kind(&self, kind: Kind) -> bool {
        *self.kinds.of(kind) > 0
    }

    /// Whether anybody waits for a lock of another kind.
    pub(super) fn has_other_kind(&self, kind: Kind) -> bool {
        (*self.kinds.of(kind) as usize) < self.queue.len()
    }

    /// The next holder after a token.
    pub(super) fn next_holder(&self, after: u64) -> Option<Holder> {
        let at = self.holders.partition_point(|holder| holder.token <= after);
        self.holders.get(at).copied()
    }

    /// Whether there is room for one more holder.
    pub(super) fn has_room(&self, waits_here: bool) -> bool {
        let room = if waits_here { MAX_COPIED.saturating_mul(2) } else { MAX_COPIED };
        self.holders.len() < room
    }

    pub(super) fn holder_mut(&mut self, token: u64) -> Option<&mut Holder> {
        let at = self.holders.binary_search_by_key(&token, |holder| holder.token).ok()?;
        self.holders.get_mut(at)
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.dirty.is_none() && !self.is_listed && !self.has_pending
    }
}

/// The records, by number and by key.
pub(super) struct Names {
    slots: Slots<Box<NameRecord>>,
    by_key: NameTable,
    hasher: RandomState,
    /// Counts the records that were made and forgotten.
    state: u64,
}

impl Names {
    pub(super) fn new(hasher: RandomState) -> Self {
        Self { slots: Slots::default(), by_key: NameTable::default(), hasher, state: 1 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// A number that is another one whenever a record was made or forgotten: what was found at one is right as long as it stays.
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

    /// Finds a record, or makes one that is idle: see [`Names::tidy`].
    pub(super) fn intern(&mut self, key: KeyRef<'_>, generation: u32) -> NameId {
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
            generation,
            has_pending: false,
        }));
        self.by_key.insert(self.hasher.hash_one(key), number);
        self.state = self.state.wrapping_add(1);
        NameId(number)
    }

    /// Forgets a record that is idle.
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

    /// How many records there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is memory to give back.
    pub(super) fn has_retired(&self) -> bool {
        self.slots.has_retired()
    }

    /// Gives some of it back.
    pub(super) fn give_back(&mut self) {
        self.slots.give_back();
    }

    /// Bytes on the heap, as far as they can be told without a look at each record.
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
