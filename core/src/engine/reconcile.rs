//! Reconciles a key, so that the next decision sees its true state: processes server events, ends
//! expired leases, and serves the queue.

use super::Engine;
use super::transaction::{At, Transaction};
use crate::keyspace::Keyspace;
use crate::kind::Kind;
use crate::registry::{NameId, Review, Stage};

impl Engine {
    /// Runs a command that competes for a lock of a kind. Removes an expired lock of another kind
    /// first.
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

    /// Runs a command that does not compete for the lock. It ignores expired leases, so they need
    /// not be removed first.
    pub(super) fn run_plain<K: Keyspace, R>(
        &mut self,
        tx: &mut Transaction<'_, K>,
        decide: impl FnOnce(&mut Self, &mut Transaction<'_, K>) -> R,
    ) -> R {
        self.budget.begin_command(tx.keys.count());
        for id in tx.ids() {
            if self.is_dirty(&mut tx.at(id)) {
                self.reconcile(&mut tx.at(id), false);
            }
        }
        let decided = decide(self, tx);
        self.close(tx);
        decided
    }

    /// Reconciles a key. `hold_ended`: the caller has just ended a hold.
    pub(super) fn reconcile(&mut self, at: &mut At<'_, '_, impl Keyspace>, hold_ended: bool) {
        if self.is_uncontended(at) {
            return;
        }
        let mut hold_ended = hold_ended;
        let changes = at.out.effects().len();
        if self.is_dirty(at) {
            hold_ended |= self.process_dirty(at);
        }
        hold_ended |= self.expire(at);
        self.drop_expired_queue(at);
        self.grant_next(at, hold_ended);
        if at.out.effects().len() != changes {
            // If the same command reopens the key, a new value without an alarm would look like an
            // import.
            self.set_alarm(at.tx.keys, at.id);
        }
    }

    /// Processes what is dirty about a key, as far as the budget goes. Returns whether an imported
    /// lease had expired.
    fn process_dirty(&mut self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        let is_behind = self.is_behind(at);
        let name = self.intern(at.key());
        let was_behind = self.registry.take_behind(name);
        let mut dirty = self.registry.take_dirty(name);
        if is_behind || was_behind || dirty.imported || dirty.replaced {
            let is_import = is_behind || dirty.imported;
            // The review of an earlier import may not have finished.
            let imported = is_import || dirty.review.is_some_and(|review| review.imported);
            dirty.review = Some(Review { stage: Stage::Unservable(None), imported });
            (dirty.imported, dirty.replaced) = (false, false);
            if is_import {
                dirty.sessions_kept.clear();
            }
            self.adopt_value(at, name, is_import);
        }
        // Undo grants first: that withdraws their SESSION before `end_sessions` applies it, and
        // returns their owners to a fair queue before `expire` removes the holds.
        self.undo(at, name, &mut dirty);
        let hold_ended = self.review(at, name, &mut dirty);
        self.end_sessions(at, &mut dirty.unbound);
        self.release_places(at, name, &mut dirty.gone);
        if dirty.has_offers_only() {
            for ticket in core::mem::take(&mut dirty.offers) {
                self.offer(at, ticket, false);
            }
        }
        self.registry.put_back(name, dirty);
        hold_ended
    }

    /// Brings the engine's records up to date with another value under a name. `is_import`: the
    /// value arrived without one of our commands.
    fn adopt_value(&mut self, at: &mut At<'_, '_, impl Keyspace>, name: NameId, is_import: bool) {
        if let Some(lock) = at.lock_mut().filter(|_| is_import) {
            lock.unbind_all();
            let alarm = lock.alarm();
            self.alarms.set_reconciled(alarm, at.key());
            // A value without an alarm gets one now, which marks it as adopted.
            self.set_alarm(at.tx.keys, at.id);
        }
        self.end_grants(at);
        self.copy_holders(at.tx.keys, at.id, name);
        // Until all waiters have their places back, no other request takes a place ahead of them.
        self.registry.set_rejoining(name, self.registry.has_kind(name, Kind::Fair));
    }
}
