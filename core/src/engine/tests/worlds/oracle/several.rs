//! ACQUIRE with several locks: an owner that would wait for itself, over all of them, is refused
//! without any effect.

use super::circles::{NOT_NUMBERED, over_all, waits_for_itself};
use super::fair::FairOracle;
use super::fair_asking::FairWish;
use super::wish::Wish;
use super::{Oracle, Told};

/// ACQUIRE of one of several locks, which may have `most_waiting` waiters together.
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
    let waits_anew = oracles[key].waits_anew(owner, &wish);
    if waits_anew {
        // Checks for cycles before the earlier wait ends, which may let other owners in: as if the
        // owner had waited with this request from the beginning.
        oracles[key].leave_line(owner);
        oracles[key].stand(owner, wish, true, now_ms);
        let is_refused = closes_a_cycle(oracles, key, owner, now_ms);
        oracles[key] = before.clone();
        if is_refused {
            return Told::Deadlock;
        }
    }
    let told = oracles[key].acquire(owner, wish, now_ms);
    if told != Told::Waits {
        return told;
    }
    let waiting: usize = oracles.iter().map(|oracle| oracle.line.len()).sum();
    let refused = if waiting > most_waiting {
        Told::Refused
    } else if !is_asked_later(oracles, key, owner) && closes_a_cycle(oracles, key, owner, now_ms) {
        Told::Deadlock
    } else {
        return told;
    };
    oracles[key] = before;
    refused
}

fn closes_a_cycle(oracles: &[Oracle], key: usize, owner: u8, now_ms: u64) -> bool {
    oracles[key].makes_cycles() && waits_for_itself(owner, |one| over_all(oracles, one, now_ms))
}

/// Whether a new waiter was already checked for cycles. If it has to be checked again, gives it a
/// number behind all others, for the timer.
fn is_asked_later(oracles: &mut [Oracle], key: usize, owner: u8) -> bool {
    let numbers = oracles.iter().flat_map(|oracle| &oracle.line).filter_map(|one| one.suspect);
    let next = numbers.filter(|number| *number != NOT_NUMBERED).max().map_or(0, |last| last + 1);
    let makes_cycles = oracles[key].makes_cycles();
    let Some(one) = oracles[key].line.iter_mut().find(|one| one.owner == owner) else { return false };
    if one.suspect == Some(NOT_NUMBERED) {
        one.suspect = makes_cycles.then_some(next);
    }
    one.was_asked
}

/// ACQUIRE of one of several fair locks. An owner that would wait for itself is refused, and keeps
/// its previous place.
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
