//! The memory of thousands of waiters and holds is freed in parts, so that the server's only thread
//! does not stall.

use core::slice::from_ref;

use super::crowd::{Crowded, FOREVER, HOLDER, LEASE_MS, MANY, held, itself, name, request};
use super::keyspace::Open;
use super::world::key;
use crate::engine::{Acquired, Engine};
use crate::keyspace::KeyId;
use crate::kind::{Kind, Mode};
use crate::outbox::Outbox;
use crate::request::Ask;

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn holds_that_end_together_leave_no_bindings() {
    let bindings = |crowded: &Crowded| crowded.world.engine.sessions.bindings().count();
    let (mut crowded, lock) = held(Kind::RwLock, Mode::Read, Some(5));
    crowded.world.pause(LEASE_MS);
    let write = request(Kind::RwLock, Mode::Write, Ask::Try);
    let written = crowded.command_alone(&[lock], |engine, tx| engine.acquire(tx, b"writer", &write));
    assert!(matches!(written, Ok(Acquired::Granted(_))));
    assert_eq!(bindings(&crowded), 0);

    let (mut crowded, lock) = held(Kind::Semaphore, Mode::Permits, Some(5));
    crowded.command_alone(&[lock], |engine, tx| engine.force_release(tx, Some(Kind::Semaphore), None)).unwrap();
    assert_eq!(bindings(&crowded), 0);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn memory_of_many_locks_is_freed_in_parts() {
    const LOCKS: usize = 50_000;
    let mut crowded = Crowded::new();
    for owner in 0..LOCKS {
        crowded.acquire(&[key(&name(owner))], owner, &request(Kind::Mutex, Mode::Exclusive, Ask::Try)).unwrap();
    }
    crowded.world.pause(LEASE_MS);
    while crowded.world.engine.held() > 0 {
        crowded.run_timer();
        crowded.end_turn();
    }
    assert!(crowded.world.engine.alarms.has_retired(), "one run does not free all of it");
    crowded.settle();
    assert!(!crowded.world.engine.alarms.has_retired());
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn memory_of_many_waiters_is_freed_in_parts() {
    const WAITERS: usize = 50_000;
    let mut crowded = Crowded::new();
    crowded.world.limits.max_waiters = WAITERS;
    let until_us = Some(crowded.world.now.after_ms(LEASE_MS / 2));
    let [tries, waits] = [Ask::Try, Ask::Wait { until_us }].map(|ask| request(Kind::Mutex, Mode::Exclusive, ask));
    for number in 0..WAITERS {
        let lock = key(&name(number));
        crowded.acquire(from_ref(&lock), WAITERS + number, &tries).unwrap();
        crowded.acquire(from_ref(&lock), number, &waits).unwrap();
    }
    assert_eq!(crowded.world.engine.waiting(), WAITERS);
    crowded.world.pause(LEASE_MS / 2);
    while crowded.world.engine.waiting() > 0 {
        crowded.run_timer();
        crowded.end_turn();
    }
    assert_eq!(crowded.world.engine.registry.retired(), [true; 3], "one run does not free all of it");
    crowded.settle();
    assert!(!has_retired_any(&crowded));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn memory_of_many_waiters_for_one_lock_is_freed() {
    const REQUESTS: usize = 5_000;
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    let mutex = |ask| request(Kind::Mutex, Mode::Exclusive, ask);
    crowded.acquire(from_ref(&lock), HOLDER, &mutex(Ask::Try)).unwrap();
    for number in 0..REQUESTS {
        crowded.acquire(from_ref(&lock), HOLDER + 1 + number, &mutex(FOREVER)).unwrap();
    }
    for number in 1..=REQUESTS {
        crowded.world.waiter_left(number, false);
    }
    assert!(crowded.world.engine.registry.retired()[0]);
    crowded.settle();
    assert!(!has_retired_any(&crowded));
}

fn has_retired_any(crowded: &Crowded) -> bool {
    crowded.world.engine.registry.has_retired()
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn memory_of_flushed_locks_is_freed_in_parts() {
    const LOCKS: usize = 50_000;
    let mut crowded = Crowded::new();
    for owner in 0..LOCKS {
        crowded.acquire(&[key(&name(owner))], owner, &request(Kind::Mutex, Mode::Exclusive, Ask::Try)).unwrap();
    }
    crowded.world.flush();
    crowded.world.observe_on_replica();
    assert_eq!(crowded.world.engine.held(), 0);
    crowded.run_timer();
    assert!(crowded.world.engine.alarms.has_retired(), "one run does not free all of it");
    crowded.settle();
    assert!(!crowded.world.engine.alarms.has_retired());
}

/// A replaced master becomes a replica, and may load the data of the new master.
#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn replaced_master_frees_the_memory_of_sessions() {
    for loads in [true, false] {
        let (crowded, _) = held(Kind::RwLock, Mode::Read, Some(5));
        let mut engine = crowded.world.engine;
        engine.demoted();
        if loads {
            engine.flushed(None);
            engine.promoted();
        }
        assert!(engine.sessions.has_work(), "there is memory to free");
        while engine.has_to_observe() {
            engine.begin_turn();
            engine.end_cut_off(&mut Outbox::new(false));
            while engine.next_to_observe().is_some() {}
        }
        assert!(!engine.sessions.has_work());
    }
}

/// Waiters for a fair lock timed out while the server took no writes, so their places were not
/// removed. Then another server was promoted.
#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn records_of_gone_owners_are_dropped_in_parts() {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    let until_us = Some(crowded.world.now.after_ms(LEASE_MS / 2));
    let [tries, waits] = [Ask::Try, Ask::Wait { until_us }].map(|ask| request(Kind::Fair, Mode::Exclusive, ask));
    crowded.acquire(from_ref(&lock), HOLDER, &tries).unwrap();
    crowded.crowd(&lock, itself, &waits);
    crowded.world.pause(LEASE_MS / 2);
    while crowded.world.end_waits() {
        crowded.end_turn();
    }
    crowded.world.engine.demoted();
    let gone = |engine: &Engine| -> usize {
        let dirty = engine.registry.find(lock.borrow()).and_then(|name| engine.registry.dirty(name));
        dirty.map_or(0, |dirty| dirty.gone.len())
    };
    assert_eq!(gone(&crowded.world.engine), MANY);
    let parts = crowded.world.engine.budget.parts() as usize;
    while crowded.world.engine.has_to_observe() {
        let world = &mut crowded.world;
        world.engine.begin_turn();
        world.engine.end_cut_off(&mut Outbox::new(false));
        while let Some(job) = world.engine.next_to_observe() {
            let before = gone(&world.engine);
            let mut open =
                Open { open: [job.key.clone()].into(), client: None, barred: &world.barred, values: &mut world.values };
            world.engine.observe(&mut open, KeyId(0), &job);
            assert!(before - gone(&world.engine) <= parts, "every step is bounded");
        }
    }
    assert!(crowded.world.engine.registry.find(lock.borrow()).is_none());
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn list_of_suspects_frees_its_memory() {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    let mutex = |ask| request(Kind::Mutex, Mode::Exclusive, ask);
    crowded.acquire(from_ref(&lock), HOLDER, &mutex(Ask::Try)).unwrap();
    crowded.crowd(&lock, itself, &mutex(FOREVER));
    for number in 1..=MANY {
        let ticket = crowded.world.ticket(number).unwrap();
        crowded.world.engine.suspect(ticket);
    }
    assert!(crowded.world.engine.backlog.suspects().capacity() >= MANY);
    crowded.settle();
    assert!(crowded.world.engine.backlog.suspects().capacity() < MANY);
}
