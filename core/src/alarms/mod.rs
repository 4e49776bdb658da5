//! The alarms of values: when the next lease, place or reservation of a lock expires.
//!
//! An alarm identifies its key by name and stable database id, and stores the generation in which
//! the value was last reconciled (`databases.rs`). A value stores its alarm, which may be stale, so
//! callers check that it still belongs to the key.

mod databases;

use alloc::vec::Vec;

use ahash::RandomState;

use self::databases::Databases;
use crate::bytes::{Key, KeyName, KeyRef};
use crate::collections::{Alarm, DeadlineRef, Deadlines};
use crate::time::Now;

/// The time of an alarm that has fired, until its value sets it again.
const FIRED_US: u64 = u64::MAX;

/// The time of an alarm that is due, but whose value waits until holds may begin again.
const PARKED_US: u64 = u64::MAX - 1;

/// See the module documentation.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Alarms {
    alarms: Deadlines<KeyName, u32>,
    /// The number of alarms that are not stale, by stable database id.
    counts: Vec<usize>,
    databases: Databases,
}

impl Alarms {
    pub(crate) fn new(hasher: &RandomState) -> Self {
        Self { alarms: Deadlines::default(), counts: Vec::new(), databases: Databases::new(hasher) }
    }

    /// The number of locks with an alarm.
    pub(crate) fn len(&self) -> usize {
        self.counts.iter().sum()
    }

    fn count(&mut self, stable: u32) -> Option<&mut usize> {
        let index = stable as usize;
        if self.counts.len() <= index {
            self.counts.resize(index.saturating_add(1), 0);
        }
        self.counts.get_mut(index)
    }

    /// Sets an alarm for a reconciled value.
    pub(crate) fn insert(&mut self, due_us: u64, key: KeyRef<'_>) -> Alarm {
        let stable = self.databases.stable(key.db);
        if let Some(count) = self.count(stable) {
            *count = count.saturating_add(1);
        }
        self.alarms.insert_with(due_us, key.name.into(), stable, self.databases.generation(key.db))
    }

    /// Moves an alarm to `due_us`, if that is earlier.
    pub(crate) fn hasten(&mut self, alarm: Alarm, due_us: u64) {
        if self.alarms.get(alarm).is_some_and(|(at_us, _)| due_us < at_us) {
            self.alarms.set(alarm, due_us);
        }
    }

    /// Parks an alarm that is due: it does not fire before [`Alarms::unpark`].
    pub(crate) fn park_due(&mut self, alarm: Alarm, now: Now) {
        if self.alarms.get(alarm).is_some_and(|(at_us, _)| at_us <= now.mono_us) {
            self.alarms.set(alarm, PARKED_US);
        }
    }

    /// Lets an alarm fire, if it is parked.
    pub(crate) fn unpark(&mut self, alarm: Alarm) {
        if self.alarms.get(alarm).is_some_and(|(at_us, _)| at_us == PARKED_US) {
            self.alarms.set(alarm, 0);
        }
    }

    /// Removes an alarm, if it exists.
    pub(crate) fn remove(&mut self, alarm: Alarm) {
        if let Some(DeadlineRef { side, stamp, .. }) = self.alarms.entry(alarm) {
            self.remove_known(alarm, side, stamp);
        }
    }

    /// Removes an alarm, if it belongs to a key.
    pub(crate) fn remove_of(&mut self, alarm: Alarm, key: KeyRef<'_>) {
        if let Some(DeadlineRef { side, stamp, .. }) = self.entry_of(alarm, key) {
            self.remove_known(alarm, side, stamp);
        }
    }

    fn remove_known(&mut self, alarm: Alarm, stable: u32, reconciled_in: u32) {
        self.alarms.remove(alarm);
        if !self.databases.was_flushed(stable, reconciled_in)
            && let Some(count) = self.count(stable)
        {
            *count = count.saturating_sub(1);
        }
    }

    /// The entry of an alarm, if it belongs to a key.
    fn entry_of(&self, alarm: Alarm, key: KeyRef<'_>) -> Option<DeadlineRef<'_, KeyName, u32>> {
        let entry = self.alarms.entry(alarm)?;
        (entry.value.as_slice() == key.name && self.databases.current(entry.side) == key.db).then_some(entry)
    }

    /// Whether an alarm belongs to a key.
    pub(crate) fn is_of(&self, alarm: Alarm, key: KeyRef<'_>) -> bool {
        self.entry_of(alarm, key).is_some()
    }

    /// The generation in which the value with this alarm was last reconciled.
    pub(crate) fn reconciled_in(&self, alarm: Alarm) -> Option<u32> {
        self.alarms.entry(alarm).map(|entry| entry.stamp)
    }

    /// The generation in which the value of a key was last reconciled, if the alarm belongs to the
    /// key.
    pub(crate) fn reconciled_in_of(&self, alarm: Alarm, key: KeyRef<'_>) -> Option<u32> {
        self.entry_of(alarm, key).map(|entry| entry.stamp)
    }

    pub(crate) fn set_reconciled_in(&mut self, alarm: Alarm, generation: u32) {
        self.alarms.set_stamp(alarm, generation);
    }

    /// The key of an alarm, unless its value was flushed.
    pub(crate) fn key(&self, alarm: Alarm) -> Option<Key> {
        let DeadlineRef { value: name, side: stable, stamp: reconciled_in, .. } = self.alarms.entry(alarm)?;
        let was_flushed = self.databases.was_flushed(stable, reconciled_in);
        (!was_flushed).then(|| Key { name: name.clone(), db: self.databases.current(stable) })
    }

    /// When the next alarm fires.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.alarms.peek().map(|(at_us, _)| at_us).filter(|at_us| *at_us < PARKED_US)
    }

    /// Fires an alarm that is due. It stays, but does not fire again until it is set.
    pub(crate) fn fire_due(&mut self, now: Now) -> Option<Alarm> {
        let (_, alarm) = self.alarms.peek().filter(|(at_us, _)| *at_us <= now.mono_us && *at_us < PARKED_US)?;
        self.alarms.set(alarm, FIRED_US);
        Some(alarm)
    }

    /// Removes an alarm that has fired and was not set since: its value was removed, or has another
    /// alarm.
    pub(crate) fn forget_if_fired(&mut self, alarm: Alarm) {
        if self.alarms.get(alarm).is_some_and(|(at_us, _)| at_us == FIRED_US) {
            self.remove(alarm);
        }
    }

    /// Whether there is memory to free.
    pub(crate) fn has_retired(&self) -> bool {
        self.alarms.has_retired()
    }

    /// Frees some of that memory.
    pub(crate) fn free_some(&mut self) {
        self.alarms.free_some();
    }

    /// The alarm in a slot; `None` if there is no such slot.
    pub(crate) fn in_slot(&self, slot: u32) -> Option<Alarm> {
        self.alarms.alarm_in_slot(slot)
    }

    /// All values of one database, or of all databases (`None`), were removed. Their alarms are
    /// stale from now on; the memory is freed in parts.
    pub(crate) fn flush(&mut self, db: Option<u32>) {
        let Some(db) = db else {
            self.databases.flush_all();
            self.counts.clear();
            return self.alarms.clear();
        };
        self.databases.flush(db);
        let stable = self.databases.stable(db);
        if let Some(count) = self.count(stable) {
            *count = 0;
        }
    }

    /// Two databases were swapped.
    pub(crate) fn swap(&mut self, first: u32, second: u32) {
        self.databases.swap(first, second);
    }

    /// Marks everything as not reconciled.
    pub(crate) fn renew_all(&mut self) {
        self.databases.renew_all();
    }

    /// The generation of a database.
    pub(crate) fn generation(&self, db: u32) -> u32 {
        self.databases.generation(db)
    }

    /// The stable id of a database.
    pub(crate) fn stable(&self, db: u32) -> u32 {
        self.databases.stable(db)
    }

    /// The database that currently has a stable id.
    pub(crate) fn current(&self, stable: u32) -> u32 {
        self.databases.current(stable)
    }

    /// The number of alarms, including stale ones.
    #[cfg(test)]
    pub(crate) fn all(&self) -> usize {
        self.alarms.len()
    }

    #[cfg(test)]
    pub(crate) fn at_us(&self, alarm: Alarm) -> Option<u64> {
        self.alarms.get(alarm).map(|(at_us, _)| at_us)
    }
}
