//! Sessions and places that are used before the end of their connection or value is processed.

use core::slice::from_ref;
use std::format;
use std::vec::Vec;

use super::world::{World, asking, key, releasing};
use crate::budget::Scarcity;
use crate::bytes::Key;
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::request::{Ask, Renew, Request, Verb};

const FOREVER: Ask = Ask::Wait { until_us: None };
const SCARCE: Scarcity = Scarcity { own: 0, shared: 1, search_steps: 300, parts: 1, bindings: 1 };

fn renew_by_script(world: &mut World, key: &Key) -> u64 {
    let renew = Renew {
        kind: Kind::Mutex,
        owner: b"holder",
        mode: Mode::Exclusive,
        lease_ms: Some(1000),
        tokens: &[],
        is_each: false,
    };
    world.transact(from_ref(key), |engine, tx| engine.renew(tx, &renew)).unwrap()[0].unwrap()
}

fn left_ms(world: &World, key: &Key) -> Option<u64> {
    let hold = world.lock(key)?.live_hold(b"holder", Mode::Exclusive, world.now)?;
    Some(world.now.left_ms(hold.deadline_us()))
}

/// There are more sessions than one step visits when the connection closes (`BINDINGS`). The budget
/// is not reduced.
#[test]
#[cfg_attr(miri, ignore = "each step checks a hundred locks")]
fn session_renewed_by_a_script_survives_its_closed_connection() {
    let mut world = World::new();
    let session = Request { session_ms: Some(10), ..asking(Kind::Mutex, Mode::Exclusive, Ask::Try) };
    let keys: Vec<Key> = (0..100).map(|number| key(&format!("k{number}"))).collect();
    for key in &keys {
        world.client = Some(1);
        world.on_key(key, |engine, tx| engine.acquire(tx, b"holder", &session)).unwrap();
    }
    world.client_closes(1, false);
    for key in &keys {
        assert_eq!(renew_by_script(&mut world, key), 1000);
    }
    world.run_timer();
    let lefts: Vec<_> = keys.iter().filter_map(|key| left_ms(&world, key)).collect();
    assert_eq!(lefts, [1000; 100], "the deadline that the script received");
}

#[test]
fn session_renewed_by_a_script_survives_another_review() {
    let mut world = World::new();
    let (from, to) = (key("from"), key("to"));
    let mutex = asking(Kind::Mutex, Mode::Exclusive, Ask::Try);
    world.client = Some(1);
    world
        .on_key(&from, |engine, tx| engine.acquire(tx, b"holder", &Request { session_ms: Some(10), ..mutex }))
        .unwrap();
    world.on_key(&to, |engine, tx| engine.acquire(tx, b"other", &mutex)).unwrap();
    for owner in [b"1", b"2", b"3", b"4", b"5", b"6"] {
        let waits = world.on_key(&to, |engine, tx| engine.acquire(tx, owner, &Request { ask: FOREVER, ..mutex }));
        let Ok(Acquired::Waiting(ticket)) = waits else { panic!("{waits:?}") };
        world.expect_answer(ticket);
    }
    let value = world.unlink(&from).unwrap();
    world.arrive(&to, value);
    world.engine.budget.make_scarce(SCARCE);
    while left_ms(&world, &to) != Some(10) {
        world.run_timer_once();
    }
    world.engine.begin_turn();
    assert_eq!(renew_by_script(&mut world, &to), 1000);
    // As if the key had been postponed meanwhile, because its slot had no known node.
    world.engine.value_changed(to.borrow());
    world.run_timer();
    assert_eq!(left_ms(&world, &to), Some(1000), "the deadline that the script received");
}

#[test]
fn place_is_taken_over_behind_many_requests_for_the_previous_kind() {
    let mut world = World::new();
    world.limits.max_waiters = 100;
    let (other, lock, held) = (key("other"), key("lock"), key("held"));
    let mutex = asking(Kind::Mutex, Mode::Exclusive, Ask::Try);
    let fair = asking(Kind::Fair, Mode::Exclusive, Ask::Try);
    world.on_key(&held, |engine, tx| engine.acquire(tx, b"x", &mutex)).unwrap();
    world.on_key(&other, |engine, tx| engine.acquire(tx, b"y", &fair)).unwrap();
    let many = Request { verb: Verb::AcquireMany, ask: FOREVER, ..mutex };
    let both = [held, lock.clone()];
    for _ in 0..40 {
        let waits = world.on_keys(&both, |engine, tx| engine.acquire(tx, b"a", &many));
        let Ok(Acquired::Waiting(ticket)) = waits else { panic!("{waits:?}") };
        world.expect_answer(ticket);
    }
    let value = world.unlink(&other).unwrap();
    world.arrive(&lock, value);
    world.engine.budget.make_scarce(SCARCE);
    let wait = Request { ask: FOREVER, request_id: Some(1), ..fair };
    for _ in 0..2 {
        let waits = world.on_key(&lock, |engine, tx| engine.acquire(tx, b"a", &wait));
        let Ok(Acquired::Waiting(ticket)) = waits else { panic!("{waits:?}") };
        world.expect_answer(ticket);
        assert_eq!(world.engine.waiting_for(Kind::Fair), 1, "the retry takes over the place");
    }
    world.run_timer();
    let (kind, mode) = (Kind::Fair, Mode::Exclusive);
    let release = releasing(kind, mode, b"y");
    world.on_key(&lock, |engine, tx| engine.release(tx, &release)).unwrap();
    world.run_timer();
    assert_eq!(world.lock(&lock).unwrap().live_hold(b"a", mode, world.now).unwrap().count(), 1);
}
