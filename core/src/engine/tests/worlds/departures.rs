//! Closed connections in a small world, and messages without a receiver.

use super::oracle::Oracle;
use super::small_world::{SmallWorld, Spec, channel, name};
use crate::outbox::{Notice, Outbox};

impl SmallWorld {
    /// Ends the turn and publishes its answers. A grant whose answer has no receiver is undone
    /// later.
    pub(super) fn publish(&mut self, is_heard: bool) -> bool {
        if self.world.unpublished.is_empty() {
            return false;
        }
        if is_heard {
            let tickets = self.world.unpublished.iter().map(|(ticket, _)| *ticket);
            let granted = tickets.flat_map(|ticket| self.world.engine.pending.holds(ticket));
            self.told.extend(granted.map(|(_, token)| *token));
        } else {
            self.lose(|_| true);
        }
        self.world.publish(is_heard);
        match &mut self.spec {
            Spec::Plain(oracles) if is_heard => oracles.iter_mut().for_each(Oracle::hear_all),
            Spec::Plain(oracles) => oracles.iter_mut().for_each(Oracle::nobody_hears),
            Spec::Fair(_) | Spec::None => {}
        }
        true
    }

    /// Closes the connection of an owner, whatever it waits for. Not possible if a wait has timed
    /// out and was not answered yet, because the time-out and the close could be processed in
    /// either order.
    pub(super) fn disconnect(&mut self, owner: u8) -> bool {
        if self.is_overdue(owner) {
            return false;
        }
        let client = self.client(owner);
        self.lose(|notice| notice.client == client);
        self.world.client_closes(client, false);
        self.end_cut_off();
        if let Spec::Plain(oracles) = &mut self.spec {
            oracles.iter_mut().for_each(|oracle| oracle.leave(owner));
        }
        true
    }

    /// Whether a wait of an owner has timed out without an answer.
    pub(super) fn is_overdue(&self, owner: u8) -> bool {
        let now_ms = self.now_ms();
        (0..self.setup.keys).any(|key| self.waiting(key, owner).is_some_and(|ticket| ticket.until_ms <= now_ms))
    }

    /// Another node takes over the slot of an owner's channel.
    pub(super) fn take_channel_away(&mut self, owner: u8) {
        self.world.engine.channel_gone(channel(owner));
        self.end_cut_off();
    }

    fn end_cut_off(&mut self) {
        while self.world.engine.has_cut_off() {
            self.world.engine.begin_turn();
            let mut out = Outbox::new(true);
            self.world.engine.end_cut_off(&mut out);
            self.world.take(&[], &out);
        }
    }

    /// Holds that began with a grant whose answer will not arrive: unless their owners use them,
    /// they end when the world has no work left.
    fn lose(&mut self, is_lost: impl Fn(&Notice) -> bool) {
        for (ticket, notice) in self.world.unpublished.iter().filter(|(_, notice)| is_lost(notice)) {
            let Some(known) = self.tickets.iter().find(|known| known.ticket == *ticket) else { continue };
            assert_eq!(notice.client, self.client(known.owner), "the connection that asked");
            let pending = self.world.engine.pending.all();
            let began = pending.filter(|(_, grant)| grant.ticket == *ticket && grant.before.is_none());
            let unknown = began.filter(|(token, _)| !self.told.contains(token));
            self.lost.extend(unknown.map(|(token, _)| (known.key, known.owner, token)));
        }
    }

    /// Checks that no owner has a grant without an answer.
    pub(super) fn check_lost(&mut self) {
        for (key, owner, token) in std::mem::take(&mut self.lost) {
            let lock = self.world.lock(&name(key));
            let is_held = lock.is_some_and(|lock| lock.hold_with_token(token).is_some());
            assert!(!is_held, "owner {owner} was granted key {key} without an answer");
        }
    }

    /// Closes the connection of an owner that waits or may not have received its grant.
    pub(super) fn leave(&mut self, key: usize, owner: u8) -> bool {
        let now_ms = self.now_ms();
        if self.waiting(key, owner).is_some_and(|ticket| ticket.until_ms <= now_ms) || !self.hang_up(key, owner) {
            return false;
        }
        match &mut self.spec {
            Spec::Plain(oracles) => oracles[key].leave(owner),
            Spec::Fair(oracles) => oracles[key].leave(owner),
            Spec::None => {}
        }
        true
    }

    /// The connection of an owner has closed: ends its wait, or undoes its unconfirmed grant.
    /// Returns whether there was either.
    pub(super) fn hang_up(&mut self, key: usize, owner: u8) -> bool {
        let unheard = self.world.engine.pending.unsent();
        let of_owner = self.tickets.iter().filter(|ticket| (ticket.key, ticket.owner) == (key, owner));
        let mut leaving: Vec<u64> =
            of_owner.map(|ticket| ticket.ticket).filter(|ticket| unheard.contains(ticket)).collect();
        leaving.extend(self.waiting(key, owner).map(|ticket| ticket.ticket));
        for ticket in &leaving {
            let number = self.world.number_of(*ticket);
            self.world.waiter_left(number, false);
        }
        !leaving.is_empty()
    }
}
