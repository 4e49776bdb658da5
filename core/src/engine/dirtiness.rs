//! Whether a key needs reconciling: its value or its waiters may have changed without one of our
//! commands.

use super::Engine;
use super::transaction::At;
use crate::keyspace::Keyspace;
use crate::lock::admission::Value;

impl Engine {
    /// Whether a key needs no reconciliation: the common case of a lock without waiters.
    pub(super) fn is_uncontended(&self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        if self.name(at).is_some() {
            return false;
        }
        match at.value() {
            Value::Vacant | Value::Foreign => true,
            Value::Lock(lock) => {
                let is_due = lock.next_deadline_us().is_some_and(|due_us| due_us <= at.now.mono_us);
                !is_due && lock.queue().is_none() && !self.is_behind(at)
            }
        }
    }

    /// Whether the server has reported something about a key, or about its whole database, that is
    /// not processed yet.
    pub(super) fn is_dirty(&self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        let name = self.name(at);
        name.is_some_and(|name| self.registry.dirty(name).is_some() || self.registry.is_behind(name))
            || self.is_behind(at)
    }

    /// Like [`Engine::is_dirty`], but ignores offers that wait to be repeated: they say nothing
    /// about the holders.
    pub(super) fn is_dirty_beyond_offers(&self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        let is_dirty_beyond_offers = |name| {
            let dirty = self.registry.dirty(name);
            dirty.is_some_and(|dirty| !dirty.has_offers_only()) || self.registry.is_behind(name)
        };
        self.name(at).is_some_and(is_dirty_beyond_offers) || self.is_behind(at)
    }

    /// Whether a value is behind: see `alarms.rs`. A value without a deadline needs no
    /// reconciliation.
    pub(super) fn is_behind(&self, at: &At<'_, '_, impl Keyspace>) -> bool {
        at.lock().is_some_and(|lock| self.alarms.is_behind(lock.alarm(), at.key()) && lock.next_deadline_us().is_some())
    }
}
