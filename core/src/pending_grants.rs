//! Pending grants: grants whose waiter may not have received the answer yet.
//!
//! A pending grant is *confirmed* when the answer was sent or the owner uses the hold, and *undone*
//! when the answer cannot reach the waiter. A hold has at most one pending grant, so this module
//! stores the terms of the hold before it, to which undoing it returns.
//!
//! If a waiter is granted a hold that has a pending grant already (permits, or a key of several
//! that its owner holds), the new one replaces it: see `Engine::settle_earlier`.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::event::Terms;
use crate::registry::NameId;

/// A pending grant, with the data to undo it.
#[derive(Clone)]
pub(crate) struct PendingGrant {
    pub(crate) ticket: u64,
    /// The terms of the hold before; `None` if the hold began with this grant.
    pub(crate) before: Option<Terms>,
    /// The count that it adds to the hold. 0 for a retry (`ONCE`, or the same `REQ` id).
    pub(crate) count: u32,
    /// Whether it set the request of the hold (`REQ`), its session, and its note.
    pub(crate) has_request: bool,
    pub(crate) has_session: bool,
    pub(crate) has_note: bool,
    /// The waiter's arrival number.
    pub(crate) arrival: u64,
    /// `GRACE` of the place that the waiter had on a fair lock.
    pub(crate) grace_ms: Option<u64>,
    /// The connection to which this grant bound the hold, if it was not bound to it before.
    pub(crate) has_bound: Option<u64>,
    /// The hold has ended, or CANCEL has taken back what the grant added: there is nothing to undo,
    /// and nothing to tell.
    pub(crate) is_over: bool,
}

/// The pending grants of a ticket: one for each key of its request.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
struct PendingTicket {
    client: Option<u64>,
    /// The answer is published on a channel, and not written to the connection that asked.
    is_published: bool,
    /// The names and tokens of the holds. One that was granted again has the grant of another
    /// ticket.
    holds: SmallVec<[(NameId, u64); 1]>,
}

/// See the module documentation.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct PendingGrants {
    /// By name and token.
    holds: BTreeMap<(NameId, u64), PendingGrant>,
    tickets: BTreeMap<u64, PendingTicket>,
    /// Connections and their tickets.
    of_clients: BTreeSet<(u64, u64)>,
    /// Tickets whose answer goes to a connection, and may not have been sent yet.
    unsent: Vec<u64>,
}

impl PendingGrants {
    /// Adds a grant to a hold. It replaces an earlier one.
    pub(crate) fn add(&mut self, name: NameId, token: u64, grant: PendingGrant) {
        self.tickets.entry(grant.ticket).or_default().holds.push((name, token));
        self.holds.insert((name, token), grant);
    }

    /// Records how the answer to a ticket is sent: to a connection or on a channel.
    pub(crate) fn expect(&mut self, ticket: u64, client: Option<u64>, is_published: bool) {
        let Some(pending) = self.tickets.get_mut(&ticket) else {
            return;
        };
        (pending.client, pending.is_published) = (client, is_published);
        self.of_clients.extend(client.map(|client| (client, ticket)));
        if !is_published {
            self.unsent.push(ticket);
        }
    }

    /// Takes out a ticket. Returns the names and tokens of its holds, to confirm or undo its
    /// grants.
    pub(crate) fn take(&mut self, ticket: u64) -> SmallVec<[(NameId, u64); 1]> {
        let taken = self.tickets.remove(&ticket).unwrap_or_default();
        if let Some(client) = taken.client {
            self.of_clients.remove(&(client, ticket));
        }
        taken.holds
    }

    /// The pending grant of a hold.
    pub(crate) fn of_hold(&self, name: NameId, token: u64) -> Option<&PendingGrant> {
        self.holds.get(&(name, token))
    }

    /// The pending grants of the holds under a name for which `has_ended` is true are over.
    pub(crate) fn end(&mut self, name: NameId, has_ended: impl Fn(u64) -> bool) {
        for ((_, token), grant) in self.holds.range_mut((name, 0)..=(name, u64::MAX)) {
            grant.is_over |= has_ended(*token);
        }
    }

    /// The names and tokens of the holds of a ticket.
    pub(crate) fn holds(&self, ticket: u64) -> impl Iterator<Item = &(NameId, u64)> {
        self.tickets.get(&ticket).into_iter().flat_map(|pending| &pending.holds)
    }

    /// Takes out the pending grant of a hold, if `is_meant` accepts its ticket.
    pub(crate) fn take_grant(
        &mut self,
        name: NameId,
        token: u64,
        is_meant: impl FnOnce(u64) -> bool,
    ) -> Option<PendingGrant> {
        self.of_hold(name, token).filter(|grant| is_meant(grant.ticket))?;
        self.holds.remove(&(name, token))
    }

    /// Whether no grant is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// Whether holds under a name have pending grants.
    pub(crate) fn has(&self, name: NameId) -> bool {
        self.holds.range((name, 0)..=(name, u64::MAX)).next().is_some()
    }

    /// Takes out the tickets whose answers have been sent by now, according to `is_sent`.
    pub(crate) fn take_sent(&mut self, is_sent: impl Fn(u64) -> bool) -> Vec<u64> {
        self.unsent.extract_if(.., |ticket| is_sent(*ticket)).collect()
    }

    /// Whether there are unsent answers.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The tickets of a connection.
    pub(crate) fn of_client(&self, client: u64) -> impl Iterator<Item = u64> {
        self.of_clients.range((client, 0)..=(client, u64::MAX)).map(|(_, ticket)| *ticket)
    }

    pub(crate) fn first_of_client(&self, client: u64) -> Option<u64> {
        self.of_client(client).next()
    }

    /// Whether the answer to a ticket is published on a channel.
    pub(crate) fn is_published(&self, ticket: u64) -> bool {
        self.tickets.get(&ticket).is_some_and(|pending| pending.is_published)
    }

    /// Each pending grant under a name, with the token of its hold.
    #[cfg(test)]
    pub(crate) fn under(&self, name: NameId) -> impl Iterator<Item = (u64, &PendingGrant)> {
        self.holds.range((name, 0)..=(name, u64::MAX)).map(|((_, token), grant)| (*token, grant))
    }

    /// Each pending grant, with the token of its hold.
    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, &PendingGrant)> {
        self.holds.iter().map(|((_, token), grant)| (*token, grant))
    }

    #[cfg(test)]
    pub(crate) fn unsent(&self) -> &[u64] {
        &self.unsent
    }
}
