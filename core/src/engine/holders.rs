//! Maintains the copy of the holders beside each queue, for the deadlock search.

use alloc::vec::Vec;

use super::Engine;
use crate::event::{ChangeCause, Event, Phase};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::Kind;
use crate::lock::Hold;
use crate::lock::admission::Value;
use crate::registry::{NameId, Waiter};

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
        if let Value::Lock(lock) = keys.value(id)
            && lock.kind() != Kind::Semaphore
        {
            let mut holds: Vec<&Hold> = lock.holds().iter().filter(|hold| hold.phase() != Phase::Kept).collect();
            // Each is then added at the end of the copy.
            holds.sort_unstable_by_key(|hold| hold.token());
            for hold in holds {
                self.registry.set_holder(name, hold.owner().as_slice(), hold.token(), hold.mode(), hold.deadline_us());
            }
        }
        self.registry.set_holders_known(name);
    }
}
