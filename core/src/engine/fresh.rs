//! Grants that nobody may have heard of: to waiters whose answer is on its way.
//!
//! One that turns out not to be heard is taken back, with all that it changed; so each keeps what was before it.

use alloc::vec::Vec;

use ahash::RandomState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::bytes::Key;
use crate::event::Terms;

/// A grant to a waiter, under one key.
pub(super) struct Fresh {
    pub(super) ticket: u64,
    pub(super) client: Option<u64>,
    pub(super) key: Key,
    pub(super) token: u64,
    pub(super) count: u32,
    /// The waiter's arrival number.
    pub(super) arrival: u64,
    /// The terms of the hold before, if there was one, and as this grant left them.
    pub(super) before: Option<Terms>,
    pub(super) after: Option<Terms>,
    /// The grant has bound the hold to the waiter's connection, which it was not before.
    pub(super) has_bound: bool,
}

type Tickets = SmallVec<[u64; 1]>;

/// The fresh grants, by ticket. There may be many at once: a server that grants to thousands of waiters in one turn may
/// lose their connections in the next.
pub(super) struct FreshGrants {
    by_ticket: HashMap<u64, SmallVec<[Fresh; 1]>, RandomState>,
    of_client: HashMap<u64, Tickets, RandomState>,
    of_token: HashMap<u64, Tickets, RandomState>,
}

impl FreshGrants {
    pub(super) fn new(hasher: RandomState) -> Self {
        Self {
            by_ticket: HashMap::with_hasher(hasher.clone()),
            of_client: HashMap::with_hasher(hasher.clone()),
            of_token: HashMap::with_hasher(hasher),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_ticket.is_empty()
    }

    pub(super) fn has_client(&self, client: u64) -> bool {
        self.of_client.contains_key(&client)
    }

    pub(super) fn add(&mut self, fresh: Fresh) {
        self.of_token.entry(fresh.token).or_default().push(fresh.ticket);
        if let Some(client) = fresh.client {
            let tickets = self.of_client.entry(client).or_default();
            if !tickets.contains(&fresh.ticket) {
                tickets.push(fresh.ticket);
            }
        }
        self.by_ticket.entry(fresh.ticket).or_default().push(fresh);
    }

    /// Takes out what a waiter was granted.
    pub(super) fn take(&mut self, ticket: u64) -> SmallVec<[Fresh; 1]> {
        let taken = self.by_ticket.remove(&ticket).unwrap_or_default();
        for fresh in &taken {
            forget(&mut self.of_token, fresh.token, ticket);
            if let Some(client) = fresh.client {
                forget(&mut self.of_client, client, ticket);
            }
        }
        taken
    }

    /// Takes out what the waiters of a connection were granted.
    pub(super) fn take_of_client(&mut self, client: u64) -> Vec<Fresh> {
        let tickets = self.of_client.get(&client).cloned().unwrap_or_default();
        tickets.into_iter().flat_map(|ticket| self.take(ticket)).collect()
    }

    /// The owner of a hold has used it: it knows of it, and of all that was granted together with it.
    pub(super) fn touch(&mut self, token: u64) {
        if self.is_empty() {
            return;
        }
        for ticket in self.of_token.get(&token).cloned().unwrap_or_default() {
            self.take(ticket);
        }
    }

    /// The answers of the tickets for which `is_answered` holds were heard.
    pub(super) fn confirm(&mut self, is_answered: impl Fn(u64) -> bool) {
        let heard: Vec<u64> = self.by_ticket.keys().copied().filter(|ticket| is_answered(*ticket)).collect();
        for ticket in heard {
            self.take(ticket);
        }
        if self.is_empty() {
            self.by_ticket.shrink_to(KEPT_ENTRIES);
            self.of_client.shrink_to(KEPT_ENTRIES);
            self.of_token.shrink_to(KEPT_ENTRIES);
        }
    }

    /// Databases have other numbers now.
    pub(super) fn renumber(&mut self, number: impl Fn(u32) -> u32) {
        for fresh in self.by_ticket.values_mut().flatten() {
            fresh.key.db = number(fresh.key.db);
        }
    }
}

/// For how many entries room is kept.
const KEPT_ENTRIES: usize = 1024;

fn forget(tickets_of: &mut HashMap<u64, Tickets, RandomState>, number: u64, ticket: u64) {
    if let Some(tickets) = tickets_of.get_mut(&number) {
        tickets.retain(|known| *known != ticket);
        if tickets.is_empty() {
            tickets_of.remove(&number);
        }
    }
}
