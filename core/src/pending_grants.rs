//! Pending grants: grants whose waiter may not have received the answer yet.
//!
//! A pending grant is *confirmed* when the answer was sent or the owner uses the hold, and *undone*
//! when the answer cannot reach the waiter. A hold can have several pending grants; each is
//! confirmed or undone on its own. So this module stores the terms before the first pending grant,
//! and the change of each grant. Undoing a grant leaves it out of the sum:
//! ```text
//! terms of the hold = terms before + first grant + second grant + …
//! ```
//!
//! Here `+` is [`PendingGrant::after`]: counts add up, the later deadline wins, the lease is
//! replaced, so are request, session and note if the grant has them, and the phase stays. A
//! confirmed grant is merged into `terms before` once no earlier grant is pending.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::event::{Note, Phase, Terms, note_after};
use crate::registry::NameId;
use crate::request::RequestMark;

/// A pending grant: the terms that it sets, and the data to undo it.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct PendingGrant {
    pub(crate) ticket: u64,
    /// The count that it adds to the hold. 0 for a retry (`ONCE`, or the same `REQ` id).
    pub(crate) count: u32,
    pub(crate) deadline_us: u64,
    pub(crate) lease_ms: u64,
    /// `REQ`.
    pub(crate) request: Option<RequestMark>,
    /// `SESSION`.
    pub(crate) session_ms: Option<u64>,
    /// `NOTE`.
    pub(crate) note: Option<Note>,
    /// The phase of the hold, if it begins with this grant.
    pub(crate) phase: Phase,
    /// The waiter's arrival number.
    pub(crate) arrival: u64,
    /// `GRACE` of the place that the waiter had on a fair lock.
    pub(crate) grace_ms: Option<u64>,
    pub(crate) client: Option<u64>,
    /// This grant bound the hold to `client`, and no confirmed grant did so before. So undoing it
    /// unbinds the hold, unless another pending grant came over the same connection.
    pub(crate) has_bound: bool,
    pub(crate) is_confirmed: bool,
}

impl PendingGrant {
    /// The terms of a hold after this grant.
    fn after(&self, before: Option<Terms>) -> Terms {
        let before = before.unwrap_or(Terms {
            count: 0,
            deadline_us: 0,
            lease_ms: self.lease_ms,
            request: None,
            session_ms: None,
            phase: self.phase,
            note: None,
        });
        Terms {
            count: before.count.saturating_add(self.count),
            deadline_us: before.deadline_us.max(self.deadline_us),
            lease_ms: self.lease_ms,
            request: self.request.or(before.request),
            session_ms: self.session_ms.or(before.session_ms),
            phase: before.phase,
            note: note_after(before.note, self.note.as_deref()),
        }
    }
}

/// The key names of confirmed grants, possibly repeated.
type Names = SmallVec<[NameId; 1]>;

/// The largest number of pending grants of one hold, so that no step takes long. Beyond that the
/// oldest counts as confirmed: if its answer was lost, its count stays until the lease expires.
const MAX_PENDING: usize = 32;

/// A hold with pending grants.
#[cfg_attr(test, derive(Clone))]
struct PendingHold {
    /// The terms before the first pending grant; `None` if the hold began with it.
    before: Option<Terms>,
    /// In the order in which they were granted.
    grants: SmallVec<[PendingGrant; 1]>,
}

impl PendingHold {
    /// Merges the confirmed grants at the head of the list into the terms before.
    fn fold_confirmed(&mut self) {
        while self.grants.first().is_some_and(|grant| grant.is_confirmed) {
            let grant = self.grants.remove(0);
            self.before = Some(grant.after(self.before.take()));
        }
    }

    fn add(&mut self, grant: PendingGrant) {
        if let Some(oldest) = self.grants.first().filter(|_| self.grants.len() >= MAX_PENDING) {
            self.confirm(oldest.ticket);
        }
        self.grants.push(grant);
    }

    fn confirm(&mut self, ticket: u64) {
        let Some(confirmed) = self.grants.iter_mut().find(|grant| grant.ticket == ticket) else {
            return;
        };
        confirmed.is_confirmed = true;
        let client = confirmed.client;
        // The binding is now confirmed: no other grant over this connection may undo it.
        for grant in self.grants.iter_mut().filter(|grant| grant.client == client) {
            grant.has_bound = false;
        }
        self.fold_confirmed();
    }

    /// Removes a pending grant.
    fn undo(&mut self, ticket: u64) -> Option<Undone> {
        let at = self.grants.iter().position(|grant| grant.ticket == ticket && !grant.is_confirmed)?;
        let grant = self.grants.remove(at);
        let later = self.grants.get(at..).unwrap_or_default();
        let is_last = later.is_empty();
        let ends_session = grant.session_ms.is_some() && later.iter().all(|later| later.session_ms.is_none());
        let mut unbinds = grant.client.filter(|_| grant.has_bound);
        if let Some(other) = self.grants.iter_mut().find(|other| unbinds.is_some() && other.client == unbinds) {
            other.has_bound = true;
            unbinds = None;
        }
        let folded = self.grants.iter().fold(self.before.clone(), |before, grant| Some(grant.after(before)));
        self.fold_confirmed();
        Some(Undone { grant, left: folded, is_last, ends_session, unbinds })
    }
}

/// A pending grant that was removed from its hold.
pub(crate) struct Undone {
    pub(crate) grant: PendingGrant,
    /// The terms without it.
    pub(crate) left: Option<Terms>,
    /// The hold has no later grant.
    pub(crate) is_last: bool,
    /// The grant set `SESSION`, and no later one did.
    pub(crate) ends_session: bool,
    /// The connection to which only this grant bound the hold.
    pub(crate) unbinds: Option<u64>,
}

/// The pending grants of a ticket: one for each key of its request.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
struct PendingTicket {
    client: Option<u64>,
    /// The answer is published on a channel, and not written to the connection that asked.
    is_published: bool,
    /// The names and tokens of the holds.
    holds: SmallVec<[(NameId, u64); 1]>,
}

/// See the module documentation.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct PendingGrants {
    /// By name and token.
    holds: BTreeMap<(NameId, u64), Box<PendingHold>>,
    tickets: BTreeMap<u64, PendingTicket>,
    /// Connections and their tickets.
    of_clients: BTreeSet<(u64, u64)>,
    /// Tickets whose answer goes to a connection, and may not have been sent yet.
    unsent: Vec<u64>,
}

impl PendingGrants {
    /// Adds a grant to a hold. `before` are the terms before the grant, if the hold existed.
    pub(crate) fn add(&mut self, name: NameId, token: u64, before: Option<Terms>, grant: PendingGrant) {
        self.tickets.entry(grant.ticket).or_default().holds.push((name, token));
        let hold = self.holds.entry((name, token));
        hold.or_insert_with(|| Box::new(PendingHold { before, grants: SmallVec::new() })).add(grant);
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

    /// Confirms the grants of a ticket. Returns their names.
    pub(crate) fn confirm_ticket(&mut self, ticket: u64) -> Names {
        let holds = self.take(ticket);
        for (name, token) in &holds {
            self.change(*name, *token, |hold| hold.confirm(ticket));
        }
        holds.into_iter().map(|(name, _)| name).collect()
    }

    /// The owner has used the hold: confirms its grants and, for requests of several keys, those on
    /// the other keys. Returns the key names.
    pub(crate) fn confirm_hold(&mut self, name: NameId, token: u64) -> Names {
        let hold = self.holds.remove(&(name, token));
        let tickets = hold.into_iter().flat_map(|hold| hold.grants).map(|grant| grant.ticket);
        tickets.flat_map(|ticket| self.confirm_ticket(ticket)).collect()
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

    /// Removes a grant from its hold, if it is still pending.
    pub(crate) fn undo(&mut self, name: NameId, token: u64, ticket: u64) -> Option<Undone> {
        self.change(name, token, |hold| hold.undo(ticket)).flatten()
    }

    fn change<R>(&mut self, name: NameId, token: u64, change: impl FnOnce(&mut PendingHold) -> R) -> Option<R> {
        let hold = self.holds.get_mut(&(name, token))?;
        let changed = change(hold);
        if hold.grants.is_empty() {
            self.holds.remove(&(name, token));
        }
        Some(changed)
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

    /// Each pending grant under a name, with the token and the terms before of its hold.
    #[cfg(test)]
    pub(crate) fn under(&self, name: NameId) -> impl Iterator<Item = (u64, Option<&Terms>, &PendingGrant)> {
        let holds = self.holds.range((name, 0)..=(name, u64::MAX));
        holds.flat_map(|((_, token), hold)| hold.grants.iter().map(|grant| (*token, hold.before.as_ref(), grant)))
    }

    /// The names and tokens of the holds of a ticket.
    #[cfg(test)]
    pub(crate) fn holds(&self, ticket: u64) -> impl Iterator<Item = &(NameId, u64)> {
        self.tickets.get(&ticket).into_iter().flat_map(|pending| &pending.holds)
    }

    #[cfg(test)]
    pub(crate) fn unsent(&self) -> &[u64] {
        &self.unsent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: NameId = NameId::FIRST;

    fn grant(ticket: u64) -> PendingGrant {
        PendingGrant {
            ticket,
            count: 1,
            deadline_us: ticket,
            lease_ms: 1,
            request: None,
            session_ms: None,
            note: None,
            phase: Phase::Held,
            arrival: 1,
            grace_ms: None,
            client: None,
            has_bound: false,
            is_confirmed: false,
        }
    }

    #[test]
    fn only_the_latest_grants_of_a_hold_are_pending() {
        const MANY: u64 = 1000;
        let mut pending = PendingGrants::default();
        (1..=MANY).for_each(|ticket| pending.add(NAME, 7, None, grant(ticket)));
        assert!(pending.undo(NAME, 7, 1).is_none(), "the oldest is confirmed");
        assert_eq!(pending.under(NAME).count(), MAX_PENDING);
        let undone = pending.undo(NAME, 7, MANY).expect("the newest is pending");
        let left = undone.left.expect("others");
        assert_eq!((u64::from(left.count), left.deadline_us), (MANY - 1, MANY - 1));
    }

    #[test]
    fn confirmed_grant_outlives_an_undone_earlier_one() {
        let mut pending = PendingGrants::default();
        let mark = |id| RequestMark::after(None, Some(id), crate::request::Verb::Acquire);
        for (ticket, id) in [(1, 5), (2, 6), (3, 7)] {
            pending.add(NAME, 7, None, PendingGrant { request: mark(id), ..grant(ticket) });
        }
        pending.confirm_ticket(2);
        assert_eq!(pending.undo(NAME, 7, 3).and_then(|undone| undone.left).and_then(|left| left.request), mark(6));
        let left = pending.undo(NAME, 7, 1).and_then(|undone| undone.left).expect("the confirmed one");
        assert_eq!((left.count, left.request), (1, mark(6)));
        assert!(pending.is_empty(), "no grant is pending");
    }
}
