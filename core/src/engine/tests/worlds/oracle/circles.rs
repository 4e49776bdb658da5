//! Cycles: a request that would make its owner wait for itself, over several locks, is refused. Two
//! locks know nothing of each other, so this module follows the edges over all of them.
//!
//! [`super::several`] checks an owner when it begins to wait. Two kinds of waits are checked again
//! when the timer runs, in the order of their requests: the retry of a timed-out wait, which
//! blocked no owner before; and a later wait that ended its owner's earlier one, if that end lets
//! other owners in.

use std::vec::Vec;

use super::{Oracle, Told};

/// For [`super::line::InLine::suspect`]: the waiter entered in this step and has no number yet.
pub(super) const NOT_NUMBERED: u64 = u64::MAX;

impl Oracle {
    /// The owners that an owner waits for here.
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

/// Whether an owner waits for itself, directly or via others.
pub(super) fn waits_for_itself(owner: u8, waits_for: impl Fn(u8) -> Vec<u8>) -> bool {
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

pub(super) fn over_all(oracles: &[Oracle], owner: u8, now_ms: u64) -> Vec<u8> {
    oracles.iter().flat_map(|oracle| oracle.waits_for(owner, now_ms)).collect()
}

/// The work that is due on all locks when the timer runs.
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

/// The number and the lock of the next waiter to check.
fn first_suspect(oracles: &[Oracle]) -> Option<(u64, usize)> {
    let of = |(key, oracle): (usize, &Oracle)| {
        oracle.line.iter().filter_map(|one| one.suspect).min().map(|number| (number, key))
    };
    oracles.iter().enumerate().filter_map(of).min()
}
