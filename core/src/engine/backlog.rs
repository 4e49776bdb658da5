//! What waits for the timer without a list of its own in the engine: how far a look at everything has come, and keys that are
//! left alone for a while.

use super::connections::Binding;
use crate::bytes::Key;
use crate::collections::Chunked;
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
    keys: Chunked<Key>,
    /// When the first of `keys` was postponed. Keys that come later do not delay it.
    since_us: u64,
    /// Those whose time has come.
    again: Chunked<Key>,
}

impl Postponed {
    /// Leaves a key alone for a while.
    pub(super) fn push(&mut self, key: Key, now: Now) {
        if self.keys.is_empty() {
            self.since_us = now.mono_us;
        }
        self.keys.push(key);
    }

    /// When the keys are due that were left alone. A cluster that is down postpones everything; then there is no hurry.
    fn due_us(&self) -> u64 {
        let delay_ms = POSTPONED_MS.saturating_add(self.keys.len() as u64 / 100);
        self.since_us.saturating_add(delay_ms.saturating_mul(US_PER_MS))
    }

    /// A key that was left alone for long enough.
    pub(super) fn pop(&mut self, now: Now) -> Option<Key> {
        if self.again.is_empty() && self.due_us() <= now.mono_us {
            core::mem::swap(&mut self.keys, &mut self.again);
        }
        self.again.pop()
    }

    /// When the next one is due.
    pub(super) fn next_us(&self) -> Option<u64> {
        if !self.again.is_empty() {
            return Some(0);
        }
        (!self.keys.is_empty()).then(|| self.due_us())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::KeyRef;
    use alloc::vec::Vec;

    #[test]
    #[cfg_attr(miri, ignore = "thousands of keys")]
    fn the_more_is_postponed_the_longer_it_is_left_alone() {
        let mut postponed = Postponed::default();
        let now = Now { mono_us: 1, wall_us: 1 };
        for number in 1..=10_000_u64 {
            postponed.push(KeyRef { name: &number.to_le_bytes(), db: 0 }.to_key(), now);
            if [1, 99, 10_000].contains(&number) {
                assert_eq!(postponed.next_us(), Some(1 + (POSTPONED_MS + number / 100) * US_PER_MS));
            }
        }
    }

    #[test]
    fn keys_that_are_postponed_later_do_not_delay_the_first() {
        let mut postponed = Postponed::default();
        let mut now = Now { mono_us: 1, wall_us: 1 };
        let first = KeyRef { name: b"first", db: 0 }.to_key();
        postponed.push(first.clone(), now);
        let mut popped = Vec::new();
        for _ in 0..10 {
            now.mono_us += 4 * US_PER_MS;
            popped.extend(core::iter::from_fn(|| postponed.pop(now)));
            postponed.push(KeyRef { name: b"another", db: 0 }.to_key(), now);
        }
        assert!(popped.contains(&first), "{popped:?}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of keys")]
    fn what_was_postponed_gives_its_memory_back() {
        const KEYS: usize = 10_000;
        let mut postponed = Postponed::default();
        let mut now = Now { mono_us: 1, wall_us: 1 };
        for number in 0..KEYS {
            postponed.push(KeyRef { name: &number.to_le_bytes(), db: 0 }.to_key(), now);
        }
        now.mono_us += 1_000_000;
        assert_eq!(core::iter::from_fn(|| postponed.pop(now)).count(), KEYS);
        let bytes = postponed.keys.heap_bytes() + postponed.again.heap_bytes();
        assert!(bytes < KEYS * size_of::<Key>() / 4, "{bytes} bytes are kept");
    }
}
