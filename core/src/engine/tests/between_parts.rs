//! Commands that run between the parts of work for thousands of waiters or holds: their answers
//! stay valid.

use core::slice::from_ref;
use std::vec::Vec;

use super::crowd::{Crowded, FOREVER, HOLDER, LEASE_MS, MANY, held, itself, name, request, waiting};
use super::world::{Output, World, key, releasing};
use crate::budget::Scarcity;
use crate::bytes::Key;
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::outbox::Answer;
use crate::place::Stay;
use crate::request::{Ask, Refusal, Renew, Request, Verb};

/// The connection of a client that acts between two parts.
const LATER_CLIENT: u64 = 1_000_000;

/// A lock whose many holds have `SESSION 0` was imported, as with RENAME, and some of the holds
/// were reviewed.
fn half_reviewed() -> (Crowded, Key) {
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
    crowded.world.lock(lock).map_or(0, |lock| lock.live_holds(crowded.world.now).count())
}

fn renew(crowded: &mut Crowded, lock: &Key, owner: &str) -> u64 {
    crowded.world.client = Some(LATER_CLIENT);
    let renew = Renew {
        kind: Kind::RwLock,
        owner: owner.as_bytes(),
        mode: Mode::Read,
        lease_ms: Some(LEASE_MS),
        tokens: &[],
        is_each: false,
    };
    let left_ms = crowded.command_alone(from_ref(lock), |engine, tx| engine.renew(tx, &renew)).unwrap();
    crowded.end_turn();
    left_ms[0].unwrap()
}

fn is_held(crowded: &Crowded, lock: &Key, owner: &str) -> bool {
    let lock = crowded.world.lock(lock);
    lock.is_some_and(|lock| lock.live_hold(owner.as_bytes(), Mode::Read, crowded.world.now).is_some())
}

/// The owner of the hold that the review visits last.
fn last_reviewed(crowded: &Crowded, lock: &Key) -> std::string::String {
    let first = crowded.world.lock(lock).unwrap().holds().first().unwrap().owner().clone();
    std::string::String::from_utf8(first.as_slice().to_vec()).unwrap()
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn rebound_session_survives_a_later_review() {
    let (mut crowded, lock) = half_reviewed();
    let owner = last_reviewed(&crowded, &lock);
    assert_eq!(renew(&mut crowded, &lock, &owner), LEASE_MS);
    crowded.settle();
    assert!(is_held(&crowded, &lock, &owner), "it received a full lease, and its connection is open");
    assert_eq!(live(&crowded, &lock), 1, "no other owner has acquired it");
    crowded.world.engine.client_closed(LATER_CLIENT, |_| false);
    crowded.settle();
    assert_eq!(live(&crowded, &lock), 0, "its session ends with its connection");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn new_session_survives_a_running_review() {
    let (mut crowded, lock) = half_reviewed();
    let hold = Request { session_ms: Some(0), ..request(Kind::RwLock, Mode::Read, Ask::Try) };
    crowded.world.client = Some(LATER_CLIENT);
    let granted = crowded.command_alone(from_ref(&lock), |engine, tx| engine.acquire(tx, b"newcomer", &hold));
    assert!(matches!(granted, Ok(Acquired::Granted(_))), "{granted:?}");
    // The newcomer's hold takes the index of one that is not reviewed yet.
    let owner = last_reviewed(&crowded, &lock);
    let (kind, mode) = (Kind::RwLock, Mode::Read);
    let release = releasing(kind, mode, owner.as_bytes());
    // The same turn, which has little budget left.
    crowded.world.transact(from_ref(&lock), |engine, tx| engine.release(tx, &release)).unwrap();
    crowded.end_turn();
    crowded.settle();
    assert!(is_held(&crowded, &lock, "newcomer"));
    assert_eq!(live(&crowded, &lock), 1);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn rebound_session_ends_with_its_connection_despite_another_review() {
    let (mut crowded, lock) = half_reviewed();
    let owner = last_reviewed(&crowded, &lock);
    assert_eq!(renew(&mut crowded, &lock, &owner), LEASE_MS);
    // Starts another review: the value may have changed.
    crowded.world.engine.value_changed(lock.borrow());
    crowded.settle();
    assert!(is_held(&crowded, &lock, &owner));
    assert_eq!(live(&crowded, &lock), 1, "the sessions that were not visited yet have ended");
    crowded.world.engine.client_closed(LATER_CLIENT, |_| false);
    crowded.settle();
    assert!(!is_held(&crowded, &lock, &owner));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn used_hold_survives_the_undo_of_its_lost_grant() {
    let (mut crowded, lock) = waiting(Kind::RwLock, Mode::Write, Mode::Read, itself);
    crowded.release(from_ref(&lock), Kind::RwLock, Mode::Write);
    crowded.settle();
    for client in 1..=MANY as u64 {
        crowded.world.engine.client_closed(client, |_| false);
    }
    crowded.run_timer();
    crowded.end_turn();
    let left = live(&crowded, &lock);
    assert!((1..MANY).contains(&left), "some of the grants were undone: {left} are left");
    let owner = last_reviewed(&crowded, &lock);
    assert_eq!(renew(&mut crowded, &lock, &owner), LEASE_MS);
    crowded.settle();
    assert!(is_held(&crowded, &lock, &owner), "it received a full lease");
    assert_eq!(live(&crowded, &lock), 1);
}

/// The owners of the waiters, in order.
fn order(crowded: &Crowded, lock: &Key) -> Vec<Vec<u8>> {
    let places = crowded.world.lock(lock).and_then(|lock| lock.queue()).into_iter().flat_map(|queue| queue.iter());
    places.map(|place| place.owner.to_vec()).collect()
}

/// A numbered request for a fair lock that waits.
fn fair_wait(owner: usize) -> Request {
    Request { request_id: Some(owner as u64 + 1), ..request(Kind::Fair, Mode::Exclusive, FOREVER) }
}

/// A held fair lock and many waiters. Also returns their order.
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
fn retried_fair_request_keeps_its_place_during_a_rejoin() {
    let (mut crowded, lock, before) = fair_crowd();
    // Only the first owner in the queue has the lock.
    drop(crowded.world.unlink(&lock));
    crowded.run_timer();
    crowded.end_turn();
    let made = order(&crowded, &lock).len();
    assert!((1..MANY - 1).contains(&made), "some of the places are back: {made}");
    let late = MANY - 2;
    crowded.world.client = Some(LATER_CLIENT);
    crowded.acquire(from_ref(&lock), late, &fair_wait(late)).unwrap();
    crowded.settle();
    let first_is_granted = 1;
    assert!(order(&crowded, &lock) == before[first_is_granted..], "the order is unchanged");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn new_place_survives_the_late_close_of_the_old_connection() {
    let (mut crowded, lock, _) = fair_crowd();
    for number in 1..=MANY {
        crowded.world.waiter_left(number, false);
    }
    crowded.run_timer();
    crowded.end_turn();
    // The same turn, which has little budget left.
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
    assert!(matches!(stays(MANY - 3), Stay::Grace { .. }), "no request waits at it");
    assert_eq!(stays(MANY - 2), Stay::Connected);
    assert!(matches!(stays(MANY - 1), Stay::Polled { .. }), "it lasts as long as requested");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn new_request_gets_no_place_ahead_of_waiters_in_an_imported_lock() {
    let (mut crowded, lock, before) = fair_crowd();
    // Imports a held fair lock without waiters under the name.
    let other = key("other");
    hold_fair(&mut crowded, &other);
    let value = crowded.world.unlink(&other).unwrap();
    drop(crowded.world.unlink(&lock));
    crowded.world.arrive(&lock, value);
    crowded.run_timer();
    crowded.end_turn();
    assert!(order(&crowded, &lock).is_empty(), "no waiter has a place yet");

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
    assert!(after[..MANY] == before, "earlier waiters come first, in the old order");
    assert_eq!(after[MANY..], [name(MANY).into_bytes()], "and then later waiters");
}

#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn new_request_does_not_pass_waiters_without_places_in_an_imported_lock() {
    let (mut crowded, lock) = waiting(Kind::Fair, Mode::Exclusive, Mode::Exclusive, itself);
    // Imports a held fair lock without waiters under the name.
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
        assert!(matches!(asked, Ok(Acquired::Denied)), "{owner} passes the waiters: {asked:?}");
        crowded.end_turn();
    }
    crowded.settle();
    assert_eq!(live(&crowded, &lock), 1, "the first waiter has it");
}

/// A request closes a cycle in a turn without search steps left, and is retried before the timer
/// searches.
#[test]
fn retried_request_is_still_searched_for_cycles() {
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
                panic!("it is not refused before the search")
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

/// The timer refuses a request whose cycle it finds later. If its place were kept for the grace, it
/// would delay the queue.
#[test]
fn place_of_a_deadlocked_request_is_dropped() {
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
        panic!("it is not refused before the search")
    };
    let closing = world.expect_answer(closing);
    world.engine.budget.make_scarce(Scarcity { own: 8, shared: 8, search_steps: 100, parts: 8, bindings: 8 });
    world.run_timer();
    assert!(!world.is_waiting(closing));
    assert!(world.lock(&f).expect("b holds it").place(b"a").is_none());
}

/// The turn has used its budget when the owner of an expired hold acquires again. The expired hold
/// is still in the value, and the new one replaces it.
#[test]
fn new_hold_replaces_an_expired_hold_of_the_same_owner() {
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
    // This turn has a budget for one change, which ends the other hold.
    ask(&mut world, 2, b"b");
    world.run_timer();
    let bindings: Vec<_> = world.engine.sessions.bindings().map(|binding| binding.client).collect();
    assert_eq!(bindings, [2], "its connection is bound only to the new hold");
    assert_eq!(world.engine.stats(Kind::RwLock).expired, 2, "both were counted");
}

/// The turn has used its budget when a reader acquires after the leases of a writer have expired.
/// The grant ends the writer's holds, and counts them as expired.
#[test]
fn readers_replace_an_expired_writer() {
    let (mut world, lock) = (World::new(), key("lock"));
    world.engine.budget.make_scarce(Scarcity { own: 0, shared: 1, search_steps: 100, parts: 1, bindings: 1 });
    for (client, owner, mode) in [(1, b"a", Mode::Read), (1, b"a", Mode::Write), (2, b"b", Mode::Read)] {
        if client == 2 {
            // The next turn has a budget for one change, which ends one of the two holds.
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

/// All other holds have expired when a reader upgrades. The grant clears them in one step, but not
/// the reader's own.
#[test]
fn clearing_counts_only_the_ended_holds() {
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

/// After the limit was lowered there are too many waiters. That affects neither a retry nor a
/// request of an owner that already holds the lock.
#[test]
fn lowered_waiter_limit_does_not_affect_waiters_and_holders() {
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

/// An expired lock of another kind is removed in parts. No owner may hold the new lock together
/// with the rest.
#[test]
#[cfg_attr(miri, ignore = "thousands of waiters or holds")]
fn macquire_is_not_granted_beside_leftovers_of_another_kind() {
    // After some runs of the timer the review is finished, and more holds are left than one run
    // ends.
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

/// Other commands have used up the budget of the turn when the owner asks again, so its unconfirmed
/// grant is undone only after that.
#[test]
fn retry_before_the_undo_of_a_lost_grant_keeps_waiting() {
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
    assert!(world.is_waiting(again), "it is behind the place of another owner, which is kept for the grace");
    world.advance(1_000);
    assert!(!world.is_waiting(again), "it is granted");
}
