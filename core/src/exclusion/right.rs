//! The right to grant: a lease that the replicas give their master.
//!
//! A replica's *vote* belongs to one master at a time. Let G be `rlock.max-replica-lag-ms`. A master
//! counts the vote of a replica
//!
//! - from G after the connection of the replica came online, and not before G after the master
//!   became one, since it knows no votes then,
//! - for as long as the replica has acknowledged bytes that the master wrote less than G ago.
//!
//! A replica leaves one master before it connects to the next, and acknowledges nothing that is
//! written later. So its vote has ended at the former master before it counts at the next one,
//! whichever of the servers restart, return or are pointed elsewhere meanwhile. The right to grant
//! lasts while enough votes count. With the master itself these are a majority of all servers, so
//! no two masters have the right at the same time.
//!
//! An acknowledgement is dated by the time of the writing:
//!
//! 1. Each tick the master reads the steady clock, and *then* notes the offset of its stream. Bytes
//!    beyond that offset were written after that reading.
//! 2. For each replica it finds the newest noted offset beyond which the replica has acknowledged.
//! 3. Each step that grants or renews compares its one reading of the clock with the end of the
//!    right, see [`crate::Exclusion::may_grant`].
//!
//! The server's own `min-replicas-to-write` is no substitute. It dates an acknowledgement by the
//! moment at which the master reads it, on the wall clock. So a master that was stopped for ten
//! seconds would still grant the requests that are queued in its sockets.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::settings::Terms;

/// How far this master's replication stream has come, and how much of it each replica has
/// acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replication {
    /// The bytes that this server has written to its stream.
    pub offset: u64,
    /// The address (`ip:port`) of each replica that is online, and what it has acknowledged. An
    /// address may occur twice, if the server has not noticed that a connection was lost.
    pub replicas: Vec<(Box<str>, u64)>,
}

/// A replica that is online.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vote {
    /// When its connection came online.
    pub(crate) since_us: u64,
    /// When the newest bytes that it has acknowledged were written.
    pub(crate) written_us: Option<u64>,
}

/// See the documentation of the file. Times are in microseconds of the steady clock.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub struct RightToGrant {
    /// The replicas by address.
    pub(crate) votes: BTreeMap<Box<str>, Vote>,
    /// Offsets of the stream, each with the last clock reading at which nothing beyond it was
    /// written.
    pub(crate) noted: BTreeMap<u64, u64>,
    /// Whether the right has begun, and not ended since.
    pub(crate) has_begun: bool,
    /// Until when the votes give the right.
    pub(crate) until_us: u64,
    /// How many votes counted at the last tick.
    following: u64,
    /// How many replicas have acknowledged within the lag, at the last tick.
    acknowledging: u64,
}

/// The most offsets kept. They add up while replicas do not acknowledge. Beyond this number the
/// oldest are dropped, which can only make the right end earlier.
const MAX_NOTED: usize = 4096;

impl RightToGrant {
    /// The right of a server that no replica has followed yet.
    pub(crate) const fn new() -> Self {
        Self {
            votes: BTreeMap::new(),
            noted: BTreeMap::new(),
            has_begun: false,
            until_us: 0,
            following: 0,
            acknowledging: 0,
        }
    }

    /// Whether enough votes count at a moment.
    #[inline]
    pub(crate) fn lasts_at(&self, now_us: u64) -> bool {
        now_us < self.until_us
    }

    /// How many votes counted at the last tick.
    pub(crate) fn following(&self) -> u64 {
        self.following
    }

    /// How many replicas had acknowledged within the lag at the last tick, whether their votes
    /// count or not.
    pub(crate) fn acknowledging(&self) -> u64 {
        self.acknowledging
    }

    /// The connections of replicas changed, or a tick looks at them. `has_new`: a connection has
    /// just come online. If it cannot be told which, all count as new.
    pub(crate) fn on_replicas(&mut self, replicas: &[(Box<str>, u64)], has_new: bool, now_us: u64) {
        self.votes.retain(|address, _| replicas.iter().any(|(online, _)| online == address));
        let known = self.votes.len();
        for (address, _) in replicas {
            self.votes.entry(address.clone()).or_insert(Vote { since_us: now_us, written_us: None });
        }
        if has_new && self.votes.len() == known {
            self.votes.values_mut().for_each(|vote| *vote = Vote { since_us: now_us, written_us: None });
        }
    }

    /// The regular tick of a master that needs replicas, before it counts the votes. `at_us` was read
    /// before the state of the replication: bytes beyond its offset are written later.
    pub(crate) fn on_tick(&mut self, at_us: u64, Replication { offset, replicas }: Replication) {
        self.on_replicas(&replicas, false, at_us);
        // A replica cannot have received more than was written.
        for (address, acknowledged) in replicas.iter().filter(|(_, acknowledged)| *acknowledged <= offset) {
            let newest = self.noted.range(..acknowledged).next_back();
            if let (Some(vote), Some((_, written_us))) = (self.votes.get_mut(address), newest) {
                vote.written_us = vote.written_us.max(Some(*written_us));
            }
        }
        self.note(offset, at_us);
    }

    fn note(&mut self, offset: u64, at_us: u64) {
        // If nothing was written since the last tick, the later moment holds as well.
        self.noted.insert(offset, at_us);
        if self.noted.len() > MAX_NOTED {
            self.noted.pop_first();
        }
        // Offsets whose time every replica has passed are of no more use.
        let oldest_us = self.votes.values().map(|vote| vote.written_us).min().flatten().unwrap_or(0);
        while self.noted.first_key_value().is_some_and(|(_, noted_us)| *noted_us < oldest_us) {
            self.noted.pop_first();
        }
    }

    /// Counts the votes. Returns whether the right has begun.
    ///
    /// If the right lapses because acknowledgements are late, it goes on when enough replicas
    /// acknowledge again whose votes counted before: over the same connections, so they followed no
    /// other master meanwhile. Otherwise it begins anew.
    pub(crate) fn count(&mut self, terms: &Terms, now_us: u64) -> bool {
        let counts_from_us = |vote: &Vote| vote.since_us.saturating_add(terms.longest_lag_us);
        let ends_us = |vote: &Vote| vote.written_us.map_or(0, |at_us| at_us.saturating_add(terms.shortest_lag_us));
        let fresh: Vec<&Vote> = self.votes.values().filter(|vote| now_us < ends_us(vote)).collect();
        let counting = |from_us: u64| fresh.iter().filter(move |vote| counts_from_us(vote) <= from_us);
        let mut ends: Vec<u64> = counting(now_us).map(|vote| ends_us(vote)).collect();
        ends.sort_unstable();
        let needed = usize::try_from(terms.needed).unwrap_or(usize::MAX);
        let until_us = ends.len().checked_sub(needed).and_then(|at| ends.get(at).copied());
        let goes_on = self.has_begun && (now_us < self.until_us || counting(self.until_us).count() >= needed);
        (self.following, self.acknowledging) = (ends.len() as u64, fresh.len() as u64);
        self.until_us = until_us.unwrap_or(self.until_us.min(now_us));
        self.has_begun |= until_us.is_some();
        until_us.is_some() && !goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const TERMS: Terms =
        Terms { needed: 2, shortest_lag_us: 10, longest_lag_us: 10, shortest_lease_ms: 1, longest_lease_ms: 1 };

    fn replication(offset: u64, acknowledged: &[u64]) -> Replication {
        let replicas = (0..).zip(acknowledged).map(|(number, by): (u32, _)| (number.to_string().into(), *by));
        Replication { offset, replicas: replicas.collect() }
    }

    /// A tick at a moment, which is the offset too. Returns whether the right began.
    fn tick(right: &mut RightToGrant, now: u64, acknowledged: &[u64]) -> bool {
        right.on_tick(now, replication(now, acknowledged));
        right.count(&TERMS, now)
    }

    /// A tick in each moment, with replicas that have acknowledged all. Returns when the right
    /// began.
    fn follow(right: &mut RightToGrant, from: u64, to: u64, replicas: usize) -> Option<u64> {
        let mut begun = (from..to).filter(|now| tick(right, *now, &alloc::vec![*now; replicas])).collect::<Vec<_>>();
        assert!(begun.len() < 2, "{begun:?}");
        begun.pop()
    }

    /// A right of three replicas that came online at 100.
    fn counting() -> RightToGrant {
        let mut right = RightToGrant::new();
        assert_eq!(follow(&mut right, 100, 120, 3), Some(110), "the connections are old enough");
        assert_eq!((right.following(), right.acknowledging()), (3, 3));
        assert!(right.lasts_at(127) && !right.lasts_at(128), "the last acknowledged bytes were written after 118");
        right
    }

    #[test]
    fn the_right_lasts_from_the_writing_that_enough_replicas_have_acknowledged() {
        let mut right = counting();
        assert!(!tick(&mut right, 120, &[120, 120, 0]) && right.lasts_at(128) && !right.lasts_at(129));
        assert!(!tick(&mut right, 125, &[125, 121, 121]) && right.lasts_at(129) && !right.lasts_at(130));
        assert!(!tick(&mut right, 126, &[126]) && !right.lasts_at(126), "fewer votes count");
        assert_eq!(
            follow(&mut right, 127, 140, 2),
            Some(137),
            "a new connection counts later, and the right begins anew"
        );
    }

    #[test]
    fn a_right_that_lapsed_goes_on_if_the_connections_stayed() {
        let mut right = counting();
        assert!(!tick(&mut right, 500, &[119; 3]) && !right.lasts_at(500), "the master was stopped");
        assert_eq!(follow(&mut right, 501, 510, 3), None);
        assert!(right.lasts_at(510), "the same connections");
        tick(&mut right, 900, &[509; 2]);
        assert_eq!(follow(&mut right, 901, 905, 2), None, "two connections stayed");
        let mut right = counting();
        tick(&mut right, 500, &[119; 1]);
        assert_eq!(follow(&mut right, 501, 520, 3), Some(511), "the others may have followed another master");
    }

    #[test]
    fn acknowledgements_beyond_the_offset_and_second_connections_do_not_count() {
        let mut right = counting();
        assert!(!tick(&mut right, 130, &[131; 3]) && !right.lasts_at(130));
        let mut right = RightToGrant::new();
        for now in 100..130 {
            let mut twice = replication(now, &[now, now]);
            twice.replicas.iter_mut().for_each(|(address, _)| *address = "same".into());
            right.on_tick(now, twice);
            assert!(!right.count(&TERMS, now), "one replica");
        }
        assert_eq!(right.following(), 1);
    }

    #[test]
    fn an_online_event_without_a_new_address_makes_all_connections_new() {
        let mut right = counting();
        right.on_replicas(&replication(120, &[120; 3]).replicas, true, 120);
        assert!(!tick(&mut right, 120, &[120; 3]) && !right.lasts_at(120));
        assert_eq!(follow(&mut right, 121, 140, 3), Some(130));
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of offsets")]
    fn more_offsets_than_are_kept_make_the_right_end_earlier() {
        let mut right = RightToGrant::new();
        for now in 1..=MAX_NOTED as u64 + 10 {
            tick(&mut right, now, &[0, 0]);
        }
        assert_eq!(right.noted.len(), MAX_NOTED);
        tick(&mut right, 9999, &[2, 2]);
        assert_eq!(right.until_us, 0);
    }
}
