//! The subscribers that wait for the answers to notified requests: a part of the [`World`].

use std::vec::Vec;

use super::keyspace::Value;
use super::world::World;
use crate::outbox::{Answer, Notice, Outbox};

impl World {
    /// Stores a grant to be published.
    pub(super) fn keep_to_publish(&mut self, ticket: u64, notice: Option<Notice>, answer: &Answer) {
        if let (Some(notice), Answer::Granted(_)) = (notice, answer) {
            self.unpublished.push((ticket, notice));
        }
    }

    /// Ends a turn and publishes its grants. `is_heard`: their channels have a subscriber.
    pub(super) fn publish(&mut self, is_heard: bool) {
        for (ticket, _) in core::mem::take(&mut self.unpublished) {
            let tells = self.engine.may_tell(ticket);
            let exists = |(_, token): &(_, u64)| {
                self.values
                    .values()
                    .any(|value| matches!(value, Value::Lock(lock) if lock.hold_with_token(*token).is_some()))
            };
            assert!(!tells || self.engine.pending.holds(ticket).all(exists), "the holds of a published grant exist");
            if is_heard {
                self.engine.confirm_ticket(ticket);
            } else {
                self.engine.nobody_listened(ticket);
            }
        }
    }

    /// Closes a connection: its unpublished grants are undone. `was_sent`: it received the answer
    /// that it waited for.
    pub(super) fn client_closes(&mut self, client: u64, was_sent: bool) {
        let (closed, open): (Vec<_>, Vec<_>) =
            core::mem::take(&mut self.unpublished).into_iter().partition(|(_, notice)| notice.client == client);
        self.unpublished = open;
        self.engine.client_closed(client, |_| was_sent);
        for (ticket, _) in closed {
            self.engine.waiter_left(ticket, false);
        }
    }

    /// The server is a replica for a moment.
    pub(super) fn demote(&mut self) {
        self.publish(true);
        self.engine.demoted();
        while self.engine.has_cut_off() {
            self.engine.begin_turn();
            let mut out = Outbox::new(true);
            self.engine.end_cut_off(&mut out);
            self.take(&[], &out);
        }
        self.engine.promoted();
    }
}
