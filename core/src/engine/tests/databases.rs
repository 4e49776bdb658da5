//! What the server does to whole databases, and what was to be done there.

use super::world::{World, asking};
use crate::bytes::Key;
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::request::{Ask, Request};

fn in_database(db: u32) -> Key {
    Key { db, name: b"k".as_slice().into() }
}

/// A request without an end to its wait; the number of the waiter, if it waits.
fn acquire(world: &mut World, key: &Key, owner: &[u8]) -> Option<usize> {
    let request = asking(Kind::Mutex, Mode::Exclusive, Ask::Wait { until_us: None });
    match world.on_key(key, |engine, tx| engine.acquire(tx, owner, &request)).unwrap() {
        Acquired::Waiting(ticket) => Some(world.expect_answer(ticket)),
        _ => None,
    }
}

/// The lock of `a` goes to `b` when the lease ends, and `b` leaves without having heard of it. `c` waits behind.
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
fn a_grant_that_is_to_be_taken_back_in_a_database_is_whichever_others_change_places() {
    let mut world = World::new();
    let key = in_database(2);
    leave_in_the_turn_of_a_grant(&mut world, &key);
    world.swap();
    world.run_timer();
    assert!(!is_held_by(&world, &key, b"b"), "nobody was told of that grant");
    assert!(is_held_by(&world, &key, b"c"), "who waited behind it has the lock");
    world.check_at_rest();
}

#[test]
fn a_grant_that_is_to_be_taken_back_goes_along_from_either_of_two_databases_that_change_places() {
    for db in [0, 1] {
        let mut world = World::new();
        let (key, other) = (in_database(db), in_database(1 - db));
        leave_in_the_turn_of_a_grant(&mut world, &key);
        world.swap();
        assert!(is_held_by(&world, &other, b"b"), "it was granted");
        world.run_timer();
        assert!(!is_held_by(&world, &other, b"b"), "nobody was told of that grant");
        assert!(is_held_by(&world, &key, b"c"), "who waits stays with the name");
        world.check_at_rest();
    }
}

#[test]
fn a_connection_is_found_to_have_closed_however_many_databases_have_changed_places() {
    let mut world = World::new();
    let session = Request { session_ms: Some(5), ..asking(Kind::Mutex, Mode::Exclusive, Ask::Try) };
    world.client = Some(1);
    world.on_key(&in_database(0), |engine, tx| engine.acquire(tx, b"a", &session)).unwrap();
    world.swap();
    // Others do so before the timer has come by.
    for engine in [&mut world.engine, &mut world.replica] {
        engine.swapped(2, 3);
    }
    world.engine.client_closed(1, |_| false);
    world.advance(5);
    assert!(!is_held_by(&world, &in_database(1), b"a"), "its session has ended with its connection");
    world.check_at_rest();
}
