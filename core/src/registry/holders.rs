//! The copy of the holders beside each queue, for the deadlock search.

use super::Registry;
use super::names::Holder;
use super::owners::Holding;
use super::positions::{NameId, OwnerId};
use super::waiter::Waiter;
use crate::kind::Mode;
use crate::time::Now;

impl Registry {
    /// Adds or updates a holder under a name with waiters.
    pub(crate) fn set_holder(&mut self, name: NameId, owner: &[u8], token: u64, mode: Mode, deadline_us: u64) {
        let owner = self.owners.intern(owner);
        let holder = Holder { token, owner, mode, deadline_us };
        let Some(record) = self.names.get_mut(name) else {
            return self.owners.tidy(owner);
        };
        match record.holders.binary_search_by_key(&token, |holder| holder.token) {
            Ok(at) => {
                if let Some(known) = record.holders.get_mut(at) {
                    *known = holder;
                }
            }
            Err(at) => record.holders.insert(at, holder),
        }
        if let Some(record) = self.owners.get_mut(owner) {
            record.holdings.insert(Holding { name, token });
        }
    }

    /// Removes the holder of an ended hold. Returns the ticket of its owner's request under the
    /// same name, if there is one.
    pub(crate) fn remove_holder(&mut self, name: NameId, token: u64) -> Option<u64> {
        let owner = self.take_holder(name, token)?;
        let wait = self.wait_of(owner, name).map(|position| position.ticket);
        self.owners.tidy(owner);
        wait
    }

    /// Sets the deadline of a holder.
    pub(crate) fn set_deadline(&mut self, name: NameId, token: u64, deadline_us: u64) {
        if let Some(holder) = self.names.get_mut(name).and_then(|record| record.holder_mut(token)) {
            holder.deadline_us = deadline_us;
        }
    }

    /// Marks the copy of the holders as correct.
    pub(crate) fn set_holders_known(&mut self, name: NameId) {
        if let Some(record) = self.names.get_mut(name) {
            record.knows_holders = true;
        }
    }

    /// Whether the copy of the holders of a name is correct.
    pub(crate) fn knows_holders(&self, name: NameId) -> bool {
        self.names.get(name).is_some_and(|record| record.knows_holders)
    }

    /// The copy of the holders of a name, in token order.
    pub(crate) fn holders(&self, name: NameId) -> &[Holder] {
        self.names.get(name).map_or(&[], |record| &record.holders)
    }

    /// Whether the owner of a waiter has a live hold under a name.
    pub(crate) fn is_held_by_owner(&self, name: NameId, waiter: &Waiter, now: Now) -> bool {
        self.holders(name).iter().any(|holder| holder.owner == waiter.owner && holder.deadline_us > now.mono_us)
    }

    /// The owner and the token of the oldest hold under a name.
    pub(crate) fn oldest_holder(&self, name: NameId) -> Option<(&[u8], u64)> {
        let holder = self.holders(name).first()?;
        Some((self.owners.bytes(holder.owner), holder.token))
    }

    fn take_holder(&mut self, name: NameId, token: u64) -> Option<OwnerId> {
        let record = self.names.get_mut(name)?;
        let at = record.holders.binary_search_by_key(&token, |holder| holder.token).ok()?;
        let owner = record.holders.remove(at).owner;
        if let Some(record) = self.owners.get_mut(owner) {
            record.holdings.remove(Holding { name, token });
        }
        Some(owner)
    }

    /// Drops the copy of the holders, which are unknown from then on.
    pub(crate) fn forget_holders(&mut self, name: NameId) {
        let Some(record) = self.names.get_mut(name) else {
            return;
        };
        record.knows_holders = false;
        for holder in core::mem::take(&mut record.holders) {
            if let Some(owner) = self.owners.get_mut(holder.owner) {
                owner.holdings.remove(Holding { name, token: holder.token });
            }
            self.owners.tidy(holder.owner);
        }
    }
}
