//! Operations on whole databases, and the work that was pending there.

use alloc::vec::Vec;

use super::keyspace::Value;
use super::world::{World, asking};
use crate::bytes::Key;
use crate::engine::{Acquired, Engine};
use crate::kind::{Kind, Mode};
use crate::request::{Ask, Refusal, Request};

fn in_database(db: u32) -> Key {
    Key { db, name: b"k".as_slice().into() }
}

/// Sends a request that waits without a limit. Returns the number of the waiter, if it waits.
fn acquire(world: &mut World, key: &Key, owner: &[u8]) -> Option<usize> {
    let request = asking(Kind::Mutex, Mode::Exclusive, Ask::Wait { until_us: None });
    match world.on_key(key, |engine, tx| engine.acquire(tx, owner, &request)).unwrap() {
        Acquired::Waiting(ticket) => Some(world.expect_answer(ticket)),
        _ => None,
    }
}

/// The lease of `a` expires and the lock is granted to `b`, which disconnects before it receives
/// the answer. `c` waits behind `b`.
fn leave_in_the_turn_of_a_grant(world: &mut World, key: &Key) {
    acquire(world, key, b"a");
    let gone = acquire(world, key, b"b").unwrap();
    acquire(world, key, b"c");
    world.advance(1000);
    world.waiter_left(gone, false);
}

fn is_held_by(world: &World, key: &Key, owner: &[u8]) -> bool {
    world.lock(key).is_some_and(|lock| lock.live_hold(owner, Mode::Exclusive, world.now).is_some())
}

#[test]
fn grant_is_undone_after_swaps_of_other_databases() {
    let mut world = World::new();
    let key = in_database(2);
    leave_in_the_turn_of_a_grant(&mut world, &key);
    world.swap();
    world.run_timer();
    assert!(!is_held_by(&world, &key, b"b"), "no client received that grant");
    assert!(is_held_by(&world, &key, b"c"), "the next waiter has the lock");
    world.check_at_rest();
}

#[test]
fn undelivered_grant_in_a_swapped_database_lasts_until_its_lease_ends() {
    for db in [0, 1] {
        let mut world = World::new();
        let (key, other) = (in_database(db), in_database(1 - db));
        leave_in_the_turn_of_a_grant(&mut world, &key);
        world.swap();
        world.run_timer();
        assert!(is_held_by(&world, &other, b"b"), "its grant is not found any longer");
        assert!(is_held_by(&world, &key, b"c"), "the waiter stays with the name");
        world.check_at_rest();
        world.advance(1000);
        assert!(world.lock(&other).is_none(), "its lease has ended");
        world.check_at_rest();
    }
}

/// Acquires a lock of 10 s with a session of 5 ms over connection 1.
fn acquire_in_session(world: &mut World, key: &Key, owner: &[u8]) {
    let session = Request { session_ms: Some(5), lease_ms: 10_000, ..asking(Kind::Mutex, Mode::Exclusive, Ask::Try) };
    world.client = Some(1);
    world.on_key(key, |engine, tx| engine.acquire(tx, owner, &session)).unwrap();
}

/// A swap of databases 0 and 1, and a flush of database 0, on a master and its replica.
const CHANGES: [fn(&mut World); 2] = [World::swap, |world| world.flush_db(0)];

#[test]
fn sessions_in_other_databases_outlast_a_swap_and_a_flush() {
    for change in CHANGES {
        let mut world = World::new();
        let key = in_database(2);
        acquire_in_session(&mut world, &key, b"a");
        change(&mut world);
        world.advance(100);
        assert!(is_held_by(&world, &key, b"a"), "its connection is open");
        world.engine.client_closed(1, |_| false);
        world.advance(5);
        assert!(world.lock(&key).is_none(), "its session has ended with its connection");
        world.check_at_rest();
    }
}

#[test]
fn sweep_forgets_the_bindings_of_holds_that_are_gone() {
    for change in CHANGES {
        let mut world = World::new();
        let (gone, other) = (in_database(0), in_database(2));
        acquire_in_session(&mut world, &gone, b"a");
        acquire_in_session(&mut world, &other, b"b");
        change(&mut world);
        world.run_timer();
        let bound: Vec<Key> = world.engine.sessions.bindings().map(|binding| binding.key.clone()).collect();
        assert_eq!(bound, [other]);
    }
}

#[test]
fn cycle_in_another_database_is_found_before_the_sweep() {
    for change in CHANGES {
        let mut world = World::new();
        let [x, y] = [b"x", b"y"].map(|name| Key { db: 2, name: name.as_slice().into() });
        acquire(&mut world, &x, b"a");
        acquire(&mut world, &y, b"b");
        acquire(&mut world, &x, b"b").unwrap();
        change(&mut world);
        let request = asking(Kind::Mutex, Mode::Exclusive, Ask::Wait { until_us: None });
        let refused = world.on_key(&y, |engine, tx| engine.acquire(tx, b"a", &request));
        assert!(matches!(refused, Err(Refusal::Deadlock(_))));
    }
}

/// A value has no alarm before its key is reconciled, so the sweep does not find it.
#[test]
fn lease_of_a_value_that_arrived_before_a_swap_expires() {
    let arrivals: [fn(&mut Engine, Key); 2] = [|engine, key| engine.value_arrived(key.borrow()), Engine::value_loaded];
    for arrival in arrivals {
        let (mut world, key) = (World::new(), in_database(0));
        acquire(&mut world, &key, b"a");
        let Some(Value::Lock(lock)) = world.unlink(&key) else { panic!("a lock") };
        for (engine, values) in
            [(&mut world.engine, &mut world.values), (&mut world.replica, &mut world.replica_values)]
        {
            values.insert((0, b"k".to_vec()), Value::Lock(lock.clone()));
            arrival(engine, key.clone());
        }
        world.swap();
        world.advance(1000);
        assert!(world.values.is_empty(), "the lease has ended");
        world.check_at_rest();
    }
}

#[test]
fn flush_of_a_database_forgets_its_alarms_only() {
    let mut world = World::new();
    for db in [0, 1, 2] {
        acquire(&mut world, &in_database(db), b"a");
    }
    world.swap();
    world.flush_db(1);
    assert_eq!(world.engine.held(), 2);
    acquire(&mut world, &in_database(1), b"b");
    assert_eq!(world.engine.held(), 3);
    world.advance(999);
    world.check_at_rest();
    world.advance(1);
    assert_eq!((world.engine.held(), world.values.len()), (0, 0), "all leases have ended");
    world.check_at_rest();
}

#[test]
fn closed_connection_is_processed_after_swaps() {
    let mut world = World::new();
    acquire_in_session(&mut world, &in_database(0), b"a");
    world.swap();
    // Other databases are swapped before the timer runs.
    for engine in [&mut world.engine, &mut world.replica] {
        engine.swapped(2, 3);
    }
    world.engine.client_closed(1, |_| false);
    world.advance(5);
    assert!(!is_held_by(&world, &in_database(1), b"a"), "its session has ended with its connection");
    world.check_at_rest();
}
