//! What the server does to whole databases, and what was to be done there.

use super::world::{World, asking};
use crate::bytes::Key;
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::request::Ask;

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

#[test]
fn a_grant_that_is_to_be_taken_back_in_a_database_is_whichever_others_change_places() {
    let mut world = World::new();
    let key = in_database(2);
    acquire(&mut world, &key, b"a");
    let gone = acquire(&mut world, &key, b"b").unwrap();
    acquire(&mut world, &key, b"c");
    // The lease of the first one ends.
    world.advance(1000);
    world.waiter_left(gone, false);
    world.swap();
    world.run_timer();
    let is_held_by = |owner| world.lock(&key).unwrap().live_hold(owner, Mode::Exclusive, world.now).is_some();
    assert!(!is_held_by(b"b"), "nobody was told of that grant");
    assert!(is_held_by(b"c"), "who waited behind it has the lock");
    world.check_at_rest();
}
