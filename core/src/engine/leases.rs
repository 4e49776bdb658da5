//! The alarms of values: when the next lease, life of a place, or reservation of a lock ends.
//!
//! An alarm names its key by the name and the stable id of the database, and remembers the generation in which the value was
//! last reconciled (`databases.rs`). A value knows its alarm, and an alarm may be stale: whoever has one asks whether it is
//! still that of the key.

use alloc::vec::Vec;

use super::databases::Databases;
use crate::bytes::{Key, KeyName, KeyRef};
use crate::collections::{Alarm, Deadlines};
use crate::time::Now;

/// An alarm that has gone off, until its value has set it anew.
const RUNG_US: u64 = u64::MAX;

/// See the head of this file.
#[derive(Default)]
pub(super) struct Leases {
    alarms: Deadlines<KeyName, u32>,
    /// How many there are, but for stale ones, by the stable id of the database.
    counts: Vec<usize>,
}

impl Leases {
    /// How many locks have an alarm.
    pub(super) fn len(&self) -> usize {
        self.counts.iter().sum()
    }

    fn count(&mut self, stable: u32) -> Option<&mut usize> {
        let index = stable as usize;
        if self.counts.len() <= index {
            self.counts.resize(index.saturating_add(1), 0);
        }
        self.counts.get_mut(index)
    }

    /// Sets an alarm for a value that is up to date.
    pub(super) fn insert(&mut self, due_us: u64, key: KeyRef<'_>, databases: &Databases) -> Alarm {
        let stable = databases.stable(key.db);
        if let Some(count) = self.count(stable) {
            *count = count.saturating_add(1);
        }
        self.alarms.insert_with(due_us, key.name.into(), stable, databases.generation(key.db))
    }

    /// Lets an alarm go off at `due_us`, if it would go off later.
    pub(super) fn hasten(&mut self, alarm: Alarm, due_us: u64) {
        if self.alarms.get(alarm).is_some_and(|(at_us, _)| due_us < at_us) {
            self.alarms.set(alarm, due_us);
        }
    }

    pub(super) fn remove(&mut self, alarm: Alarm, databases: &Databases) {
        let Some((stable, reconciled_in)) = self.alarms.side(alarm).zip(self.alarms.stamp(alarm)) else {
            return;
        };
        self.alarms.remove(alarm);
        if !databases.was_flushed(stable, reconciled_in)
            && let Some(count) = self.count(stable)
        {
            *count = count.saturating_sub(1);
        }
    }

    /// Whether an alarm is that of a key.
    pub(super) fn is_of(&self, alarm: Alarm, key: KeyRef<'_>, databases: &Databases) -> bool {
        let is_its_name = self.alarms.get(alarm).is_some_and(|(_, name)| name.as_slice() == key.name);
        is_its_name && self.alarms.side(alarm).is_some_and(|stable| databases.current(stable) == key.db)
    }

    /// In which generation the value was last reconciled.
    pub(super) fn reconciled_in(&self, alarm: Alarm) -> Option<u32> {
        self.alarms.stamp(alarm)
    }

    pub(super) fn set_reconciled_in(&mut self, alarm: Alarm, generation: u32) {
        self.alarms.set_stamp(alarm, generation);
    }

    /// The key of an alarm, if its value was not flushed.
    pub(super) fn key(&self, alarm: Alarm, databases: &Databases) -> Option<Key> {
        let (_, name) = self.alarms.get(alarm)?;
        let (stable, reconciled_in) = (self.alarms.side(alarm)?, self.alarms.stamp(alarm)?);
        let was_flushed = databases.was_flushed(stable, reconciled_in);
        (!was_flushed).then(|| Key { name: name.clone(), db: databases.current(stable) })
    }

    /// When the next alarm goes off.
    pub(super) fn next_us(&self) -> Option<u64> {
        self.alarms.peek().map(|(at_us, _)| at_us).filter(|at_us| *at_us != RUNG_US)
    }

    /// An alarm that goes off now. It stays, and goes off no more before it is set.
    pub(super) fn ring(&mut self, now: Now) -> Option<Alarm> {
        let (_, alarm) = self.alarms.peek().filter(|(at_us, _)| *at_us <= now.mono_us && *at_us != RUNG_US)?;
        self.alarms.set(alarm, RUNG_US);
        Some(alarm)
    }

    /// Whether an alarm has gone off and was not set since.
    pub(super) fn has_rung(&self, alarm: Alarm) -> bool {
        self.alarms.get(alarm).is_some_and(|(at_us, _)| at_us == RUNG_US)
    }

    /// Whether there is memory to give back.
    pub(super) fn has_retired(&self) -> bool {
        self.alarms.has_retired()
    }

    /// Gives some of it back.
    pub(super) fn give_back(&mut self) {
        self.alarms.give_back();
    }

    /// The alarm in a slot; `None` if there is no such slot.
    pub(super) fn in_slot(&self, slot: u32) -> Option<Alarm> {
        self.alarms.alarm_in_slot(slot)
    }

    /// Every value of a database went away. Its alarms are stale from now on.
    pub(super) fn flush(&mut self, stable: u32) {
        if let Some(count) = self.count(stable) {
            *count = 0;
        }
    }

    /// Every value of every database went away. The memory goes back in parts.
    pub(super) fn flush_all(&mut self) {
        self.counts.clear();
        self.alarms.clear();
    }

    /// How many alarms there are, stale ones included, and when one goes off.
    #[cfg(test)]
    pub(super) fn all(&self) -> usize {
        self.alarms.len()
    }

    #[cfg(test)]
    pub(super) fn at_us(&self, alarm: Alarm) -> Option<u64> {
        self.alarms.get(alarm).map(|(at_us, _)| at_us)
    }
}
