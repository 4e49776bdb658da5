//! While the server takes no writes, waits end, but their effects are deferred, such as the loss of
//! a place on a fair lock. An owner that asks again after that is last, however small the budget of
//! a turn is.

use core::slice::from_ref;
use std::vec::Vec;

use super::crowd::{Crowded, FOREVER, HOLDER, LEASE_MS, MANY, name, request};
use super::world::{Output, key};
use crate::budget::Scarcity;
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::outbox::Answer;
use crate::request::Ask;

const FEW: usize = 12;
/// The owner that waits without a limit, behind all others.
const PATIENT: usize = FEW;

/// The answer to `who`, which asks again after it lost its place, and the owners granted then, in
/// order.
fn ask_again(asked_before: impl Fn(u64) -> Ask, who: usize, again: Ask) -> (Acquired, Vec<u64>, u64) {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    let fair = |ask| request(Kind::Fair, Mode::Exclusive, ask);
    crowded.acquire(from_ref(&lock), HOLDER, &fair(Ask::Try)).unwrap();
    let end_us = crowded.world.now.after_ms(LEASE_MS / 2);
    for owner in 0..FEW {
        crowded.world.client = Some(owner as u64 + 1);
        crowded.acquire(from_ref(&lock), owner, &fair(asked_before(end_us))).unwrap();
    }
    crowded.world.client = Some(PATIENT as u64 + 1);
    let Ok(Acquired::Waiting(patient)) = crowded.acquire(from_ref(&lock), PATIENT, &fair(FOREVER)) else {
        panic!("it is held");
    };
    crowded.world.pause(LEASE_MS);
    assert!(!crowded.world.end_waits(), "one turn is enough for all of them");
    crowded.end_turn();
    assert_eq!(crowded.world.engine.waiting(), 1, "the others have lost their places");

    // Writes are allowed again, and others have used up the budget of this turn.
    let (own, shared, search_steps, parts, bindings) = (0, 1, 1000, 1, 1);
    crowded.world.engine.budget.make_scarce(Scarcity { own, shared, search_steps, parts, bindings });
    crowded.world.client = Some(who as u64 + 1);
    let owner = name(who);
    let asked = crowded
        .command_alone(from_ref(&lock), |engine, tx| engine.acquire(tx, owner.as_bytes(), &fair(again)))
        .unwrap();
    if let Acquired::Waiting(ticket) = asked {
        crowded.world.expect_answer(ticket);
    }
    let (own, shared) = (1000, 1000);
    crowded.world.engine.budget.make_scarce(Scarcity { own, shared, search_steps, parts, bindings });
    crowded.run_timer();
    crowded.world.pause(2 * LEASE_MS);
    crowded.run_timer();
    let granted = crowded.world.outputs.drain(..).filter_map(|(_, output)| match output {
        Output::Answer { ticket, answer: Answer::Granted(_), .. } => Some(ticket),
        _ => None,
    });
    (asked, granted.collect(), patient)
}

fn assert_comes_last(asked_before: impl Fn(u64) -> Ask + Copy) {
    for who in 0..FEW {
        let (asked, granted, patient) = ask_again(asked_before, who, Ask::Try);
        assert_eq!((asked, granted), (Acquired::Denied, [patient].to_vec()), "owner {who}");
        let (asked, granted, patient) = ask_again(asked_before, who, FOREVER);
        let Acquired::Waiting(ticket) = asked else { panic!("owner {who}: {asked:?}") };
        assert_eq!(granted, [patient, ticket], "owner {who}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn timed_out_owner_is_last() {
    assert_comes_last(|end_us| Ask::Wait { until_us: Some(end_us) });
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn owner_of_an_expired_place_is_last() {
    assert_comes_last(|_| Ask::Queue { life_ms: LEASE_MS / 2 });
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn next_turn_follows_at_once_while_timed_out_waits_remain() {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    let mutex = |ask| request(Kind::Mutex, Mode::Exclusive, ask);
    crowded.acquire(from_ref(&lock), HOLDER, &mutex(Ask::Try)).unwrap();
    let until_us = Some(crowded.world.now.after_ms(LEASE_MS / 2));
    crowded.crowd(&lock, |owner| owner, &mutex(Ask::Wait { until_us }));
    crowded.world.pause(LEASE_MS / 2);
    while crowded.world.end_waits() {
        crowded.end_turn();
        assert!(crowded.turns < MANY, "it comes to an end");
    }
    assert_eq!(crowded.world.engine.waiting(), 0);
}
