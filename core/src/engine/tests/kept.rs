//! Limits on the data that the engine keeps for very many clients, and on how much of that data one
//! step visits. The tests count entries and measure no time, so they also hold on a busy machine.

use core::slice::from_ref;
use std::collections::BTreeSet;
use std::vec::Vec;

use super::crowd::{Crowded, FOREVER, HOLDER, MANY, held, itself, name, request, waiting};
use super::world::{key, releasing};
use crate::bytes::Key;
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::lock::MAX_HOLDERS;
use crate::request::{Ask, Refusal, Request};

/// The number of holders in the copy beside the queue of a lock.
fn copied(crowded: &Crowded, lock: &Key) -> usize {
    crowded.world.engine.registry.view(lock.borrow()).unwrap().holders.len()
}

/// A lock with many readers, and a writer that waits for it.
fn read_and_waited_for() -> (Crowded, Key) {
    let (mut crowded, lock) = waiting(Kind::RwLock, Mode::Write, Mode::Read, itself);
    crowded.acquire(from_ref(&lock), HOLDER + 1, &request(Kind::RwLock, Mode::Write, FOREVER)).unwrap();
    crowded.release(from_ref(&lock), Kind::RwLock, Mode::Write);
    crowded.settle();
    assert_eq!(crowded.world.lock(&lock).unwrap().holds().len(), MANY);
    (crowded, lock)
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn refused_reader_stays_a_holder_that_is_known() {
    let (mut crowded, lock) = read_and_waited_for();
    let write = request(Kind::RwLock, Mode::Write, FOREVER);
    crowded.acquire(from_ref(&lock), MANY - 1, &write).unwrap();
    let refused = crowded.acquire(from_ref(&lock), 0, &write);
    assert!(matches!(refused, Err(Refusal::Deadlock(_))), "it would wait for itself");
    assert_eq!(copied(&crowded, &lock), MANY);
    crowded.world.engine.registry.assert_consistent();
}

/// One more holder waits until another one releases.
#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn lock_has_at_most_10000_holders() {
    for (kind, mode) in [(Kind::RwLock, Mode::Read), (Kind::Semaphore, Mode::Permits)] {
        let (mut crowded, lock) = held(kind, mode, None);
        if kind == Kind::Semaphore {
            crowded.command(from_ref(&lock), |engine, tx| engine.resize_semaphore(tx, u32::MAX)).unwrap();
        }
        for owner in MANY..MAX_HOLDERS {
            let granted = crowded.acquire(from_ref(&lock), owner, &request(kind, mode, Ask::Try));
            assert!(matches!(granted, Ok(Acquired::Granted(_))), "{kind:?}: {granted:?}");
        }
        let one_more = crowded.acquire(from_ref(&lock), MAX_HOLDERS, &request(kind, mode, FOREVER));
        assert!(matches!(one_more, Ok(Acquired::Waiting(_))), "{kind:?}: {one_more:?}");
        let again = crowded.acquire(from_ref(&lock), 7, &Request { is_once: true, ..request(kind, mode, Ask::Try) });
        assert!(matches!(again, Ok(Acquired::Granted(_))), "{kind:?}: {again:?}");
        let first = name(0);
        let release = releasing(kind, mode, first.as_bytes());
        crowded.command(from_ref(&lock), |engine, tx| engine.release(tx, &release)).unwrap();
        crowded.settle();
        let lock = crowded.world.lock(&lock).unwrap();
        assert!(lock.hold(name(MAX_HOLDERS).as_bytes(), mode).is_some(), "{kind:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn removed_value_leaves_no_bindings() {
    let bindings = |crowded: &Crowded| crowded.world.engine.sessions.bindings().count();
    let (mut crowded, lock) = held(Kind::RwLock, Mode::Read, Some(5));
    assert_eq!(bindings(&crowded), MANY);
    crowded.world.unlink(&lock);
    assert_eq!(bindings(&crowded), 0);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn cleared_readers_block_no_waiter() {
    let (mut crowded, lock) = read_and_waited_for();
    crowded.acquire(from_ref(&lock), HOLDER + 2, &request(Kind::RwLock, Mode::Write, FOREVER)).unwrap();
    crowded.command(from_ref(&lock), |engine, tx| engine.force_release(tx, Some(Kind::RwLock), None)).unwrap();
    crowded.settle();
    assert_eq!(crowded.world.lock(&lock).unwrap().writer().unwrap().owner().as_slice(), name(HOLDER + 1).as_bytes());
    assert_eq!(copied(&crowded, &lock), 1, "the other writer waits only for that one");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn listing_waiters_skips_few_ended_ones() {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    let mutex = |ask| request(Kind::Mutex, Mode::Exclusive, ask);
    crowded.acquire(from_ref(&lock), HOLDER, &mutex(Ask::Try)).unwrap();
    let until_us = Some(crowded.world.now.after_ms(5));
    for owner in 0..MANY {
        crowded.acquire(from_ref(&lock), owner, &mutex(Ask::Wait { until_us })).unwrap();
    }
    crowded.acquire(from_ref(&lock), HOLDER + 1, &mutex(FOREVER)).unwrap();
    let shown = |crowded: &Crowded, limit| {
        let waiters = crowded.world.engine.first_waiters(lock.borrow(), crowded.world.now, limit);
        waiters.map(|waiter| waiter.owner.to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(shown(&crowded, 2), [name(0).into_bytes(), name(1).into_bytes()]);
    crowded.world.pause(5);
    assert!(shown(&crowded, 2).is_empty(), "the waiter is behind thousands that have ended");
    crowded.settle();
    assert_eq!(shown(&crowded, 2), [name(HOLDER + 1).into_bytes()]);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn list_of_loaded_keys_frees_its_memory() {
    const LOADED: usize = 10_000;
    let mut crowded = Crowded::new();
    for number in 0..LOADED {
        crowded.world.engine.value_loaded(key(&name(number)));
    }
    crowded.settle();
    let bytes = crowded.world.engine.backlog.loaded().heap_bytes();
    assert!(bytes < LOADED / 4 * size_of::<Key>(), "{bytes} bytes are kept");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters")]
fn contention_scan_visits_some_thousands_of_locks_and_then_the_others() {
    const LOCKS: usize = 6_000;
    let mut crowded = Crowded::new();
    crowded.world.limits.max_waiters = LOCKS;
    for number in 0..LOCKS {
        let lock = key(&name(number));
        for (owner, ask) in [(LOCKS + number, Ask::Try), (number, FOREVER)] {
            crowded.acquire(from_ref(&lock), owner, &request(Kind::Mutex, Mode::Exclusive, ask)).unwrap();
        }
    }
    let now = crowded.world.now;
    let mut look = || -> BTreeSet<Key> {
        crowded.world.engine.most_contended(LOCKS, now).into_iter().map(|contended| contended.key).collect()
    };
    let (first, second) = (look(), look());
    assert!(first.len() < LOCKS, "one scan visits {} locks", first.len());
    assert_eq!(first.union(&second).count(), LOCKS);
}

/// A search reaches all readers of a lock, and visits the queue of the lock once.
#[test]
#[cfg_attr(miri, ignore = "thousands of waiters")]
fn search_visits_a_queue_once_for_all_holders() {
    const READERS: usize = 60;
    let (mut crowded, mine, read, far) = (Crowded::new(), key("mine"), key("read"), key("far"));
    let ask = |mode, ask| request(if mode == Mode::Exclusive { Kind::Mutex } else { Kind::RwLock }, mode, ask);
    crowded.acquire(from_ref(&mine), HOLDER, &ask(Mode::Exclusive, Ask::Try)).unwrap();
    crowded.acquire(from_ref(&far), HOLDER + 1, &ask(Mode::Exclusive, Ask::Try)).unwrap();
    for reader in 0..READERS {
        crowded.acquire(from_ref(&read), reader, &ask(Mode::Read, Ask::Try)).unwrap();
        crowded.acquire(from_ref(&mine), reader, &ask(Mode::Exclusive, FOREVER)).unwrap();
    }
    for writer in 0..READERS {
        crowded.acquire(from_ref(&read), READERS + writer, &ask(Mode::Write, FOREVER)).unwrap();
    }
    // In the other direction there is more to visit.
    for other in 2 * READERS..MANY {
        crowded.acquire(from_ref(&far), other, &ask(Mode::Exclusive, FOREVER)).unwrap();
    }
    crowded.world.engine.begin_turn();
    let steps = crowded.world.engine.budget.search_steps();
    let wait = ask(Mode::Exclusive, FOREVER);
    let asked = crowded.command_alone(from_ref(&far), |engine, tx| engine.acquire(tx, name(HOLDER).as_bytes(), &wait));
    assert!(matches!(asked, Ok(Acquired::Waiting(_))), "{asked:?}");
    let steps = steps - crowded.world.engine.budget.search_steps();
    assert!((2..3_000).contains(&steps), "{steps} steps");
}

/// An owner repeats its waiting request 40 times, and each one takes over the position of the one
/// before. The search still finds the cycle through the last one.
#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn cycle_through_many_requests_of_one_owner_is_found() {
    let [holder, other, many_times] = [1, 2, 3];
    let (mut crowded, first, second) = (Crowded::new(), key("first"), key("second"));
    let (hold, wait) =
        (request(Kind::Mutex, Mode::Exclusive, Ask::Try), request(Kind::Mutex, Mode::Exclusive, FOREVER));
    crowded.acquire(from_ref(&first), holder, &hold).unwrap();
    crowded.acquire(from_ref(&second), other, &hold).unwrap();
    for _ in 0..40 {
        crowded.acquire(from_ref(&first), many_times, &wait).unwrap();
    }
    crowded.acquire(&[first], other, &wait).unwrap();
    let refused = crowded.acquire(&[second], many_times, &wait);
    assert!(matches!(refused, Err(Refusal::Deadlock(_))), "{refused:?}");
}
