//! The alarms of values: when the next lease, place or reservation of a lock expires.
//!
//! An alarm has the name of its key, the number of its database, and the *generation* in which its
//! value was last reconciled. A value stores its alarm, which may be stale, so callers check that
//! it still belongs to the key.
//!
//! A promotion and the end of a load raise the generation. A value of an earlier generation is
//! *behind*, and so is one that SWAPDB has moved: it may have changed without one of our commands.
//! It is reconciled when a command or its alarm opens the key, or when the sweep, which visits
//! everything in parts, reaches it.
//!
//! SWAPDB and FLUSHDB visit the database numbers of all alarms. That takes 3 ms for a million, see
//! docs/internals/design.md. The sweep removes the alarms of flushed values in parts.

use crate::bytes::{Key, KeyName, KeyRef};
use crate::collections::{Alarm, DeadlineRef, Deadlines};
use crate::time::Now;

/// The time of an alarm that has fired, until its value sets it again.
const FIRED_US: u64 = u64::MAX;

/// The time of an alarm that is due, but whose value waits until holds may begin again.
const PARKED_US: u64 = u64::MAX - 1;

/// Beside the database number of a value that SWAPDB has moved, until it is reconciled. The server
/// numbers its databases with 31 bits.
const MOVED: u32 = 1 << 31;

/// In place of the database number: FLUSHDB has removed the value.
const FLUSHED: u32 = u32::MAX;

/// See the module documentation.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Alarms {
    /// The side is the generation of the value, the stamp its database.
    alarms: Deadlines<KeyName, u32>,
    /// The number of alarms of flushed values.
    flushed: usize,
    generation: u32,
}

impl Alarms {
    /// The number of locks with an alarm.
    pub(crate) fn len(&self) -> usize {
        self.alarms.len().saturating_sub(self.flushed)
    }

    /// Sets an alarm for a reconciled value.
    pub(crate) fn insert(&mut self, due_us: u64, key: KeyRef<'_>) -> Alarm {
        self.alarms.insert_with(due_us, key.name.into(), self.generation, key.db)
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
        if self.alarms.entry(alarm).is_some_and(|entry| entry.stamp == FLUSHED) {
            self.flushed = self.flushed.saturating_sub(1);
        }
        self.alarms.remove(alarm);
    }

    /// Removes an alarm, if it belongs to a key.
    pub(crate) fn remove_of(&mut self, alarm: Alarm, key: KeyRef<'_>) {
        if self.is_of(alarm, key) {
            self.alarms.remove(alarm);
        }
    }

    /// The entry of an alarm, if it belongs to a key.
    fn entry_of(&self, alarm: Alarm, key: KeyRef<'_>) -> Option<DeadlineRef<'_, KeyName, u32>> {
        self.alarms.entry(alarm).filter(|entry| entry.value.as_slice() == key.name && database(entry) == key.db)
    }

    /// Whether an alarm belongs to a key.
    pub(crate) fn is_of(&self, alarm: Alarm, key: KeyRef<'_>) -> bool {
        self.entry_of(alarm, key).is_some()
    }

    /// Whether the value under a key, which has this alarm, is behind. A value is also behind if
    /// the alarm does not belong to the key.
    pub(crate) fn is_behind(&self, alarm: Alarm, key: KeyRef<'_>) -> bool {
        self.entry_of(alarm, key).is_none_or(|entry| self.is_entry_behind(&entry))
    }

    /// The value under a key is reconciled, and has this alarm, if it belongs to the key.
    pub(crate) fn set_reconciled(&mut self, alarm: Alarm, key: KeyRef<'_>) {
        if self.is_of(alarm, key) {
            self.alarms.set_side_and_stamp(alarm, self.generation, key.db);
        }
    }

    fn is_entry_behind(&self, entry: &DeadlineRef<'_, KeyName, u32>) -> bool {
        entry.side != self.generation || entry.stamp != database(entry)
    }

    /// The key of an alarm, if its value is behind. Removes the alarm of a flushed value.
    pub(crate) fn visit(&mut self, alarm: Alarm) -> Option<Key> {
        self.alarms.entry(alarm).filter(|entry| self.is_entry_behind(entry))?;
        self.key_or_remove(alarm)
    }

    /// The key of an alarm. Removes the alarm of a flushed value.
    fn key_or_remove(&mut self, alarm: Alarm) -> Option<Key> {
        let entry = self.alarms.entry(alarm)?;
        if entry.stamp == FLUSHED {
            self.remove(alarm);
            return None;
        }
        Some(Key { name: entry.value.clone(), db: database(&entry) })
    }

    /// When the next alarm fires.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.alarms.peek().map(|(at_us, _)| at_us).filter(|at_us| *at_us < PARKED_US)
    }

    /// Fires an alarm that is due. It stays, but does not fire again until it is set.
    pub(crate) fn fire_due(&mut self, now: Now) -> Option<(Alarm, Option<Key>)> {
        let (_, alarm) = self.alarms.peek().filter(|(at_us, _)| *at_us <= now.mono_us && *at_us < PARKED_US)?;
        self.alarms.set(alarm, FIRED_US);
        Some((alarm, self.key_or_remove(alarm)))
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

    /// All values were removed. The memory is freed in parts.
    pub(crate) fn clear(&mut self) {
        self.alarms.clear();
        self.flushed = 0;
    }

    /// All values of a database were removed. Their alarms are removed in parts: see
    /// [`Alarms::visit`].
    pub(crate) fn flush(&mut self, db: u32) {
        for stamp in self.alarms.stamps_mut().filter(|stamp| **stamp & !MOVED == db) {
            *stamp = FLUSHED;
            self.flushed = self.flushed.saturating_add(1);
        }
    }

    /// Values have moved to other databases.
    pub(crate) fn swap(&mut self, swapped: impl Fn(u32) -> u32) {
        for stamp in self.alarms.stamps_mut() {
            let db = *stamp & !MOVED;
            if swapped(db) != db {
                *stamp = swapped(db) | MOVED;
            }
        }
    }

    /// From now on every value is behind.
    pub(crate) fn renew_all(&mut self) {
        self.generation = self.generation.saturating_add(1);
    }

    /// The number of alarms, including those of flushed values.
    #[cfg(test)]
    pub(crate) fn all(&self) -> usize {
        self.alarms.len()
    }

    #[cfg(test)]
    pub(crate) fn at_us(&self, alarm: Alarm) -> Option<u64> {
        self.alarms.get(alarm).map(|(at_us, _)| at_us)
    }
}

/// The database of an alarm. That of a flushed value is none that exists.
fn database(entry: &DeadlineRef<'_, KeyName, u32>) -> u32 {
    entry.stamp & !MOVED
}
