//! What the server tells: connections that closed, values that came and went. Nothing is decided here, because most of it is
//! told at moments when deciding is not allowed: it is noted, and acted upon by the next command on the key or by the timer.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::bytes::{Key, KeyRef};
use crate::collections::Alarm;
use crate::lock::Lock;
use crate::outbox::Answer;

use super::backlog::Sweep;
use super::connections::Binding;
use super::dirty::Dirty;
use super::end_wait::PlaceAfter;
use super::positions::NameId;
use super::state::Engine;

impl Engine {
    /// A waiter's connection closed, or was unblocked by somebody: it is granted nothing from now on, and loses what it
    /// was granted without hearing of it. `gave_up` tells that it was answered nil.
    pub fn waiter_left(&mut self, ticket: u64, gave_up: bool) {
        let place = if gave_up { PlaceAfter::GivenUp } else { PlaceAfter::Kept };
        if self.end_wait(ticket, &Answer::Closed, place).is_none() {
            self.undo_grants(ticket);
        }
    }

    /// A connection closed. Undoes its pending grants, except those whose answer `was_sent`: the server writes answers and closes connections before
    /// it reports the end of a turn.
    pub fn client_closed(&mut self, client: u64, was_sent: impl Fn(u64) -> bool) {
        while let Some(ticket) = self.pending.first_of_client(client) {
            if was_sent(ticket) && !self.pending.is_published(ticket) {
                self.confirm_ticket(ticket);
            } else {
                self.undo_grants(ticket);
            }
        }
        self.connections.close(client);
        self.cut_off_client(client);
        self.look_at_first_closed();
    }

    /// Notes what ends with a connection that closed, of a few of its holds at once.
    pub(super) fn look_at_first_closed(&mut self) {
        for _ in 0..self.work.bindings {
            if !self.end_next_binding() {
                return;
            }
        }
    }

    pub(super) fn end_next_binding(&mut self) -> bool {
        let Some(Binding { client, token, key }) = self.connections.next_closed() else {
            return false;
        };
        let name = self.intern(key.borrow());
        self.mark(name, |dirty| dirty.unbound.push((token, client)));
        true
    }

    /// Whether a blocked connection was granted something, of which it is not confirmed that it has heard, under a ticket that `is_answered`.
    #[must_use]
    pub fn may_have_told(&self, client: u64, is_answered: impl Fn(u64) -> bool) -> bool {
        self.pending.of_client(client).any(|ticket| is_answered(ticket) && !self.pending.is_published(ticket))
    }

    /// Whether the closing of a connection would change anything.
    #[must_use]
    pub fn concerns_client(&self, client: u64) -> bool {
        self.pending.first_of_client(client).is_some()
            || self.connections.concerns(client)
            || self.queues.notified.first_of(client).is_some()
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

    /// The value under `key` went away. `alarm` is what it had.
    pub fn value_unlinked(&mut self, key: KeyRef<'_>, alarm: Alarm, lock: &Lock) {
        self.leases.remove_of(alarm, key, &self.databases);
        self.unbind_first(key, lock);
        if let Some(name) = self.queues.names.find(key) {
            self.queues.forget_holders(name);
            self.mark(name, |dirty| dirty.replaced = true);
        }
    }

    /// Forgets to which connections the holds of a lock are bound that is gone: of a few of them, and the sweep forgets the rest.
    fn unbind_first(&mut self, key: KeyRef<'_>, lock: &Lock) {
        if !self.connections.has_bindings() {
            return;
        }
        let looked_at = self.work.parts as usize;
        let mut bindings = lock.bindings_of_first(looked_at);
        for (client, token) in bindings.by_ref().take(self.work.bindings) {
            self.connections.unbind(&Binding { client, token, key: key.to_key() });
        }
        if lock.holds().len() > looked_at || bindings.next().is_some() {
            self.sweep_bindings();
        }
    }

    /// Has the sweep look at all bindings: if it is on its way to them, it will.
    fn sweep_bindings(&mut self) {
        if !matches!(self.sweep, Some(Sweep::Names(_) | Sweep::Leases(_))) {
            self.sweep = Some(Sweep::Bindings(None));
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
                self.leases.flush_all();
                self.connections.forget_bindings();
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
        let mut names: Vec<NameId> = self.dirty.iter().copied().chain(self.pending.names()).collect();
        names.sort_unstable();
        names.dedup();
        let mut moved = Vec::new();
        for name in names {
            let Some(record) = self.queues.names.get_mut(name) else {
                continue;
            };
            let mut key = record.key().to_key();
            key.db = swapped(key.db);
            if key.db != record.key().db {
                // The sweep comes to a value by its alarm, which one that has just arrived has not.
                let arrived = record.dirty.as_ref().is_some_and(|dirty| dirty.arrived);
                let of_value = record.dirty.as_mut().map(|dirty| dirty.take_of_value()).unwrap_or_default();
                moved.push((name, key, Dirty { arrived, ..of_value }, core::mem::take(&mut record.pending)));
            }
        }
        let mut renamed = BTreeMap::new();
        for (name, key, of_value, pending) in moved {
            if !of_value.is_clean() {
                let other = self.intern(key.borrow());
                self.mark(other, |dirty| dirty.merge(of_value));
            }
            if !pending.is_empty() {
                // A generation that is behind: the name was swapped.
                let other = self.queues.names.intern(key.borrow(), 0);
                if let Some(record) = self.queues.names.get_mut(other) {
                    record.pending.append(pending);
                }
                renamed.insert(name, other);
            }
        }
        self.pending.rename(|name| renamed.get(&name).copied().unwrap_or(name));
        for name in renamed.into_keys() {
            self.queues.names.tidy(name);
        }
        self.sweep = Some(Sweep::default());
    }

    /// This server became a master, or is one that has loaded its data: connections of before count as closed, and
    /// everything that became due in the meantime is decided here from now on.
    pub fn promoted(&mut self) {
        self.databases.renew_all();
        self.connections.forget_bindings();
        self.queues.notified.promoted();
        self.sweep = Some(Sweep::default());
    }
}
