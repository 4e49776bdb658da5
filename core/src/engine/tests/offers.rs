//! Offers to MACQUIRE waiters, and changes to their keys between the offer and the grant.

use core::slice::from_ref;

use super::world::{World, asking, key, releasing};
use crate::bytes::Key;
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::limits::MayGrant;
use crate::request::{Ask, Release, Request, Verb};

const HOLDS: Ask = Ask::Try;
const WAITS: Ask = Ask::Wait { until_us: None };

/// `both` waits for `free` and `own`. It already holds `own`, with a session of connections 1 and
/// 2, and another waiter is ahead of it in that queue. `holder` releases `free`, so `both` is
/// offered the keys. Then the budget of the turn is used up.
struct Offered {
    world: World,
    free: Key,
    own: Key,
    /// The number of the request for both keys.
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
        self.world.lock(key).and_then(|lock| lock.holds().first()).map(|hold| hold.owner().as_slice())
    }

    /// `first` was granted one of the keys. The request for both keeps waiting, and is granted when
    /// `first` releases.
    fn waits_for_first(&mut self) {
        assert_eq!((self.holder(&self.own), self.holder(&self.free)), (Some(&b"first"[..]), None));
        assert!(self.world.is_waiting(self.both));
        self.world.on_key(&self.own, |engine, tx| engine.release(tx, &release(b"first", 1))).unwrap();
        self.world.run_timer();
        assert_eq!((self.holder(&self.own), self.holder(&self.free)), (Some(&b"both"[..]), Some(&b"both"[..])));
    }
}

/// The number of a waiting request.
fn ask(world: &mut World, keys: &[&Key], owner: &[u8], request: &Request) -> Option<usize> {
    let keys: std::vec::Vec<Key> = keys.iter().map(|key| (*key).clone()).collect();
    match world.on_keys(&keys, |engine, tx| engine.acquire(tx, owner, request)).unwrap() {
        Acquired::Waiting(ticket) => Some(world.expect_answer(ticket)),
        Acquired::Granted(_) => None,
        Acquired::Denied => panic!("expected a grant or a wait"),
    }
}

fn release(owner: &[u8], count: u32) -> Release<'_> {
    Release { count, ..releasing(Kind::Mutex, Mode::Exclusive, owner) }
}

#[test]
fn offer_is_not_granted_after_a_key_was_granted_to_another_owner() {
    let mut offered = Offered::new();
    offered.world.on_key(&offered.own, |engine, tx| engine.release(tx, &release(b"both", 2))).unwrap();
    offered.waits_for_first();
}

#[test]
fn offer_is_not_granted_on_a_hold_whose_session_ended() {
    let mut offered = Offered::new();
    offered.world.client_closes(1, false);
    offered.world.client_closes(2, false);
    offered.world.run_timer();
    offered.waits_for_first();
}

#[test]
fn offer_is_repeated_after_a_dirty_key_is_reconciled() {
    let mut offered = Offered::new();
    // The session continues with its other connection. Nothing else would offer the keys again.
    offered.world.client_closes(1, false);
    offered.world.run_timer();
    assert!(!offered.world.is_waiting(offered.both));
    assert_eq!((offered.holder(&offered.own), offered.holder(&offered.free)), (Some(&b"both"[..]), Some(&b"both"[..])));
}

#[test]
fn offer_whose_keys_cannot_be_opened_is_left_to_the_timer() {
    let mut offered = Offered::new();
    offered.world.engine.begin_turn();
    assert!(offered.world.engine.next_offer(|key| key.name != b"free").is_none());
    assert!(offered.world.engine.has_offers());
    offered.world.run_timer();
    assert!(!offered.world.is_waiting(offered.both));
}

#[test]
fn offer_from_before_a_quarantine_is_taken_after_it() {
    let mut offered = Offered::new();
    offered.world.limits.may_grant = MayGrant::Quarantine { left_ms: 1000 };
    offered.world.run_timer();
    assert!(!offered.world.engine.has_offers() && offered.world.is_waiting(offered.both));
    offered.world.limits.may_grant = MayGrant::Yes;
    offered.world.engine.grants_resumed(offered.world.now);
    offered.world.run_timer();
    assert!(!offered.world.is_waiting(offered.both));
}
