//! Views of the engine: counts, times, and the most contended locks.

use core::num::NonZeroU32;
use std::vec::Vec;

use super::world::{World, asking, key};
use crate::bytes::Key;
use crate::engine::{Acquired, Contended, Longest};
use crate::kind::{Kind, Mode};
use crate::limits::MayGrant;
use crate::request::{Ask, Channel, Refusal, Request};

fn try_it(world: &mut World, kind: Kind, key: &Key, owner: &str, ask: Ask) -> Result<Acquired, Refusal> {
    let mode = if kind == Kind::RwLock { Mode::Write } else { Mode::Exclusive };
    let request = asking(kind, mode, ask);
    world.on_key(key, |engine, tx| engine.acquire(tx, owner.as_bytes(), &request))
}

fn ask(world: &mut World, kind: Kind, key: &Key, owner: &str) -> Acquired {
    let acquired = try_it(world, kind, key, owner, Ask::Wait { until_us: None }).unwrap();
    if let Acquired::Waiting(ticket) = acquired {
        world.expect_answer(ticket);
    }
    acquired
}

/// The token of a hold granted at once.
fn hold(world: &mut World, kind: Kind, key: &Key, owner: &str) -> u64 {
    match ask(world, kind, key, owner) {
        Acquired::Granted(grant) => grant.tokens[0],
        other => panic!("expected a grant for {owner}: {other:?}"),
    }
}

fn wait(world: &mut World, kind: Kind, key: &Key, owner: &str) {
    assert!(matches!(ask(world, kind, key, owner), Acquired::Waiting(_)), "expected {owner} to wait");
}

/// The non-zero counters of a kind.
fn counts(world: &mut World, kind: Kind) -> Vec<(&'static str, u64)> {
    world.engine.stats(kind).named().into_iter().filter(|(_, number)| *number > 0).collect()
}

#[test]
fn most_contended_locks_come_first_with_longest_wait_and_holder() {
    let mut world = World::new();
    let (busy, calm, idle) = (key("busy"), key("calm"), key("idle"));
    hold(&mut world, Kind::Mutex, &idle, "a");
    world.advance(100);
    let calm_token = hold(&mut world, Kind::RwLock, &calm, "b");
    wait(&mut world, Kind::RwLock, &calm, "c");
    world.advance(20);
    let busy_token = hold(&mut world, Kind::Mutex, &busy, "d");
    world.advance(5);
    wait(&mut world, Kind::Mutex, &busy, "e");
    wait(&mut world, Kind::Mutex, &busy, "f");
    world.advance(30);

    let of_busy = Contended {
        key: busy,
        kind: Kind::Mutex,
        waiters: 2,
        oldest_wait_ms: 30,
        holder: Some((b"d".as_slice().into(), busy_token, 35)),
    };
    let of_calm = Contended {
        key: calm,
        kind: Kind::RwLock,
        waiters: 1,
        oldest_wait_ms: 55,
        holder: Some((b"b".as_slice().into(), calm_token, 55)),
    };
    let now = world.now;
    assert_eq!(world.engine.most_contended(1, now), core::slice::from_ref(&of_busy));
    // The next scan begins where the last one ended, and finds the same.
    assert_eq!(world.engine.most_contended(9, now), [of_busy, of_calm]);
    assert_eq!(world.engine.longest(now), Longest { wait_ms: 55, hold_ms: 55 });
}

#[test]
fn counters_are_separate_for_each_kind() {
    let mut world = World::new();
    let (mutex, shared) = (key("mutex"), key("shared"));
    let empty = world.engine.waiters_bytes();
    hold(&mut world, Kind::Mutex, &mutex, "a");
    hold(&mut world, Kind::RwLock, &shared, "b");
    wait(&mut world, Kind::Mutex, &mutex, "c");
    assert_eq!((world.engine.waiting_for(Kind::Mutex), world.engine.waiting_for(Kind::RwLock)), (1, 0));
    assert!(world.engine.waiters_bytes() > empty);

    // Both leases expire. The waiter is granted its mutex then.
    world.advance(1000);
    let of_mutexes = [("granted_at_once", 1), ("granted_after_waiting", 1), ("handed_over", 1), ("expired", 1)];
    assert_eq!(counts(&mut world, Kind::Mutex), of_mutexes);
    assert_eq!(counts(&mut world, Kind::RwLock), [("granted_at_once", 1), ("expired", 1)]);
    assert!(counts(&mut world, Kind::Fair).is_empty());
    let waits = world.engine.wait_summary(world.now);
    assert_eq!((waits.total_us, waits.max_us), (1_000_000, 1_000_000));
}

#[test]
fn denials_and_refusals_are_counted_but_polls_are_not() {
    let mut world = World::new();
    let (mutex, fair) = (key("mutex"), key("fair"));

    // Once without waiters, once behind a waiter.
    hold(&mut world, Kind::Mutex, &mutex, "a");
    assert_eq!(try_it(&mut world, Kind::Mutex, &mutex, "b", Ask::Try), Ok(Acquired::Denied));
    wait(&mut world, Kind::Mutex, &mutex, "c");
    assert_eq!(try_it(&mut world, Kind::Mutex, &mutex, "b", Ask::Try), Ok(Acquired::Denied));
    assert_eq!(counts(&mut world, Kind::Mutex), [("granted_at_once", 1), ("denied", 2)]);

    // A refusal counts for the requested kind.
    assert!(try_it(&mut world, Kind::Fair, &mutex, "b", Ask::Try).is_err());
    assert_eq!(counts(&mut world, Kind::Fair), [("refused", 1)]);

    // A poller has a place, so its grant counts as one after a wait.
    hold(&mut world, Kind::Fair, &fair, "a");
    let poll = Ask::Queue { life_ms: 5000 };
    assert_eq!(try_it(&mut world, Kind::Fair, &fair, "b", poll), Ok(Acquired::Denied));
    assert_eq!(counts(&mut world, Kind::Fair), [("granted_at_once", 1), ("refused", 1)]);
    world.advance(1000);
    assert!(matches!(try_it(&mut world, Kind::Fair, &fair, "b", poll), Ok(Acquired::Granted(_))));
    let of_fair = [("granted_at_once", 1), ("granted_after_waiting", 1), ("refused", 1), ("expired", 1)];
    assert_eq!(counts(&mut world, Kind::Fair), of_fair);
}

#[test]
fn reentry_counts_as_granted_at_once() {
    for kind in [Kind::Mutex, Kind::Fair] {
        let (mut world, lock) = (World::new(), key("lock"));
        hold(&mut world, kind, &lock, "a");
        wait(&mut world, kind, &lock, "b");
        hold(&mut world, kind, &lock, "a");
        assert_eq!(counts(&mut world, kind), [("granted_at_once", 2)]);
    }
}

#[test]
fn imported_expired_lock_is_handed_over() {
    let (mut world, from, to) = (World::new(), key("from"), key("to"));
    hold(&mut world, Kind::Mutex, &from, "a");
    world.advance(500);
    hold(&mut world, Kind::Mutex, &to, "b");
    wait(&mut world, Kind::Mutex, &to, "c");
    world.pause(500);
    let value = world.unlink(&from).unwrap();
    world.arrive(&to, value);
    world.run_timer();
    let of_mutexes = [("granted_at_once", 2), ("granted_after_waiting", 1), ("handed_over", 1), ("expired", 1)];
    assert_eq!(counts(&mut world, Kind::Mutex), of_mutexes);
}

#[test]
fn queries_report_relevant_connections() {
    let (mut world, mutex, fair) = (World::new(), key("mutex"), key("fair"));
    assert_eq!((world.engine.unheard_grants(), world.engine.waiting_on(mutex.borrow())), (0, 0));
    world.client = Some(1);
    let bound = Request { session_ms: Some(5), ..asking(Kind::Mutex, Mode::Exclusive, Ask::Try) };
    world.on_key(&mutex, |engine, tx| engine.acquire(tx, b"a", &bound)).unwrap();
    hold(&mut world, Kind::Fair, &fair, "a");
    wait(&mut world, Kind::Fair, &fair, "b");
    world.client = Some(2);
    let (request_id, notify) = (Some(1), Some(Channel(NonZeroU32::MIN)));
    let notified = Request { request_id, notify, ..asking(Kind::Fair, Mode::Exclusive, Ask::Wait { until_us: None }) };
    let Ok(Acquired::Waiting(ticket)) = world.on_key(&fair, |engine, tx| engine.acquire(tx, b"c", &notified)) else {
        panic!("it waits");
    };
    world.expect_answer(ticket);
    assert_eq!(world.engine.waiting_on(fair.borrow()), 2);
    assert!(world.engine.is_waiting(ticket) && !world.engine.is_waiting(ticket + 1));
    let now = world.now;
    let waiters = [b"a", b"b", b"c"].map(|owner| world.engine.waiter_at_place(fair.borrow(), owner, now));
    let shown = waiters.map(|waiter| waiter.map(|waiter| (waiter.is_notified, waiter.client)));
    assert_eq!(shown, [None, Some((false, None)), Some((true, Some(2)))]);
    let concerns = [1, 2, 3].map(|client| world.engine.concerns_client(client));
    assert_eq!(concerns, [true, true, false], "a session, a notified wait, and neither");
    world.engine.nobody_listened(ticket);
    assert_eq!(world.engine.unheard_grants(), 1);
}

/// While no hold may begin, an idle semaphore stays without any effect. Its idle time begins again
/// afterwards, and lasts at least a second.
#[test]
fn idle_time_begins_again_after_a_quarantine() {
    let mut world = World::new();
    world.limits.may_grant = MayGrant::Quarantine { left_ms: 50 };
    world.on_key(&key("s"), |engine, tx| engine.init_semaphore(tx, 2, Some(1))).unwrap();
    world.outputs.clear();
    for _ in 0..5 {
        world.advance(1000);
        world.run_timer();
    }
    assert!(world.outputs.is_empty(), "nothing is written while no hold may begin");
    assert_eq!(world.engine.next_timeout_us(), None, "and the timer does not run again and again");
    world.limits.may_grant = MayGrant::Yes;
    world.engine.grants_resumed(world.now);
    world.run_timer();
    let until_us = world.lock(&key("s")).and_then(|lock| lock.idle()).map(|idle| idle.until_us);
    assert_eq!(until_us, Some(world.now.after_ms(1000)));
    world.advance(1000);
    world.run_timer();
    assert!(world.lock(&key("s")).is_none());
}
