//! A look at everything, a little at a time: at what a database has that was swapped, flushed or loaded, and at everything of a
//! server that was promoted. And what a server does about keys on which it decides nothing: a replica, and a master with a key
//! of a slot that another node has.

use super::Engine;
use super::transaction::At;
use crate::backlog::Sweep;
use crate::budget::{CHANGE, PARTS_PER_CHANGE};
use crate::bytes::Key;
use crate::collections::Alarm;
use crate::keyspace::{KeyId, Keyspace};
use crate::sessions::Binding;

/// What one source of the timer had to do.
pub(super) enum TimerStep {
    /// There is nothing to do now.
    Nothing,
    /// Something was done that needs no key.
    Done,
    /// There is something to do about a key.
    Key(Key),
}

impl Engine {
    /// Goes on with the sweep.
    pub(super) fn sweep_on(&mut self) -> TimerStep {
        for part in 0..self.budget.parts() {
            // It stops at whatever is found: only what it has passed over counts.
            let sweep = self.backlog.sweep().cloned();
            let Some(sweep) = sweep.filter(|_| !part.is_multiple_of(PARTS_PER_CHANGE) || self.budget.take(CHANGE))
            else {
                return if part == 0 { TimerStep::Nothing } else { TimerStep::Done };
            };
            let (key, next) = match sweep {
                Sweep::Names(slot) => match self.registry.in_slot(slot) {
                    None => (None, Some(Sweep::Alarms(0))),
                    Some(name) => {
                        let behind = name.filter(|name| self.registry.is_behind(*name, &self.alarms));
                        let key = behind.and_then(|name| self.registry.key(name)).map(|key| key.to_key());
                        (key, Some(Sweep::Names(slot.saturating_add(1))))
                    }
                },
                Sweep::Alarms(slot) => match self.alarms.in_slot(slot) {
                    None => (None, Some(Sweep::Bindings(None))),
                    Some(alarm) => (self.sweep_alarm(alarm), Some(Sweep::Alarms(slot.saturating_add(1)))),
                },
                Sweep::Bindings(after) => {
                    let next = self.sessions.next_after(after.as_ref()).cloned();
                    (next.as_ref().map(|next| next.key.clone()), next.map(|next| Sweep::Bindings(Some(next))))
                }
            };
            let is_over = next.is_none();
            self.backlog.set_sweep(next);
            match key {
                Some(key) => return TimerStep::Key(key),
                None if is_over => break,
                None => {}
            }
        }
        TimerStep::Done
    }

    /// The key of an alarm whose value is behind its generation.
    fn sweep_alarm(&mut self, alarm: Alarm) -> Option<Key> {
        let reconciled_in = self.alarms.reconciled_in(alarm)?;
        let Some(key) = self.alarms.key(alarm) else {
            self.alarms.remove(alarm);
            return None;
        };
        (reconciled_in < self.alarms.generation(key.db)).then_some(key)
    }

    /// The sweep has come to a hold that is said to be bound to a connection: if it is not, that is forgotten.
    pub(super) fn verify_bindings(&mut self, at: &At<'_, '_, impl Keyspace>) {
        if let Some(Sweep::Bindings(Some(binding))) = self.backlog.sweep() {
            let Binding { client, token, key } = binding;
            if key.borrow() == at.key() && !at.clients(*token).contains(client) {
                self.sessions.unbind(binding);
            }
        }
    }

    /// The next key that a replica has been told of, for [`Engine::observe`]. What was flushed is forgotten on the way, and what
    /// is left of locks that ended all at once.
    pub fn next_to_observe(&mut self) -> Option<Key> {
        self.budget.begin_timer();
        // What is behind is so until a promotion, which sweeps again.
        while !matches!(self.sweep_on(), TimerStep::Nothing) {}
        while !matches!(self.clean_up(), TimerStep::Nothing) {}
        while self.drop_bindings() {}
        self.registry.next_dirty().or_else(|| self.next_loaded())
    }

    /// Whether a replica has yet to look at something.
    #[must_use]
    pub fn has_to_observe(&self) -> bool {
        self.has_cut_off()
            || self.backlog.sweep().is_some()
            || self.registry.has_dirty()
            || self.backlog.has_loaded()
            || self.backlog.has_leftovers()
            || self.has_retired()
            || self.sessions.has_stale()
    }

    /// Looks at a key without deciding anything, to keep its alarm: what a replica does with what it was told, and a master
    /// with a key of a slot that another node has now.
    pub fn observe(&mut self, keys: &mut impl Keyspace, id: KeyId) {
        if let Some(name) = self.registry.find(keys.key(id)) {
            // Of owners that are gone there may be very many: these are forgotten in parts.
            let parts = self.budget.parts();
            let dirty = self.registry.dirty_mut(name);
            if dirty.is_some_and(|dirty| (0..parts).all(|_| dirty.gone.pop_first().is_some())) {
                self.mark(name, |_| {});
            } else {
                self.registry.forget_dirty(name);
            }
        }
        self.set_alarm(keys, id);
        if let Some(ringing) = self.backlog.take_ringing() {
            self.alarms.forget_if_rung(ringing);
        }
    }
}
