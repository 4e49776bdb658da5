//! The records of the programs, and the figures derived from them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// How much later than a waiting client another one must ask to count as overtaking. Clients record
/// the time themselves, and on a busy machine a thread may be suspended between reading the clock
/// and sending.
const OVERTAKING_NS: u64 = 10_000_000;

/// One acquisition and release. Times are CLOCK_MONOTONIC in nanoseconds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
pub struct Record {
    pub client: u32,
    pub lock: u32,
    pub asked_ns: u64,
    pub got_ns: u64,
    pub free_ns: u64,
    pub freed_ns: u64,
    /// How much of the lock's capacity it took.
    #[serde(default = "one")]
    pub weight: u32,
}

fn one() -> u32 {
    1
}

impl Record {
    pub fn waited_ms(&self) -> f64 {
        ms(self.got_ns.saturating_sub(self.asked_ns))
    }

    /// The duration of the pair without the section in between.
    pub fn pair_ms(&self) -> f64 {
        ms(self.got_ns.saturating_sub(self.asked_ns) + self.freed_ns.saturating_sub(self.free_ns))
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Reads the records that a program has written.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let read = || -> csv::Result<Vec<Record>> {
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_path(path)?;
        reader.records().map(|row| parse(&row?)).collect()
    };
    read().with_context(|| format!("no records in {}", path.display()))
}

fn parse(row: &csv::StringRecord) -> csv::Result<Record> {
    let (client, lock, asked_ns, got_ns, free_ns, freed_ns) = row.deserialize(None)?;
    Ok(Record { client, lock, asked_ns, got_ns, free_ns, freed_ns, weight: 1 })
}

/// The smallest figure that at least `share` of all figures do not exceed (nearest rank).
pub fn quantile(figures: &[f64], share: f64) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

/// How evenly the pairs are distributed over the clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// Jain's index.
    pub jain: f64,
    /// The pairs of the client with the fewest, relative to the mean.
    pub min: f64,
    pub max: f64,
}

/// The shares of clients `0 … clients-1`. A client without a record has no pair.
pub fn shares(records: &[Record], clients: usize) -> Option<Shares> {
    let mut pairs: HashMap<u32, f64> = HashMap::new();
    for record in records {
        *pairs.entry(record.client).or_default() += 1.0;
    }
    let sum = records.len() as f64;
    let mean = sum / clients as f64;
    let squares: f64 = pairs.values().map(|count| count * count).sum();
    let fewest = if pairs.len() < clients { 0.0 } else { pairs.values().copied().fold(f64::INFINITY, f64::min) };
    let most = pairs.values().copied().fold(0.0, f64::max);
    (sum > 0.0).then(|| Shares { jain: sum * sum / (clients as f64 * squares), min: fewest / mean, max: most / mean })
}

/// The records of each lock, in the order of the grants.
fn by_lock(records: &[Record]) -> BTreeMap<u32, Vec<Record>> {
    let mut locks: BTreeMap<u32, Vec<Record>> = BTreeMap::new();
    for record in records {
        locks.entry(record.lock).or_default().push(*record);
    }
    for of_one in locks.values_mut() {
        of_one.sort_by_key(|record| record.got_ns);
    }
    locks
}

/// How many grants went to another client than the grant of the same lock before. Only for locks
/// with one holder at a time.
pub fn hand_overs(records: &[Record]) -> usize {
    let locks = by_lock(records);
    let pairs = locks.values().flat_map(|of_one| of_one.windows(2));
    pairs.filter(|pair| matches!(pair, [before, next] if before.client != next.client)).count()
}

/// How long each of clients `0 … clients-1` that waits at `end_ns` has been waiting, in
/// milliseconds. Clients ask for the first time at `start_ns`, and again as soon as they have
/// released.
pub fn open_waits_ms(records: &[Record], clients: usize, start_ns: u64, end_ns: u64) -> Vec<f64> {
    let mut last_freed_ns = vec![start_ns; clients];
    for record in records.iter().filter(|record| record.got_ns <= end_ns) {
        if let Some(freed_ns) = last_freed_ns.get_mut(record.client as usize) {
            *freed_ns = record.freed_ns.max(*freed_ns);
        }
    }
    let waiting = last_freed_ns.into_iter().filter(|freed_ns| *freed_ns < end_ns);
    waiting.map(|freed_ns| ms(end_ns - freed_ns)).collect()
}

/// The times from the start of a release until the next client has the lock, in milliseconds, for
/// each next holder that had asked before. Only for locks with one holder at a time.
pub fn hand_overs_ms(records: &[Record]) -> Vec<f64> {
    let locks = by_lock(records);
    let pairs = locks.values().flat_map(|of_one| of_one.windows(2));
    pairs
        .filter_map(|pair| {
            let [before, next] = pair else { return None };
            let is_handed_over = next.asked_ns < before.free_ns && next.got_ns >= before.free_ns;
            is_handed_over.then(|| ms(next.got_ns - before.free_ns))
        })
        .collect()
}

/// How many grants exceeded the capacity of their lock: when they were granted, holders that had
/// not begun to release left too little of it.
pub fn overlaps(records: &[Record], capacity: u32) -> usize {
    let locks = by_lock(records);
    locks
        .values()
        .map(|of_one| {
            // Possible holders, with the moment at which they begin to release.
            let mut holding: Vec<(u64, u32)> = Vec::new();
            let mut overlaps = 0;
            for record in of_one {
                holding.retain(|(free_ns, _)| *free_ns > record.got_ns);
                let taken: u32 = holding.iter().map(|(_, weight)| weight).sum();
                overlaps += usize::from(taken + record.weight > capacity);
                holding.push((record.free_ns, record.weight));
            }
            overlaps
        })
        .sum()
}

/// How many grants went to a client that had asked much later than another one that still waited.
pub fn overtakings(records: &[Record]) -> usize {
    let locks = by_lock(records);
    locks
        .values()
        .map(|of_one| {
            let mut earliest_waiting = u64::MAX;
            let mut count = 0;
            for record in of_one.iter().rev() {
                count += usize::from(earliest_waiting.saturating_add(OVERTAKING_NS) < record.asked_ns);
                earliest_waiting = earliest_waiting.min(record.asked_ns);
            }
            count
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times in milliseconds.
    fn record(client: u32, asked: u64, got: u64, free: u64) -> Record {
        let ns = |ms: u64| ms * 1_000_000;
        Record {
            client,
            lock: 0,
            asked_ns: ns(asked),
            got_ns: ns(got),
            free_ns: ns(free),
            freed_ns: ns(free + 1),
            weight: 1,
        }
    }

    #[test]
    fn a_lock_that_two_have_at_once_overlaps() {
        let apart = [record(0, 0, 1, 5), record(1, 0, 5, 9)];
        assert_eq!(overlaps(&apart, 1), 0);
        let at_once = [record(0, 0, 1, 5), record(1, 0, 4, 9)];
        assert_eq!(overlaps(&at_once, 1), 1);
        assert_eq!(overlaps(&at_once, 2), 0);
    }

    #[test]
    fn a_long_hold_overlaps_with_all_that_come_within_it() {
        assert_eq!(overlaps(&[record(0, 0, 1, 50), record(1, 0, 4, 5), record(2, 0, 6, 7)], 1), 2);
    }

    #[test]
    fn a_writer_takes_the_whole_lock() {
        let writer = Record { weight: 3, ..record(0, 0, 1, 5) };
        assert_eq!(overlaps(&[writer, record(1, 0, 4, 9)], 3), 1);
        assert_eq!(overlaps(&[record(0, 0, 1, 5), record(1, 0, 4, 9)], 3), 0);
    }

    #[test]
    fn a_hand_over_is_to_somebody_who_had_asked_before() {
        let waited = [record(0, 0, 1, 5), record(1, 2, 8, 9)];
        assert_eq!(hand_overs_ms(&waited), [3.0]);
        let came_later = [record(0, 0, 1, 5), record(1, 6, 8, 9)];
        assert!(hand_overs_ms(&came_later).is_empty());
    }

    #[test]
    fn client_that_takes_its_lock_again_hands_nothing_over() {
        let other_lock = Record { lock: 1, ..record(3, 0, 2, 4) };
        let records = [record(0, 0, 1, 5), record(0, 6, 7, 9), record(1, 0, 10, 12), record(0, 10, 13, 14), other_lock];
        assert_eq!(hand_overs(&records), 2);
    }

    #[test]
    fn open_wait_lasts_since_the_last_release_or_the_start() {
        let ns = |ms: u64| ms * 1_000_000;
        let records = [record(0, 0, 1, 5), record(1, 0, 7, 30), record(2, 0, 40, 41)];
        // Client 0 waits since its release at 6 ms, 1 holds, 2 and 3 wait since the start.
        assert_eq!(open_waits_ms(&records, 4, ns(1), ns(20)), [14.0, 19.0, 19.0]);
    }

    #[test]
    fn overtaking_is_counted_by_who_asked() {
        let in_order = [record(0, 0, 1, 2), record(1, 20, 30, 40), record(2, 35, 41, 42)];
        assert_eq!(overtakings(&in_order), 0);
        let overtaken = [record(0, 0, 50, 52), record(1, 20, 30, 40)];
        assert_eq!(overtakings(&overtaken), 1);
    }

    #[test]
    fn one_client_with_all_pairs_has_jains_index_of_one_nth() {
        let all = [record(3, 0, 1, 2), record(3, 2, 3, 4)];
        let shares = shares(&all, 4).unwrap();
        assert_eq!(shares, Shares { jain: 0.25, min: 0.0, max: 4.0 });
    }

    #[test]
    fn a_quantile_is_the_nearest_rank() {
        let figures = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&figures, 0.5), Some(2.0));
        assert_eq!(quantile(&figures, 0.99), Some(4.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
