//! A look at everything, a little at a time: at what a database has that was swapped, flushed or loaded, and at everything of a
//! server that was promoted.

use super::backlog::Sweep;
use super::connections::Binding;
use super::state::Engine;
use super::transaction::At;
use super::work::{CHANGE, PARTS_PER_CHANGE};
use crate::bytes::Key;
use crate::collections::Alarm;
use crate::keyspace::Keyspace;
use crate::lock::admission::Value;

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
        for part in 0..self.work.parts {
            // It stops at whatever is found: only what it has passed over counts.
            if self.sweep.is_none() || (part.is_multiple_of(PARTS_PER_CHANGE) && !self.work.take(CHANGE)) {
                return if part == 0 { TimerStep::Nothing } else { TimerStep::Done };
            }
            match self.sweep.take() {
                None => break,
                Some(Sweep::Names(slot)) => match self.queues.names.in_slot(slot) {
                    None => self.sweep = Some(Sweep::Leases(0)),
                    Some(found) => {
                        self.sweep = Some(Sweep::Names(slot.saturating_add(1)));
                        let behind =
                            found.filter(|(_, record)| record.generation < self.databases.generation(record.key().db));
                        if let Some((_, record)) = behind {
                            return TimerStep::Key(record.key().to_key());
                        }
                    }
                },
                Some(Sweep::Leases(slot)) => match self.leases.in_slot(slot) {
                    None => self.sweep = Some(Sweep::Bindings(None)),
                    Some(alarm) => {
                        self.sweep = Some(Sweep::Leases(slot.saturating_add(1)));
                        if let Some(rang) = self.sweep_lease(alarm) {
                            return rang;
                        }
                    }
                },
                Some(Sweep::Bindings(after)) => {
                    if let Some(next) = self.connections.next_after(after.as_ref()).cloned() {
                        let key = next.key.clone();
                        self.sweep = Some(Sweep::Bindings(Some(next)));
                        return TimerStep::Key(key);
                    }
                }
            }
        }
        TimerStep::Done
    }

    fn sweep_lease(&mut self, alarm: Alarm) -> Option<TimerStep> {
        let reconciled_in = self.leases.reconciled_in(alarm)?;
        let Some(key) = self.leases.key(alarm, &self.databases) else {
            self.leases.remove(alarm, &self.databases);
            return None;
        };
        (reconciled_in < self.databases.generation(key.db)).then_some(TimerStep::Key(key))
    }

    /// The sweep has come to a hold that is said to be bound to a connection: if it is not, that is forgotten.
    pub(super) fn verify_bindings(&mut self, at: &At<'_, '_, impl Keyspace>) {
        let Some(Sweep::Bindings(Some(binding))) = &self.sweep else {
            return;
        };
        let Binding { client, token, key } = binding;
        let is_bound = match at.value() {
            Value::Lock(lock) => lock.clients(*token).contains(client),
            Value::Vacant | Value::Foreign => false,
        };
        if key.borrow() == at.key() && !is_bound {
            let binding = binding.clone();
            self.connections.unbind(&binding);
        }
    }
}
