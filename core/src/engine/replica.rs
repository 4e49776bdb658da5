//! Keys about which a server decides nothing: a replica's keys, and a master's keys in a slot that
//! another node serves. It only sets their alarms, for a promotion.

use super::Engine;
use super::job::{Job, TimerStep};
use crate::keyspace::{KeyId, Keyspace};

impl Engine {
    /// The next key for [`Engine::observe`] on a replica. Forgets flushed keys first.
    pub fn next_to_observe(&mut self) -> Option<Job> {
        self.budget.begin_timer();
        // A value that needs reconciling keeps its generation until a promotion, which starts
        // another sweep.
        while !matches!(self.continue_sweep(), TimerStep::Nothing) {}
        while !matches!(self.clean_up(), TimerStep::Nothing) {}
        while self.drop_bindings() {}
        self.registry.next_dirty().or_else(|| self.backlog.next_loaded()).map(Job::from)
    }

    /// Whether a replica has keys to observe.
    #[must_use]
    pub fn has_to_observe(&self) -> bool {
        self.has_work_on_replica() || self.sessions.has_stale()
    }

    /// Updates the alarm of a key without deciding anything, on a replica, or on a master for a key
    /// in a slot that another node serves.
    pub fn observe(&mut self, keys: &mut impl Keyspace, id: KeyId, job: &Job) {
        if let Some(name) = self.registry.find(keys.key(id)) {
            // There may be very many owners, so they are forgotten in parts.
            let parts = self.budget.parts();
            let dirty = self.registry.dirty_mut(name);
            if dirty.is_some_and(|dirty| (0..parts).all(|_| dirty.gone.pop_first().is_some())) {
                self.mark(name, |_| {});
            } else {
                self.registry.forget_dirty(name);
            }
        }
        self.set_alarm(keys, id);
        if let Some(fired) = job.fired {
            self.alarms.forget_if_fired(fired);
        }
    }
}
