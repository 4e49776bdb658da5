//! The sweep visits everything in parts: after a promotion, a load, a flush or SWAPDB what may have
//! changed, and after a pause of grants what waited for its end.

use super::Engine;
use super::job::TimerStep;
use super::transaction::At;
use crate::backlog::{Sweep, SweepAt};
use crate::budget::{CHANGE, PARTS_PER_CHANGE};
use crate::keyspace::Keyspace;
use crate::time::Now;

impl Engine {
    /// Continues the sweep.
    pub(super) fn continue_sweep(&mut self) -> TimerStep {
        for part in 0..self.budget.parts() {
            // The sweep stops at each find, so only skipped slots cost budget.
            let sweep = self.backlog.sweep().cloned();
            let Some(Sweep { at, after_pause }) =
                sweep.filter(|_| !part.is_multiple_of(PARTS_PER_CHANGE) || self.budget.take(CHANGE))
            else {
                return if part == 0 { TimerStep::Nothing } else { TimerStep::Done };
            };
            let (key, next) = match at {
                SweepAt::Names(slot) => match self.registry.in_slot(slot) {
                    None => (None, Some(SweepAt::Alarms(0))),
                    Some(name) => {
                        let is_served = |name| after_pause && self.registry.len_under(name) > 0;
                        let key = match name {
                            Some(name) if is_served(name) => {
                                // A review also finds waiters whose owner already holds the lock,
                                // anywhere in the queue.
                                self.mark(name, |dirty| dirty.replaced = true);
                                None
                            }
                            Some(name) if self.registry.is_behind(name) => self.registry.key(name),
                            _ => None,
                        };
                        (key.map(|key| key.to_key()), Some(SweepAt::Names(slot.saturating_add(1))))
                    }
                },
                SweepAt::Alarms(slot) => match self.alarms.in_slot(slot) {
                    None => (None, Some(SweepAt::Bindings(None))),
                    Some(alarm) => {
                        if after_pause {
                            self.alarms.unpark(alarm);
                        }
                        (self.alarms.visit(alarm), Some(SweepAt::Alarms(slot.saturating_add(1))))
                    }
                },
                SweepAt::Bindings(after) => {
                    let next = self.sessions.next_after(after.as_ref()).cloned();
                    (next.as_ref().map(|next| next.key.clone()), next.map(|next| SweepAt::Bindings(Some(next))))
                }
            };
            let is_finished = next.is_none();
            self.backlog.set_sweep(next.map(|at| Sweep { at, after_pause }));
            match key {
                Some(key) => return TimerStep::Job(key.into()),
                None if is_finished => break,
                None => {}
            }
        }
        TimerStep::Done
    }

    /// When the sweep has reached a binding: forgets it if the hold is not bound to that
    /// connection.
    pub(super) fn verify_bindings(&mut self, at: &At<'_, '_, impl Keyspace>) {
        if let Some(Sweep { at: SweepAt::Bindings(Some(binding)), .. }) = self.backlog.sweep()
            && binding.key.borrow() == at.key()
            && !at.clients(binding.token).contains(&binding.client)
        {
            self.sessions.unbind(binding);
        }
    }

    /// Holds may begin again: the timer serves the queues that were not served meanwhile, and does
    /// what has become due.
    pub fn grants_resumed(&mut self, now: Now) {
        self.resumed_us = now.mono_us.saturating_add(1);
        self.backlog.begin_sweep(true);
    }
}
