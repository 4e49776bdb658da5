//! Whether there is something to do about a key before anything is decided on it.

use super::state::Engine;
use super::transaction::At;
use crate::keyspace::Keyspace;
use crate::lock::admission::Value;

impl Engine {
    /// Whether there is plainly nothing to do about a key: the common case of a lock that nobody waits for.
    pub(super) fn is_at_rest(&self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        if self.name(at).is_some() {
            return false;
        }
        match at.value() {
            Value::Vacant | Value::Foreign => true,
            Value::Lock(lock) => {
                let is_due = lock.next_deadline_us().is_some_and(|due_us| due_us <= at.now.mono_us);
                let generation = self.databases.generation(at.key().db);
                !is_due && lock.queue().is_none() && !self.is_behind(at, generation)
            }
        }
    }

    /// Whether the server has told something about a key, or about all keys of its database, that was not acted upon.
    pub(super) fn is_dirty(&self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        let record = self.name(at).and_then(|name| self.queues.names.get(name));
        let generation = self.databases.generation(at.key().db);
        let is_told = record.is_some_and(|record| record.dirty.is_some() || record.generation < generation);
        is_told || self.is_behind(at, generation)
    }

    /// The same, except for waiters that are offered their keys again, which say nothing about the holders.
    pub(super) fn is_unsettled(&self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        let record = self.name(at).and_then(|name| self.queues.names.get(name));
        let generation = self.databases.generation(at.key().db);
        let is_told = record.is_some_and(|record| {
            record.dirty.as_ref().is_some_and(|dirty| !dirty.has_offers_only()) || record.generation < generation
        });
        is_told || self.is_behind(at, generation)
    }

    /// Whether a value was last reconciled in an earlier generation, or never. One without a deadline has nothing that could be.
    pub(super) fn is_behind(&self, at: &At<'_, '_, impl Keyspace>, generation: u32) -> bool {
        let Some(lock) = at.lock() else {
            return false;
        };
        let reconciled_in = self.leases.reconciled_in_of(lock.alarm(), at.key(), &self.databases).unwrap_or(0);
        reconciled_in < generation && lock.next_deadline_us().is_some()
    }
}
