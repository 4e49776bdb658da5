//! Grants under a name that are under way to their waiters: which hold, and which ticket.

use core::ops::Bound;

use crate::collections::SmallSet;

/// Holds, by token, and the tickets that were granted each, or have a share in it.
#[derive(Clone, Debug, Default)]
pub(super) struct UnderWay {
    grants: SmallSet<(u64, u64)>,
}

/// In the place of a ticket, as long as other grants of the hold are under way: somebody with a share in it has heard of it. No
/// ticket is 0.
const KNOWN: u64 = 0;

impl UnderWay {
    pub(super) fn is_empty(&self) -> bool {
        self.grants.is_empty()
    }

    pub(super) fn insert(&mut self, token: u64, ticket: u64) {
        self.grants.insert((token, ticket));
    }

    pub(super) fn remove(&mut self, token: u64, ticket: u64) {
        self.grants.remove((token, ticket));
        if self.first_of(token).is_none() {
            self.grants.remove((token, KNOWN));
        }
    }

    /// A ticket that was granted a hold, or has a share in it.
    pub(super) fn first_of(&self, token: u64) -> Option<u64> {
        let (of, ticket) = self.grants.first_from(Bound::Excluded((token, KNOWN)))?;
        (of == token).then_some(ticket)
    }

    /// All of these tickets.
    pub(super) fn tickets_of(&self, token: u64) -> impl Iterator<Item = u64> {
        let mut ticket = KNOWN;
        core::iter::from_fn(move || {
            let (of, next) = self.grants.first_from(Bound::Excluded((token, ticket)))?;
            ticket = next;
            (of == token).then_some(next)
        })
    }

    /// Somebody with a share in a hold has heard of it. That is of interest to the other grants of it that are under way.
    pub(super) fn know(&mut self, token: u64) {
        if self.first_of(token).is_some() {
            self.grants.insert((token, KNOWN));
        }
    }

    /// Whether somebody with a share in a hold has heard of it.
    pub(super) fn is_known(&self, token: u64) -> bool {
        self.grants.first_from(Bound::Included((token, KNOWN))) == Some((token, KNOWN))
    }

    /// Every hold of which a grant is under way, once for each of them.
    #[cfg(test)]
    pub(super) fn tokens(&self) -> impl Iterator<Item = u64> {
        self.grants.iter().map(|(token, _)| token)
    }
}
