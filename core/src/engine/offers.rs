//! A waiter for many keys at the head of one of them is *offered* all of them, once all are to be had: it is granted right
//! after, in a transaction in which all of them are open (`multi_key.rs`).

use alloc::vec::Vec;

use super::positions::NameId;
use super::state::Engine;
use super::transaction::Transaction;
use super::waiter::Waiter;
use super::work::{ANSWER, CHANGE};
use crate::bytes::{Key, KeyRef};
use crate::keyspace::Keyspace;

/// A waiter for many keys that may have all of them.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    pub(super) ticket: u64,
    pub(super) freed: bool,
}

impl Engine {
    /// Offers a waiter for many keys all of them, if all are to be had. Nothing is opened for that: what is known beside the
    /// queues is enough to see that a key is not to be had.
    pub(super) fn offer(&mut self, tx: &Transaction<'_, impl Keyspace>, ticket: u64, freed: bool) {
        let Some(waiter) = self.queues.get(ticket) else {
            return;
        };
        if self.grantable.back().is_some_and(|(offered, _)| *offered == ticket) {
            // A command that frees all of its keys comes here once for each.
            return;
        }
        let keys = waiter.names.len();
        let from = waiter.held_up_by as usize;
        let in_turn = (0..keys).map(|step| step.saturating_add(from).checked_rem(keys).unwrap_or(0));
        let held_up_by = in_turn
            .clone()
            .find(|index| waiter.names.get(*index).is_some_and(|name| !self.is_to_be_had(tx, *name, ticket, waiter)));
        match held_up_by {
            Some(index) => {
                if let Some(waiter) = self.queues.get_mut(ticket) {
                    waiter.held_up_by = u32::try_from(index).unwrap_or(0);
                }
            }
            None => self.grantable.push_back((ticket, freed)),
        }
    }

    /// Whether a key is held by the waiter's owner already, or is free with the waiter first in its queue. `false` also if that is
    /// not known: then the key is dirty, or has a lease that is over, and brings the waiter back when it is reconciled.
    fn is_to_be_had(&self, tx: &Transaction<'_, impl Keyspace>, name: NameId, ticket: u64, waiter: &Waiter) -> bool {
        let Some(record) = self.queues.names.get(name).filter(|_| self.knows_holders(name)) else {
            return false;
        };
        if record.holders.iter().any(|holder| holder.owner == waiter.owner && holder.deadline_us > tx.now.mono_us) {
            return true;
        }
        record.holders.is_empty() && record.queue.first().is_some_and(|first| first.ticket == ticket)
    }

    /// Whether a waiter was offered something.
    #[must_use]
    pub fn has_offers(&self) -> bool {
        !self.grantable.is_empty()
    }

    /// The keys of a waiter that was offered all of them, to be opened for [`Engine::take_offer`]. `None` also if `can_be_opened` says no to one of
    /// them, which stands for all: they are in one database, and in a cluster in one slot; or if enough was done for this turn. The timer takes what
    /// is left.
    pub fn next_offer(&mut self, can_be_opened: impl FnOnce(KeyRef<'_>) -> bool) -> Option<(Offer, Vec<Key>)> {
        let (ticket, freed) = self.first_offer()?;
        let waiter = self.queues.get(ticket)?;
        let names = || waiter.names.iter().filter_map(|name| Some(self.queues.names.get(*name)?.key()));
        let changes = u32::try_from(waiter.names.len()).unwrap_or(u32::MAX).saturating_mul(CHANGE);
        if !names().next().is_some_and(can_be_opened) || !self.work.take_or_end_turn(changes.saturating_add(ANSWER)) {
            return None;
        }
        self.grantable.pop_front();
        Some((Offer { ticket, freed }, names().map(KeyRef::to_key).collect()))
    }

    /// The first that waits still.
    fn first_offer(&mut self) -> Option<(u64, bool)> {
        while let Some((ticket, freed)) = self.grantable.front().copied() {
            if self.queues.get(ticket).is_some() {
                return Some((ticket, freed));
            }
            self.grantable.pop_front();
        }
        None
    }
}
