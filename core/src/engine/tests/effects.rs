//! Effects on a replica: mismatches with its values, and the token numbers they contain.

use std::vec::Vec;

use super::world::{World, asking, key};
use crate::engine::{Acquired, Engine};
use crate::event::{ChangeCause, EndCause, Event, Terms};
use crate::keyspace::KeyId;
use crate::kind::{Kind, Mode};
use crate::place::Stay;
use crate::request::Ask;

fn terms() -> Terms {
    Terms::plain(1, u64::MAX)
}

fn granted(kind: Kind, owner: &[u8], mode: Mode, token: u64) -> Event {
    Event::Granted { kind, owner: owner.into(), mode, token, terms: terms() }
}

fn reader() -> (World, u64) {
    let mut world = World::new();
    let request = asking(Kind::RwLock, Mode::Read, Ask::Try);
    match world.on_key(&key("k"), |engine, tx| engine.acquire(tx, b"a", &request)) {
        Ok(Acquired::Granted(grant)) => (world, grant.tokens[0]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn mismatched_effect_is_refused_and_changes_nothing() {
    let (mut world, token) = reader();
    let of_the_lock = [
        (granted(Kind::RwLock, b"b", Mode::Read, token), "another hold has this token"),
        (granted(Kind::RwLock, b"a", Mode::Write, token), "another hold has this token"),
        (granted(Kind::RwLock, b"b", Mode::Permits, token + 1), "the lock is of another kind"),
        (granted(Kind::Mutex, b"b", Mode::Exclusive, token + 1), "the lock is of another kind"),
        (Event::Sized { permits: 2 }, "the lock is of another kind"),
        (Event::QueueExpired, "the lock is of another kind"),
    ];
    for (effect, reason) in of_the_lock {
        let before = world.lock(&key("k")).cloned();
        let applied = world.on_key(&key("k"), |engine, tx| engine.apply_effect(tx.keys, KeyId(0), &effect));
        assert_eq!(applied, Err(reason), "{effect:?}");
        assert_eq!(world.lock(&key("k")).cloned(), before, "{effect:?}");
        assert_eq!(world.engine.last_token(), token, "{effect:?}");
    }
    let of_no_lock = [
        Event::Ended { token, cause: EndCause::Released },
        Event::Changed { token, cause: ChangeCause::Renewed, terms: terms() },
    ];
    for effect in of_no_lock {
        let applied = world.on_key(&key("nothing"), |engine, tx| engine.apply_effect(tx.keys, KeyId(0), &effect));
        assert_eq!(applied, Err("there is no lock"), "{effect:?}");
        assert!(world.lock(&key("nothing")).is_none());
    }
}

/// A replica that loads a snapshot may receive effects that the snapshot already contains.
#[test]
fn repeated_grant_effect_adds_no_hold() {
    let (world, token) = reader();
    let mut lock = world.lock(&key("k")).unwrap().clone();
    let effect = granted(Kind::RwLock, b"a", Mode::Read, token);
    assert_eq!(lock.check(&effect), Ok(()));
    lock.apply(effect);
    assert_eq!(lock.holds().len(), 1);
    assert_eq!(lock.holds().first().unwrap().terms(), terms());
}

/// A promoted replica never reuses a number of its master, even if its own clock is behind.
#[test]
fn effect_raises_the_next_token_of_a_replica() {
    let owner = b"b".as_slice().into();
    let stay = Stay::Polled { until_us: u64::MAX };
    let queued = Event::Queued { owner, stay, arrival: 7_000_000, request_id: None, grace_ms: None, at_head: false };
    let granted = granted(Kind::Mutex, b"b", Mode::Exclusive, 8_000_000);
    for (effect, number) in [(queued, 7_000_000), (granted, 8_000_000)] {
        let mut world = World::new();
        world.on_key(&key("k"), |engine, tx| {
            engine.apply_effect(tx.keys, KeyId(0), &effect).unwrap();
            tx.out.effect(KeyId(0), &effect, false);
        });
        assert_eq!(world.engine.last_token(), number);
        world.outputs.clear();
        let request = asking(Kind::Mutex, Mode::Exclusive, Ask::Try);
        let acquired = world.on_key(&key("other"), |engine, tx| engine.acquire(tx, b"a", &request));
        assert!(matches!(acquired, Ok(Acquired::Granted(grant)) if grant.tokens[0] > number));
    }
}

#[test]
fn replica_observes_each_server_event() {
    let told: [fn(&mut Engine); 4] = [
        Engine::demoted,
        |engine| engine.flushed(None),
        |engine| engine.value_changed(key("k").borrow()),
        |engine| engine.value_loaded(key("k")),
    ];
    for tell in told {
        let mut engine = Engine::new([1, 2, 3, 4]);
        assert!(!engine.has_to_observe());
        tell(&mut engine);
        assert!(engine.has_to_observe());
    }
}

/// The effect comes from a file: for few holds a master sends single effects.
#[test]
fn cleared_effect_keeps_the_excluded_owner_if_it_is_alone() {
    let (world, token) = reader();
    let mut lock = world.lock(&key("k")).unwrap().clone();
    lock.apply(Event::Cleared { cause: EndCause::Expired, except: Some(b"a".as_slice().into()) });
    assert_eq!(lock.holds().iter().map(|hold| hold.token()).collect::<Vec<_>>(), [token]);
}
