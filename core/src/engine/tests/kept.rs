//! How much is kept of what very many do, and how much of it is looked at in one step. Entries are counted and no time is measured, so
//! that this holds on a busy machine.

use core::slice::from_ref;
use std::collections::BTreeSet;
use std::vec::Vec;

use super::crowd::{Crowded, FOREVER, HOLDER, LEASE_MS, MANY, held, itself, name, request, waiting};
use super::world::{key, releasing};
use crate::backlog::Sweep;
use crate::bytes::Key;
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::registry::MAX_COPIED;
use crate::request::{Ask, Refusal, Request};

/// How many holders are kept beside the queue of a lock.
fn copied(crowded: &Crowded, lock: &Key) -> usize {
    crowded.world.engine.registry.view(lock.borrow()).unwrap().holders.len()
}

/// A lock that many read, and a writer that waits for it.
fn read_and_waited_for() -> (Crowded, Key) {
    let (mut crowded, lock) = waiting(Kind::RwLock, Mode::Write, Mode::Read, itself);
    crowded.acquire(from_ref(&lock), HOLDER + 1, &request(Kind::RwLock, Mode::Write, FOREVER)).unwrap();
    crowded.release(from_ref(&lock), Kind::RwLock, Mode::Write);
    crowded.settle();
    assert_eq!(crowded.world.lock(&lock).unwrap().holds().len(), MANY);
    (crowded, lock)
}

/// A reader releases.
fn leave(crowded: &mut Crowded, lock: &Key, owner: usize) {
    let owner = name(owner);
    let release = releasing(Kind::RwLock, Mode::Read, owner.as_bytes());
    crowded.command(from_ref(lock), |engine, tx| engine.release(tx, &release)).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn few_holders_are_kept_beside_the_queue_of_a_lock_that_very_many_hold() {
    let (mut crowded, lock) = read_and_waited_for();
    assert_eq!(copied(&crowded, &lock), MAX_COPIED);
    // Those of whom too little is known to see a circle are seen again when the others have left.
    for left in (0..MANY).rev() {
        leave(&mut crowded, &lock, MANY - 1 - left);
        if (1..=MAX_COPIED / 2).contains(&left) {
            assert_eq!(copied(&crowded, &lock), left, "of {left} holders all are known");
        }
    }
    assert_eq!(crowded.world.lock(&lock).unwrap().writer().unwrap().owner().as_slice(), name(HOLDER + 1).as_bytes());
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn who_comes_to_wait_for_a_lock_that_very_many_hold_looks_at_none_of_them() {
    let (mut crowded, lock) = held(Kind::RwLock, Mode::Read, None);
    crowded.acquire(from_ref(&lock), HOLDER, &request(Kind::RwLock, Mode::Write, FOREVER)).unwrap();
    assert_eq!(copied(&crowded, &lock), 0);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn readers_who_would_wait_for_each_other_leave_nothing_beside_the_queue() {
    let (mut crowded, lock) = read_and_waited_for();
    let write = request(Kind::RwLock, Mode::Write, FOREVER);
    crowded.acquire(from_ref(&lock), MANY - 1, &write).unwrap();
    assert_eq!(copied(&crowded, &lock), MAX_COPIED + 1, "who waits there is known beside the others");
    for owner in 0..MANY - 1 {
        let refused = crowded.acquire(from_ref(&lock), owner, &write);
        assert!(matches!(refused, Err(Refusal::Deadlock(_))), "{owner} would wait for itself");
        assert!((MAX_COPIED..=MAX_COPIED + 1).contains(&copied(&crowded, &lock)));
    }
    crowded.world.engine.registry.assert_consistent();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn a_reader_that_comes_to_wait_is_known_while_not_all_others_are() {
    const LEFT: usize = MAX_COPIED - 100;
    let (mut crowded, lock) = read_and_waited_for();
    for owner in 0..MANY - LEFT {
        leave(&mut crowded, &lock, owner);
    }
    assert_eq!(copied(&crowded, &lock), 0, "those that are left came when there was no room");
    let write = request(Kind::RwLock, Mode::Write, FOREVER);
    crowded.acquire(from_ref(&lock), MANY - 1, &write).unwrap();
    let refused = crowded.acquire(from_ref(&lock), MANY - 2, &write);
    assert!(matches!(refused, Err(Refusal::Deadlock(_))), "it would wait for itself");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn readers_who_were_all_sent_away_are_in_nobodys_way() {
    let (mut crowded, lock) = read_and_waited_for();
    crowded.acquire(from_ref(&lock), HOLDER + 2, &request(Kind::RwLock, Mode::Write, FOREVER)).unwrap();
    crowded.command(from_ref(&lock), |engine, tx| engine.force_release(tx, Some(Kind::RwLock), None)).unwrap();
    crowded.settle();
    assert_eq!(crowded.world.lock(&lock).unwrap().writer().unwrap().owner().as_slice(), name(HOLDER + 1).as_bytes());
    assert_eq!(copied(&crowded, &lock), 1, "the other writer waits for that one alone");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn of_a_value_that_goes_away_few_holds_are_looked_at_and_the_sweep_forgets_the_rest() {
    let bindings = |crowded: &Crowded| crowded.world.engine.sessions.bindings().count();
    let (mut crowded, lock) = held(Kind::RwLock, Mode::Read, None);
    crowded.world.client = Some(1);
    let bound = Request { session_ms: Some(5), ..request(Kind::RwLock, Mode::Read, Ask::Try) };
    crowded.acquire(from_ref(&lock), HOLDER, &bound).unwrap();
    crowded.world.unlink(&lock);
    assert_eq!(bindings(&crowded), 1, "the last of so many holds is not looked at");
    crowded.settle();
    assert_eq!(bindings(&crowded), 0);

    let (mut crowded, lock) = held(Kind::RwLock, Mode::Read, Some(5));
    assert_eq!(bindings(&crowded), MANY);
    crowded.world.unlink(&lock);
    assert!(bindings(&crowded) > MANY - 100, "a few bindings are forgotten at once");
    crowded.settle();
    assert_eq!(bindings(&crowded), 0);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn the_sweep_of_bindings_begins_anew_when_another_value_goes_away() {
    let (mut crowded, lock) = held(Kind::RwLock, Mode::Read, Some(5));
    let other = key("other");
    crowded.world.client = Some(MANY as u64 + 1);
    let bound = Request { session_ms: Some(5), ..request(Kind::Mutex, Mode::Exclusive, Ask::Try) };
    crowded.acquire(from_ref(&other), HOLDER, &bound).unwrap();
    let of_last = crowded.world.engine.sessions.bindings().last().cloned();
    crowded.world.engine.backlog.set_sweep(Some(Sweep::Bindings(of_last)));
    crowded.world.unlink(&lock);
    crowded.settle();
    assert_eq!(crowded.world.engine.sessions.bindings().count(), 1);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn who_looks_at_a_few_waiters_walks_past_few_that_are_over() {
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
    assert!(shown(&crowded, 2).is_empty(), "the one that waits stands behind thousands that do not");
    crowded.settle();
    assert_eq!(shown(&crowded, 2), [name(HOLDER + 1).into_bytes()]);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn who_looks_at_a_few_holds_walks_past_few_that_are_over() {
    let (mut crowded, lock) = held(Kind::RwLock, Mode::Read, None);
    let live = [HOLDER, HOLDER + 1, HOLDER + 2];
    for (number, owner) in live.into_iter().enumerate() {
        let read = request(Kind::RwLock, Mode::Read, Ask::Try);
        let read = Request { lease_ms: (number as u64 + 2) * LEASE_MS, ..read };
        crowded.acquire(from_ref(&lock), owner, &read).unwrap();
    }
    let shown = |crowded: &Crowded, limit| {
        let holds = crowded.world.lock(&lock).unwrap().some_live_holds(crowded.world.now, limit);
        holds.map(|hold| hold.owner().as_slice().to_vec()).collect::<Vec<_>>()
    };
    assert_eq!((shown(&crowded, 10).len(), shown(&crowded, 2 * MANY).len()), (10, MANY + 3));
    crowded.world.pause(LEASE_MS);
    // Those that end last come first, of a lock with more holds than anybody walks through.
    assert_eq!(shown(&crowded, 2), [HOLDER + 2, HOLDER + 1].map(|owner| name(owner).into_bytes()));
    assert_eq!(shown(&crowded, 10), [HOLDER + 2, HOLDER + 1, HOLDER].map(|owner| name(owner).into_bytes()));
    assert_eq!(shown(&crowded, MANY), live.map(|owner| name(owner).into_bytes()));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn who_looks_at_a_few_places_walks_past_few_that_are_over() {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    let queue = |life_ms| request(Kind::Fair, Mode::Exclusive, Ask::Queue { life_ms });
    crowded.acquire(from_ref(&lock), HOLDER, &queue(1)).unwrap();
    crowded.crowd(&lock, itself, &queue(5));
    crowded.acquire(from_ref(&lock), HOLDER + 1, &queue(LEASE_MS)).unwrap();
    let shown = |crowded: &Crowded, limit| {
        let places = crowded.world.lock(&lock).unwrap().queue().unwrap().first_live(crowded.world.now, limit);
        places.map(|place| place.owner.to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(shown(&crowded, 2), [name(0).into_bytes(), name(1).into_bytes()]);
    crowded.world.pause(5);
    assert!(shown(&crowded, 2).is_empty(), "the one that lives stands behind thousands that do not");
    assert_eq!(shown(&crowded, MANY), [name(HOLDER + 1).into_bytes()]);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn what_was_loaded_gives_its_memory_back_when_it_was_looked_at() {
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
fn one_look_at_the_locks_that_are_waited_for_is_at_some_thousands_and_the_next_is_at_the_others() {
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
    assert!(first.len() < LOCKS, "one look is at {} locks", first.len());
    assert_eq!(first.union(&second).count(), LOCKS);
}

/// A search comes to all of those who read a lock, and passes over the queue of the lock once.
#[test]
#[cfg_attr(miri, ignore = "thousands of waiters")]
fn a_search_passes_over_a_queue_once_for_all_of_those_in_its_way() {
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
    // In the other direction there is more to look at.
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

/// Whether anybody waits behind an owner is looked up in a few steps. If its own requests are too many for that, the search tells.
#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn a_circle_is_seen_that_leads_through_many_requests_of_one_owner() {
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
