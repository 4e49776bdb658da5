//! What is due: keys that the server told something about, leases, waiters, and the sweep over a whole database.

use crate::bytes::Key;
use crate::lock::Kind;
use crate::outbox::{Answer, Outbox};
use crate::time::Now;

use super::Engine;

/// How many alarms the sweep passes over at once.
const SLOTS_AT_ONCE: usize = 1000;

impl Engine {
    /// The next key with something to settle: noted ones first, then those with a deadline that is due. Waiters whose
    /// time is over are answered on the way.
    pub fn next_due(&mut self, now: Now, out: &mut Outbox) -> Option<Key> {
        if let Some(key) = self.next_pending() {
            return Some(key);
        }
        if let Some(key) = self.leases.pop_due(now.mono_us) {
            return Some(self.databases.to_current(key));
        }
        self.next_over(now, out).or_else(|| self.next_swept())
    }

    /// Answers a waiter whose time is over, and tells its key.
    fn next_over(&mut self, now: Now, out: &mut Outbox) -> Option<Key> {
        let ticket = self.waiters.next_over(now)?;
        let waiter = self.retire(ticket)?;
        self.stats.timed_out = self.stats.timed_out.saturating_add(1);
        out.answer(ticket, Answer::TimedOut);
        let key = waiter.keys.into_iter().next()?;
        if waiter.request.kind == Kind::Fair {
            self.pending.entry(key.clone()).details().gave_up.push(waiter.request.owner);
        }
        Some(key)
    }

    /// The next key of the sweep over all values with an alarm. `None` does not mean that it is at its end.
    fn next_swept(&mut self) -> Option<Key> {
        let sweep = self.sweep.as_mut()?;
        for _ in 0..SLOTS_AT_ONCE {
            let Some(slot) = self.leases.slot_value(sweep.slot) else {
                self.sweep = None;
                return None;
            };
            sweep.slot = sweep.slot.saturating_add(1);
            if let Some(key) = slot {
                let db = self.databases.current(key.db);
                if self.databases.concerns(*sweep, db) {
                    return Some(Key { db, name: key.name.clone() });
                }
            }
        }
        None
    }

    /// The next key that the server told something about.
    pub fn next_pending(&mut self) -> Option<Key> {
        self.pending.next()
    }

    /// When there is something to do next; `None` if nothing is ever due.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        if !self.pending.order.is_empty() || self.sweep.is_some() {
            return Some(0);
        }
        let lease_us = self.leases.peek().map(|(at_us, _)| at_us);
        let wait_us = self.waiters.next_deadline_us();
        match (lease_us, wait_us) {
            (Some(lease_us), Some(wait_us)) => Some(lease_us.min(wait_us)),
            (lease_us, wait_us) => lease_us.or(wait_us),
        }
    }
}
