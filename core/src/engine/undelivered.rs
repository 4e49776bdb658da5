//! What was granted to waiters who may not have heard of it: kept under their tickets, and under the names.

use core::ops::Bound;

use smallvec::SmallVec;

use super::dirty::Undelivered;
use super::names::Names;
use super::positions::NameId;
use super::wait_queues::{State, WaitQueues, halves};
use crate::bytes::Key;

/// How many other grants of a hold are looked at when one of them is taken back, or heard of: more of one owner on one hold are under way together
/// rarely.
const LOOKED_AT: usize = 64;

/// Below every ticket.
const NO_TICKET: u64 = 0;

impl WaitQueues {
    /// The number of one more grant.
    pub(super) fn next_grant(&mut self) -> u64 {
        self.last_grant = self.last_grant.wrapping_add(1);
        self.last_grant
    }

    /// Looks at the grants of a hold that may be taken back: those of which it is not known that they were heard, and those that were `lost` already.
    pub(super) fn each_grant(
        &mut self,
        name: NameId,
        token: u64,
        lost: &mut [Undelivered],
        mut look: impl FnMut(&mut Undelivered),
    ) {
        let of_hold = |grant: &&mut Undelivered| grant.token == token;
        lost.iter_mut().rev().take(LOOKED_AT).filter(of_hold).for_each(&mut look);
        let Some(record) = self.names.get_mut(name) else {
            return;
        };
        if let Some(dirty) = record.dirty.as_mut() {
            dirty.undelivered.iter_mut().rev().take(LOOKED_AT).filter(of_hold).for_each(&mut look);
        }
        let from = |after| Bound::Excluded((token, after));
        let next = |after| record.undelivered.first_from(from(after)).filter(|(of, _)| *of == token);
        let tickets = core::iter::successors(next(NO_TICKET), |(_, ticket)| next(*ticket));
        let tickets: SmallVec<[u64; 2]> = tickets.map(|(_, ticket)| ticket).take(LOOKED_AT).collect();
        for ticket in tickets {
            if let Some(State::Granted(granted)) = self.state_mut(ticket) {
                let of_name = granted.iter_mut().filter(|(under, grant)| (*under, grant.token) == (name, token));
                of_name.for_each(|(_, grant)| look(grant));
            }
        }
    }

    /// Whether any grant under a name may be taken back.
    pub(super) fn has_undelivered(&self, name: NameId) -> bool {
        self.names.get(name).is_some_and(|record| {
            !record.undelivered.is_empty() || record.dirty.as_ref().is_some_and(|dirty| !dirty.undelivered.is_empty())
        })
    }

    /// Remembers what a waiter was granted under a name, until it is known that it heard of it.
    pub(super) fn remember(&mut self, ticket: u64, name: NameId, undelivered: Undelivered) {
        if let Some(record) = self.names.get_mut(name) {
            record.undelivered.insert((undelivered.token, ticket));
        }
        if let Some(State::Granted(granted)) = self.state_mut(ticket) {
            granted.push((name, undelivered));
        }
    }

    /// A ticket that was granted a hold, and may not have heard of it.
    pub(super) fn undelivered_of(&self, name: NameId, token: u64) -> Option<u64> {
        let pending = &self.names.get(name)?.undelivered;
        let (of, ticket) = pending.first_from(Bound::Excluded((token, NO_TICKET)))?;
        (of == token).then_some(ticket)
    }

    /// Whether a ticket that was granted something is told of it on a channel.
    pub(super) fn is_published(&self, ticket: u64) -> bool {
        matches!(self.state(ticket), Some(State::Granted(granted)) if granted.iter().any(|(_, undelivered)| undelivered.is_published))
    }

    /// Takes out what a ticket was granted and may not have heard of. Names may be idle afterwards.
    pub(super) fn take_undelivered(&mut self, ticket: u64) -> SmallVec<[(NameId, Undelivered); 1]> {
        let (slot, _) = halves(ticket);
        if !matches!(self.state(ticket), Some(State::Granted(_))) {
            return SmallVec::new();
        }
        let Some((_, State::Granted(granted))) = self.tickets.remove(slot) else {
            return SmallVec::new();
        };
        for (name, undelivered) in &granted {
            if let Some(record) = self.names.get_mut(*name) {
                record.undelivered.remove((undelivered.token, ticket));
            }
        }
        granted
    }

    /// What a ticket was granted lies under other names now.
    pub(super) fn rename_undelivered(&mut self, ticket: u64, mut rename: impl FnMut(&mut Names, &Key) -> NameId) {
        let Some(State::Granted(granted)) = self.state(ticket) else {
            return;
        };
        let known: SmallVec<[(NameId, u64); 1]> =
            granted.iter().map(|(name, undelivered)| (*name, undelivered.token)).collect();
        for (index, (name, token)) in known.iter().copied().enumerate() {
            let Some(key) = self.names.get(name).map(|record| record.key().to_key()) else {
                continue;
            };
            let other = rename(&mut self.names, &key);
            if let Some(record) = self.names.get_mut(name) {
                record.undelivered.remove((token, ticket));
            }
            if let Some(record) = self.names.get_mut(other) {
                record.undelivered.insert((token, ticket));
            }
            if let Some(State::Granted(granted)) = self.state_mut(ticket)
                && let Some((known, _)) = granted.get_mut(index)
            {
                *known = other;
            }
        }
        for (name, _) in known {
            self.names.tidy(name);
        }
    }

    /// What a ticket was granted and may not have heard of.
    #[cfg(test)]
    pub(super) fn undelivered(&self, ticket: u64) -> impl Iterator<Item = &(NameId, Undelivered)> {
        let granted = match self.state(ticket) {
            Some(State::Granted(granted)) => Some(granted),
            _ => None,
        };
        granted.into_iter().flatten()
    }
}
