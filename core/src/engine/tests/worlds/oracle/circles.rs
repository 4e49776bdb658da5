//! Circles: an owner that would wait for itself, over several locks, is refused. Two locks know nothing of each other, so who waits for whom is
//! looked up over all of them.
//!
//! That is asked when an owner begins to wait. Who goes on waiting was asked before; but a wait whose time is over is in nobody's way, and when
//! it is sent again it is. Such a one, and one with a higher number, is asked when the timer goes off, in the order in which they were sent.

use std::vec::Vec;

use super::fair::FairOracle;
use super::fair_asking::FairWish;
use super::line::Wish;
use super::{Oracle, Told};

/// Of those in [`super::line::InLine::suspect`]: it has come in this step.
pub(super) const NOT_NUMBERED: u64 = u64::MAX;

impl Oracle {
    /// For whom an owner waits here.
    fn waits_for(&self, owner: u8, now_ms: u64) -> Vec<u8> {
        let Some(at) = self.line.iter().position(|one| one.owner == owner && one.until_ms > now_ms) else {
            return Vec::new();
        };
        if self.is_gone {
            return Vec::new();
        }
        let holds: Vec<_> = self.live(now_ms).collect();
        let ahead = self.line[..at].iter().filter(|one| one.until_ms > now_ms);
        let ahead: Vec<u8> = ahead.map(|one| one.owner).collect();
        let mut waits_for = self.in_its_way(&self.line[at].wish, &holds, &ahead);
        waits_for.retain(|other| *other != owner);
        waits_for
    }
}

/// Whether an owner waits for somebody who waits for it, by way of others or not.
fn waits_for_itself(owner: u8, waits_for: impl Fn(u8) -> Vec<u8>) -> bool {
    let mut seen: Vec<u8> = Vec::new();
    let mut next = [owner].to_vec();
    while let Some(one) = next.pop() {
        for other in waits_for(one) {
            if other == owner {
                return true;
            }
            if !seen.contains(&other) {
                seen.push(other);
                next.push(other);
            }
        }
    }
    false
}

fn over_all(oracles: &[Oracle], owner: u8, now_ms: u64) -> Vec<u8> {
    oracles.iter().flat_map(|oracle| oracle.waits_for(owner, now_ms)).collect()
}

/// ACQUIRE of one of several locks, for which so many may wait in all. Who would be one too many, or would wait for itself, is refused, and nothing
/// has happened: its wait with an earlier number goes on.
pub(crate) fn acquire(
    oracles: &mut [Oracle],
    key: usize,
    owner: u8,
    wish: Wish,
    most_waiting: usize,
    now_ms: u64,
) -> Told {
    oracles[key].settle(now_ms);
    let before = oracles[key].clone();
    let told = oracles[key].acquire(owner, wish, now_ms);
    let refused = match told {
        Told::Waits if oracles.iter().map(|oracle| oracle.line.len()).sum::<usize>() > most_waiting => Told::Refused,
        Told::Waits if closes_a_circle(oracles, key, owner, now_ms) => Told::Deadlock,
        _ => return told,
    };
    oracles[key] = before;
    refused
}

/// Whether an owner that begins to wait for a lock waits for itself.
fn closes_a_circle(oracles: &mut [Oracle], key: usize, owner: u8, now_ms: u64) -> bool {
    let numbers = oracles.iter().flat_map(|oracle| &oracle.line).filter_map(|one| one.suspect);
    let next = numbers.filter(|number| *number != NOT_NUMBERED).max().map_or(0, |last| last + 1);
    let makes_circles = oracles[key].makes_circles();
    let Some(one) = oracles[key].line.iter_mut().find(|one| one.owner == owner) else { return false };
    if one.suspect == Some(NOT_NUMBERED) {
        one.suspect = makes_circles.then_some(next);
    }
    !one.is_repeated && makes_circles && waits_for_itself(owner, |one| over_all(oracles, one, now_ms))
}

/// What is due on all locks when the timer goes off.
pub(crate) fn run_timers(oracles: &mut [Oracle], now_ms: u64) {
    oracles.iter_mut().for_each(|oracle| oracle.run_timer(now_ms));
    while let Some((number, key)) = first_suspect(oracles) {
        let Some(at) = oracles[key].line.iter().position(|one| one.suspect == Some(number)) else { return };
        let owner = oracles[key].line[at].owner;
        oracles[key].line[at].suspect = None;
        if waits_for_itself(owner, |one| over_all(oracles, one, now_ms)) {
            oracles[key].line.remove(at);
            oracles[key].answers.push((owner, Told::Deadlock));
            oracles[key].settle(now_ms);
        }
    }
}

/// The number and the lock of who is to be asked next.
fn first_suspect(oracles: &[Oracle]) -> Option<(u64, usize)> {
    let of = |(key, oracle): (usize, &Oracle)| {
        oracle.line.iter().filter_map(|one| one.suspect).min().map(|number| (number, key))
    };
    oracles.iter().enumerate().filter_map(of).min()
}

/// ACQUIRE of one of several fair locks. Who would wait for itself is refused, and has the place that it had.
pub(crate) fn acquire_fair(oracles: &mut [FairOracle], key: usize, owner: u8, wish: FairWish, now_ms: u64) -> Told {
    oracles[key].settle(now_ms);
    let (line, answered) = (oracles[key].line.clone(), oracles[key].answers.len());
    let told = oracles[key].acquire(owner, wish, now_ms);
    let waits_for = |one| oracles.iter().flat_map(|oracle| oracle.waits_for(one, now_ms)).collect();
    if told != Told::Waits || !waits_for_itself(owner, waits_for) {
        return told;
    }
    oracles[key].line = line;
    oracles[key].answers.truncate(answered);
    Told::Deadlock
}
