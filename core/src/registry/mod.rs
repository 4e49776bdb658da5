//! The registry of waiters, by key name and owner, and of the state of these names.
//!
//! Waiters belong to key *names*, so they survive the deletion of a key. Each waiter has one
//! server-wide position for the queues of all its names, so two requests have the same order in
//! every queue that they share. It also has a ticket, which identifies its answer. If an owner asks
//! for the same thing again, the new request takes over the position: rank and arrival number stay,
//! the ticket changes.
//!
//! Beside each queue the registry keeps a copy of the holders in the value. So the deadlock search
//! (`deadlock.rs`) can follow the edges between owners in both directions without opening keys.
//!
//! A name is *dirty* while it has unprocessed events (`dirty.rs`).
//!
//! Entering, leaving from anywhere and reading the head take O(log n) in the number of waiters, for
//! each name.
//!
//! Invariants:
//! 1. A waiter is in the queue of each of its names, and once for each of them among its owner's
//!    waits. An owner waits with at most one request under a name.
//! 2. A waiter has an alarm in `timeouts` exactly if its wait has a time limit.
//! 3. A notified waiter is in `notified`, under the connection that asked.
//! 4. An owner's `followed` is the number of its waits that are not the last in their queue.
//! 5. The holders of a name are those of the value under its key, unless `knows_holders` is false.
//!    Each is among its owner's holdings. A name without waiters has no holders.
//! 6. A name has a record exactly as long as it has a waiter, is dirty, or has pending grants.

mod deadlock;
mod dirty;
mod holders;
#[cfg(test)]
mod inspection;
mod names;
mod notified;
mod owners;
mod positions;
mod queues;
mod waiter;

pub(crate) use self::deadlock::{Outcome, search as search_deadlock};
pub(crate) use self::dirty::{Dirty, Review, Stage};
#[cfg(test)]
pub(crate) use self::inspection::NameView;
#[cfg(test)]
pub(crate) use self::names::Holder;
pub(crate) use self::positions::{NameId, Position, Rank};
pub(crate) use self::queues::Left;
pub(crate) use self::waiter::{Entrant, RequestNames, Waiter};

use alloc::collections::VecDeque;

use ahash::RandomState;

use self::names::{NameRecord, Names};
use self::notified::Notified;
use self::owners::Owners;
use crate::bytes::KeyRef;
use crate::collections::{Deadlines, Slots, bytes_in_set};
use crate::kind::{Kind, PerKind};
use crate::outbox::Answer;

/// See the module documentation.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Registry {
    names: Names,
    owners: Owners,
    /// By the low half of a ticket. The high half is a running number, so tickets are unique.
    tickets: Slots<(u32, Waiter)>,
    last_number: u32,
    /// The slots of the tickets of waiters with a time limit.
    timeouts: Deadlines<u32>,
    notified: Notified,
    waiting: usize,
    /// The waiters by kind.
    of_kind: PerKind<usize>,
    /// Dirty names, in the order in which they became dirty.
    dirty: VecDeque<NameId>,
    hasher: RandomState,
}

impl Registry {
    pub(crate) fn new(hasher: &RandomState) -> Self {
        Self {
            names: Names::new(hasher.clone()),
            owners: Owners::new(hasher.clone()),
            tickets: Slots::default(),
            last_number: 0,
            timeouts: Deadlines::default(),
            notified: Notified::default(),
            waiting: 0,
            of_kind: PerKind::default(),
            dirty: VecDeque::new(),
            hasher: hasher.clone(),
        }
    }

    /// Whether there are no names.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// A number that changes whenever a name gets or loses its record.
    pub(crate) fn state(&self) -> u64 {
        self.names.state()
    }

    /// Finds the name of a key.
    pub(crate) fn find(&self, key: KeyRef<'_>) -> Option<NameId> {
        self.names.find(key)
    }

    /// Finds the name of a key or adds it. A new name is idle: see [`Registry::tidy`].
    pub(crate) fn intern(&mut self, key: KeyRef<'_>) -> NameId {
        self.names.intern(key)
    }

    /// Forgets a name if it is idle.
    pub(crate) fn tidy(&mut self, name: NameId) {
        self.names.tidy(name);
    }

    /// The key of a name.
    pub(crate) fn key(&self, name: NameId) -> Option<KeyRef<'_>> {
        self.names.get(name).map(NameRecord::key)
    }

    /// The name in a slot; `None` if there is no such slot.
    pub(crate) fn in_slot(&self, slot: u32) -> Option<Option<NameId>> {
        self.names.in_slot(slot)
    }

    /// The values of some databases may have changed without one of our commands: their names are
    /// behind, and their holders unknown, until their keys are reconciled. Visits every name.
    pub(crate) fn renew(&mut self, has_changed: impl Fn(u32) -> bool) {
        let mut slot = 0;
        while let Some(name) = self.names.in_slot(slot) {
            if let Some(record) = name.and_then(|name| self.names.get_mut(name))
                && has_changed(record.key().db)
            {
                (record.is_behind, record.knows_holders) = (true, false);
            }
            slot = slot.saturating_add(1);
        }
    }

    /// Whether a name is behind: see [`Registry::renew`].
    pub(crate) fn is_behind(&self, name: NameId) -> bool {
        self.names.get(name).is_some_and(|record| record.is_behind)
    }

    /// The key of a name is reconciled now. Returns whether the name was behind.
    pub(crate) fn take_behind(&mut self, name: NameId) -> bool {
        self.names.get_mut(name).is_some_and(|record| core::mem::take(&mut record.is_behind))
    }

    /// Sets whether a name has pending grants.
    pub(crate) fn set_pending(&mut self, name: NameId, has_pending: bool) {
        if let Some(record) = self.names.get_mut(name) {
            record.has_pending = has_pending;
        }
        self.tidy(name);
    }

    /// Whether a request for a lock of a kind waits under a name.
    pub(crate) fn has_kind(&self, name: NameId, kind: Kind) -> bool {
        self.names.get(name).is_some_and(|record| record.has_kind(kind))
    }

    /// Whether a request for a lock of another kind waits under a name.
    pub(crate) fn has_other_kind(&self, name: NameId, kind: Kind) -> bool {
        self.names.get(name).is_some_and(|record| record.has_other_kind(kind))
    }

    /// Whether waiters of a fair lock have not yet retaken their places in the value under a name.
    pub(crate) fn is_rejoining(&self, name: NameId) -> bool {
        self.names.get(name).is_some_and(|record| record.is_rejoining)
    }

    /// Sets [`Registry::is_rejoining`].
    pub(crate) fn set_rejoining(&mut self, name: NameId, is_rejoining: bool) {
        if let Some(record) = self.names.get_mut(name) {
            record.is_rejoining = is_rejoining;
        }
    }

    /// The answer that ends a cut-off waiter's wait; `None` if it is not cut off: see
    /// `notified.rs`.
    pub(crate) fn cut_off(&self, waiter: &Waiter) -> Option<Answer> {
        self.notified.cut_off(waiter)
    }

    /// The notified waiters.
    pub(crate) fn notified(&self) -> &Notified {
        &self.notified
    }

    /// The notified waiters, to record what cuts some of them off.
    pub(crate) fn notified_mut(&mut self) -> &mut Notified {
        &mut self.notified
    }

    /// The approximate heap bytes, computed without visiting each waiter.
    pub(crate) fn heap_bytes(&self) -> usize {
        // The record of a name stores a single waiter inline.
        let in_sets = self.waiting.saturating_sub(self.names.len());
        let queued = bytes_in_set::<Position>(in_sets);
        let records = self.names.heap_bytes().saturating_add(self.owners.heap_bytes());
        let tables = self.tickets.heap_bytes().saturating_add(self.timeouts.heap_bytes());
        records.saturating_add(tables).saturating_add(queued).saturating_add(self.notified.heap_bytes())
    }

    /// Whether there is memory to free.
    pub(crate) fn has_retired(&self) -> bool {
        let has_slots = self.tickets.has_retired() || self.names.has_retired() || self.owners.has_retired();
        has_slots || self.timeouts.has_retired()
    }

    /// Frees some of that memory.
    pub(crate) fn free_some(&mut self) {
        self.timeouts.free_some();
        self.tickets.free_some();
        self.names.free_some();
        self.owners.free_some();
    }
}

#[cfg(test)]
mod tests {
    use super::owners::{OwnerRecord, Wait};
    use super::*;
    use crate::kind::Mode;
    use crate::request::{Ask, Channel, Request, Verb};

    #[test]
    fn records_have_the_documented_sizes() {
        let sizes = [size_of::<(u32, Waiter)>(), size_of::<OwnerRecord>(), size_of::<NameRecord>()];
        assert_eq!(sizes, [128, 80, 128]);
        assert_eq!((size_of::<Position>(), size_of::<Wait>()), (16, 24));
    }

    const MANY: u32 = 5_000;

    /// The claimed and the measured heap bytes of waiters, each with its own owner, under `names`
    /// names.
    fn claimed_and_allocated(names: u32, notify: Option<Channel>) -> (usize, usize) {
        let mut made = None;
        let taken = allocation_counter::measure(|| {
            let mut queues = Registry::new(&RandomState::with_seeds(1, 2, 3, 4));
            for number in 0..MANY {
                let bytes = |number: u32| std::format!("{number:020}");
                let key = bytes(number % names);
                let name = queues.names.intern(KeyRef { name: key.as_bytes(), db: 0 });
                let request = Request {
                    verb: Verb::Acquire,
                    kind: Kind::Mutex,
                    mode: Mode::Exclusive,
                    count: 1,
                    lease_ms: 1,
                    request_id: Some(1),
                    session_ms: None,
                    claim_ms: None,
                    grace_ms: None,
                    is_once: false,
                    is_timed: false,
                    notify,
                    ask: Ask::Wait { until_us: None },
                };
                let (rank, arrival, client) = (Rank::Newcomer, u64::from(number), Some(u64::from(number)));
                let owner = bytes(number);
                let names = smallvec::smallvec![name];
                let entrant =
                    Entrant { names, rank, arrival, owner: owner.as_bytes(), request, note: None, client, since_us: 1 };
                queues.enter(entrant);
            }
            made = Some(queues);
        });
        (made.unwrap().heap_bytes(), usize::try_from(taken.bytes_current).unwrap())
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of waiters")]
    fn heap_bytes_of_waiters_match_the_allocated_bytes() {
        let channel = Some(Channel(core::num::NonZeroU32::MIN));
        for (names, notify) in [(1, None), (MANY, None), (MANY, channel)] {
            let (told, taken) = claimed_and_allocated(names, notify);
            assert!(told.abs_diff(taken) * 20 <= taken, "{names} names, {notify:?}: claimed {told}, allocated {taken}");
        }
    }
}
