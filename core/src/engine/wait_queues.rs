//! Who waits: requests by ticket, in the queue of each of their names, by owner, and by the end of their time.
//!
//! Waiters belong to key *names*: they survive the deletion of a key. Each has a position of the whole server, which is
//! the same in the queue of every name that it waits under, so requests for many keys meet in one order everywhere; and a
//! ticket, which names who is to be answered. A retry of the same numbered request takes the place over: rank and arrival
//! number stay, the ticket changes.
//!
//! Beside each queue stand the holders that it waits for: a copy of what the value says, so that the search for deadlocks
//! (`deadlock.rs`) can go from owner to owner in both directions without opening keys.
//!
//! Entering, leaving from anywhere and looking at the head are O(log n) in the number of waiters, for each name.
//!
//! Invariants:
//! 1. A waiter is in the queue of each of its names, and once for each of them among its owner's waits. An owner waits under a
//!    name with one request at most.
//! 2. A waiter has an alarm in `timeouts` exactly if it does not wait for ever.
//! 3. A waiter without a blocked connection is in `notified`, under the connection that asked.
//! 4. An owner's `followed` is the number of its waits that are not the last in their queue.
//! 5. The holders of a name are those of the value under its key, unless `knows_holders` is false. Each is among its
//!    owner's holdings. There are none where nobody waits.

use core::ops::Bound;

use ahash::RandomState;

use super::names::{Holder, MAX_COPIED, NameRecord, Names};
use super::notified::Notified;
use super::owners::{Holding, Owners, Wait};
use super::positions::{NameId, OwnerId, Position, Rank};
use super::waiter::{Entrant, Waiter, until_us};
use crate::bytes::KeyRef;
use crate::collections::{Alarm, Deadlines, Slots, bytes_in_set};
use crate::kind::{Kind, Mode, PerKind};
use crate::time::Now;

/// See the head of this file.
pub(super) struct WaitQueues {
    pub(super) names: Names,
    pub(super) owners: Owners,
    /// By the low half of a ticket. The high half is a running number, so that no ticket is given twice.
    pub(super) tickets: Slots<(u32, Waiter)>,
    last_number: u32,
    /// The slots of the tickets of those who do not wait for ever.
    timeouts: Deadlines<u32>,
    pub(super) notified: Notified,
    waiting: usize,
    /// The same by kind.
    of_kind: PerKind<usize>,
}

impl WaitQueues {
    pub(super) fn new(hasher: &RandomState) -> Self {
        Self {
            names: Names::new(hasher.clone()),
            owners: Owners::new(hasher.clone()),
            tickets: Slots::default(),
            last_number: 0,
            timeouts: Deadlines::default(),
            notified: Notified::default(),
            waiting: 0,
            of_kind: PerKind::default(),
        }
    }

    /// How many wait on the whole server.
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// How many wait for locks of a kind.
    pub(super) fn len_of(&self, kind: Kind) -> usize {
        *self.of_kind.of(kind)
    }

    /// The waiter with a ticket.
    pub(super) fn get(&self, ticket: u64) -> Option<&Waiter> {
        let (slot, number) = halves(ticket);
        self.tickets.get(slot).filter(|(known, _)| *known == number).map(|(_, waiter)| waiter)
    }

    pub(super) fn get_mut(&mut self, ticket: u64) -> Option<&mut Waiter> {
        let (slot, number) = halves(ticket);
        self.tickets.get_mut(slot).filter(|(known, _)| *known == number).map(|(_, waiter)| waiter)
    }

    /// The name of a waiter's owner.
    pub(super) fn owner_of(&self, waiter: &Waiter) -> &[u8] {
        self.owners.bytes(waiter.owner)
    }

    /// Puts a request into the queue of each of its names. Returns its ticket.
    pub(super) fn enter(&mut self, entrant: Entrant<'_>, now: Now) -> u64 {
        let Entrant { rank, arrival, request, client, .. } = entrant;
        let owner = self.owners.intern(entrant.owner);
        let names = entrant.names.clone();
        let mut waiter = Waiter::new(entrant, owner, now);
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

    /// Takes a waiter out of its queues. Its names may be idle afterwards, and so may its owner.
    pub(super) fn leave(&mut self, ticket: u64) -> Option<Waiter> {
        self.get(ticket)?;
        let (_, waiter) = self.tickets.remove(halves(ticket).0)?;
        self.unlink(ticket, &waiter);
        Some(waiter)
    }

    /// Moves a waiter for WRITE whose owner holds READ to the head of its queues.
    pub(super) fn upgrade(&mut self, ticket: u64) {
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

    /// Takes a request out of the queue of a name.
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
            if let Some(record) = self.names.get_mut(*name) {
                if record.queue.is_empty() {
                    record.is_rejoining = false;
                    self.forget_holders(*name);
                } else if record.holders.len() > MAX_COPIED {
                    self.forget_holds_of(*name, waiter.owner);
                }
            }
        }
    }

    /// Updates `followed` for a request of `owner` that enters a queue at `position`, or has left
    /// it: `count` is an addition, or a subtraction. The queue is without that request. If the
    /// request is behind all others, it follows the last of them; otherwise it is followed itself.
    fn count_followed(&mut self, name: NameId, position: Position, owner: OwnerId, count: fn(u32, u32) -> u32) {
        let Some(last) = self.names.get(name).and_then(|record| record.queue.last()) else {
            return;
        };
        let followed = if last < position { self.get(last.ticket).map(|waiter| waiter.owner) } else { Some(owner) };
        if let Some(record) = followed.and_then(|owner| self.owners.get_mut(owner)) {
            record.followed = count(record.followed, 1);
        }
    }

    /// Bytes on the heap, about: what is known without a look at each waiter.
    pub(super) fn heap_bytes(&self) -> usize {
        // Who is alone in a queue is kept in the record of the name.
        let in_sets = self.waiting.saturating_sub(self.names.len());
        let queued = bytes_in_set::<Position>(in_sets);
        let records = self.names.heap_bytes().saturating_add(self.owners.heap_bytes());
        let tables = self.tickets.heap_bytes().saturating_add(self.timeouts.heap_bytes());
        records.saturating_add(tables).saturating_add(queued).saturating_add(self.notified.heap_bytes())
    }

    /// How many wait under a name.
    pub(super) fn len_under(&self, name: NameId) -> usize {
        self.names.get(name).map_or(0, |record| record.queue.len())
    }

    /// The head of the queue of a name.
    pub(super) fn first(&self, name: NameId) -> Option<(u64, &Waiter)> {
        let ticket = self.names.get(name)?.queue.first()?.ticket;
        Some((ticket, self.get(ticket)?))
    }

    /// The waiters under a name, in order.
    pub(super) fn in_order(&self, name: NameId) -> impl Iterator<Item = (u64, &Waiter)> {
        let queue = self.names.get(name).into_iter().flat_map(|record| record.queue.iter());
        queue.filter_map(|position| Some((position.ticket, self.get(position.ticket)?)))
    }

    /// Where an owner waits under a name.
    pub(super) fn wait_of(&self, owner: OwnerId, name: NameId) -> Option<Position> {
        let from = Bound::Included(Wait { name, position: Position::FIRST });
        let wait = self.owners.get(owner)?.waits.first_from(from)?;
        (wait.name == name).then_some(wait.position)
    }

    /// The ticket of the request with which an owner waits under a name.
    pub(super) fn own_wait(&self, owner: &[u8], name: NameId) -> Option<u64> {
        let owner = self.owners.find(owner)?;
        self.wait_of(owner, name).map(|position| position.ticket)
    }

    /// The same, if it waits for a place on a fair lock.
    pub(super) fn own_place(&self, owner: &[u8], name: NameId) -> Option<u64> {
        let ticket = self.own_wait(owner, name)?;
        self.get(ticket).is_some_and(|waiter| waiter.request().kind == Kind::Fair).then_some(ticket)
    }

    /// A ticket whose time is over.
    pub(super) fn next_over(&self, now: Now) -> Option<u64> {
        let (until_us, alarm) = self.timeouts.peek()?;
        if until_us > now.mono_us {
            return None;
        }
        let (_, slot) = self.timeouts.get(alarm)?;
        self.tickets.get(*slot).map(|(number, _)| ticket_of(*slot, *number))
    }

    /// Whether there is memory to give back.
    pub(super) fn has_retired(&self) -> bool {
        let has_slots = self.tickets.has_retired() || self.names.has_retired() || self.owners.has_retired();
        has_slots || self.timeouts.has_retired()
    }

    /// Gives some of it back.
    pub(super) fn give_back(&mut self) {
        self.timeouts.give_back();
        self.tickets.give_back();
        self.names.give_back();
        self.owners.give_back();
    }

    /// When the next waiter gives up.
    pub(super) fn next_timeout_us(&self) -> Option<u64> {
        self.timeouts.peek().map(|(until_us, _)| until_us)
    }

    /// Notes a holder under a name that is waited for, if there is room for it.
    pub(super) fn set_holder(&mut self, name: NameId, owner: &[u8], token: u64, mode: Mode, deadline_us: u64) {
        let owner = self.owners.intern(owner);
        let holder = Holder { token, owner, mode, deadline_us };
        let has_room =
            |record: &NameRecord| record.has_room(false) || record.has_room(self.wait_of(owner, name).is_some());
        let has_room = self.names.get(name).is_some_and(has_room);
        let Some(record) = self.names.get_mut(name) else {
            return self.owners.tidy(owner);
        };
        match record.holders.binary_search_by_key(&token, |holder| holder.token) {
            Ok(at) => {
                if let Some(known) = record.holders.get_mut(at) {
                    *known = holder;
                }
            }
            Err(at) if has_room => record.holders.insert(at, holder),
            Err(_) => return self.owners.tidy(owner),
        }
        if let Some(record) = self.owners.get_mut(owner) {
            record.holdings.insert(Holding { name, token });
        }
    }

    /// Notes that a holder holds no longer. Returns who it was, if that one still waits somewhere or holds something.
    pub(super) fn remove_holder(&mut self, name: NameId, token: u64) -> Option<OwnerId> {
        let owner = self.take_holder(name, token)?;
        self.owners.tidy(owner);
        Some(owner)
    }

    fn take_holder(&mut self, name: NameId, token: u64) -> Option<OwnerId> {
        let record = self.names.get_mut(name)?;
        let at = record.holders.binary_search_by_key(&token, |holder| holder.token).ok()?;
        let owner = record.holders.remove(at).owner;
        if let Some(record) = self.owners.get_mut(owner) {
            record.holdings.remove(Holding { name, token });
        }
        Some(owner)
    }

    /// Takes an owner that has left a queue out of the room that is kept for holders that wait there.
    fn forget_holds_of(&mut self, name: NameId, owner: OwnerId) {
        if self.wait_of(owner, name).is_some() {
            return;
        }
        for _ in Mode::ALL {
            let from = Bound::Included(Holding { name, token: 0 });
            let holding = self.owners.get(owner).and_then(|record| record.holdings.first_from(from));
            let Some(Holding { token, .. }) = holding.filter(|holding| holding.name == name) else {
                return;
            };
            self.take_holder(name, token);
        }
    }

    /// Notes that it is not known who holds.
    pub(super) fn forget_holders(&mut self, name: NameId) {
        let Some(record) = self.names.get_mut(name) else {
            return;
        };
        record.knows_holders = false;
        for holder in core::mem::take(&mut record.holders) {
            if let Some(owner) = self.owners.get_mut(holder.owner) {
                owner.holdings.remove(Holding { name, token: holder.token });
            }
            self.owners.tidy(holder.owner);
        }
    }

    /// The record of a key's name.
    pub(super) fn record(&self, key: KeyRef<'_>) -> Option<&NameRecord> {
        self.names.get(self.names.find(key)?)
    }

    /// Checks the invariants.
    #[cfg(test)]
    pub(super) fn assert_consistent(&self) {
        let (mut in_queues, mut holders, mut waits, mut holdings) = (0, 0, 0, 0);
        for (name, record) in self.names.iter() {
            in_queues += record.queue.len();
            holders += record.holders.len();
            assert!(!record.queue.is_empty() || record.holders.is_empty());
            for position in record.queue.iter() {
                let waiter = self.get(position.ticket).expect("a waiter");
                assert!(waiter.names.contains(&name) && waiter.position(position.ticket) == position);
            }
        }
        for (id, owner) in self.owners.iter() {
            waits += owner.waits.len();
            holdings += owner.holdings.len();
            assert!(owner.waits.len() + owner.holdings.len() > 0, "an owner is here for a reason");
            let mut followed = 0;
            let names: Vec<_> = owner.waits.iter().map(|wait| wait.name).collect();
            assert!(names.is_sorted_by(|name, next| name < next), "one request under each name: {names:?}");
            for wait in owner.waits.iter() {
                assert_eq!(self.get(wait.position.ticket).expect("a waiter").owner, id);
                followed += u32::from(self.names.next_in_queue(wait.name, Bound::Excluded(wait.position)).is_some());
            }
            assert_eq!(owner.followed, followed);
        }
        let (mut waiting, mut waited_for, mut alarms) = (0, 0, 0);
        for (_, (_, waiter)) in self.tickets.iter() {
            waiting += 1;
            waited_for += waiter.names.len();
            alarms += usize::from(waiter.alarm != Alarm::NONE);
        }
        assert_eq!((waiting, alarms, holdings), (self.waiting, self.timeouts.len(), holders));
        assert_eq!((in_queues, waits), (waited_for, waited_for));
        let notified = self.tickets.iter().filter(|(_, (_, waiter))| waiter.notice().is_some());
        assert_eq!(notified.count(), self.notified.len());
    }
}

fn ticket_of(slot: u32, number: u32) -> u64 {
    (u64::from(number) << u32::BITS) | u64::from(slot)
}

/// The slot and the running number of a ticket.
pub(super) fn halves(ticket: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = ticket.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::owners::OwnerRecord;
    use crate::request::{Ask, Channel, Request, Verb};

    #[test]
    fn records_have_the_sizes_that_the_memory_of_a_million_waiters_rests_on() {
        let sizes = [size_of::<(u32, Waiter)>(), size_of::<OwnerRecord>(), size_of::<NameRecord>()];
        assert_eq!(sizes, [128, 80, 152]);
        assert_eq!((size_of::<Position>(), size_of::<Wait>()), (16, 24));
    }

    const MANY: u32 = 5_000;

    /// What is said of the memory of waiters, each with an owner of its own and under one of so many names, and what it takes.
    fn told_and_taken(names: u32, notify: Option<Channel>) -> (usize, usize) {
        let mut made = None;
        let taken = allocation_counter::measure(|| {
            let mut queues = WaitQueues::new(&RandomState::with_seeds(1, 2, 3, 4));
            for number in 0..MANY {
                let bytes = |number: u32| std::format!("{number:020}");
                let key = bytes(number % names);
                let name = queues.names.intern(KeyRef { name: key.as_bytes(), db: 0 }, 0);
                let request = Request {
                    verb: Verb::Acquire,
                    kind: Kind::Mutex,
                    mode: Mode::Exclusive,
                    count: 1,
                    lease_ms: 1,
                    request_id: Some(1),
                    session_ms: None,
                    claim_ms: None,
                    grace_ms: None,
                    is_once: false,
                    notify,
                    ask: Ask::Wait { until_us: None },
                };
                let (rank, arrival, client) = (Rank::Newcomer, u64::from(number), Some(u64::from(number)));
                let owner = bytes(number);
                let names = smallvec::smallvec![name];
                let entrant = Entrant { names, rank, arrival, owner: owner.as_bytes(), request, note: None, client };
                queues.enter(entrant, Now { mono_us: 1, wall_us: 1 });
            }
            made = Some(queues);
        });
        (made.unwrap().heap_bytes(), usize::try_from(taken.bytes_current).unwrap())
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of waiters")]
    fn what_is_said_of_the_memory_of_waiters_is_about_what_was_taken() {
        let channel = Some(Channel(core::num::NonZeroU32::MIN));
        for (names, notify) in [(1, None), (MANY, None), (MANY, channel)] {
            let (told, taken) = told_and_taken(names, notify);
            assert!(told.abs_diff(taken) * 20 <= taken, "{names} names, {notify:?}: told {told}, taken {taken}");
        }
    }
}
