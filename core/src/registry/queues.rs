//! The queues of waiters.

use core::ops::Bound;

use super::Registry;
use super::owners::Wait;
use super::positions::{NameId, OwnerId, Position, Rank};
use super::waiter::{Entrant, Waiter, until_us};
use crate::bytes::Owner;
use crate::collections::Alarm;
use crate::kind::Kind;
use crate::time::Now;

/// A waiter that has left its queues.
pub(crate) struct Left {
    /// The waiter.
    pub(crate) waiter: Waiter,
    /// The name of its owner.
    pub(crate) owner: Owner,
}

impl Registry {
    /// The next request in the queue of a name.
    pub(crate) fn next_in_queue(&self, name: NameId, from: Bound<Position>) -> Option<Position> {
        self.names.next_in_queue(name, from)
    }

    /// The position of the head of the queue of a name.
    pub(crate) fn first_position(&self, name: NameId) -> Option<Position> {
        self.names.get(name)?.queue.first()
    }

    /// Sets the index of the key that was unavailable at the last check of a MACQUIRE waiter.
    pub(crate) fn set_blocked_by(&mut self, ticket: u64, index: usize) {
        if let Some(waiter) = self.get_mut(ticket) {
            waiter.blocked_by = u32::try_from(index).unwrap_or(0);
        }
    }

    /// Sets whether a waiter may close a cycle and needs a search. Returns whether that changed.
    pub(crate) fn set_suspected(&mut self, ticket: u64, is_suspected: bool) -> bool {
        let waiter = self.get_mut(ticket);
        waiter.is_some_and(|waiter| core::mem::replace(&mut waiter.is_suspected, is_suspected) != is_suspected)
    }

    /// Whether a waiter has timed out or was cut off.
    pub(crate) fn has_wait_ended(&self, waiter: &Waiter, now: Now) -> bool {
        waiter.has_timed_out(now) || self.cut_off(waiter).is_some()
    }

    /// The number of waiters on the server.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// The number of waiters for locks of a kind.
    pub(crate) fn waiting_for(&self, kind: Kind) -> usize {
        *self.of_kind.of(kind)
    }

    /// The waiter with a ticket.
    pub(crate) fn get(&self, ticket: u64) -> Option<&Waiter> {
        let (slot, number) = halves(ticket);
        self.tickets.get(slot).filter(|(known, _)| *known == number).map(|(_, waiter)| waiter)
    }

    fn get_mut(&mut self, ticket: u64) -> Option<&mut Waiter> {
        let (slot, number) = halves(ticket);
        self.tickets.get_mut(slot).filter(|(known, _)| *known == number).map(|(_, waiter)| waiter)
    }

    /// The name of a waiter's owner.
    pub(crate) fn owner_of(&self, waiter: &Waiter) -> &[u8] {
        self.owners.bytes(waiter.owner)
    }

    /// Puts a request into the queue of each of its names. Returns its ticket.
    pub(crate) fn enter(&mut self, entrant: Entrant<'_>) -> u64 {
        let Entrant { rank, arrival, request, client, .. } = entrant;
        let owner = self.owners.intern(entrant.owner);
        let names = entrant.names.clone();
        let mut waiter = Waiter::new(entrant, owner);
        waiter.term = self.notified.term();
        self.last_number = self.last_number.checked_add(1).unwrap_or(1);
        let slot = self.tickets.insert((self.last_number, waiter));
        let ticket = ticket_of(slot, self.last_number);
        self.waiting = self.waiting.saturating_add(1);
        let waiting = self.of_kind.of_mut(request.kind);
        *waiting = waiting.saturating_add(1);
        if let (Some(_), Some(client)) = (request.notify, client) {
            self.notified.enter(client, ticket);
        }
        let alarm = until_us(&request).map(|until_us| self.timeouts.insert(until_us, slot));
        let position = Position::new(rank, arrival, ticket);
        if let Some((_, waiter)) = self.tickets.get_mut(slot) {
            waiter.alarm = alarm.unwrap_or(Alarm::NONE);
        }
        for name in names {
            self.queue(name, position, owner, request.kind);
        }
        ticket
    }

    /// Removes a waiter from its queues. Its names may be idle afterwards: see [`Registry::tidy`].
    pub(crate) fn leave(&mut self, ticket: u64) -> Option<Left> {
        let owner = Owner::from(self.owner_of(self.get(ticket)?));
        let (_, waiter) = self.tickets.remove(halves(ticket).0)?;
        self.unlink(ticket, &waiter);
        self.owners.tidy(waiter.owner);
        Some(Left { waiter, owner })
    }

    /// Moves a waiter for WRITE whose owner holds READ to the head of its queues.
    pub(crate) fn upgrade(&mut self, ticket: u64) {
        let Some(waiter) = self.get_mut(ticket) else {
            return;
        };
        let (was, owner, kind) = (waiter.position(ticket), waiter.owner, waiter.request().kind);
        waiter.rank = Rank::Upgrade;
        let (is, names) = (waiter.position(ticket), waiter.names.clone());
        for name in names {
            self.unqueue(name, was, owner, kind);
            self.queue(name, is, owner, kind);
        }
    }

    /// Puts a request into the queue of a name.
    fn queue(&mut self, name: NameId, position: Position, owner: OwnerId, kind: Kind) {
        self.count_followed(name, position, owner, u32::saturating_add);
        if let Some(record) = self.names.get_mut(name) {
            record.enter(position, kind);
        }
        if let Some(record) = self.owners.get_mut(owner) {
            record.waits.insert(Wait { name, position });
        }
    }

    /// Removes a request from the queue of a name.
    fn unqueue(&mut self, name: NameId, position: Position, owner: OwnerId, kind: Kind) {
        if let Some(record) = self.owners.get_mut(owner) {
            record.waits.remove(Wait { name, position });
        }
        if let Some(record) = self.names.get_mut(name) {
            record.leave(position, kind);
        }
        self.count_followed(name, position, owner, u32::saturating_sub);
    }

    fn unlink(&mut self, ticket: u64, waiter: &Waiter) {
        self.waiting = self.waiting.saturating_sub(1);
        let waiting = self.of_kind.of_mut(waiter.request().kind);
        *waiting = waiting.saturating_sub(1);
        if waiter.alarm != Alarm::NONE {
            self.timeouts.remove(waiter.alarm);
        }
        if let (Some(_), Some(client)) = (waiter.request().notify, waiter.client()) {
            self.notified.leave(client, ticket);
        }
        let position = waiter.position(ticket);
        for name in &waiter.names {
            self.unqueue(*name, position, waiter.owner, waiter.request().kind);
            if let Some(record) = self.names.get_mut(*name)
                && record.queue.is_empty()
            {
                record.is_rejoining = false;
                self.forget_holders(*name);
            }
        }
    }

    /// Updates `followed` for a request of `owner` that enters a queue at `position`, or has left
    /// it: `count` is an addition, or a subtraction. Call this while the request is not in the
    /// queue. If the request is behind all others, the last of them gains or loses a follower;
    /// otherwise the request itself has one.
    fn count_followed(&mut self, name: NameId, position: Position, owner: OwnerId, count: fn(u32, u32) -> u32) {
        let Some(last) = self.names.get(name).and_then(|record| record.queue.last()) else {
            return;
        };
        let followed = if last < position { self.get(last.ticket).map(|waiter| waiter.owner) } else { Some(owner) };
        if let Some(record) = followed.and_then(|owner| self.owners.get_mut(owner)) {
            record.followed = count(record.followed, 1);
        }
    }

    /// The number of waiters under a name.
    pub(crate) fn len_under(&self, name: NameId) -> usize {
        self.names.get(name).map_or(0, |record| record.queue.len())
    }

    /// The head of the queue of a name.
    pub(crate) fn first(&self, name: NameId) -> Option<(u64, &Waiter)> {
        let ticket = self.names.get(name)?.queue.first()?.ticket;
        Some((ticket, self.get(ticket)?))
    }

    /// The waiters under a name, in order.
    pub(crate) fn in_order(&self, name: NameId) -> impl Iterator<Item = (u64, &Waiter)> {
        let queue = self.names.get(name).into_iter().flat_map(|record| record.queue.iter());
        queue.filter_map(|position| Some((position.ticket, self.get(position.ticket)?)))
    }

    /// The position at which an owner waits under a name.
    pub(crate) fn wait_of(&self, owner: OwnerId, name: NameId) -> Option<Position> {
        let from = Bound::Included(Wait { name, position: Position::FIRST });
        let wait = self.owners.get(owner)?.waits.first_from(from)?;
        (wait.name == name).then_some(wait.position)
    }

    /// The ticket of the request with which an owner waits under a name.
    pub(crate) fn own_wait(&self, owner: &[u8], name: NameId) -> Option<u64> {
        let owner = self.owners.find(owner)?;
        self.wait_of(owner, name).map(|position| position.ticket)
    }

    /// The same, if that request is for a fair lock.
    pub(crate) fn own_place(&self, owner: &[u8], name: NameId) -> Option<u64> {
        let ticket = self.own_wait(owner, name)?;
        self.get(ticket).is_some_and(|waiter| waiter.request().kind == Kind::Fair).then_some(ticket)
    }

    /// The ticket of a waiter that has timed out.
    pub(crate) fn next_timed_out(&self, now: Now) -> Option<u64> {
        let (until_us, alarm) = self.timeouts.peek()?;
        if until_us > now.mono_us {
            return None;
        }
        let (_, slot) = self.timeouts.get(alarm)?;
        self.tickets.get(*slot).map(|(number, _)| ticket_of(*slot, *number))
    }

    /// When the next waiter times out.
    pub(crate) fn next_timeout_us(&self) -> Option<u64> {
        self.timeouts.peek().map(|(until_us, _)| until_us)
    }
}

fn ticket_of(slot: u32, number: u32) -> u64 {
    (u64::from(number) << u32::BITS) | u64::from(slot)
}

/// The slot and the running number of a ticket.
fn halves(ticket: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = ticket.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}
