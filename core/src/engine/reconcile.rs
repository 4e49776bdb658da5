//! Brings a key up to date, so that what is decided next meets its true state: acts upon what the server has told, ends
//! leases that are over, and serves the queue.

use super::Engine;
use super::transaction::{At, Transaction};
use crate::keyspace::Keyspace;
use crate::kind::Kind;
use crate::lock::admission::Value;
use crate::registry::{NameId, Review, Stage};

impl Engine {
    /// Runs a command that competes for a lock of a kind. What is left of a lock that is over goes, so that one of another kind
    /// can come.
    pub(super) fn run_competing<K: Keyspace, R>(
        &mut self,
        tx: &mut Transaction<'_, K>,
        kind: Kind,
        decide: impl FnOnce(&mut Self, &mut Transaction<'_, K>) -> R,
    ) -> R {
        self.budget.begin_command(tx.keys.count());
        for id in tx.ids() {
            self.reconcile(&mut tx.at(id), false);
            self.make_room(&mut tx.at(id), kind);
        }
        let decided = decide(self, tx);
        self.close(tx);
        decided
    }

    /// Runs a command that does not compete for the lock: to it a lease that ended is just not there, and need not be removed first.
    pub(super) fn run_plain<K: Keyspace, R>(
        &mut self,
        tx: &mut Transaction<'_, K>,
        decide: impl FnOnce(&mut Self, &mut Transaction<'_, K>) -> R,
    ) -> R {
        self.budget.begin_command(tx.keys.count());
        for id in tx.ids() {
            self.reconcile_if_dirty(&mut tx.at(id));
        }
        let decided = decide(self, tx);
        self.close(tx);
        decided
    }

    /// Whether there is plainly nothing to do about a key: the common case of a lock that nobody waits for.
    pub(super) fn is_at_rest(&self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        if self.name(at).is_some() {
            return false;
        }
        match at.value() {
            Value::Vacant | Value::Foreign => true,
            Value::Lock(lock) => {
                let is_due = lock.next_deadline_us().is_some_and(|due_us| due_us <= at.now.mono_us);
                !is_due && lock.queue().is_none() && !self.is_behind(at)
            }
        }
    }

    /// Whether the server has told something about a key, or about all keys of its database, that was not acted upon.
    pub(super) fn is_dirty(&self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        let name = self.name(at);
        name.is_some_and(|name| self.registry.dirty(name).is_some() || self.registry.is_behind(name, &self.alarms))
            || self.is_behind(at)
    }

    /// The same, except for waiters that are offered their keys again, which say nothing about the holders.
    pub(super) fn is_unsettled(&self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        let is_unsettled = |name| {
            let dirty = self.registry.dirty(name);
            dirty.is_some_and(|dirty| !dirty.has_offers_only()) || self.registry.is_behind(name, &self.alarms)
        };
        self.name(at).is_some_and(is_unsettled) || self.is_behind(at)
    }

    /// Whether a value was last reconciled in an earlier generation, or never. One without a deadline has nothing that could be.
    fn is_behind(&self, at: &At<'_, '_, impl Keyspace>) -> bool {
        let Some(lock) = at.lock() else {
            return false;
        };
        let reconciled_in = self.alarms.reconciled_in_of(lock.alarm(), at.key()).unwrap_or(0);
        reconciled_in < self.alarms.generation(at.key().db) && lock.next_deadline_us().is_some()
    }

    /// Brings a key up to date. `freed` tells that the caller has just ended a hold.
    pub(super) fn reconcile(&mut self, at: &mut At<'_, '_, impl Keyspace>, freed: bool) {
        if self.is_at_rest(at) {
            return;
        }
        let mut freed = freed;
        let changes = at.out.effects().len();
        if self.is_dirty(at) {
            freed |= self.act(at);
        }
        freed |= self.expire(at);
        self.drop_expired_queue(at);
        self.grant_next(at, freed);
        if at.out.effects().len() != changes {
            // A value that was made here and has no alarm would be taken for one that arrived, if the same command comes here
            // again.
            self.set_alarm(at.tx.keys, at.id);
        }
    }

    /// Brings a key up to date if the server has told something about it. What commands do that do not compete for the lock:
    /// to them a lease that ended is just not there, and the queue can wait for the timer.
    pub(super) fn reconcile_if_dirty(&mut self, at: &mut At<'_, '_, impl Keyspace>) {
        if self.is_dirty(at) {
            self.reconcile(at, false);
        }
    }

    /// Acts upon what the server has told of a key, as far as the allowance goes. Returns whether a lease of what came was over.
    fn act(&mut self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        let generation = self.alarms.generation(at.key().db);
        let is_behind = self.is_behind(at);
        let name = self.intern(at.key());
        let was_behind = self.registry.is_behind(name, &self.alarms);
        self.registry.set_generation(name, generation);
        let mut dirty = self.registry.take_dirty(name);
        if is_behind || was_behind || dirty.arrived || dirty.replaced {
            let has_come = is_behind || dirty.arrived;
            // A look at one that came before may not have been at its end.
            let arrived = has_come || dirty.review.is_some_and(|review| review.arrived);
            dirty.review = Some(Review { stage: Stage::Misfits(None), arrived });
            (dirty.arrived, dirty.replaced) = (false, false);
            if has_come {
                dirty.sessions_kept.clear();
            }
            self.take_in(at, name, has_come);
        }
        // First: a grant that is taken back takes its SESSION along, and leaves its owner a place, also if its lease is over by now.
        self.undo(at, name, &mut dirty);
        let freed = self.review(at, name, &mut dirty);
        self.end_sessions(at, &mut dirty.unbound);
        self.release_places(at, name, &mut dirty.gone);
        if dirty.has_offers_only() {
            for ticket in core::mem::take(&mut dirty.offers) {
                self.offer(at, ticket, false);
            }
        }
        self.registry.put_back(name, dirty);
        freed
    }

    /// Takes note of another value under a name. `has_come` tells that it came by other means than a grant.
    fn take_in(&mut self, at: &mut At<'_, '_, impl Keyspace>, name: NameId, has_come: bool) {
        let generation = self.alarms.generation(at.key().db);
        if let Some(lock) = at.lock_mut().filter(|_| has_come) {
            lock.unbind_all();
            let alarm = lock.alarm();
            if self.alarms.is_of(alarm, at.key()) {
                self.alarms.set_reconciled_in(alarm, generation);
            }
            // One without an alarm gets it now: that it has one says that it was taken in.
            self.set_alarm(at.tx.keys, at.id);
        }
        self.copy_holders(at.tx.keys, at.id, name);
        // From now on until all of those who wait have their places, nobody takes one before them.
        self.registry.set_rejoining(name, self.registry.has_kind(name, Kind::Fair));
    }
}
