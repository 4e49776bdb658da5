//! What the server tells: connections that closed, values that came and went. Nothing is decided here, because most of
//! it is told at moments when deciding is not allowed; it is remembered as owed to a key, and decided when the key is
//! settled, by the next command on it or by the timer.

use crate::bytes::{Key, KeyRef};
use crate::deadlines::Alarm;
use crate::lock::Kind;

use super::databases::Databases;
use super::fresh::Fresh;
use super::{Engine, KeyId, Keyspace};

impl Engine {
    /// A waiter's connection closed, or was unblocked by somebody: it is granted nothing from now on, and loses what it
    /// was granted without hearing of it. `gave_up` tells that it was answered nil.
    pub fn waiter_left(&mut self, ticket: u64, gave_up: bool) {
        if let Some(waiter) = self.retire(ticket) {
            self.stats.disconnected = self.stats.disconnected.saturating_add(1);
            let Some(key) = waiter.keys.into_iter().next() else {
                return;
            };
            let owed = self.pending.entry(key);
            if waiter.request.kind == Kind::Fair {
                let details = owed.details();
                let gone = if gave_up { &mut details.gave_up } else { &mut details.disconnected };
                gone.push(waiter.request.owner);
            }
        } else {
            let unheard = self.fresh.take(ticket);
            self.take_back(unheard);
        }
    }

    /// A connection closed.
    pub fn client_closed(&mut self, client: u64) {
        let unheard = self.fresh.take_of_client(client);
        self.take_back(unheard);
        for (key, token) in self.sessions.close(client) {
            self.pending.entry(key).details().sessions_ended.push(token);
        }
    }

    fn take_back(&mut self, unheard: impl IntoIterator<Item = Fresh>) {
        for fresh in unheard {
            self.pending.entry(fresh.key.clone()).details().undo.push(fresh);
        }
    }

    /// The answers of the tickets for which `is_answered` holds were sent, and connections that could not take theirs
    /// were told of before: what was granted to them stays granted.
    pub fn confirm_grants(&mut self, is_answered: impl Fn(u64) -> bool) {
        self.fresh.confirm(is_answered);
    }

    /// Whether there are grants that were not confirmed.
    #[must_use]
    pub fn has_unconfirmed_grants(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// What lies under `key` may have changed, or could not be settled when it was due: it is settled when its turn
    /// comes.
    pub fn note(&mut self, key: Key) {
        self.waiters.forget_holders(key.borrow());
        self.pending.entry(key).replaced = true;
    }

    /// A value came to `key` by other means than a command of ours (RESTORE, RENAME, COPY, a load …).
    pub fn note_arrival(&mut self, key: Key) {
        self.waiters.forget_holders(key.borrow());
        self.pending.entry(key).arrived = true;
    }

    /// The value under `key` went away. `alarm` and `bound_tokens` are what it had.
    pub fn note_unlink(&mut self, key: Key, alarm: Alarm, bound_tokens: &[u64]) {
        if self.is_alarm_of(alarm, key.borrow()) {
            self.leases.remove(alarm);
        }
        for token in bound_tokens {
            self.sessions.forget_at(key.borrow(), *token);
        }
        if self.is_waited_for(key.borrow()) {
            self.note(key);
        }
    }

    /// Every value of a database went away, or of all of them.
    pub fn note_flush(&mut self, db: Option<u32>) {
        let concerned = |candidate: u32| db.is_none_or(|db| db == candidate);
        let databases = &self.databases;
        self.leases.retain(|key| !concerned(databases.current(key.db)));
        self.sessions.forget_dbs(concerned);
        self.pending.owed.retain(|key, _| !concerned(key.db));
        for key in self.waiters.keys_in(concerned) {
            self.note(key);
        }
    }

    /// Two databases changed places. Waiters stay with the name, and so with the number of their database.
    pub fn note_swap(&mut self, first: u32, second: u32) {
        let swapped = |db: u32| match db {
            db if db == first => second,
            db if db == second => first,
            db => db,
        };
        self.sessions.forget_dbs(|db| db == first || db == second);
        let sweep = self.databases.swap(first, second);
        self.sweep = Some(Databases::join(self.sweep, sweep));
        // What is owed to a value goes with it.
        for (mut key, owed) in self.pending.take_dbs(|db| db == first || db == second) {
            key.db = swapped(key.db);
            self.pending.entry(key).take_over(owed);
        }
        self.fresh.renumber(swapped);
        for key in self.waiters.keys_in(|db| db == first || db == second) {
            self.note(key);
        }
    }

    /// This server became a master, or is one that has loaded its data: connections of before count as closed, and
    /// everything that became due in the meantime is decided here from now on.
    pub fn note_promotion(&mut self) {
        // Every generation is newer than this one's, so it does what a running one has left.
        self.sweep = Some(self.databases.renew_all());
        for key in self.waiters.keys_in(|_| true) {
            self.note(key);
        }
    }

    /// Looks at a key without deciding anything, to keep its alarm: what a replica does with what it was told.
    pub fn observe(&mut self, keys: &mut impl Keyspace, id: KeyId) {
        self.pending.take(keys.key(id));
        self.set_alarm(keys, id);
    }

    /// Whether a note about `key` is waiting to be settled.
    pub(super) fn is_pending(&self, key: KeyRef<'_>) -> bool {
        !self.pending.owed.is_empty() && self.pending.owed.contains_key(&key)
    }
}
