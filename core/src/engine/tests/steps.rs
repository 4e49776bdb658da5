//! Limits on the work of one step when one event affects thousands of waiters or holds, because the
//! server's only thread does nothing else meanwhile.

use core::num::NonZeroU32;
use core::slice::from_ref;
use std::format;
use std::vec::Vec;

use super::crowd::{
    Crowded, FOREVER, GRACE_MS, HOLDER, LEASE_MS, MANY, held, itself, name, of_one_session, request, waiting,
};
use super::keyspace::Value;
use super::world::{World, key, releasing};
use crate::bytes::Key;
use crate::kind::{Kind, Mode};
use crate::limits::MayGrant;
use crate::outbox::Outbox;
use crate::request::{Ask, Channel, Release, Request, Verb};

/// The most keys of one request.
const KEYS: usize = 128;

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn readers_are_granted_in_parts() {
    let (mut crowded, lock) = waiting(Kind::RwLock, Mode::Write, Mode::Read, itself);
    crowded.release(&[lock], Kind::RwLock, Mode::Write);
    crowded.all_answered();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn waiters_for_permits_are_served_in_parts() {
    for permits in [u32::try_from(2 * MANY).unwrap(), 0] {
        let (mut crowded, lock) = waiting(Kind::Semaphore, Mode::Permits, Mode::Permits, itself);
        crowded.command(&[lock], |engine, tx| engine.resize_semaphore(tx, permits)).unwrap();
        crowded.all_answered();
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn waiters_for_a_removed_semaphore_are_refused_in_parts() {
    let (mut crowded, lock) = waiting(Kind::Semaphore, Mode::Permits, Mode::Permits, itself);
    crowded.world.unlink(&lock);
    crowded.all_answered();
    let (mut crowded, lock) = waiting(Kind::Mutex, Mode::Exclusive, Mode::Exclusive, itself);
    crowded.world.arrive(&lock, Value::Foreign);
    crowded.all_answered();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn waits_that_end_together_are_answered_in_parts() {
    for kind in [Kind::Mutex, Kind::Fair] {
        let (mut crowded, lock) = (Crowded::new(), key("lock"));
        crowded.acquire(from_ref(&lock), HOLDER, &request(kind, Mode::Exclusive, Ask::Try)).unwrap();
        let until_us = Some(crowded.world.now.after_ms(5));
        crowded.crowd(&lock, itself, &request(kind, Mode::Exclusive, Ask::Wait { until_us }));
        crowded.world.pause(5);
        crowded.release(&[lock], kind, Mode::Exclusive);
        crowded.all_answered();
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn unconfirmed_grants_are_undone_in_parts() {
    let (mut crowded, lock) = waiting(Kind::RwLock, Mode::Write, Mode::Read, itself);
    crowded.release(from_ref(&lock), Kind::RwLock, Mode::Write);
    crowded.all_answered();
    crowded.count();
    for client in 1..=MANY as u64 {
        crowded.world.engine.client_closed(client, |_| false);
    }
    crowded.settle();
    assert_eq!((crowded.effects, crowded.world.lock(&lock).is_none()), (MANY, true));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn places_of_closed_connections_are_released_and_expire_in_parts() {
    let (mut crowded, lock) = waiting(Kind::Fair, Mode::Exclusive, Mode::Exclusive, itself);
    for number in 1..=MANY {
        crowded.world.waiter_left(number, false);
    }
    crowded.settle();
    assert_eq!(crowded.effects, MANY, "each place is kept for the grace");
    crowded.advance(GRACE_MS);
    assert!(crowded.world.lock(&lock).unwrap().queue().is_none());
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn places_ahead_of_a_live_one_expire_in_parts() {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    let queue = |life_ms| request(Kind::Fair, Mode::Exclusive, Ask::Queue { life_ms });
    crowded.acquire(from_ref(&lock), HOLDER, &queue(1)).unwrap();
    crowded.crowd(&lock, itself, &queue(5));
    crowded.acquire(from_ref(&lock), HOLDER + 1, &queue(LEASE_MS)).unwrap();
    crowded.world.pause(5);
    crowded.release(from_ref(&lock), Kind::Fair, Mode::Exclusive);
    crowded.settle();
    assert_eq!(crowded.world.lock(&lock).unwrap().queue().unwrap().len(), 1);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn places_of_an_imported_value_are_kept_for_the_grace() {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    let queue = |life_ms| request(Kind::Fair, Mode::Exclusive, Ask::Queue { life_ms });
    crowded.acquire(from_ref(&lock), HOLDER, &queue(1)).unwrap();
    crowded.crowd(&lock, itself, &queue(5));
    let value = crowded.world.unlink(&lock).unwrap();
    let other = key("other");
    crowded.world.arrive(&other, value);
    crowded.settle();
    crowded.advance(5);
    assert_eq!(crowded.world.lock(&other).unwrap().queue().unwrap().len(), MANY, "they are kept for the grace");
    crowded.advance(GRACE_MS);
    assert!(crowded.world.lock(&other).unwrap().queue().is_none());
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn force_release_of_very_many_expired_holds_does_nothing() {
    let (mut crowded, lock) = held(Kind::RwLock, Mode::Read, None);
    crowded.world.pause(LEASE_MS);
    let forced = crowded.command_alone(&[lock], |engine, tx| engine.force_release(tx, Some(Kind::RwLock), None));
    assert_eq!((forced, crowded.world.engine.stats(Kind::RwLock).forced), (Ok(false), 0));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn leases_that_expire_together_end_in_parts() {
    let (mut crowded, lock) = held(Kind::RwLock, Mode::Read, None);
    crowded.advance(LEASE_MS);
    assert_eq!((crowded.effects, crowded.world.lock(&lock).is_none()), (MANY, true));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn timer_processes_a_closed_connection_as_its_only_work() {
    let mut crowded = of_one_session();
    crowded.world.engine.client_closed(1, |_| false);
    let names = crowded.world.engine.registry.views();
    let noted: Vec<Key> = names.map(|name| name.key.to_key()).collect();
    for lock in &noted {
        crowded.command_alone(from_ref(lock), |engine, tx| engine.force_release(tx, Some(Kind::Mutex), None)).unwrap();
    }
    crowded.end_turn();
    crowded.count();
    crowded.settle();
    assert_eq!(crowded.effects, MANY - noted.len(), "all the other sessions have ended");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn sessions_of_a_closed_connection_end_in_parts() {
    let mut crowded = of_one_session();
    crowded.world.engine.client_closed(1, |_| false);
    assert!(crowded.world.engine.registry.dirty_names().count() < 100, "a few are visited when the connection closes");
    crowded.settle();
    assert_eq!(crowded.effects, MANY);
    crowded.advance(5);
    assert_eq!((crowded.effects, crowded.world.values.len()), (2 * MANY, 0));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn sweep_counts_skipped_slots() {
    let (mut crowded, _) = waiting(Kind::Mutex, Mode::Exclusive, Mode::Exclusive, itself);
    for owner in 0..MANY {
        crowded.acquire(&[key(&name(owner))], owner, &request(Kind::Mutex, Mode::Exclusive, Ask::Try)).unwrap();
    }
    crowded.world.flush_db(7);
    crowded.run_timer();
    let taken = usize::try_from(crowded.world.engine.budget.taken()).unwrap();
    assert!((MANY / 10..MANY / 4).contains(&taken), "{taken} steps for {MANY} locks of a database that stays");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn sweep_visits_a_whole_database_in_a_few_runs() {
    let mut crowded = of_one_session();
    crowded.world.engine.promoted();
    crowded.settle();
    assert_eq!(crowded.effects, MANY, "their sessions count as closed");
    assert!(crowded.turns < MANY / 100, "{} runs of the timer", crowded.turns);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn swap_leaves_the_visits_to_the_sweep() {
    let mut crowded = Crowded::new();
    for number in 0..MANY {
        crowded.world.engine.value_changed(key(&name(number)).borrow());
    }
    crowded.world.swap();
    let names = crowded.world.engine.registry.views().count();
    assert_eq!(names, MANY, "no name of the other database is dirty");
    crowded.settle();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn no_source_of_work_delays_the_others() {
    const JOBS: usize = 20;
    let (mut crowded, lock, other) = (Crowded::new(), key("lock"), key("other"));
    let mutex = |ask| request(Kind::Mutex, Mode::Exclusive, ask);
    let until_us = Some(crowded.world.now.after_ms(LEASE_MS));
    crowded.acquire(from_ref(&lock), HOLDER, &mutex(Ask::Try)).unwrap();
    crowded.acquire(from_ref(&other), HOLDER, &Request { lease_ms: 2 * LEASE_MS, ..mutex(Ask::Try) }).unwrap();
    crowded.acquire(from_ref(&other), 0, &mutex(Ask::Wait { until_us })).unwrap();
    crowded.world.pause(LEASE_MS);
    for number in 0..MANY {
        crowded.world.engine.value_changed(key(&name(number)).borrow());
    }
    crowded.count();
    for _ in 0..JOBS {
        let mut out = Outbox::new(true);
        let job = crowded.world.engine.next_job(crowded.world.now, &mut out).unwrap();
        crowded.world.take(&[], &out);
        crowded.world.transact(core::slice::from_ref(&job.key), |engine, tx| engine.run_job(tx, &job));
    }
    crowded.end_turn();
    assert_eq!(
        (crowded.answers, crowded.world.lock(&lock).is_none()),
        (1, true),
        "a timed-out wait and an expired lease"
    );
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn macquire_is_offered_its_keys_once() {
    let mut crowded = Crowded::new();
    let keys: Vec<Key> = (0..KEYS).map(|number| key(&format!("k{number}"))).collect();
    let all = |ask| Request { verb: Verb::AcquireMany, ..request(Kind::Mutex, Mode::Exclusive, ask) };
    crowded.acquire(&keys, HOLDER, &all(Ask::Try)).unwrap();
    crowded.acquire(&keys, 0, &all(FOREVER)).unwrap();
    let owner = name(HOLDER);
    let one = releasing(Kind::Mutex, Mode::Exclusive, owner.as_bytes());
    let release = Release { verb: Verb::ReleaseMany, ..one };
    crowded.world.engine.begin_turn();
    crowded.world.transact(&keys, |engine, tx| engine.release(tx, &release)).unwrap();
    assert_eq!(crowded.world.engine.backlog.offers().len(), 1, "one offer, and not one for each key");
    crowded.take_offers();
    crowded.settle();
}

/// `MANY / KEYS` owners, each of which waits for the same `KEYS` keys.
fn wait_for_many_keys(ask: Ask) -> Crowded {
    let mut crowded = Crowded::new();
    let keys: Vec<Key> = (0..KEYS).map(|number| key(&format!("k{number}"))).collect();
    let all = |ask| Request { verb: Verb::AcquireMany, ..request(Kind::Mutex, Mode::Exclusive, ask) };
    crowded.acquire(&keys, HOLDER, &all(Ask::Try)).unwrap();
    for owner in 0..MANY / KEYS {
        crowded.acquire(&keys, owner, &all(ask)).unwrap();
    }
    crowded.count();
    crowded
}

/// The most keys of all requests that end in one turn: one for each change in its budget, plus the
/// keys of the last request.
const MOST_KEYS: usize = 1_000 + KEYS;

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn end_of_a_macquire_costs_as_much_as_its_keys() {
    let until_us = Some(World::new().now.after_ms(LEASE_MS / 2));
    let mut crowded = wait_for_many_keys(Ask::Wait { until_us });
    crowded.world.pause(LEASE_MS / 2);
    let mut waiting = crowded.world.engine.waiting();
    assert!(waiting * KEYS > 2 * MOST_KEYS, "more than a turn can end");
    while waiting > 0 {
        crowded.run_timer();
        let left = crowded.world.engine.waiting();
        assert!(left < waiting && (waiting - left) * KEYS <= MOST_KEYS, "{waiting} waited, and then {left}");
        waiting = left;
    }
}

/// Makes all others wait for the holder's lock as notified waiters of two connections, on several
/// channels.
fn wait_for_notices(crowded: &mut Crowded, lock: &Key, ask: Ask, channels: u32) {
    crowded.acquire(from_ref(lock), HOLDER, &request(Kind::Mutex, Mode::Exclusive, Ask::Try)).unwrap();
    for number in 0..MANY {
        let channel = NonZeroU32::MIN.saturating_add(u32::try_from(number).unwrap() % channels);
        let (request_id, notify) = (Some(number as u64 + 1), Some(Channel(channel)));
        crowded.world.client = Some(number as u64 % 2 + 1);
        let request = Request { request_id, notify, ..request(Kind::Mutex, Mode::Exclusive, ask) };
        crowded.acquire(from_ref(lock), number, &request).unwrap();
    }
    assert_eq!(crowded.world.engine.waiting_notified(), MANY);
    crowded.count();
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn notices_of_a_closed_connection_are_sent_in_parts() {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    wait_for_notices(&mut crowded, &lock, FOREVER, 1);
    crowded.world.engine.client_closed(1, |_| false);
    crowded.settle();
    assert_eq!((crowded.answers, crowded.world.engine.waiting()), (MANY / 2, MANY / 2));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn notices_of_waits_that_end_together_are_sent_in_parts() {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    let until_us = Some(crowded.world.now.after_ms(LEASE_MS / 2));
    wait_for_notices(&mut crowded, &lock, Ask::Wait { until_us }, 1);
    crowded.world.pause(LEASE_MS / 2);
    crowded.settle();
    assert_eq!((crowded.answers, crowded.world.engine.waiting()), (MANY, 0));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn one_scan_finds_the_waits_of_all_deleted_channels() {
    const CHANNELS: u32 = 100;
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    wait_for_notices(&mut crowded, &lock, FOREVER, CHANNELS);
    for number in 1..=CHANNELS / 2 {
        crowded.world.engine.channel_gone(Channel(NonZeroU32::new(number).unwrap()));
    }
    crowded.run_timer();
    crowded.end_turn();
    // Channels deleted during the scan are not forgotten.
    for number in CHANNELS / 2 + 1..CHANNELS {
        crowded.world.engine.channel_gone(Channel(NonZeroU32::new(number).unwrap()));
    }
    crowded.settle();
    let left = MANY / CHANNELS as usize;
    assert_eq!((crowded.answers, crowded.world.engine.waiting()), (MANY - left, left));
    assert!(crowded.turns < 50, "{} turns", crowded.turns);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn queues_are_served_in_parts_when_holds_may_begin_again() {
    let mut crowded = Crowded::new();
    crowded.world.limits.may_grant = MayGrant::Quarantine { left_ms: 1000 };
    for number in 0..MANY {
        let mutex = request(Kind::Mutex, Mode::Exclusive, FOREVER);
        crowded.acquire(from_ref(&key(&name(number))), number, &mutex).unwrap();
    }
    assert!(!crowded.has_work(), "nothing is due in a quarantine");
    crowded.world.limits.may_grant = MayGrant::Yes;
    crowded.world.engine.grants_resumed(crowded.world.now);
    crowded.count();
    crowded.settle();
    assert_eq!((crowded.answers, crowded.world.engine.waiting()), (MANY, 0), "each waiter is granted its lock");
    assert!(crowded.turns > 1, "not in one step");
}
