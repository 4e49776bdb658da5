//! One owner waits for thousands of different locks. The begin and the end of each wait, with or
//! without a grant, have equal cost, regardless of the owner's other waits. The tests count search
//! steps and measure no time, so they hold on a busy machine.

use core::num::NonZeroU32;
use core::slice::from_ref;
use std::format;
use std::vec::Vec;

use super::crowd::{Crowded, FOREVER, GRACE_MS, LEASE_MS, name, request};
use super::world::{key, releasing};
use crate::bytes::Key;
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::limits::Limits;
use crate::request::{Ask, Channel, Request};

/// The number of locks that the owner waits for.
const LOCKS: usize = 8_000;
/// The length of a chain of owners, each of which waits for the lock of the next one.
const CHAIN: usize = 3_000;
/// The most steps of one search if the holder of the lock does not wait, or if few owners wait for
/// the owner that asks.
const FEW: u32 = 24;
/// The most steps of one search if no owner waits for the owner that asks.
const NONE: u32 = 0;
/// The number of requests that a client sends at once.
const BATCH: usize = 100;

const OWNER: usize = 0;
const HOLDER: usize = 1;
const OTHER: usize = 2;
/// The first of many owners.
const OTHERS: usize = 10;

fn lock(number: usize) -> Key {
    key(&format!("lock-{number}"))
}

fn own_lock(owner: usize) -> Key {
    key(&format!("lock-of-{owner}"))
}

fn mutex(ask: Ask) -> Request {
    Request { lease_ms: 1000 * LEASE_MS, ..request(Kind::Mutex, Mode::Exclusive, ask) }
}

fn hold(crowded: &mut Crowded, lock: &Key, owner: usize) {
    let granted = crowded.acquire(from_ref(lock), owner, &mutex(Ask::Try));
    assert!(matches!(granted, Ok(Acquired::Granted(_))), "{granted:?}");
}

fn wait(crowded: &mut Crowded, lock: &Key, owner: usize) {
    let waits = crowded.acquire(from_ref(lock), owner, &mutex(FOREVER));
    assert!(matches!(waits, Ok(Acquired::Waiting(_))), "{waits:?}");
}

/// A world in which the holder holds all locks.
fn held() -> Crowded {
    let mut crowded = Crowded::new();
    crowded.world.limits =
        Limits { max_waiters: 3 * LOCKS, max_places: LOCKS, fair_grace_ms: GRACE_MS, ..Limits::NONE };
    for number in 0..LOCKS {
        hold(&mut crowded, &lock(number), HOLDER);
    }
    crowded
}

/// Makes the holder wait at the end of a chain of owners.
fn let_holder_wait(crowded: &mut Crowded) {
    let links: Vec<usize> = [HOLDER].into_iter().chain(OTHERS..OTHERS + CHAIN).collect();
    for link in links.windows(2) {
        hold(crowded, &own_lock(link[1]), link[1]);
        wait(crowded, &own_lock(link[1]), link[0]);
    }
}

/// Makes another owner wait for a lock that the owner holds.
fn let_other_wait(crowded: &mut Crowded) {
    hold(crowded, &own_lock(OWNER), OWNER);
    wait(crowded, &own_lock(OWNER), OTHER);
}

/// Makes the owner wait for one lock after the other, and calls `then` after each.
#[track_caller]
fn assert_each_wait_takes(most_steps: u32, crowded: &mut Crowded, mut then: impl FnMut(&mut Crowded, usize)) {
    for number in 0..LOCKS {
        let waits = crowded
            .command_alone(&[lock(number)], |engine, tx| engine.acquire(tx, name(OWNER).as_bytes(), &mutex(FOREVER)));
        let Ok(Acquired::Waiting(ticket)) = waits else { panic!("{waits:?}") };
        crowded.world.expect_answer(ticket);
        let steps = crowded.world.engine.budget.searched();
        assert!(steps <= most_steps, "wait {number} of the owner took {steps} steps");
        assert!(crowded.world.engine.backlog.suspects().is_empty());
        then(crowded, number);
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters")]
fn each_wait_of_an_owner_for_another_lock_takes_few_steps() {
    let mut crowded = held();
    assert_each_wait_takes(NONE, &mut crowded, |_, _| {});
    crowded.world.engine.registry.assert_consistent();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters")]
fn each_wait_of_an_owner_takes_few_steps_though_the_holder_waits_at_the_end_of_a_long_chain() {
    let mut crowded = held();
    let_holder_wait(&mut crowded);
    assert_each_wait_takes(NONE, &mut crowded, |_, _| {});
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters")]
fn each_wait_of_an_owner_takes_few_steps_though_another_owner_waits_for_its_hold() {
    let mut crowded = held();
    let_holder_wait(&mut crowded);
    let_other_wait(&mut crowded);
    assert_each_wait_takes(FEW, &mut crowded, |_, _| {});
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters")]
fn each_wait_of_an_owner_takes_few_steps_though_others_wait_behind_it() {
    let mut crowded = held();
    assert_each_wait_takes(FEW, &mut crowded, |crowded, number| wait(crowded, &lock(number), OTHERS + number));
    crowded.world.engine.registry.assert_consistent();
}

/// The search for a request behind those of an owner visits the other waits of that owner only if a
/// cycle is possible.
#[test]
#[cfg_attr(miri, ignore = "thousands of waiters")]
fn a_wait_behind_an_owner_with_many_waits_takes_few_steps() {
    let mut crowded = held();
    assert_each_wait_takes(NONE, &mut crowded, |_, _| {});
    for number in 0..LOCKS {
        let waits = crowded
            .command_alone(&[lock(number)], |engine, tx| engine.acquire(tx, name(OTHER).as_bytes(), &mutex(FOREVER)));
        assert!(matches!(waits, Ok(Acquired::Waiting(_))), "{waits:?}");
        let steps = crowded.world.engine.budget.searched();
        assert_eq!(steps, NONE, "wait {number} behind the owner");
    }
}

/// A world in which each lock has a notified waiter of connection 1. The requests of a batch arrive
/// in one turn.
fn waiting(owner: impl Fn(usize) -> usize, ask: Ask) -> Crowded {
    let mut crowded = held();
    let_holder_wait(&mut crowded);
    let_other_wait(&mut crowded);
    let all: Vec<usize> = (0..LOCKS).collect();
    for batch in all.chunks(BATCH) {
        crowded.world.engine.begin_turn();
        for number in batch {
            let channel = Channel(NonZeroU32::MIN);
            let wait = Request { request_id: Some(*number as u64 + 1), notify: Some(channel), ..mutex(ask) };
            crowded.world.client = Some(1);
            let owner = name(owner(*number));
            let waits =
                crowded.world.transact(&[lock(*number)], |engine, tx| engine.acquire(tx, owner.as_bytes(), &wait));
            let Ok(Acquired::Waiting(ticket)) = waits else { panic!("{waits:?}") };
            crowded.world.expect_answer(ticket);
        }
    }
    crowded.world.client = None;
    crowded.count();
    crowded
}

/// Asserts that the waits of one owner end in as many turns as the same number of waits of
/// different owners, and that no search takes a step meanwhile.
#[track_caller]
fn assert_one_owner_is_as_many(ask: Ask, end_waits: impl Fn(&mut Crowded)) {
    let turns = |owner: fn(usize) -> usize| {
        let mut crowded = waiting(owner, ask);
        assert!(crowded.world.engine.backlog.suspects().is_empty(), "no search is deferred to the timer");
        let others = crowded.world.engine.waiting() - LOCKS;
        end_waits(&mut crowded);
        while crowded.has_work() {
            crowded.run_timer();
            crowded.end_turn();
            assert_eq!(crowded.world.engine.budget.searched(), 0, "the end of a wait needs no search");
        }
        assert_eq!((crowded.answers, crowded.world.engine.waiting()), (LOCKS, others));
        crowded.turns
    };
    let one_owner = turns(|_| OWNER);
    assert_eq!(one_owner, turns(|number| OTHERS + CHAIN + number));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters")]
fn the_waits_of_an_owner_are_granted_as_fast_as_those_of_many_when_all_locks_are_deleted() {
    assert_one_owner_is_as_many(FOREVER, |crowded| {
        for number in 0..LOCKS {
            crowded.world.unlink(&lock(number));
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters")]
fn the_waits_of_an_owner_are_granted_as_fast_as_those_of_many_when_the_holder_releases() {
    assert_one_owner_is_as_many(FOREVER, |crowded| {
        let holder = name(HOLDER);
        let release = releasing(Kind::Mutex, Mode::Exclusive, holder.as_bytes());
        for number in 0..LOCKS {
            crowded.command_alone(&[lock(number)], |engine, tx| engine.release(tx, &release)).unwrap();
            assert_eq!(crowded.world.engine.budget.searched(), 0, "a grant needs no search");
            crowded.end_turn();
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters")]
fn the_waits_of_an_owner_end_as_fast_as_those_of_many_when_they_time_out() {
    let now = Crowded::new().world.now;
    assert_one_owner_is_as_many(Ask::Wait { until_us: Some(now.after_ms(LEASE_MS)) }, |crowded| {
        crowded.world.pause(LEASE_MS);
    });
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters")]
fn the_waits_of_an_owner_end_as_fast_as_those_of_many_when_their_connection_closes() {
    assert_one_owner_is_as_many(FOREVER, |crowded| crowded.world.engine.client_closed(1, |_| false));
}
