//! What clients do while a piece of work for thousands is taken in parts: what they are answered in between holds to the end.

use core::slice::from_ref;
use std::vec::Vec;

use super::crowd::{Crowded, FOREVER, HOLDER, LEASE_MS, MANY, held, itself, name, request, waiting};
use super::keyspace::Value;
use super::world::{Output, World, key, releasing};
use crate::budget::Scarcity;
use crate::bytes::Key;
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::outbox::Answer;
use crate::place::Stay;
use crate::request::{Ask, Refusal, Renew, Request, Verb};

/// The connection of somebody who comes in between.
const LATER_CLIENT: u64 = 1_000_000;

/// A lock that many hold by sessions without a grace comes under another name, as with RENAME, and a part of the holds is looked at.
fn half_looked_at() -> (Crowded, Key) {
    let (mut crowded, lock) = held(Kind::RwLock, Mode::Read, Some(0));
    let value = crowded.world.unlink(&lock).unwrap();
    let other = key("other");
    crowded.world.arrive(&other, value);
    crowded.run_timer();
    crowded.end_turn();
    let ended = MANY - live(&crowded, &other);
    assert!((1..MANY).contains(&ended), "some of the sessions have ended: {ended}");
    (crowded, other)
}

fn live(crowded: &Crowded, lock: &Key) -> usize {
    crowded.world.lock(lock).map_or(0, |lock| lock.live_count(crowded.world.now))
}

fn renew(crowded: &mut Crowded, lock: &Key, owner: &str) -> u64 {
    crowded.world.client = Some(LATER_CLIENT);
    let renew =
        Renew { kind: Kind::RwLock, owner: owner.as_bytes(), mode: Mode::Read, lease_ms: Some(LEASE_MS), tokens: &[] };
    let left_ms = crowded.command_alone(from_ref(lock), |engine, tx| engine.renew(tx, &renew)).unwrap();
    crowded.end_turn();
    left_ms
}

fn is_held(crowded: &Crowded, lock: &Key, owner: &str) -> bool {
    let lock = crowded.world.lock(lock);
    lock.is_some_and(|lock| lock.live_hold(owner.as_bytes(), Mode::Read, crowded.world.now).is_some())
}

/// The owner of the hold that the look comes to last.
fn last_looked_at(crowded: &Crowded, lock: &Key) -> std::string::String {
    let first = crowded.world.lock(lock).unwrap().holds().get(0).unwrap().owner().clone();
    std::string::String::from_utf8(first.as_slice().to_vec()).unwrap()
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn a_session_that_is_bound_anew_before_it_was_looked_at_goes_on() {
    let (mut crowded, lock) = half_looked_at();
    let owner = last_looked_at(&crowded, &lock);
    assert_eq!(renew(&mut crowded, &lock, &owner), LEASE_MS);
    crowded.settle();
    assert!(is_held(&crowded, &lock, &owner), "it was answered a whole lease, and its connection is open");
    assert_eq!(live(&crowded, &lock), 1, "nobody else has come");
    crowded.world.engine.client_closed(LATER_CLIENT, |_| false);
    crowded.settle();
    assert_eq!(live(&crowded, &lock), 0, "its session ends with its connection");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn a_session_that_begins_while_others_are_looked_at_goes_on() {
    let (mut crowded, lock) = half_looked_at();
    let hold = Request { session_ms: Some(0), ..request(Kind::RwLock, Mode::Read, Ask::Try) };
    crowded.world.client = Some(LATER_CLIENT);
    let granted = crowded.command_alone(from_ref(&lock), |engine, tx| engine.acquire(tx, b"newcomer", &hold));
    assert!(matches!(granted, Ok(Acquired::Granted(_))), "{granted:?}");
    // The newcomer's hold takes the place of one that is yet to be looked at.
    let owner = last_looked_at(&crowded, &lock);
    let (kind, mode) = (Kind::RwLock, Mode::Read);
    let release = releasing(kind, mode, owner.as_bytes());
    // In the same turn, which has little left for the others.
    crowded.world.transact(from_ref(&lock), |engine, tx| engine.release(tx, &release)).unwrap();
    crowded.end_turn();
    crowded.settle();
    assert!(is_held(&crowded, &lock, "newcomer"));
    assert_eq!(live(&crowded, &lock), 1);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn a_session_that_was_bound_anew_ends_with_its_connection_whatever_is_looked_at_again() {
    let (mut crowded, lock) = half_looked_at();
    let owner = last_looked_at(&crowded, &lock);
    assert_eq!(renew(&mut crowded, &lock, &owner), LEASE_MS);
    // All of it is looked at once more: it may be another value.
    crowded.world.engine.value_changed(lock.borrow());
    crowded.settle();
    assert!(is_held(&crowded, &lock, &owner));
    assert_eq!(live(&crowded, &lock), 1, "those that were yet to be looked at have ended all the same");
    crowded.world.engine.client_closed(LATER_CLIENT, |_| false);
    crowded.settle();
    assert!(!is_held(&crowded, &lock, &owner));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn a_hold_that_is_used_before_its_lost_grant_is_taken_back_stays() {
    let (mut crowded, lock) = waiting(Kind::RwLock, Mode::Write, Mode::Read, itself);
    crowded.release(from_ref(&lock), Kind::RwLock, Mode::Write);
    crowded.settle();
    for client in 1..=MANY as u64 {
        crowded.world.engine.client_closed(client, |_| false);
    }
    crowded.run_timer();
    crowded.end_turn();
    let left = live(&crowded, &lock);
    assert!((1..MANY).contains(&left), "some of the grants were taken back: {left} are left");
    let owner = last_looked_at(&crowded, &lock);
    assert_eq!(renew(&mut crowded, &lock, &owner), LEASE_MS);
    crowded.settle();
    assert!(is_held(&crowded, &lock, &owner), "it was answered a whole lease");
    assert_eq!(live(&crowded, &lock), 1);
}

/// The owners of those who wait, in their order.
fn order(crowded: &Crowded, lock: &Key) -> Vec<Vec<u8>> {
    let places = crowded.world.lock(lock).and_then(|lock| lock.queue()).into_iter().flat_map(|queue| queue.iter());
    places.map(|place| place.owner.to_vec()).collect()
}

/// A numbered request for a fair lock that waits.
fn fair_wait(owner: usize) -> Request {
    Request { request_id: Some(owner as u64 + 1), ..request(Kind::Fair, Mode::Exclusive, FOREVER) }
}

/// A fair lock that is held, and many who wait for it. Returns also their order.
fn fair_crowd() -> (Crowded, Key, Vec<Vec<u8>>) {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    hold_fair(&mut crowded, &lock);
    for owner in 0..MANY {
        crowded.world.client = Some(owner as u64 + 1);
        crowded.acquire(from_ref(&lock), owner, &fair_wait(owner)).unwrap();
    }
    let before = order(&crowded, &lock);
    assert_eq!(before.len(), MANY);
    (crowded, lock, before)
}

fn hold_fair(crowded: &mut Crowded, lock: &Key) {
    let hold = request(Kind::Fair, Mode::Exclusive, Ask::Try);
    let held = crowded.command_alone(from_ref(lock), |engine, tx| engine.acquire(tx, b"holder", &hold));
    assert!(matches!(held, Ok(Acquired::Granted(_))), "{held:?}");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn a_fair_request_that_is_sent_again_while_places_are_made_anew_keeps_its_own() {
    let (mut crowded, lock, before) = fair_crowd();
    // Nobody has the lock but who comes first in the queue.
    drop(crowded.world.unlink(&lock));
    crowded.run_timer();
    crowded.end_turn();
    let made = order(&crowded, &lock).len();
    assert!((1..MANY - 1).contains(&made), "some of the places were made anew: {made}");
    let late = MANY - 2;
    crowded.world.client = Some(LATER_CLIENT);
    crowded.acquire(from_ref(&lock), late, &fair_wait(late)).unwrap();
    crowded.settle();
    let first_is_granted = 1;
    assert!(order(&crowded, &lock) == before[first_is_granted..], "the order is that of before");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn who_asks_again_before_it_is_known_that_its_connection_closed_keeps_the_new_place() {
    let (mut crowded, lock, _) = fair_crowd();
    for number in 1..=MANY {
        crowded.world.waiter_left(number, false);
    }
    crowded.run_timer();
    crowded.end_turn();
    // In the same turn, which has little left for the others.
    for (owner, ask) in [(MANY - 2, FOREVER), (MANY - 1, Ask::Queue { life_ms: 10 * LEASE_MS })] {
        let request = Request { ask, ..fair_wait(owner) };
        let asked =
            crowded.world.transact(from_ref(&lock), |engine, tx| engine.acquire(tx, name(owner).as_bytes(), &request));
        if let Ok(Acquired::Waiting(ticket)) = asked {
            crowded.world.expect_answer(ticket);
        }
    }
    crowded.end_turn();
    crowded.settle();
    let stays = |owner| crowded.world.lock(&lock).unwrap().place(name(owner).as_bytes()).unwrap().stay;
    assert!(matches!(stays(MANY - 3), Stay::Grace { .. }), "nobody waits by it");
    assert_eq!(stays(MANY - 2), Stay::Connected);
    assert!(matches!(stays(MANY - 1), Stay::Polled { .. }), "it lives as long as was asked for");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn nobody_takes_a_place_before_those_who_wait_in_a_lock_that_came() {
    let (mut crowded, lock, before) = fair_crowd();
    // A fair lock that somebody holds, and nobody waits for, comes under the name.
    let other = key("other");
    hold_fair(&mut crowded, &other);
    let value = crowded.world.unlink(&other).unwrap();
    drop(crowded.world.unlink(&lock));
    crowded.world.arrive(&lock, value);
    crowded.run_timer();
    crowded.end_turn();
    assert!(order(&crowded, &lock).is_empty(), "nobody has a place yet");

    let late = MANY - 2;
    for (owner, ask) in [(MANY, FOREVER), (MANY + 1, Ask::Queue { life_ms: 10 * LEASE_MS }), (late, FOREVER)] {
        crowded.world.client = Some(LATER_CLIENT + owner as u64);
        let request = Request { ask, ..fair_wait(owner) };
        let asked =
            crowded.world.transact(from_ref(&lock), |engine, tx| engine.acquire(tx, name(owner).as_bytes(), &request));
        if let Ok(Acquired::Waiting(ticket)) = asked {
            crowded.world.expect_answer(ticket);
        }
        assert!(order(&crowded, &lock).is_empty(), "{asked:?}");
        crowded.world.client = None;
    }
    crowded.end_turn();
    crowded.settle();
    let after = order(&crowded, &lock);
    assert!(after[..MANY] == before, "who waited before stands first, in the order of before");
    assert_eq!(after[MANY..], [name(MANY).into_bytes()], "and then who waits since");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn nobody_passes_those_whose_places_are_yet_to_be_made_in_a_lock_that_came() {
    let (mut crowded, lock) = waiting(Kind::Fair, Mode::Exclusive, Mode::Exclusive, itself);
    // A fair lock that somebody holds, and nobody waits for, comes under the name.
    let other = key("other");
    let short = Request { lease_ms: LEASE_MS / 2, ..request(Kind::Fair, Mode::Exclusive, Ask::Try) };
    crowded.command_alone(from_ref(&other), |engine, tx| engine.acquire(tx, b"holder", &short)).unwrap();
    let value = crowded.world.unlink(&other).unwrap();
    drop(crowded.world.unlink(&lock));
    crowded.world.arrive(&lock, value);
    crowded.run_timer();
    crowded.end_turn();
    crowded.world.pause(LEASE_MS / 2);
    let hold = request(Kind::Fair, Mode::Exclusive, Ask::Try);
    for newcomer in 0..3 {
        let owner = name(MANY + 1 + newcomer);
        let asked = crowded.command_alone(from_ref(&lock), |engine, tx| engine.acquire(tx, owner.as_bytes(), &hold));
        assert!(matches!(asked, Ok(Acquired::Denied)), "{owner} passes those who wait: {asked:?}");
        crowded.end_turn();
    }
    crowded.settle();
    assert_eq!(live(&crowded, &lock), 1, "the first who waits has it");
}

/// A circle that is closed by a request for which no search was left in its turn, and that is sent again before the timer searches.
#[test]
fn a_request_that_is_sent_again_before_it_was_searched_for_circles_is_searched() {
    for second_id in [7, 8] {
        let mut world = World::new();
        let (x, y) = (key("x"), key("y"));
        let hold = request(Kind::Mutex, Mode::Exclusive, Ask::Try);
        let wait = |request_id| Request { request_id, ..request(Kind::Mutex, Mode::Exclusive, FOREVER) };
        world.on_key(&x, |engine, tx| engine.acquire(tx, b"a", &hold)).unwrap();
        world.on_key(&y, |engine, tx| engine.acquire(tx, b"b", &hold)).unwrap();
        let ask = |world: &mut World, key: &Key, owner: &[u8], request_id| {
            let Ok(Acquired::Waiting(ticket)) =
                world.on_key(key, |engine, tx| engine.acquire(tx, owner, &wait(request_id)))
            else {
                panic!("it is not refused while nobody can search")
            };
            world.expect_answer(ticket)
        };
        ask(&mut world, &y, b"a", None);
        world.engine.budget.make_scarce(Scarcity { own: 8, shared: 8, search_steps: 0, parts: 8, bindings: 8 });
        ask(&mut world, &x, b"b", Some(7));
        let last = ask(&mut world, &x, b"b", Some(second_id));
        assert!(world.is_waiting(last));
        world.engine.budget.make_scarce(Scarcity { own: 8, shared: 8, search_steps: 100, parts: 8, bindings: 8 });
        world.run_timer();
        let is_deadlock =
            |output: &Output| matches!(output, Output::Answer { answer: Answer::Refused(Refusal::Deadlock(_)), .. });
        assert!(world.outputs.iter().any(|(_, output)| is_deadlock(output)), "id {second_id}");
        assert!(!world.is_waiting(last));
    }
}

/// A place whose request closes a circle that is found only later is as that of any request that ends with an error: kept for the grace.
#[test]
fn the_place_of_a_request_that_closes_a_circle_is_kept_for_the_grace() {
    let mut world = World::new();
    let (m, f) = (key("m"), key("f"));
    let hold = |kind| request(kind, Mode::Exclusive, Ask::Try);
    let wait = |kind| request(kind, Mode::Exclusive, FOREVER);
    world.on_key(&m, |engine, tx| engine.acquire(tx, b"a", &hold(Kind::Mutex))).unwrap();
    world.on_key(&f, |engine, tx| engine.acquire(tx, b"b", &hold(Kind::Fair))).unwrap();
    world.on_key(&m, |engine, tx| engine.acquire(tx, b"b", &wait(Kind::Mutex))).unwrap();
    world.engine.budget.make_scarce(Scarcity { own: 8, shared: 8, search_steps: 0, parts: 8, bindings: 8 });
    let Ok(Acquired::Waiting(closing)) = world.on_key(&f, |engine, tx| engine.acquire(tx, b"a", &wait(Kind::Fair)))
    else {
        panic!("it is not refused while nobody can search")
    };
    let closing = world.expect_answer(closing);
    world.engine.budget.make_scarce(Scarcity { own: 8, shared: 8, search_steps: 100, parts: 8, bindings: 8 });
    world.run_timer();
    assert!(!world.is_waiting(closing));
    let stay = |world: &World| match world.values.get(&(0, b"f".to_vec())) {
        Some(Value::Lock(lock)) => lock.queue().and_then(|queue| queue.get(b"a")).map(|place| place.stay),
        Some(Value::Foreign) | None => None,
    };
    let until_us = world.now.after_ms(world.limits.fair_grace_ms);
    assert_eq!(stay(&world), Some(Stay::Grace { until_us }));
}

/// The turn has done enough when the owner of a hold that is over asks anew: the hold is still in the value, and gives way to the new one.
#[test]
fn a_hold_that_is_over_leaves_nothing_when_its_owner_is_granted_another_one() {
    let (mut world, lock) = (World::new(), key("lock"));
    world.engine.budget.make_scarce(Scarcity { own: 0, shared: 1, search_steps: 100, parts: 1, bindings: 1 });
    let read = Request { session_ms: Some(0), ..request(Kind::RwLock, Mode::Read, Ask::Try) };
    let ask = |world: &mut World, client: u64, owner: &[u8]| {
        world.client = Some(client);
        let granted = world.on_key(&lock, |engine, tx| engine.acquire(tx, owner, &read));
        assert!(matches!(granted, Ok(Acquired::Granted(_))), "{granted:?}");
    };
    ask(&mut world, 1, b"a");
    ask(&mut world, 2, b"b");
    world.pause(LEASE_MS);
    // The one change that this turn makes ends the other hold.
    ask(&mut world, 2, b"b");
    world.run_timer();
    let bindings: Vec<_> = world.engine.sessions.bindings().map(|binding| binding.client).collect();
    assert_eq!(bindings, [2], "its connection is tied to the new hold alone");
    assert_eq!(world.engine.stats(Kind::RwLock).expired, 2, "both were counted");
}

/// The turn has done enough when a reader comes after a writer whose leases are over: what is left of the writer gives way, and is counted.
#[test]
fn a_writer_that_is_over_leaves_nothing_when_readers_come() {
    let (mut world, lock) = (World::new(), key("lock"));
    world.engine.budget.make_scarce(Scarcity { own: 0, shared: 1, search_steps: 100, parts: 1, bindings: 1 });
    for (client, owner, mode) in [(1, b"a", Mode::Read), (1, b"a", Mode::Write), (2, b"b", Mode::Read)] {
        if client == 2 {
            // The one change that the next turn makes ends one of the two holds.
            world.pause(LEASE_MS);
        }
        world.client = Some(client);
        let bound = Request { session_ms: Some(0), ..request(Kind::RwLock, mode, Ask::Try) };
        let granted = world.on_key(&lock, |engine, tx| engine.acquire(tx, owner, &bound));
        assert!(matches!(granted, Ok(Acquired::Granted(_))), "{granted:?}");
    }
    let bindings: Vec<_> = world.engine.sessions.bindings().map(|binding| binding.client).collect();
    assert_eq!(bindings, [2]);
    assert_eq!(world.engine.stats(Kind::RwLock).expired, 2);
}

/// A reader that begins to write stays when all the others, whose leases are over, are cleared away at once.
#[test]
fn of_those_that_are_cleared_away_together_only_those_that_end_are_counted() {
    const OVER: usize = 20;
    let (mut world, lock) = (World::new(), key("lock"));
    let ask = |world: &mut World, owner: &str, mode: Mode| {
        let wish = request(Kind::RwLock, mode, Ask::Try);
        let granted = world.on_key(&lock, |engine, tx| engine.acquire(tx, owner.as_bytes(), &wish));
        assert!(matches!(granted, Ok(Acquired::Granted(_))), "{granted:?}");
    };
    for owner in 0..OVER {
        ask(&mut world, &name(owner), Mode::Read);
    }
    world.pause(LEASE_MS / 2);
    ask(&mut world, "writer", Mode::Read);
    world.pause(LEASE_MS / 2);
    world.engine.budget.make_scarce(Scarcity { own: 0, shared: 1, search_steps: 100, parts: 1, bindings: 1 });
    ask(&mut world, "writer", Mode::Write);
    assert_eq!(world.lock(&lock).unwrap().holds().len(), 2, "the writer reads and writes");
    assert_eq!(world.engine.stats(Kind::RwLock).expired, OVER as u64);
}

/// More wait than may since the limit was lowered. That concerns neither a request that is sent again nor one of an owner that holds already.
#[test]
fn who_waits_or_holds_already_needs_no_room_where_the_limit_was_lowered() {
    let (mut world, x, y) = (World::new(), key("x"), key("y"));
    let hold = request(Kind::Mutex, Mode::Exclusive, Ask::Try);
    let numbered = |id, verb| Request { ask: FOREVER, request_id: Some(id), verb, ..hold };
    world.on_key(&x, |engine, tx| engine.acquire(tx, b"a", &hold)).unwrap();
    world.on_key(&y, |engine, tx| engine.acquire(tx, b"b", &hold)).unwrap();
    let both = [x.clone(), y.clone()];
    let mut ask = |keys: &[Key], owner: &[u8], request: &Request, most| {
        world.limits.max_waiters = most;
        let asked = world.on_keys(keys, |engine, tx| engine.acquire(tx, owner, request));
        if let Ok(Acquired::Waiting(ticket)) = asked {
            world.expect_answer(ticket);
        }
        asked
    };
    let waits = |asked: &_| matches!(asked, Ok(Acquired::Waiting(_)));
    assert!(waits(&ask(from_ref(&y), b"c", &Request { ask: FOREVER, ..hold }, 3)));
    for most in [3, 0] {
        let asked = ask(&both, b"a", &numbered(1, Verb::AcquireMany), most);
        assert!(waits(&asked), "sent again: {asked:?}");
    }
    let asked = ask(from_ref(&x), b"a", &numbered(2, Verb::Acquire), 0);
    assert!(matches!(asked, Ok(Acquired::Granted(_))), "it holds already: {asked:?}");
}

/// What is left of a lock of another kind that is over goes in parts, as the allowance goes. Nobody is to hold the rest together with it.
#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn many_keys_are_not_granted_on_what_is_left_of_a_lock_of_another_kind() {
    // After some runs of the timer, the look at what has come is at its end, and more holds are left than one run ends.
    let runs_of = |session_ms| (0..8).map(move |runs| (session_ms, runs));
    for (session_ms, runs) in [None, Some(0)].into_iter().flat_map(runs_of) {
        let (mut crowded, lock) = held(Kind::RwLock, Mode::Read, session_ms);
        let keys = [key("first"), key("other")];
        let mutex = |ask| Request { lease_ms: 10 * LEASE_MS, ..request(Kind::Mutex, Mode::Exclusive, ask) };
        crowded.acquire(from_ref(&keys[0]), HOLDER, &mutex(Ask::Try)).unwrap();
        let value = crowded.world.unlink(&lock).unwrap();
        let all = Request { verb: Verb::AcquireMany, ..mutex(FOREVER) };
        crowded.acquire(&keys, HOLDER + 1, &all).unwrap();
        crowded.advance(LEASE_MS + 1);
        crowded.world.arrive(&keys[1], value);
        for _ in 0..runs {
            crowded.run_timer();
            crowded.end_turn();
        }
        crowded.release(from_ref(&keys[0]), Kind::Mutex, Mode::Exclusive);
        crowded.settle();
        for key in &keys {
            let held = crowded.world.lock(key).expect("it is granted");
            assert_eq!((held.kind(), held.holds().len()), (Kind::Mutex, 1), "{session_ms:?}, {runs} runs");
        }
    }
}

/// Others had used up the turn when its owner asked again, so the grant that nobody has heard of was taken back after that.
#[test]
fn who_asks_again_for_a_fair_lock_before_a_lost_grant_is_taken_back_goes_on_waiting() {
    let (mut world, lock) = (World::new(), key("lock"));
    let ask = |world: &mut World, owner: &str, lease_ms, ask| {
        let request = Request { lease_ms, ..request(Kind::Fair, Mode::Exclusive, ask) };
        match world.on_key(&lock, |engine, tx| engine.acquire(tx, owner.as_bytes(), &request)).unwrap() {
            Acquired::Waiting(ticket) => Some(world.expect_answer(ticket)),
            _ => None,
        }
    };
    assert_eq!(ask(&mut world, "holder", 30, Ask::Try), None);
    let mine = ask(&mut world, "mine", 15, FOREVER).unwrap();
    world.advance(30);
    assert!(!world.is_waiting(mine), "it is granted");
    let theirs = ask(&mut world, "theirs", 15, FOREVER).unwrap();
    world.pause(20);
    world.waiter_left(mine, false);
    world.waiter_left(theirs, false);
    world.engine.budget.make_scarce(Scarcity { own: 0, shared: 1, search_steps: 100, parts: 1, bindings: 1 });
    world.shares_turns = true;
    assert!(world.engine.budget.take(1));
    let again = ask(&mut world, "mine", 15, FOREVER).unwrap();
    world.run_timer();
    assert!(world.is_waiting(again), "it comes behind the place of somebody else, which is kept for a grace");
    world.advance(1_000);
    assert!(!world.is_waiting(again), "it is granted");
}
