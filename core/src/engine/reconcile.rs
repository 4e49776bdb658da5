//! Brings a key up to date, so that what is decided next meets its true state: acts upon what the server has told, ends
//! leases that are over, and serves the queue.

use super::dirty::{Review, Stage};
use super::positions::NameId;
use super::state::Engine;
use super::transaction::At;
use crate::keyspace::Keyspace;
use crate::kind::Kind;

impl Engine {
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
        self.drop_lapsed_queue(at);
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
        let generation = self.databases.generation(at.key().db);
        let is_behind = self.is_behind(at, generation);
        let name = self.intern(at.key());
        let Some(record) = self.queues.names.get_mut(name) else {
            return false;
        };
        let was_behind = record.generation < generation;
        record.generation = generation;
        // What is dirty is not forgotten, also if its last waiter leaves meanwhile.
        let mut dirty = core::mem::take(record.dirty.get_or_insert_default());
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
        if let Some(record) = self.queues.names.get_mut(name) {
            let come = record.dirty.take().filter(|come| !come.is_clean());
            if come.is_some() || !dirty.is_clean() {
                self.mark(name, |left| {
                    *left = *dirty;
                    left.merge(come.map(|come| *come).unwrap_or_default());
                });
            }
        }
        freed
    }

    /// Takes note of another value under a name. `has_come` tells that it came by other means than a grant.
    fn take_in(&mut self, at: &mut At<'_, '_, impl Keyspace>, name: NameId, has_come: bool) {
        let generation = self.databases.generation(at.key().db);
        if let Some(lock) = at.lock_mut().filter(|_| has_come) {
            lock.unbind_all();
            let alarm = lock.alarm();
            if self.is_alarm_of(alarm, at.key()) {
                self.leases.set_reconciled_in(alarm, generation);
            }
            // One without an alarm gets it now: that it has one says that it was taken in.
            self.set_alarm(at.tx.keys, at.id);
        }
        self.copy_holders(at.tx.keys, at.id, name);
        if let Some(record) = self.queues.names.get_mut(name) {
            // From now on until all of those who wait have their places, nobody takes one before them.
            record.is_rejoining = record.has_kind(Kind::Fair);
        }
    }
}
