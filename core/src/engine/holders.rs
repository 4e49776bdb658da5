//! Maintains the copy of the holders beside each queue, for the deadlock search.
//!
//! The copy contains all holders, unless a lock has more than [`MAX_COPIED`]: copying or dropping
//! these would take milliseconds. Of such a lock it contains the holders that wait in its queue,
//! and those that were copied before the lock exceeded this number. The search sees no others. Once
//! the lock has only half of [`MAX_COPIED`] holders left, the copy is rebuilt and complete again.

use alloc::vec::Vec;

use super::Engine;
use crate::event::{ChangeCause, Event, Phase};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::{Kind, Mode};
use crate::lock::Lock;
use crate::lock::admission::Value;
use crate::registry::{MAX_COPIED, NameId, Registry, Waiter};

impl Engine {
    /// Updates the copy after an event.
    pub(super) fn update_holders(&mut self, keys: &mut impl Keyspace, id: KeyId, name: NameId, event: &Event) {
        if self.registry.len_under(name) == 0 {
            return;
        }
        match event {
            // On a semaphore no waiter waits for a particular owner.
            Event::Granted { kind: Kind::Semaphore, .. } => {}
            Event::Granted { owner, mode, token, terms, .. } => {
                self.registry.set_holder(name, owner.as_slice(), *token, *mode, terms.deadline_us);
            }
            // The former owner of a kept lock is no longer a holder: it blocks no waiter.
            Event::Ended { token, .. } | Event::Changed { token, cause: ChangeCause::Kept, .. } => {
                // The owner may have a waiting MACQUIRE for this key and others. From now on it
                // waits for this key, too, so it has new edges to search.
                if let Some(ticket) = self.registry.remove_holder(name, *token)
                    && self.registry.get(ticket).is_some_and(Waiter::is_many)
                {
                    self.suspect(ticket);
                }
                if let Value::Lock(lock) = keys.value(id)
                    && lock.holds().len() == MAX_COPIED / 2
                    && self.lacks_holders(name, lock)
                {
                    self.copy_holders(keys, id, name);
                }
            }
            Event::Changed { token, terms, .. } => {
                self.registry.set_deadline(name, *token, terms.deadline_us);
            }
            Event::Cleared { .. } => self.copy_holders(keys, id, name),
            _ => {}
        }
    }

    /// Rebuilds the copy from the value.
    pub(super) fn copy_holders(&mut self, keys: &impl Keyspace, id: KeyId, name: NameId) {
        self.registry.forget_holders(name);
        if self.registry.len_under(name) == 0 {
            return;
        }
        let registry = &mut self.registry;
        match keys.value(id) {
            Value::Lock(lock) if lock.kind() == Kind::Semaphore => {}
            Value::Lock(lock) if lock.holds().len() <= MAX_COPIED => {
                for hold in lock.holds().iter().filter(|hold| hold.phase() != Phase::Kept) {
                    let owner = hold.owner().as_slice();
                    registry.set_holder(name, owner, hold.token(), hold.mode(), hold.deadline_us());
                }
            }
            Value::Lock(lock) => {
                let waiting = registry.in_order(name).take(MAX_COPIED);
                let waiting: Vec<Vec<u8>> = waiting.map(|(_, waiter)| registry.owner_of(waiter).to_vec()).collect();
                for owner in &waiting {
                    Self::copy_holds_of(registry, lock, name, owner);
                }
            }
            Value::Vacant | Value::Foreign => {}
        }
        self.registry.set_holders_known(name);
    }

    /// Adds the holds of an owner that has begun to wait to an incomplete copy.
    pub(super) fn copy_own_holds(&mut self, keys: &impl Keyspace, id: KeyId, name: NameId, owner: &[u8]) {
        if let Value::Lock(lock) = keys.value(id)
            && self.lacks_holders(name, lock)
        {
            Self::copy_holds_of(&mut self.registry, lock, name, owner);
        }
    }

    /// Whether the copy beside the queue lacks holders of the lock.
    fn lacks_holders(&self, name: NameId, lock: &Lock) -> bool {
        let copied = self.registry.holders(name).len();
        lock.kind() == Kind::RwLock && copied < lock.holds().len() && self.registry.knows_holders(name)
    }

    fn copy_holds_of(registry: &mut Registry, lock: &Lock, name: NameId, owner: &[u8]) {
        for hold in [Mode::Read, Mode::Write].into_iter().filter_map(|mode| lock.hold(owner, mode)) {
            registry.set_holder(name, owner, hold.token(), hold.mode(), hold.deadline_us());
        }
    }
}
