//! The backlog: work that is left to the timer, because the server does not allow it yet, or
//! because it is too much for one step.
//!
//! The registry has its own lists of dirty names and cut-off waits, and `sessions.rs` one of closed
//! connections.

use alloc::collections::VecDeque;

use crate::bytes::Key;
use crate::collections::Chunked;
use crate::sessions::Binding;
use crate::time::{Now, US_PER_MS};

/// The shortest time for which a key is postponed.
const POSTPONED_MS: u64 = 5;

/// The capacity that an empty list keeps.
const KEPT_ENTRIES: usize = 1024;

/// The progress of the sweep, which visits everything in parts.
#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    pub(crate) at: SweepAt,
    /// Also serves queues, and unparks alarms, because holds may begin again.
    pub(crate) after_pause: bool,
}

/// Where the sweep continues.
#[derive(Clone, Debug)]
pub(crate) enum SweepAt {
    /// The names, from this slot on.
    Names(u32),
    /// The alarms of values, from this slot on.
    Alarms(u32),
    /// The bindings of holds to connections, after this one.
    Bindings(Option<Binding>),
}

/// A MACQUIRE waiter whose keys are all available.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    pub(crate) ticket: u64,
    /// The offer was made in the step that ended a hold.
    pub(crate) hold_ended: bool,
}

/// See the module documentation.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Backlog {
    /// Loaded keys that have no alarm yet.
    loaded: Chunked<Key>,
    postponed: Postponed,
    sweep: Option<Sweep>,
    /// MACQUIRE waiters to grant, with all of their keys open.
    offers: VecDeque<Offer>,
    /// Tickets of waiters that may close a cycle.
    suspects: VecDeque<u64>,
}

impl Backlog {
    /// Adds the key of a loaded value.
    pub(crate) fn push_loaded(&mut self, key: Key) {
        self.loaded.push(key);
    }

    pub(crate) fn next_loaded(&mut self) -> Option<Key> {
        self.loaded.pop()
    }

    /// Loaded values have moved to other databases. Visits every loaded key.
    pub(crate) fn swap_loaded(&mut self, swapped: impl Fn(u32) -> u32) {
        self.loaded.iter_mut().for_each(|key| key.db = swapped(key.db));
    }

    pub(crate) fn has_loaded(&self) -> bool {
        !self.loaded.is_empty()
    }

    /// Postpones a key.
    pub(crate) fn postpone(&mut self, key: Key, now: Now) {
        self.postponed.push(key, now);
    }

    /// The next postponed key that is due.
    pub(crate) fn next_postponed(&mut self, now: Now) -> Option<Key> {
        self.postponed.pop(now)
    }

    /// When the next postponed key is due.
    pub(crate) fn postponed_until_us(&self) -> Option<u64> {
        self.postponed.next_us()
    }

    /// Begins a sweep of everything.
    pub(crate) fn begin_sweep(&mut self, after_pause: bool) {
        let after_pause = after_pause || self.sweep.as_ref().is_some_and(|sweep| sweep.after_pause);
        self.sweep = Some(Sweep { at: SweepAt::Names(0), after_pause });
    }

    /// The progress of the sweep, if there is one.
    pub(crate) fn sweep(&self) -> Option<&Sweep> {
        self.sweep.as_ref()
    }

    /// Sets the progress of the sweep; `None` ends it.
    pub(crate) fn set_sweep(&mut self, sweep: Option<Sweep>) {
        self.sweep = sweep;
    }

    /// Adds an offer.
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

    /// The oldest suspect.
    pub(crate) fn first_suspect(&self) -> Option<u64> {
        self.suspects.front().copied()
    }

    pub(crate) fn pop_suspect(&mut self) {
        self.suspects.pop_front();
        if self.suspects.is_empty() {
            self.suspects.shrink_to(KEPT_ENTRIES);
        }
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
}

/// Keys about which this server may not decide now, see
/// [`Engine::postpone`](crate::Engine::postpone).
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
struct Postponed {
    keys: Chunked<Key>,
    /// When the first of `keys` was postponed. The delay counts from then, also for keys added
    /// later.
    since_us: u64,
    /// Keys to retry now.
    again: Chunked<Key>,
}

impl Postponed {
    /// Postpones a key.
    fn push(&mut self, key: Key, now: Now) {
        if self.keys.is_empty() {
            self.since_us = now.mono_us;
        }
        self.keys.push(key);
    }

    /// When `keys` are due. A failed cluster postpones all keys; then the delay grows with their
    /// number.
    fn due_us(&self) -> u64 {
        let delay_ms = POSTPONED_MS.saturating_add(self.keys.len() as u64 / 100);
        self.since_us.saturating_add(delay_ms.saturating_mul(US_PER_MS))
    }

    /// The next postponed key that is due.
    fn pop(&mut self, now: Now) -> Option<Key> {
        if self.again.is_empty() && self.due_us() <= now.mono_us {
            core::mem::swap(&mut self.keys, &mut self.again);
        }
        self.again.pop()
    }

    /// When the next key is due.
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
    fn delay_grows_with_the_number_of_postponed_keys() {
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
    fn later_postponed_keys_do_not_delay_the_first() {
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
    fn postponed_keys_free_their_memory() {
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
