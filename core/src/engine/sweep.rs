//! The sweep visits everything in parts: all of a database that was swapped, flushed or loaded, and
//! all of a promoted server. This file also handles keys about which a server decides nothing: a
//! replica's keys, and a master's keys in a slot that another node serves.

use super::Engine;
use super::transaction::At;
use crate::backlog::{Resume, Sweep};
use crate::budget::{CHANGE, PARTS_PER_CHANGE};
use crate::bytes::Key;
use crate::keyspace::{KeyId, Keyspace};
use crate::sessions::Binding;
use crate::time::Now;

/// The result of one source of work.
pub(super) enum TimerStep {
    /// It has no work now.
    Nothing,
    /// It did work that needs no key.
    Done,
    /// It has work to do on this key.
    Key(Key),
}

impl Engine {
    /// Continues the sweep.
    pub(super) fn continue_sweep(&mut self) -> TimerStep {
        for part in 0..self.budget.parts() {
            // The sweep stops at each find, so only skipped slots cost budget.
            let sweep = self.backlog.sweep().cloned();
            let Some(sweep) = sweep.filter(|_| !part.is_multiple_of(PARTS_PER_CHANGE) || self.budget.take(CHANGE))
            else {
                return if part == 0 { TimerStep::Nothing } else { TimerStep::Done };
            };
            let (key, next) = match sweep {
                Sweep::Names(slot) => match self.registry.in_slot(slot) {
                    None => (None, Some(Sweep::Alarms(0))),
                    Some(name) => {
                        let behind = name.filter(|name| self.registry.is_behind(*name));
                        let key = behind.and_then(|name| self.registry.key(name)).map(|key| key.to_key());
                        (key, Some(Sweep::Names(slot.saturating_add(1))))
                    }
                },
                Sweep::Alarms(slot) => match self.alarms.in_slot(slot) {
                    None => (None, Some(Sweep::Bindings(None))),
                    Some(alarm) => (self.alarms.visit(alarm), Some(Sweep::Alarms(slot.saturating_add(1)))),
                },
                Sweep::Bindings(after) => {
                    let next = self.sessions.next_after(after.as_ref()).cloned();
                    (next.as_ref().map(|next| next.key.clone()), next.map(|next| Sweep::Bindings(Some(next))))
                }
            };
            let is_finished = next.is_none();
            self.backlog.set_sweep(next);
            match key {
                Some(key) => return TimerStep::Key(key),
                None if is_finished => break,
                None => {}
            }
        }
        TimerStep::Done
    }

    /// Holds may begin again: the timer serves the queues that were not served meanwhile, and does
    /// what has become due.
    pub fn grants_resumed(&mut self, now: Now) {
        self.resumed_us = now.mono_us.saturating_add(1);
        self.backlog.set_resume(Some(Resume::Names(0)));
    }

    /// Marks some of the names with waiters, so that their queues are served, and unparks alarms.
    pub(super) fn resume(&mut self) -> TimerStep {
        for part in 0..self.budget.parts() {
            let resume = self.backlog.resume();
            let Some(resume) = resume.filter(|_| !part.is_multiple_of(PARTS_PER_CHANGE) || self.budget.take(CHANGE))
            else {
                return if part == 0 { TimerStep::Nothing } else { TimerStep::Done };
            };
            let next = match resume {
                Resume::Names(slot) => match self.registry.in_slot(slot) {
                    None => Some(Resume::Alarms(0)),
                    Some(name) => {
                        if let Some(name) = name.filter(|name| self.registry.len_under(*name) > 0) {
                            // A review also finds waiters whose owner already holds the lock,
                            // anywhere in the queue.
                            self.mark(name, |dirty| dirty.replaced = true);
                        }
                        Some(Resume::Names(slot.saturating_add(1)))
                    }
                },
                Resume::Alarms(slot) => self.alarms.in_slot(slot).map(|alarm| {
                    self.alarms.unpark(alarm);
                    Resume::Alarms(slot.saturating_add(1))
                }),
            };
            self.backlog.set_resume(next);
        }
        TimerStep::Done
    }

    /// When the sweep has reached a binding: forgets it if the hold is not bound to that
    /// connection.
    pub(super) fn verify_bindings(&mut self, at: &At<'_, '_, impl Keyspace>) {
        if let Some(Sweep::Bindings(Some(binding))) = self.backlog.sweep() {
            let Binding { client, token, key } = binding;
            if key.borrow() == at.key() && !at.clients(*token).contains(client) {
                self.sessions.unbind(binding);
            }
        }
    }

    /// The next key for [`Engine::observe`] on a replica. Forgets flushed keys and leftovers of
    /// removed locks first.
    pub fn next_to_observe(&mut self) -> Option<Key> {
        self.budget.begin_timer();
        // A value that needs reconciling keeps its generation until a promotion, which starts
        // another sweep.
        while !matches!(self.continue_sweep(), TimerStep::Nothing) {}
        while !matches!(self.clean_up(), TimerStep::Nothing) {}
        while self.drop_bindings() {}
        self.registry.next_dirty().or_else(|| self.backlog.next_loaded())
    }

    /// Whether a replica has keys to observe.
    #[must_use]
    pub fn has_to_observe(&self) -> bool {
        self.has_work_on_replica() || self.sessions.has_stale()
    }

    /// Updates the alarm of a key without deciding anything, on a replica, or on a master for a key
    /// in a slot that another node serves.
    pub fn observe(&mut self, keys: &mut impl Keyspace, id: KeyId) {
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
        if let Some(fired) = self.backlog.take_fired() {
            self.alarms.forget_if_fired(fired);
        }
    }
}
