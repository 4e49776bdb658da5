//! A request for many keys is offered all of them, and takes them in a turn of its own: what happens to its keys in between.

use core::slice::from_ref;

use super::world::{World, asking, key, releasing};
use crate::bytes::Key;
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::request::{Ask, Release, Request, Verb};

const HOLDS: Ask = Ask::Try;
const WAITS: Ask = Ask::Wait { until_us: None };

/// `holder` gives `free` back, and `both` is offered `free` and `own`, which it holds already: by a session of connections 1 and 2. The turn
/// has done enough then. In the queue of `own` somebody stands before it.
struct Offered {
    world: World,
    free: Key,
    own: Key,
    /// The number of the request for both.
    both: usize,
}

impl Offered {
    fn new() -> Self {
        let (mut world, free, own) = (World::new(), key("free"), key("own"));
        let hold = asking(Kind::Mutex, Mode::Exclusive, HOLDS);
        let bound = Request { session_ms: Some(0), ..hold };
        ask(&mut world, &[&free], b"holder", &hold);
        for client in [1, 2] {
            world.client = Some(client);
            ask(&mut world, &[&own], b"both", &bound);
        }
        let wait = Request { ask: WAITS, ..hold };
        ask(&mut world, &[&own], b"first", &wait);
        let both = ask(&mut world, &[&free, &own], b"both", &Request { verb: Verb::AcquireMany, ..wait });
        world.engine.begin_turn();
        world.transact(from_ref(&free), |engine, tx| engine.release(tx, &release(b"holder", 1))).unwrap();
        assert!(world.engine.has_offers());
        Self { world, free, own, both: both.expect("it waits") }
    }

    fn holder(&self, key: &Key) -> Option<&[u8]> {
        self.world.lock(key).and_then(|lock| lock.holds().get(0)).map(|hold| hold.owner().as_slice())
    }

    /// Somebody else has got one of the keys: the request waits on, and has both when that one gives its key back.
    fn waits_for_first(&mut self) {
        assert_eq!((self.holder(&self.own), self.holder(&self.free)), (Some(&b"first"[..]), None));
        assert!(self.world.is_waiting(self.both));
        self.world.on_key(&self.own, |engine, tx| engine.release(tx, &release(b"first", 1))).unwrap();
        self.world.run_timer();
        assert_eq!((self.holder(&self.own), self.holder(&self.free)), (Some(&b"both"[..]), Some(&b"both"[..])));
    }
}

/// The number of a request that waits.
fn ask(world: &mut World, keys: &[&Key], owner: &[u8], request: &Request) -> Option<usize> {
    let keys: std::vec::Vec<Key> = keys.iter().map(|key| (*key).clone()).collect();
    match world.on_keys(&keys, |engine, tx| engine.acquire(tx, owner, request)).unwrap() {
        Acquired::Waiting(ticket) => Some(world.expect_answer(ticket)),
        Acquired::Granted(_) => None,
        Acquired::Denied => panic!("it was to hold or to wait"),
    }
}

fn release(owner: &[u8], count: u32) -> Release<'_> {
    Release { count, ..releasing(Kind::Mutex, Mode::Exclusive, owner) }
}

#[test]
fn what_was_offered_and_then_given_to_somebody_else_is_not_granted() {
    let mut offered = Offered::new();
    offered.world.on_key(&offered.own, |engine, tx| engine.release(tx, &release(b"both", 2))).unwrap();
    offered.waits_for_first();
}

#[test]
fn a_hold_whose_session_has_ended_since_the_offer_is_not_granted_once_more() {
    let mut offered = Offered::new();
    offered.world.client_closes(1, false);
    offered.world.client_closes(2, false);
    offered.world.run_timer();
    offered.waits_for_first();
}

#[test]
fn who_was_offered_keys_is_offered_them_again_when_what_came_in_between_is_settled() {
    let mut offered = Offered::new();
    // The session goes on by its other connection. Nothing else would bring the request back.
    offered.world.client_closes(1, false);
    offered.world.run_timer();
    assert!(!offered.world.is_waiting(offered.both));
    assert_eq!((offered.holder(&offered.own), offered.holder(&offered.free)), (Some(&b"both"[..]), Some(&b"both"[..])));
}

#[test]
fn what_cannot_be_opened_now_is_still_offered_to_the_timer() {
    let mut offered = Offered::new();
    offered.world.engine.begin_turn();
    assert!(offered.world.engine.next_offer(|key| key.name != b"free").is_none());
    assert!(offered.world.engine.has_offers());
    offered.world.run_timer();
    assert!(!offered.world.is_waiting(offered.both));
}
