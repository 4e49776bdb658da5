//! The registry: which requests wait, under which key names, of which owners, and what is known of those names.
//!
//! Waiters belong to key *names*: they survive the deletion of a key. Each has a position of the whole server, which is
//! the same in the queue of every name that it waits under, so requests for many keys meet in one order everywhere; and a
//! ticket, which identifies the request when it is answered. A retry of the same numbered request takes over its place: rank and
//! arrival number stay, the ticket changes.
//!
//! Beside each queue the registry keeps the holders that it waits for: a copy of what the value says, so that the search for
//! deadlocks (`deadlock.rs`) can go from owner to owner in both directions without opening keys.
//!
//! A name is *dirty* while there is something to act upon under it (`dirty.rs`).
//!
//! Entering, leaving from anywhere and looking at the head are O(log n) in the number of waiters, for each name.
//!
//! Invariants:
//! 1. A waiter is in the queue of each of its names, and once for each of them among its owner's waits. An owner waits under a
//!    name with one request at most.
//! 2. A waiter has an alarm in `timeouts` exactly if its wait has a time limit.
//! 3. A notified waiter is in `notified`, under the connection that asked.
//! 4. An owner's `followed` is the number of its waits that are not the last in their queue.
//! 5. The holders of a name are those of the value under its key, unless `knows_holders` is false. Each is among its
//!    owner's holdings. There are none where nobody waits.
//! 6. A name has a record exactly as long as it has a waiter, is dirty, or has pending grants.

mod deadlock;
mod dirty;
#[cfg(test)]
mod inspection;
mod names;
mod notified;
mod owners;
mod positions;
mod waiter;

pub(crate) use self::deadlock::{Outcome, search as search_deadlock};
pub(crate) use self::dirty::{Dirty, Review, Stage};
#[cfg(test)]
pub(crate) use self::inspection::NameView;
pub(crate) use self::names::{Holder, MAX_COPIED};
pub(crate) use self::positions::{NameId, Position, Rank};
pub(crate) use self::waiter::{Entrant, RequestNames, Waiter};

use alloc::collections::VecDeque;
use core::ops::Bound;

use ahash::RandomState;

use self::names::{NameRecord, Names};
use self::notified::Notified;
use self::owners::{Holding, Owners, Wait};
use self::positions::OwnerId;
use self::waiter::until_us;
use crate::alarms::Alarms;
use crate::bytes::{Key, KeyRef, Owner};
use crate::collections::{Alarm, Deadlines, Slots, bytes_in_set};
use crate::kind::{Kind, Mode, PerKind};
use crate::outbox::Answer;
use crate::request::Channel;
use crate::time::Now;

/// A waiter that has left its queues.
pub(crate) struct Left {
    /// The waiter.
    pub(crate) waiter: Waiter,
    /// The name of its owner.
    pub(crate) owner: Owner,
}

/// See the head of this file.
pub(crate) struct Registry {
    names: Names,
    owners: Owners,
    /// By the low half of a ticket. The high half is a running number, so that no ticket is given twice.
    tickets: Slots<(u32, Waiter)>,
    last_number: u32,
    /// The slots of the tickets of waiters with a time limit.
    timeouts: Deadlines<u32>,
    notified: Notified,
    waiting: usize,
    /// The same by kind.
    of_kind: PerKind<usize>,
    /// Dirty names, in the order in which they became dirty.
    dirty: VecDeque<NameId>,
    hasher: RandomState,
}

impl Registry {
    pub(crate) fn new(hasher: &RandomState) -> Self {
        Self {
            names: Names::new(hasher.clone()),
            owners: Owners::new(hasher.clone()),
            tickets: Slots::default(),
            last_number: 0,
            timeouts: Deadlines::default(),
            notified: Notified::default(),
            waiting: 0,
            of_kind: PerKind::default(),
            dirty: VecDeque::new(),
            hasher: hasher.clone(),
        }
    }

    /// Whether there is no name.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// A number that changes whenever a name gets or loses its record.
    pub(crate) fn state(&self) -> u64 {
        self.names.state()
    }

    /// Finds the name of a key.
    pub(crate) fn find(&self, key: KeyRef<'_>) -> Option<NameId> {
        self.names.find(key)
    }

    /// Finds the name of a key or adds it. A new name is idle: see [`Registry::tidy`].
    pub(crate) fn intern(&mut self, key: KeyRef<'_>, generation: u32) -> NameId {
        self.names.intern(key, generation)
    }

    /// Forgets a name that is idle.
    pub(crate) fn tidy(&mut self, name: NameId) {
        self.names.tidy(name);
    }

    /// The key of a name.
    pub(crate) fn key(&self, name: NameId) -> Option<KeyRef<'_>> {
        self.names.get(name).map(NameRecord::key)
    }

    /// The name in a slot; `None` if there is no such slot.
    pub(crate) fn in_slot(&self, slot: u32) -> Option<Option<NameId>> {
        self.names.in_slot(slot)
    }

    /// Whether a name was last reconciled in an earlier generation of its database.
    pub(crate) fn is_behind(&self, name: NameId, alarms: &Alarms) -> bool {
        self.names.get(name).is_some_and(|record| record.generation < alarms.generation(record.key().db))
    }

    /// Notes the generation in which a name is reconciled.
    pub(crate) fn set_generation(&mut self, name: NameId, generation: u32) {
        if let Some(record) = self.names.get_mut(name) {
            record.generation = generation;
        }
    }

    /// Notes whether a name has pending grants.
    pub(crate) fn set_pending(&mut self, name: NameId, has_pending: bool) {
        if let Some(record) = self.names.get_mut(name) {
            record.has_pending = has_pending;
        }
        self.tidy(name);
    }

    /// Whether a request for a lock of a kind waits under a name.
    pub(crate) fn has_kind(&self, name: NameId, kind: Kind) -> bool {
        self.names.get(name).is_some_and(|record| record.has_kind(kind))
    }

    /// Whether a request for a lock of another kind waits under a name.
    pub(crate) fn has_other_kind(&self, name: NameId, kind: Kind) -> bool {
        self.names.get(name).is_some_and(|record| record.has_other_kind(kind))
    }

    /// Whether waiters of a fair lock have yet to get their places in the value that now lies under a name.
    pub(crate) fn is_rejoining(&self, name: NameId) -> bool {
        self.names.get(name).is_some_and(|record| record.is_rejoining)
    }

    /// Notes whether [`Registry::is_rejoining`] is true.
    pub(crate) fn set_rejoining(&mut self, name: NameId, is_rejoining: bool) {
        if let Some(record) = self.names.get_mut(name) {
            record.is_rejoining = is_rejoining;
        }
    }

    /// Makes a name dirty, or adds to what there is to act upon.
    pub(crate) fn mark(&mut self, name: NameId, note: impl FnOnce(&mut Dirty)) {
        if let Some(record) = self.names.get_mut(name) {
            note(record.dirty.get_or_insert_default());
            if !record.is_listed {
                record.is_listed = true;
                self.dirty.push_back(name);
            }
        }
    }

    /// What there is to act upon under a name.
    pub(crate) fn dirty(&self, name: NameId) -> Option<&Dirty> {
        self.names.get(name)?.dirty.as_deref()
    }

    /// The same, to change it.
    pub(crate) fn dirty_mut(&mut self, name: NameId) -> Option<&mut Dirty> {
        self.names.get_mut(name)?.dirty.as_deref_mut()
    }

    /// Takes out what there is to act upon under a name. The name stays dirty until [`Registry::put_back`], so it is not forgotten
    /// if its last waiter leaves meanwhile.
    pub(crate) fn take_dirty(&mut self, name: NameId) -> Dirty {
        let record = self.names.get_mut(name);
        record.map(|record| core::mem::take(record.dirty.get_or_insert_default().as_mut())).unwrap_or_default()
    }

    /// Ends what [`Registry::take_dirty`] began. `left` is what there is still to do; more may have been added meanwhile.
    pub(crate) fn put_back(&mut self, name: NameId, mut left: Dirty) {
        if let Some(record) = self.names.get_mut(name) {
            if let Some(added) = record.dirty.take() {
                left.merge(*added);
            }
            if !left.is_clean() {
                self.mark(name, |dirty| *dirty = left);
            }
        }
    }

    /// A name is not dirty any more.
    pub(crate) fn forget_dirty(&mut self, name: NameId) {
        if let Some(record) = self.names.get_mut(name) {
            record.dirty = None;
        }
        self.tidy(name);
    }

    /// The key of the next dirty name.
    pub(crate) fn next_dirty(&mut self) -> Option<Key> {
        while let Some(name) = self.dirty.pop_front() {
            let Some(record) = self.names.get_mut(name) else {
                continue;
            };
            record.is_listed = false;
            if record.dirty.is_some() {
                return Some(record.key().to_key());
            }
            self.tidy(name);
        }
        // There may have been an entry for each of a great many names: that memory goes back.
        self.dirty.shrink_to(KEPT_ENTRIES);
        None
    }

    /// Whether there are dirty names.
    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The dirty names.
    pub(crate) fn dirty_names(&self) -> impl Iterator<Item = NameId> {
        self.dirty.iter().copied()
    }

    /// The next request in the queue of a name.
    pub(crate) fn next_in_queue(&self, name: NameId, from: Bound<Position>) -> Option<Position> {
        self.names.next_in_queue(name, from)
    }

    /// The position of the head of the queue of a name.
    pub(crate) fn first_position(&self, name: NameId) -> Option<Position> {
        self.names.get(name)?.queue.first()
    }

    /// Notes which key a waiter for many keys lacked when it was last looked at.
    pub(crate) fn set_held_up_by(&mut self, ticket: u64, index: usize) {
        if let Some(waiter) = self.get_mut(ticket) {
            waiter.held_up_by = u32::try_from(index).unwrap_or(0);
        }
    }

    /// Notes that a waiter may close a cycle, or that it was searched. Returns whether that is new.
    pub(crate) fn set_suspected(&mut self, ticket: u64, is_suspected: bool) -> bool {
        let waiter = self.get_mut(ticket);
        waiter.is_some_and(|waiter| core::mem::replace(&mut waiter.is_suspected, is_suspected) != is_suspected)
    }

    /// Why a waiter is cut off, if it is: see `notified.rs`.
    pub(crate) fn cut_off(&self, waiter: &Waiter) -> Option<Answer> {
        self.notified.cut_off(waiter)
    }

    /// Whether a wait is over, because its time is up or the request is cut off.
    pub(crate) fn is_wait_over(&self, waiter: &Waiter, now: Now) -> bool {
        waiter.is_over(now) || self.cut_off(waiter).is_some()
    }

    /// Whether notified waiters have to be looked at: they may be cut off.
    pub(crate) fn has_cut_off(&self) -> bool {
        self.notified.has_work()
    }

    /// The next of them.
    pub(crate) fn next_cut_off(&mut self) -> Option<u64> {
        self.notified.next()
    }

    /// A connection closed: cuts off its notified waits.
    pub(crate) fn client_closed(&mut self, client: u64) {
        self.notified.client_closed(client);
    }

    /// Whether a connection has notified waits.
    pub(crate) fn waits_notified(&self, client: u64) -> bool {
        self.notified.first_of(client).is_some()
    }

    /// A channel is served by another node of the cluster: cuts off the waits whose answers belong there.
    pub(crate) fn channel_gone(&mut self, channel: Channel) {
        self.notified.channel_gone(channel);
    }

    /// The server became a replica: cuts off all notified waits.
    pub(crate) fn demoted(&mut self) {
        self.notified.demoted();
    }

    /// The server became a master: new waits are not cut off.
    pub(crate) fn promoted(&mut self) {
        self.notified.promoted();
    }

    /// How many notified waiters there are.
    pub(crate) fn notified_len(&self) -> usize {
        self.notified.len()
    }

    /// How many wait on the whole server.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    /// How many wait for locks of a kind.
    pub(crate) fn len_of(&self, kind: Kind) -> usize {
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
    pub(crate) fn enter(&mut self, entrant: Entrant<'_>, now: Now) -> u64 {
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

    /// Takes a waiter out of its queues. Its names may be idle afterwards: see [`Registry::tidy`].
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
    pub(crate) fn heap_bytes(&self) -> usize {
        // Who is alone in a queue is kept in the record of the name.
        let in_sets = self.waiting.saturating_sub(self.names.len());
        let queued = bytes_in_set::<Position>(in_sets);
        let records = self.names.heap_bytes().saturating_add(self.owners.heap_bytes());
        let tables = self.tickets.heap_bytes().saturating_add(self.timeouts.heap_bytes());
        records.saturating_add(tables).saturating_add(queued).saturating_add(self.notified.heap_bytes())
    }

    /// How many wait under a name.
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

    /// Where an owner waits under a name.
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

    /// The same, if it waits for a place on a fair lock.
    pub(crate) fn own_place(&self, owner: &[u8], name: NameId) -> Option<u64> {
        let ticket = self.own_wait(owner, name)?;
        self.get(ticket).is_some_and(|waiter| waiter.request().kind == Kind::Fair).then_some(ticket)
    }

    /// A ticket whose time is over.
    pub(crate) fn next_over(&self, now: Now) -> Option<u64> {
        let (until_us, alarm) = self.timeouts.peek()?;
        if until_us > now.mono_us {
            return None;
        }
        let (_, slot) = self.timeouts.get(alarm)?;
        self.tickets.get(*slot).map(|(number, _)| ticket_of(*slot, *number))
    }

    /// Whether there is memory to give back.
    pub(crate) fn has_retired(&self) -> bool {
        let has_slots = self.tickets.has_retired() || self.names.has_retired() || self.owners.has_retired();
        has_slots || self.timeouts.has_retired()
    }

    /// Gives some of it back.
    pub(crate) fn give_back(&mut self) {
        self.timeouts.give_back();
        self.tickets.give_back();
        self.names.give_back();
        self.owners.give_back();
    }

    /// When the next waiter gives up.
    pub(crate) fn next_timeout_us(&self) -> Option<u64> {
        self.timeouts.peek().map(|(until_us, _)| until_us)
    }

    /// Notes a holder under a name that is waited for, if there is room for it.
    pub(crate) fn set_holder(&mut self, name: NameId, owner: &[u8], token: u64, mode: Mode, deadline_us: u64) {
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

    /// Notes that a hold has ended. Returns the ticket of its owner's request under the same name, if there is one.
    pub(crate) fn remove_holder(&mut self, name: NameId, token: u64) -> Option<u64> {
        let owner = self.take_holder(name, token)?;
        let wait = self.wait_of(owner, name).map(|position| position.ticket);
        self.owners.tidy(owner);
        wait
    }

    /// Notes the new deadline of a hold.
    pub(crate) fn set_deadline(&mut self, name: NameId, token: u64, deadline_us: u64) {
        if let Some(holder) = self.names.get_mut(name).and_then(|record| record.holder_mut(token)) {
            holder.deadline_us = deadline_us;
        }
    }

    /// The copy of the holders is complete.
    pub(crate) fn set_holders_known(&mut self, name: NameId) {
        if let Some(record) = self.names.get_mut(name) {
            record.knows_holders = true;
        }
    }

    /// Whether the copy of the holders of a name is true.
    pub(crate) fn knows_holders(&self, name: NameId, alarms: &Alarms) -> bool {
        let record = self.names.get(name);
        record.is_some_and(|record| record.knows_holders && !self.is_behind(name, alarms))
    }

    /// The copy of the holders of a name, in the order of their tokens.
    pub(crate) fn holders(&self, name: NameId) -> &[Holder] {
        self.names.get(name).map_or(&[], |record| &record.holders)
    }

    /// Whether the owner of a waiter has a live hold under a name.
    pub(crate) fn is_held_by_owner(&self, name: NameId, waiter: &Waiter, now: Now) -> bool {
        self.holders(name).iter().any(|holder| holder.owner == waiter.owner && holder.deadline_us > now.mono_us)
    }

    /// The owner and the token of the oldest hold under a name.
    pub(crate) fn oldest_holder(&self, name: NameId) -> Option<(&[u8], u64)> {
        let holder = self.holders(name).first()?;
        Some((self.owners.bytes(holder.owner), holder.token))
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
    pub(crate) fn forget_holders(&mut self, name: NameId) {
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

    /// Checks the invariants.
    #[cfg(test)]
    pub(crate) fn assert_consistent(&self) {
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

/// For how many entries room is kept in a list that is empty now.
const KEPT_ENTRIES: usize = 1024;

fn ticket_of(slot: u32, number: u32) -> u64 {
    (u64::from(number) << u32::BITS) | u64::from(slot)
}

/// The slot and the running number of a ticket.
fn halves(ticket: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = ticket.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

#[cfg(test)]
mod tests {
    use self::owners::OwnerRecord;
    use super::*;
    use crate::request::{Ask, Channel, Request, Verb};

    #[test]
    fn records_have_the_sizes_that_the_memory_of_a_million_waiters_rests_on() {
        let sizes = [size_of::<(u32, Waiter)>(), size_of::<OwnerRecord>(), size_of::<NameRecord>()];
        assert_eq!(sizes, [128, 80, 128]);
        assert_eq!((size_of::<Position>(), size_of::<Wait>()), (16, 24));
    }

    const MANY: u32 = 5_000;

    /// What is said of the memory of waiters, each with an owner of its own and under one of so many names, and what it takes.
    fn told_and_taken(names: u32, notify: Option<Channel>) -> (usize, usize) {
        let mut made = None;
        let taken = allocation_counter::measure(|| {
            let mut queues = Registry::new(&RandomState::with_seeds(1, 2, 3, 4));
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
