//! The right to grant: a lease that the replicas give their master (`rlock.min-replicas`).
//!
//! A master that was replaced must not grant for longer than its successor waits. So a master
//! grants only for `rlock.max-replica-lag-ms` after a moment at which enough replicas followed it:
//!
//! 1. Each tick it reads the steady clock, and *then* notes the offset of its stream. Bytes beyond
//!    that offset were written after that reading, and in the current term of this master.
//! 2. It finds the newest noted offset beyond which enough replicas have acknowledged bytes. The
//!    right lasts for the lag from the time noted with that offset.
//! 3. Each step that grants or renews compares its one reading of the clock with the end of the
//!    right, see [`crate::Quarantine::may_grant`].
//!
//! The server's own `min-replicas-to-write` is no substitute. It dates an acknowledgement by the
//! moment at which the master reads it, on the wall clock. So a master that was stopped for ten
//! seconds would still grant the requests that are queued in its sockets.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// How far this master's replication stream has come, and how much of it each replica has
/// acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replication {
    /// The bytes that this server has written to its stream.
    pub offset: u64,
    /// What each replica that is online has acknowledged.
    pub acknowledged: Vec<u64>,
}

/// The readings of a tick. [`RightToGrant::on_tick`] decides in which order.
pub trait Readings {
    /// The steady clock, in microseconds.
    fn clock_us(&mut self) -> u64;
    /// The state of the replication; `None` if the server does not report it.
    fn replication(&mut self) -> Option<Replication>;
}

/// See the documentation of the file.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub struct RightToGrant {
    /// Until when this master may grant, in microseconds of the steady clock.
    pub(crate) until_us: u64,
    /// How many replicas followed at the last tick.
    following: usize,
    /// Offsets of the stream, each with the last clock reading at which nothing beyond it was
    /// written: the newest one that enough replicas have passed, and all later ones.
    pub(crate) noted: BTreeMap<u64, u64>,
}

/// The most offsets kept. They add up while too few replicas acknowledge. Beyond this number the
/// oldest are dropped, which can only make the right end earlier.
const MAX_NOTED: usize = 4096;

impl RightToGrant {
    /// The right of a server that no replica has followed yet.
    pub(crate) const fn new() -> Self {
        Self { until_us: 0, following: 0, noted: BTreeMap::new() }
    }

    /// Another term begins: acknowledgements of the previous one do not count.
    pub(crate) fn begin_term(&mut self) {
        *self = Self::new();
    }

    /// Whether enough replicas follow at a moment.
    pub(crate) fn lasts_at(&self, now_us: u64) -> bool {
        now_us < self.until_us
    }

    /// How many replicas followed at the last tick.
    pub(crate) fn following(&self) -> usize {
        self.following
    }

    /// The regular tick of a master that needs replicas.
    pub(crate) fn on_tick(&mut self, needed: u64, lag_us: u64, server: &mut impl Readings) {
        // Before the offset: bytes beyond that offset are written later than this.
        let at_us = server.clock_us();
        let Some(replication) = server.replication() else {
            return;
        };
        let followers = |offset: u64| replication.acknowledged.iter().filter(|by| **by > offset).count();
        let newest = self.noted.iter().rev().find(|(offset, _)| followers(**offset) as u64 >= needed);
        if let Some((offset, at_us)) = newest.map(|(offset, at_us)| (*offset, *at_us)) {
            self.until_us = self.until_us.max(at_us.saturating_add(lag_us));
            self.noted = self.noted.split_off(&offset);
        }
        let oldest = self.noted.first_key_value().map_or(replication.offset, |(offset, _)| *offset);
        self.following = followers(oldest);
        // If nothing was written since the last tick, the later moment holds as well.
        self.noted.insert(replication.offset, at_us);
        if self.noted.len() > MAX_NOTED {
            self.noted.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Server(u64, Replication);

    impl Readings for Server {
        fn clock_us(&mut self) -> u64 {
            self.0
        }

        fn replication(&mut self) -> Option<Replication> {
            Some(self.1.clone())
        }
    }

    /// A tick at a moment, which is the offset too.
    fn tick(right: &mut RightToGrant, now: u64, acknowledged: &[u64]) {
        right.on_tick(2, 10, &mut Server(now, Replication { offset: now, acknowledged: acknowledged.into() }));
    }

    #[test]
    fn the_right_lasts_from_the_newest_moment_at_which_enough_replicas_followed() {
        let mut right = RightToGrant::new();
        tick(&mut right, 100, &[]);
        tick(&mut right, 110, &[111, 100, 100]);
        assert!(!right.lasts_at(100), "the offset itself was written before");
        tick(&mut right, 115, &[111, 101, 100]);
        assert!(right.lasts_at(109) && !right.lasts_at(110));
        tick(&mut right, 116, &[116, 116, 100]);
        assert!(right.lasts_at(124) && !right.lasts_at(125));
        tick(&mut right, 117, &[0, 0, 0]);
        assert!(right.lasts_at(124), "an earlier moment takes nothing away");
        right.begin_term();
        assert!(!right.lasts_at(100));
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of offsets")]
    fn more_offsets_than_are_kept_make_the_right_end_earlier() {
        let mut right = RightToGrant::new();
        for now in 1..=MAX_NOTED as u64 + 10 {
            tick(&mut right, now, &[]);
        }
        assert_eq!(right.noted.len(), MAX_NOTED);
        tick(&mut right, 9999, &[2, 2]);
        assert_eq!(right.until_us, 0);
    }
}
