//! The backlog: work that is left to the timer, because it is not allowed at the moment at which it is found, or because there is too
//! much of it for one step.
//!
//! Dirty names have a list of their own in the registry, and so have connections that closed (`sessions.rs`) and cut off waits.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::bytes::Key;
use crate::collections::{Alarm, Chunked};
use crate::lock::Leftovers;
use crate::sessions::Binding;
use crate::time::{Now, US_PER_MS};

/// How long a key is left alone.
const POSTPONED_MS: u64 = 5;

/// For how many entries room is kept in a list that is empty now.
const KEPT_ENTRIES: usize = 1024;

/// A look at everything, a little at a time.
#[derive(Clone, Debug)]
pub(crate) enum Sweep {
    /// The names, from this slot on.
    Names(u32),
    /// The alarms of values, from this slot on.
    Alarms(u32),
    /// The bindings of holds to connections, after this one.
    Bindings(Option<Binding>),
}

/// A waiter for many keys that may have all of them.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    pub(crate) ticket: u64,
    /// A hold has just ended.
    pub(crate) freed: bool,
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Backlog {
    /// Keys that were loaded and have no alarm yet, with the stable id of their database in its place.
    loaded: Chunked<Key>,
    postponed: Postponed,
    sweep: Option<Sweep>,
    /// Waiters for many keys that can have all of them, to be granted with all of them open.
    offers: VecDeque<Offer>,
    /// Tickets of waiters that may close a cycle, to be searched.
    suspects: VecDeque<u64>,
    /// What is left of locks that ended all at once.
    leftovers: Vec<(Key, Leftovers)>,
    /// The alarm that has gone off and is being worked on.
    ringing: Option<Alarm>,
}

impl Backlog {
    /// A value was loaded.
    pub(crate) fn push_loaded(&mut self, key: Key) {
        self.loaded.push(key);
    }

    pub(crate) fn next_loaded(&mut self) -> Option<Key> {
        self.loaded.pop()
    }

    pub(crate) fn has_loaded(&self) -> bool {
        !self.loaded.is_empty()
    }

    /// Leaves a key alone for a while.
    pub(crate) fn postpone(&mut self, key: Key, now: Now) {
        self.postponed.push(key, now);
    }

    /// A key that was left alone for long enough.
    pub(crate) fn next_postponed(&mut self, now: Now) -> Option<Key> {
        self.postponed.pop(now)
    }

    /// When the next postponed key is due.
    pub(crate) fn postponed_until_us(&self) -> Option<u64> {
        self.postponed.next_us()
    }

    /// Begins a look at everything.
    pub(crate) fn begin_sweep(&mut self) {
        self.sweep = Some(Sweep::Names(0));
    }

    /// Has the sweep look at all bindings: if it is on its way to them, it will.
    pub(crate) fn sweep_bindings(&mut self) {
        if !matches!(self.sweep, Some(Sweep::Names(_) | Sweep::Alarms(_))) {
            self.sweep = Some(Sweep::Bindings(None));
        }
    }

    /// How far the sweep has come, if there is one.
    pub(crate) fn sweep(&self) -> Option<&Sweep> {
        self.sweep.as_ref()
    }

    /// The sweep has come so far, or to its end.
    pub(crate) fn set_sweep(&mut self, sweep: Option<Sweep>) {
        self.sweep = sweep;
    }

    /// Offers a waiter all of its keys. A command that frees all of them comes here once for each.
    pub(crate) fn push_offer(&mut self, offer: Offer) {
        self.offers.push_back(offer);
    }

    pub(crate) fn first_offer(&self) -> Option<Offer> {
        self.offers.front().copied()
    }

    pub(crate) fn last_offer(&self) -> Option<Offer> {
        self.offers.back().copied()
    }

    pub(crate) fn pop_offer(&mut self) {
        self.offers.pop_front();
    }

    /// Adds a waiter that may close a cycle.
    pub(crate) fn push_suspect(&mut self, ticket: u64) {
        self.suspects.push_back(ticket);
    }

    /// The waiter that has been suspected longest.
    pub(crate) fn first_suspect(&self) -> Option<u64> {
        self.suspects.front().copied()
    }

    pub(crate) fn pop_suspect(&mut self) {
        self.suspects.pop_front();
        if self.suspects.is_empty() {
            self.suspects.shrink_to(KEPT_ENTRIES);
        }
    }

    /// Adds what is left of a lock.
    pub(crate) fn push_leftovers(&mut self, key: Key, leftovers: Leftovers) {
        self.leftovers.push((key, leftovers));
    }

    pub(crate) fn pop_leftovers(&mut self) -> Option<(Key, Leftovers)> {
        self.leftovers.pop()
    }

    pub(crate) fn has_leftovers(&self) -> bool {
        !self.leftovers.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn loaded(&self) -> &Chunked<Key> {
        &self.loaded
    }

    #[cfg(test)]
    pub(crate) fn offers(&self) -> &VecDeque<Offer> {
        &self.offers
    }

    #[cfg(test)]
    pub(crate) fn suspects(&self) -> &VecDeque<u64> {
        &self.suspects
    }

    #[cfg(test)]
    pub(crate) fn leftovers(&self) -> &[(Key, Leftovers)] {
        &self.leftovers
    }

    /// Notes the alarm that is being worked on.
    pub(crate) fn set_ringing(&mut self, alarm: Option<Alarm>) {
        self.ringing = alarm;
    }

    pub(crate) fn take_ringing(&mut self) -> Option<Alarm> {
        self.ringing.take()
    }
}

/// Keys about which nothing may be decided now.
#[derive(Default)]
struct Postponed {
    keys: Chunked<Key>,
    /// When the first of `keys` was postponed. Keys that come later do not delay it.
    since_us: u64,
    /// Those whose time has come.
    again: Chunked<Key>,
}

impl Postponed {
    /// Leaves a key alone for a while.
    fn push(&mut self, key: Key, now: Now) {
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
    fn pop(&mut self, now: Now) -> Option<Key> {
        if self.again.is_empty() && self.due_us() <= now.mono_us {
            core::mem::swap(&mut self.keys, &mut self.again);
        }
        self.again.pop()
    }

    /// When the next one is due.
    fn next_us(&self) -> Option<u64> {
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
