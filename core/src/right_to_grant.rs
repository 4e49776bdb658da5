//! The right to grant: a lease that the replicas give their master (`rlock.min-replicas`).
//!
//! A master that was superseded must not grant for longer than its successor waits. So a master
//! grants only for `rlock.max-replica-lag-ms` after a moment at which enough replicas followed it:
//!
//! 1. Each tick it reads the steady clock, and *then* notes the offset of its stream. Bytes beyond
//!    that offset were written later than the clock was read, and since this server became a master.
//! 2. The right lasts until the newest noted time that enough replicas have acknowledged, plus the
//!    lag.
//! 3. Each step that grants or renews compares its one reading of the clock with that, see
//!    [`crate::Quarantine::may_grant`].
//!
//! The server's own `min-replicas-to-write` is no substitute: it stamps an acknowledgement when it
//! reads it, so a master that was stopped for ten seconds still grants what is queued in its
//! sockets, and it measures on the wall clock.

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
    /// The state of the replication; `None` if the server does not tell.
    fn replication(&mut self) -> Option<Replication>;
}

/// See the documentation of the file.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub struct RightToGrant {
    /// Until when this master may grant, in microseconds of the steady clock.
    pub(crate) until_us: u64,
    /// How many replicas follow, as far as the last tick saw.
    following: usize,
    /// Offsets of the stream, and for each the last moment at which nothing beyond it was written:
    /// those that not enough replicas have acknowledged, and the last one that they have.
    pub(crate) noted: BTreeMap<u64, u64>,
}

/// How many offsets are kept. More come only if the server ticks more often than it is asked to;
/// then the oldest go, which makes the right end earlier.
const MAX_NOTED: usize = 4096;

impl RightToGrant {
    /// The right of a server that no replica has followed yet.
    pub(crate) const fn new() -> Self {
        Self { until_us: 0, following: 0, noted: BTreeMap::new() }
    }

    /// Another term begins: what replicas acknowledged in the one before does not count.
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
        // Before the offset: what comes beyond that offset comes later than this.
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
