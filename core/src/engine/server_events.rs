//! What the server tells: connections that closed, values that came and went. Nothing is decided here, because most of it is
//! told at moments when deciding is not allowed: it is noted, and acted upon by the next command on the key or by the timer.

use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::bytes::{Key, KeyRef};
use crate::collections::Alarm;
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::Kind;

use super::connections::Binding;
use super::dirty::{Dirty, Gone, Undelivered};
use super::leases::Leases;
use super::names::NameId;
use super::state::{Engine, count};
use super::timers::Sweep;

impl Engine {
    /// A waiter's connection closed, or was unblocked by somebody: it is granted nothing from now on, and loses what it
    /// was granted without hearing of it. `gave_up` tells that it was answered nil.
    pub fn waiter_left(&mut self, ticket: u64, gave_up: bool) {
        let waiter = self.queues.get(ticket).filter(|waiter| waiter.request.kind == Kind::Fair);
        let gone = waiter.map(|waiter| Gone { owner: self.queues.owner_of(waiter).into(), gave_up });
        let Some(waiter) = self.remove(ticket) else {
            return self.take_back(ticket);
        };
        count(&mut self.stats.disconnected);
        if let Some(name) = waiter.names.first() {
            self.mark(*name, |dirty| dirty.gone.extend(gone));
        }
    }

    /// A connection closed.
    pub fn client_closed(&mut self, client: u64) {
        while let Some(ticket) = self.connections.undelivered_to(client) {
            self.connections.forget_grant(client, ticket);
            self.take_back(ticket);
        }
        self.connections.close(client);
        self.look_at_first_closed();
    }

    /// Whether the closing of a connection would change anything.
    #[must_use]
    pub fn concerns_client(&self, client: u64) -> bool {
        self.connections.concerns(client)
    }

    /// What a ticket was granted is to be taken back.
    fn take_back(&mut self, ticket: u64) {
        for (name, undelivered) in self.queues.take_undelivered(ticket) {
            if let Some(client) = undelivered.client {
                self.connections.forget_grant(client, ticket);
            }
            self.mark(name, |dirty| dirty.undelivered.push(undelivered));
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

    /// Whether there are grants that were not confirmed.
    #[must_use]
    pub fn has_undelivered_grants(&self) -> bool {
        !self.undelivered.is_empty()
    }

    /// The owner of a hold has used it: it knows of it, and of all that was granted together with it.
    pub(super) fn confirm(&mut self, name: NameId, token: u64) {
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

    /// Notes something under a name, to be acted upon.
    pub(super) fn mark(&mut self, name: NameId, note: impl FnOnce(&mut Dirty)) {
        if let Some(record) = self.queues.names.get_mut(name) {
            note(record.dirty.get_or_insert_default());
            if !record.is_listed {
                record.is_listed = true;
                self.dirty.push_back(name);
            }
        }
    }

    /// The record of a key's name, made if need be.
    pub(super) fn intern(&mut self, key: KeyRef<'_>) -> NameId {
        let generation = self.databases.generation(key.db);
        self.queues.names.intern(key, generation)
    }

    fn mark_key(&mut self, key: KeyRef<'_>, note: impl FnOnce(&mut Dirty)) {
        let name = self.intern(key);
        self.queues.forget_holders(name);
        self.mark(name, note);
    }

    /// What lies under `key` may have changed.
    pub fn value_changed(&mut self, key: KeyRef<'_>) {
        self.mark_key(key, |dirty| dirty.replaced = true);
    }

    /// A value came to `key` by other means than a command of ours (RESTORE, RENAME, COPY …).
    pub fn value_arrived(&mut self, key: KeyRef<'_>) {
        self.mark_key(key, |dirty| dirty.arrived = true);
    }

    /// A value was loaded. Until it is looked at it is behind its generation, and reconciled by the first command that meets it.
    pub fn value_loaded(&mut self, key: Key) {
        let Key { name, db } = key;
        self.loaded.push(Key { name, db: self.databases.stable(db) });
    }

    /// The value under `key` went away. `alarm` and `bindings` (connection and token) are what it had.
    pub fn value_unlinked(&mut self, key: KeyRef<'_>, alarm: Alarm, bindings: impl Iterator<Item = (u64, u64)>) {
        self.leases.remove_of(alarm, key, &self.databases);
        for (number, (client, token)) in bindings.enumerate() {
            if number >= self.work.bindings {
                // The sweep forgets the rest.
                self.sweep = Some(Sweep::default());
                break;
            }
            self.connections.unbind(&Binding { client, token, key: key.to_key() });
        }
        if let Some(name) = self.queues.names.find(key) {
            self.queues.forget_holders(name);
            self.mark(name, |dirty| dirty.replaced = true);
        }
    }

    /// Every value of a database went away, or of all of them.
    pub fn flushed(&mut self, db: Option<u32>) {
        match db {
            Some(db) => {
                self.databases.flush(db);
                self.leases.flush(self.databases.stable(db));
            }
            None => {
                self.databases.flush_all();
                self.leases = Leases::default();
                self.connections.forget_bindings();
                self.loaded.clear();
            }
        }
        self.sweep = Some(Sweep::default());
    }

    /// Two databases changed places. Waiters stay with the name, and so with the number of their database.
    pub fn swapped(&mut self, first: u32, second: u32) {
        self.databases.swap(first, second);
        let swapped = |db: u32| match db {
            db if db == first => second,
            db if db == second => first,
            db => db,
        };
        let names: SmallVec<[NameId; 4]> = self.dirty.iter().copied().collect();
        let mut told = Vec::new();
        for name in names {
            let Some(record) = self.queues.names.get_mut(name) else {
                continue;
            };
            let mut key = record.key().to_key();
            key.db = swapped(key.db);
            if key.db != record.key().db
                && let Some(dirty) = &mut record.dirty
            {
                told.push((key, dirty.take_of_value()));
            }
        }
        for (key, of_value) in told {
            let name = self.intern(key.borrow());
            self.mark(name, |dirty| dirty.merge(of_value));
        }
        for ticket in self.undelivered.clone() {
            // A generation that is behind: the name was swapped.
            self.queues.rename_undelivered(ticket, |names, key| {
                names.intern(KeyRef { db: swapped(key.db), ..key.borrow() }, 0)
            });
        }
        self.sweep = Some(Sweep::default());
    }

    /// This server became a master, or is one that has loaded its data: connections of before count as closed, and
    /// everything that became due in the meantime is decided here from now on.
    pub fn promoted(&mut self) {
        self.databases.renew_all();
        self.connections.forget_bindings();
        self.sweep = Some(Sweep::default());
    }

    /// Looks at a key without deciding anything, to keep its alarm: what a replica does with what it was told, and a master
    /// with a key of a slot that another node has now.
    pub fn observe(&mut self, keys: &mut impl Keyspace, id: KeyId) {
        if let Some(name) = self.queues.names.find(keys.key(id)) {
            if let Some(record) = self.queues.names.get_mut(name) {
                record.dirty = None;
            }
            self.queues.names.tidy(name);
        }
        self.set_alarm(keys, id);
        let ringing = self.ringing.take();
        self.forget_if_rung(ringing);
    }
}
