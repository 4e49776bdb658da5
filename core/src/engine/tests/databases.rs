//! Operations on whole databases, and the work that was pending there.

use super::world::{World, asking};
use crate::bytes::Key;
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::request::{Ask, Request};

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
fn grant_to_undo_moves_with_a_swapped_database() {
    for db in [0, 1] {
        let mut world = World::new();
        let (key, other) = (in_database(db), in_database(1 - db));
        leave_in_the_turn_of_a_grant(&mut world, &key);
        world.swap();
        assert!(is_held_by(&world, &other, b"b"), "it was granted");
        world.run_timer();
        assert!(!is_held_by(&world, &other, b"b"), "no client received that grant");
        assert!(is_held_by(&world, &key, b"c"), "the waiter stays with the name");
        world.check_at_rest();
    }
}

#[test]
fn closed_connection_is_processed_after_swaps() {
    let mut world = World::new();
    let session = Request { session_ms: Some(5), ..asking(Kind::Mutex, Mode::Exclusive, Ask::Try) };
    world.client = Some(1);
    world.on_key(&in_database(0), |engine, tx| engine.acquire(tx, b"a", &session)).unwrap();
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
