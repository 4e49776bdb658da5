//! What waits for the timer without a list of its own in the engine: how far a look at everything has come, and keys that are
//! left alone for a while.

use alloc::vec::Vec;

use super::connections::Binding;
use crate::bytes::Key;
use crate::time::{Now, US_PER_MS};

/// How long a key is left alone.
const POSTPONED_MS: u64 = 5;

/// A look at everything, a little at a time.
#[derive(Clone, Debug)]
pub(super) enum Sweep {
    /// The records of names, from this slot on.
    Names(u32),
    /// The alarms of values, from this slot on.
    Leases(u32),
    /// The bindings of holds to connections, after this one.
    Bindings(Option<Binding>),
}

impl Default for Sweep {
    fn default() -> Self {
        Self::Names(0)
    }
}

/// Keys about which nothing may be decided now.
#[derive(Default)]
pub(super) struct Postponed {
    keys: Vec<Key>,
    /// Those whose time has come.
    again: Vec<Key>,
    at_us: u64,
}

impl Postponed {
    /// Leaves a key alone for a while.
    pub(super) fn push(&mut self, key: Key, now: Now) {
        self.keys.push(key);
        // A cluster that is down postpones everything; then there is no hurry.
        let delay_ms = POSTPONED_MS.saturating_add(self.keys.len() as u64 / 100);
        self.at_us = now.mono_us.saturating_add(delay_ms.saturating_mul(US_PER_MS));
    }

    /// A key that was left alone for long enough.
    pub(super) fn pop(&mut self, now: Now) -> Option<Key> {
        if self.again.is_empty() && self.at_us <= now.mono_us {
            core::mem::swap(&mut self.keys, &mut self.again);
        }
        self.again.pop()
    }

    /// When the next one is due.
    pub(super) fn next_us(&self) -> Option<u64> {
        if !self.again.is_empty() {
            return Some(0);
        }
        (!self.keys.is_empty()).then_some(self.at_us)
    }
}
