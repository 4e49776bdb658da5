//! Server events: closed connections, and values that arrived or were removed. The server reports
//! most of them at moments when the engine must not decide. So these functions only record them;
//! the next command on the key, or the timer, processes them.

use crate::bytes::{Key, KeyRef};
use crate::collections::Alarm;
use crate::lock::Lock;
use crate::outbox::Answer;

use super::Engine;
use super::waits::PlaceAfter;
use crate::registry::Dirty;
use crate::sessions::Binding;

impl Engine {
    /// A waiter's connection closed, or another client unblocked it. It is granted nothing from now
    /// on, and its unconfirmed grants are undone. `timed_out`: it got nil.
    pub fn waiter_left(&mut self, ticket: u64, timed_out: bool) {
        let place = if timed_out { PlaceAfter::GivenUp } else { PlaceAfter::Kept };
        if self.end_wait(ticket, &Answer::Closed, place).is_none() {
            self.undo_grants(ticket);
        }
    }

    /// A connection closed. Undoes its pending grants, except those whose answer `was_sent`: the
    /// server writes answers and closes connections before it reports the end of a turn.
    pub fn client_closed(&mut self, client: u64, was_sent: impl Fn(u64) -> bool) {
        while let Some(ticket) = self.pending.first_of_client(client) {
            if was_sent(ticket) && !self.pending.is_published(ticket) {
                self.confirm_ticket(ticket);
            } else {
                self.undo_grants(ticket);
            }
        }
        self.sessions.close(client);
        self.registry.notified_mut().client_closed(client);
        self.process_some_closed();
    }

    /// Marks some of the holds that were bound to closed connections; the timer marks the rest.
    pub(super) fn process_some_closed(&mut self) {
        for _ in 0..self.budget.bindings() {
            if !self.end_next_binding() {
                return;
            }
        }
    }

    pub(super) fn end_next_binding(&mut self) -> bool {
        let Some(Binding { client, token, key }) = self.sessions.next_closed() else {
            return false;
        };
        let name = self.intern(key.borrow());
        self.mark(name, |dirty| dirty.unbound.push((token, client)));
        true
    }

    /// Whether a blocked connection has an unconfirmed grant under a ticket for which `is_answered`
    /// is true.
    #[must_use]
    pub fn may_have_told(&self, client: u64, is_answered: impl Fn(u64) -> bool) -> bool {
        self.pending.of_client(client).any(|ticket| is_answered(ticket) && !self.pending.is_published(ticket))
    }

    /// Whether closing a connection would change anything.
    #[must_use]
    pub fn concerns_client(&self, client: u64) -> bool {
        self.pending.first_of_client(client).is_some()
            || self.sessions.concerns(client)
            || self.registry.notified().first_of(client).is_some()
    }

    fn mark_key(&mut self, key: KeyRef<'_>, update: impl FnOnce(&mut Dirty)) {
        let name = self.intern(key);
        self.registry.forget_holders(name);
        self.mark(name, update);
    }

    /// The value under `key` may have changed.
    pub fn value_changed(&mut self, key: KeyRef<'_>) {
        self.mark_key(key, |dirty| dirty.replaced = true);
    }

    /// A value arrived under `key` without one of our commands (RESTORE, RENAME, COPY …).
    pub fn value_arrived(&mut self, key: KeyRef<'_>) {
        self.mark_key(key, |dirty| dirty.imported = true);
    }

    /// A value was loaded. It counts as not reconciled until the first command on its key, or the
    /// timer, reconciles it.
    pub fn value_loaded(&mut self, key: Key) {
        self.backlog.push_loaded(key);
    }

    /// The value under `key`, which had this `alarm`, was removed.
    pub fn value_unlinked(&mut self, key: KeyRef<'_>, alarm: Alarm, lock: &Lock) {
        self.alarms.remove_of(alarm, key);
        if self.sessions.has_bindings() {
            for (client, token) in lock.bindings() {
                self.sessions.unbind(&Binding { client, token, key: key.to_key() });
            }
        }
        if let Some(name) = self.registry.find(key) {
            self.registry.forget_holders(name);
            self.mark(name, |dirty| dirty.replaced = true);
        }
    }

    /// All values of one database, or of all databases (`None`), were removed.
    pub fn flushed(&mut self, db: Option<u32>) {
        match db {
            Some(db) => self.alarms.flush(db),
            None => {
                self.alarms.clear();
                self.sessions.forget_bindings();
            }
        }
        self.registry.renew(|of| db.is_none_or(|db| of == db));
        self.backlog.begin_sweep(false);
    }

    /// Two databases were swapped. Waiters stay with the name, and so with their database number.
    /// The moved values count as imported: their sessions end, and their places lose their
    /// connections. Events and pending grants stay with the name, too, where they do not find the
    /// holds any longer. So a grant whose answer does not reach its waiter lasts until its lease,
    /// claim or session ends.
    pub fn swapped(&mut self, first: u32, second: u32) {
        let swapped = |db: u32| match db {
            db if db == first => second,
            db if db == second => first,
            db => db,
        };
        self.alarms.swap(swapped);
        // The sweep finds values by their alarms. A value that has just arrived has none.
        for name in self.registry.dirty_names() {
            if self.registry.dirty(name).is_some_and(|dirty| dirty.imported)
                && let Some(key) = self.registry.key(name)
            {
                self.backlog.push_loaded(key.to_key());
            }
        }
        self.backlog.swap_loaded(swapped);
        self.registry.renew(|db| swapped(db) != db);
        self.backlog.begin_sweep(false);
    }

    /// This server became a replica: no client waits here any longer. A replica ends no sessions,
    /// so it needs no bindings, and a promotion counts all earlier connections as closed.
    pub fn demoted(&mut self) {
        self.sessions.forget_bindings();
        self.registry.notified_mut().demoted();
    }

    /// This server became a master, or a load of its data set ended. Earlier connections count as
    /// closed. A master now decides what became due meanwhile.
    pub fn promoted(&mut self) {
        self.alarms.renew_all();
        self.registry.renew(|_| true);
        self.sessions.forget_bindings();
        self.registry.notified_mut().promoted();
        self.backlog.begin_sweep(false);
    }
}
