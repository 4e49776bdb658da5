//! Keeps the copy of the holders beside a queue: what the search for deadlocks looks at.

use alloc::vec::Vec;

use super::positions::NameId;
use super::state::Engine;
use crate::event::Event;
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::{Kind, Mode};
use crate::lock::Lock;
use crate::lock::admission::Value;

/// The holders of how many holds are kept beside a queue: the search does not see through a lock that more hold, because
/// copying them would take milliseconds. Of such a lock there are those who wait there themselves, of the first so many.
const MAX_COPIED: usize = 1024;

impl Engine {
    /// Follows an event.
    pub(super) fn note_holder(&mut self, keys: &mut impl Keyspace, id: KeyId, name: NameId, event: &Event) {
        if self.queues.len_under(name) == 0 {
            return;
        }
        match event {
            // Nobody is in anybody's way by name on a semaphore.
            Event::Granted { kind: Kind::Semaphore, .. } => {}
            Event::Granted { owner, mode, token, terms, .. } => {
                self.queues.set_holder(name, owner.as_slice(), *token, *mode, terms.deadline_us);
            }
            Event::Changed { token, terms, .. } => {
                if let Some(holder) = self.queues.names.get_mut(name).and_then(|record| record.holder_mut(*token)) {
                    holder.deadline_us = terms.deadline_us;
                }
            }
            Event::Ended { token, .. } => {
                // A request for many keys that had this one already waits for it from now on.
                if let Some(owner) = self.queues.remove_holder(name, *token)
                    && let Some(next) = self.queues.next_of_owner(owner, name, Mode::Exclusive, None)
                {
                    self.suspect(next.ticket);
                }
            }
            Event::Cleared { .. } => self.copy_holders(keys, id, name),
            _ => {}
        }
    }

    /// Takes the copy anew from the value.
    pub(super) fn copy_holders(&mut self, keys: &impl Keyspace, id: KeyId, name: NameId) {
        self.queues.forget_holders(name);
        if self.queues.len_under(name) == 0 {
            return;
        }
        let Self { queues, .. } = self;
        match keys.value(id) {
            Value::Lock(lock) if lock.kind() == Kind::Semaphore => {}
            Value::Lock(lock) if lock.holds().len() <= MAX_COPIED => {
                for hold in lock.holds().iter() {
                    let owner = hold.owner().as_slice();
                    queues.set_holder(name, owner, hold.token(), hold.mode(), hold.deadline_us());
                }
            }
            Value::Lock(lock) => {
                let waiting = queues.in_order(name).take(MAX_COPIED);
                let waiting: Vec<Vec<u8>> = waiting.map(|(_, waiter)| queues.owner_of(waiter).to_vec()).collect();
                for owner in &waiting {
                    Self::copy_holds_of(queues, lock, name, owner);
                }
            }
            Value::Vacant | Value::Foreign => {}
        }
        if let Some(record) = self.queues.names.get_mut(name) {
            record.knows_holders = true;
        }
    }

    /// Adds to an incomplete copy what an owner holds that has come to wait there.
    pub(super) fn copy_own_holds(&mut self, keys: &impl Keyspace, id: KeyId, name: NameId, owner: &[u8]) {
        if let Value::Lock(lock) = keys.value(id)
            && lock.kind() == Kind::RwLock
            && lock.holds().len() > MAX_COPIED
        {
            Self::copy_holds_of(&mut self.queues, lock, name, owner);
        }
    }

    fn copy_holds_of(queues: &mut super::wait_queues::WaitQueues, lock: &Lock, name: NameId, owner: &[u8]) {
        for hold in [Mode::Read, Mode::Write].into_iter().filter_map(|mode| lock.hold(owner, mode)) {
            queues.set_holder(name, owner, hold.token(), hold.mode(), hold.deadline_us());
        }
    }

    /// Whether the copy of the holders of a name is true.
    pub(super) fn knows_holders(&self, name: NameId) -> bool {
        self.queues.names.get(name).is_some_and(|record| {
            record.knows_holders && record.generation == self.databases.generation(record.key().db)
        })
    }
}
