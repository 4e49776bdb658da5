//! Grants to waiters that may not have been heard of: they are confirmed, or taken back.
//!
//! A blocked connection has heard of its grant when the answer was written, and who waits without one when it was published.

use super::dirty::Undelivered;
use super::positions::NameId;
use super::state::{Engine, Transaction};
use super::waiter::Waiter;
use crate::keyspace::{KeyId, Keyspace};

impl Engine {
    /// A grant is under way to its waiter.
    pub(super) fn expect_delivery(&mut self, ticket: u64, waiter: &Waiter) {
        if let Some(client) = waiter.client() {
            self.connections.grant(client, ticket);
        }
        if waiter.request().notify.is_none() {
            self.undelivered.push(ticket);
        }
    }

    /// The answers of the tickets for which `is_answered` holds were sent, and connections that could not take theirs
    /// were told of before: what was granted to them stays granted.
    pub fn confirm_grants(&mut self, is_answered: impl Fn(u64) -> bool) {
        for ticket in core::mem::take(&mut self.undelivered) {
            if is_answered(ticket) {
                self.confirm_ticket(ticket);
            } else {
                self.undelivered.push(ticket);
            }
        }
    }

    /// The answer to a ticket was published to somebody: what was granted stays granted.
    pub fn published(&mut self, ticket: u64) {
        self.confirm_ticket(ticket);
    }

    /// Whether there are grants that were not confirmed.
    #[must_use]
    pub fn has_undelivered_grants(&self) -> bool {
        !self.undelivered.is_empty()
    }

    /// The owner of a hold has used it: it knows of it, and of all that was granted together with it.
    pub(super) fn confirm(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, token: u64) {
        if let Some(name) = self.name(tx, id) {
            self.confirm_under(name, token);
        }
    }

    /// [`Engine::confirm`], for a hold under a name.
    pub(super) fn confirm_under(&mut self, name: NameId, token: u64) {
        if let Some(dirty) = self.queues.names.get_mut(name).and_then(|record| record.dirty.as_mut())
            && !dirty.undelivered.is_empty()
        {
            dirty.heard.insert(token);
        }
        while let Some(ticket) = self.queues.undelivered_of(name, token) {
            self.confirm_ticket(ticket);
        }
    }

    pub(super) fn confirm_ticket(&mut self, ticket: u64) {
        for (name, grant) in self.queues.take_undelivered(ticket) {
            if let Some(client) = grant.client {
                self.connections.forget_grant(client, ticket);
            }
            self.overrule_earlier(name, &grant);
            self.queues.names.tidy(name);
        }
    }

    /// Somebody has heard of a grant: what it says of the hold stands, whatever becomes of earlier ones, and so does the hold's tie to its connection.
    fn overrule_earlier(&mut self, name: NameId, heard: &Undelivered) {
        if !self.queues.has_undelivered(name) {
            return;
        }
        self.queues.each_grant(name, heard.token, &mut [], |other| {
            if other.number < heard.number {
                other.says.request &= !heard.says.request;
                other.says.session &= !heard.says.session;
                other.says.lease &= !heard.says.lease;
            }
            other.has_bound &= other.client != heard.client;
        });
    }

    /// What a ticket was granted is to be taken back.
    pub(super) fn take_back(&mut self, ticket: u64) {
        for (name, undelivered) in self.queues.take_undelivered(ticket) {
            if let Some(client) = undelivered.client {
                self.connections.forget_grant(client, ticket);
            }
            self.mark(name, |dirty| dirty.undelivered.push(undelivered));
        }
    }
}
