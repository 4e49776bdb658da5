//! Pending grants: of a waiter that may not have received the answer yet.
//!
//! A pending grant is *confirmed* when the answer was sent, or when its owner uses the hold, and *undone* when the answer cannot reach
//! the waiter. Several grants of one hold may be pending together, and each of them may be confirmed or undone. So a hold is kept as its
//! terms before the first of them, and what each one adds. To undo one is to leave it out:
//!
//! ```text
//! terms of the hold = terms before + first grant + second grant + …
//! ```
//!
//! A confirmed grant becomes part of the terms before, once no earlier one is pending.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use smallvec::SmallVec;

use super::positions::NameId;
use crate::event::{Note, Phase, Terms, note_after};
use crate::request::RequestMark;

/// What a grant adds to its hold, and what it takes to undo it.
pub(super) struct PendingGrant {
    pub(super) ticket: u64,
    /// 0 if the owner held already, and the request counts nothing: `ONCE`, or one that was repeated.
    pub(super) count: u32,
    pub(super) deadline_us: u64,
    pub(super) lease_ms: u64,
    /// `REQ`.
    pub(super) request: Option<RequestMark>,
    /// `SESSION`.
    pub(super) session_ms: Option<u64>,
    /// `NOTE`.
    pub(super) note: Option<Note>,
    /// The phase of a hold that begins with it.
    pub(super) phase: Phase,
    /// The waiter's arrival number.
    pub(super) arrival: u64,
    /// `GRACE` of the place that the waiter had on a fair lock.
    pub(super) grace_ms: Option<u64>,
    pub(super) client: Option<u64>,
    /// The grant has bound the hold to the connection, and nothing that is confirmed has.
    pub(super) has_bound: bool,
    pub(super) is_confirmed: bool,
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

/// A hold with pending grants.
struct PendingHold {
    /// The terms before the first pending grant; `None` if the hold began with it.
    before: Option<Terms>,
    /// In the order in which they were made.
    grants: SmallVec<[PendingGrant; 1]>,
}

impl PendingHold {
    /// Makes the confirmed grants before the first pending one part of the terms before.
    fn fold_confirmed(&mut self) {
        while self.grants.first().is_some_and(|grant| grant.is_confirmed) {
            let grant = self.grants.remove(0);
            self.before = Some(grant.after(self.before.take()));
        }
    }

    fn confirm(&mut self, ticket: u64) {
        let Some(confirmed) = self.grants.iter_mut().find(|grant| grant.ticket == ticket) else {
            return;
        };
        confirmed.is_confirmed = true;
        let client = confirmed.client;
        for grant in self.grants.iter_mut().filter(|grant| grant.client == client) {
            grant.has_bound = false;
        }
        self.fold_confirmed();
    }

    /// Takes a grant out. What it said of the hold goes, unless a later one has said it anew.
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

/// A grant that was taken out of its hold.
pub(super) struct Undone {
    pub(super) grant: PendingGrant,
    /// The terms without it.
    pub(super) left: Option<Terms>,
    /// No later grant of the hold is there.
    pub(super) is_last: bool,
    /// The session was that of this grant.
    pub(super) ends_session: bool,
    /// The connection to which nothing else binds the hold.
    pub(super) unbinds: Option<u64>,
}

/// The holds under one name that have pending grants, by token.
#[derive(Default)]
pub(super) struct PendingHolds(BTreeMap<u64, Box<PendingHold>>);

impl PendingHolds {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a grant. `before` are the terms that the hold had, if it was there.
    pub(super) fn add(&mut self, token: u64, before: Option<Terms>, grant: PendingGrant) {
        let hold = self.0.entry(token).or_insert_with(|| Box::new(PendingHold { before, grants: SmallVec::new() }));
        hold.grants.push(grant);
    }

    /// The answer to a ticket was sent.
    pub(super) fn confirm(&mut self, token: u64, ticket: u64) {
        self.change(token, |hold| hold.confirm(ticket));
    }

    /// The owner of a hold has used it, so all of its grants are confirmed. Returns their tickets.
    pub(super) fn confirm_all(&mut self, token: u64) -> SmallVec<[u64; 1]> {
        let hold = self.0.remove(&token);
        hold.into_iter().flat_map(|hold| hold.grants).map(|grant| grant.ticket).collect()
    }

    /// Takes a grant out, if it is pending still.
    pub(super) fn undo(&mut self, token: u64, ticket: u64) -> Option<Undone> {
        self.change(token, |hold| hold.undo(ticket)).flatten()
    }

    fn change<R>(&mut self, token: u64, change: impl FnOnce(&mut PendingHold) -> R) -> Option<R> {
        let hold = self.0.get_mut(&token)?;
        let changed = change(hold);
        if hold.grants.is_empty() {
            self.0.remove(&token);
        }
        Some(changed)
    }

    /// Takes over those of another name.
    pub(super) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Option<&Terms>, &PendingGrant)> {
        let holds = self.0.iter();
        holds.flat_map(|(token, hold)| hold.grants.iter().map(|grant| (*token, hold.before.as_ref(), grant)))
    }
}

/// A ticket whose grants are pending: one for each key of its request.
#[derive(Default)]
struct PendingTicket {
    client: Option<u64>,
    /// The answer is published on a channel, and not written to the connection that asked.
    is_published: bool,
    /// The names and tokens of the holds.
    holds: SmallVec<[(NameId, u64); 1]>,
}

/// The tickets whose grants are pending.
#[derive(Default)]
pub(super) struct PendingTickets {
    tickets: BTreeMap<u64, PendingTicket>,
    /// Connections, and their tickets.
    of_clients: BTreeSet<(u64, u64)>,
    /// Tickets whose answers are written to a connection.
    written: Vec<u64>,
}

impl PendingTickets {
    /// Adds the grant of one key.
    pub(super) fn add(&mut self, ticket: u64, name: NameId, token: u64) {
        self.tickets.entry(ticket).or_default().holds.push((name, token));
    }

    /// The answer is on its way.
    pub(super) fn expect(&mut self, ticket: u64, client: Option<u64>, is_published: bool) {
        let Some(pending) = self.tickets.get_mut(&ticket) else {
            return;
        };
        (pending.client, pending.is_published) = (client, is_published);
        self.of_clients.extend(client.map(|client| (client, ticket)));
        if !is_published {
            self.written.push(ticket);
        }
    }

    /// Takes a ticket out, to confirm its grants or to undo them. Returns the names and tokens of its holds.
    pub(super) fn take(&mut self, ticket: u64) -> SmallVec<[(NameId, u64); 1]> {
        let taken = self.tickets.remove(&ticket).unwrap_or_default();
        if let Some(client) = taken.client {
            self.of_clients.remove(&(client, ticket));
        }
        taken.holds
    }

    /// Takes out the tickets whose answers were written, and for which `is_answered` holds.
    pub(super) fn take_written(&mut self, is_answered: impl Fn(u64) -> bool) -> Vec<u64> {
        self.written.extract_if(.., |ticket| is_answered(*ticket)).collect()
    }

    /// Whether there are answers of which it is not known that they were written.
    pub(super) fn has_written(&self) -> bool {
        !self.written.is_empty()
    }

    /// The tickets of a connection.
    pub(super) fn of_client(&self, client: u64) -> impl Iterator<Item = u64> {
        self.of_clients.range((client, 0)..=(client, u64::MAX)).map(|(_, ticket)| *ticket)
    }

    pub(super) fn first_of_client(&self, client: u64) -> Option<u64> {
        self.of_client(client).next()
    }

    pub(super) fn is_published(&self, ticket: u64) -> bool {
        self.tickets.get(&ticket).is_some_and(|pending| pending.is_published)
    }

    /// The names of all.
    pub(super) fn names(&self) -> impl Iterator<Item = NameId> {
        self.tickets.values().flat_map(|pending| &pending.holds).map(|(name, _)| *name)
    }

    /// Holds lie under other names.
    pub(super) fn rename(&mut self, other: impl Fn(NameId) -> NameId) {
        for (name, _) in self.tickets.values_mut().flat_map(|pending| &mut pending.holds) {
            *name = other(*name);
        }
    }

    /// The names and tokens of the holds of a ticket.
    #[cfg(test)]
    pub(super) fn holds(&self, ticket: u64) -> impl Iterator<Item = &(NameId, u64)> {
        self.tickets.get(&ticket).into_iter().flat_map(|pending| &pending.holds)
    }

    #[cfg(test)]
    pub(super) fn written(&self) -> &[u64] {
        &self.written
    }
}
