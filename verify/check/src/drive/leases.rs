//! How a client uses its leases: it keeps them to the end, renews them, abandons them, or comes
//! back too late.

use std::thread;
use std::time::Duration;

use rand::Rng;

use super::wire::now_us;
use super::worker::{Wish, Worker};
use crate::history::Mode;

/// A lease that expires before its owner looks, unless it is renewed.
const RENEWED_LEASE_MS: u64 = 20;

/// By how much the work of an owner that comes back too late exceeds its lease.
const LATE_BY_MS: u64 = 15;

/// How often a client requests a lock of its own in a row.
const ASKS_ALONE: u32 = 4;

/// For how many microseconds per millisecond of its lease a lock is kept.
const MOST_OF_IT_US: u64 = 950;

impl Worker {
    /// A hold survives whatever happens to the server, for nearly all of its lease: it is acquired,
    /// looked at now and then, and released.
    pub(super) fn keep(&mut self) {
        match self.kept.take() {
            None => {
                let mut party = self.party_of(self.kept_key, Mode::Exclusive);
                if self.acquire(&mut party, Wish::TRY) {
                    self.kept = Some((party, now_us()));
                }
            }
            Some((party, since_us)) if now_us() < since_us + self.limit(Wish::TRY).lease_ms * MOST_OF_IT_US => {
                self.look(&party);
                self.kept = Some((party, since_us));
            }
            Some((party, _)) => self.release_and_remember(party, 1),
        }
    }

    /// A renewal never brings a deadline nearer.
    pub(super) fn renew_for_less(&mut self) {
        let mut party = self.party(|_| true);
        if self.acquire(&mut party, Wish::WAIT) {
            self.renew(&party, 1);
            thread::sleep(Duration::from_millis(4));
            self.look(&party);
            self.release(&party, 1, None);
        }
    }

    /// After a renewal, a hold outlasts its first lease.
    pub(super) fn renew_for_more(&mut self) {
        let mut party = self.party(|_| true);
        if self.acquire(&mut party, Wish { lease_ms: RENEWED_LEASE_MS, ..Wish::WAIT }) {
            let lease_ms = self.limit(Wish::WAIT).lease_ms;
            self.renew(&party, lease_ms);
            thread::sleep(Duration::from_millis(RENEWED_LEASE_MS + 5));
            self.look(&party);
            self.release(&party, 1, None);
        }
    }

    /// A lock that no other client requests is granted without a wait, again and again.
    pub(super) fn ask_alone(&mut self) {
        for _ in 0..ASKS_ALONE {
            let mut party = self.own_party();
            if self.acquire(&mut party, Wish::TRY) {
                self.release(&party, 1, None);
            }
        }
    }

    /// An owner is busy for longer than its lease, and then goes on as if it held.
    pub(super) fn come_back_late(&mut self) {
        let mut party = self.party(|_| true);
        let lease_ms = self.random.random_range(1..=RENEWED_LEASE_MS);
        if !self.acquire(&mut party, Wish { lease_ms, ..Wish::WAIT }) {
            return;
        }
        thread::sleep(Duration::from_millis(lease_ms + LATE_BY_MS));
        let lease_ms = self.limit(Wish::WAIT).lease_ms;
        match self.random.random_range(0..4) {
            0 => self.renew(&party, lease_ms),
            1 => self.look(&party),
            2 => {
                let is_once = self.random.random_bool(0.5);
                self.acquire(&mut party, Wish { is_once, ..Wish::TRY });
            }
            _ => {}
        }
        // It may have been granted again.
        self.release(&party, 1, None);
    }

    /// Takes a short lease and abandons it.
    pub(super) fn abandon(&mut self) {
        let mut party = self.party(|_| true);
        let lease_ms = self.random.random_range(20..150);
        self.acquire(&mut party, Wish { lease_ms, ..Wish::WAIT });
    }
}
