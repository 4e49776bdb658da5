//! Grants to waiters that may not have been heard of: they are confirmed, or taken back.
//!
//! A blocked connection has heard of its grant when the answer was written, and who waits without one when it was published.

use super::dirty::Undelivered;
use super::positions::NameId;
use super::state::Engine;
use super::waiter::Waiter;

impl Engine {
    /// A grant is under way to its waiter.
    pub(super) fn expect_delivery(&mut self, ticket: u64, waiter: &Waiter) {
        if !self.queues.is_undelivered(ticket) {
            // A repeat has given nothing that could be taken back.
            self.queues.take_undelivered(ticket);
            return;
        }
        if let Some(client) = waiter.client {
            self.connections.grant(client, ticket);
        }
        if waiter.request.notify.is_none() {
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
    pub(super) fn confirm(&mut self, name: Option<NameId>, token: u64) {
        let Some(name) = name else {
            return;
        };
        let next = |engine: &Self| {
            let (of, ticket) =
                engine.queues.names.get(name)?.undelivered.first_from(core::ops::Bound::Included((token, 0)))?;
            (of == token).then_some(ticket)
        };
        while let Some(ticket) = next(self) {
            self.confirm_ticket(ticket);
        }
    }

    fn confirm_ticket(&mut self, ticket: u64) {
        for (name, Undelivered { client, .. }) in self.queues.take_undelivered(ticket) {
            if let Some(client) = client {
                self.connections.forget_grant(client, ticket);
            }
            self.queues.names.tidy(name);
        }
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
