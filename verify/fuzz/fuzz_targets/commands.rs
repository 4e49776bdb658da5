//! Sequences of commands, deadlines and disconnects, with four bytes for each.

#![no_main]

use std::num::NonZeroU32;

use libfuzzer_sys::fuzz_target;
use rlock_core::{Acquired, Ask, Cancel, Channel, Key, Kind, Mode, Release, Renew, Request, Verb};
use rlock_fuzz::{LIMITS, World, key};

fuzz_target!(|bytes: &[u8]| {
    let mut world = World::default();
    for step in bytes.chunks_exact(4).take(100) {
        if let [verb, at, who, how] = *step {
            take(&mut world, verb, at, who % 4, how);
        }
    }
    // Everything must come to an end.
    world.publish(true);
    for _ in 0..=LIMITS.max_waiters + LIMITS.max_places {
        world.pass(400);
        world.run_timer();
        world.publish(true);
    }
    assert_eq!((world.engine.held(), world.engine.waiting()), (0, 0), "something is left over");
});

fn take(world: &mut World, verb: u8, at: u8, who: u8, how: u8) {
    let owner = [who];
    let keys = [key(at)];
    let (kind, mode) = match at / 3 % 5 {
        0 => (Kind::Mutex, Mode::Exclusive),
        1 => (Kind::Fair, Mode::Exclusive),
        2 => (Kind::RwLock, Mode::Read),
        3 => (Kind::RwLock, Mode::Write),
        _ => (Kind::Semaphore, Mode::Permits),
    };
    let count = if mode == Mode::Permits { u32::from(how % 3) + 1 } else { 1 };
    let client = Some(u64::from(who));
    match verb % 16 {
        0..=4 => acquire(world, &keys, who, request(world, Verb::Acquire, (kind, mode, count), how)),
        5 => {
            let many = request(world, Verb::AcquireMany, (Kind::Mutex, Mode::Exclusive, 1), how);
            acquire(world, &[key(0), key(1)], who, many);
        }
        6 | 7 => {
            let request_id = (how & 3 == 3).then_some(u64::from(how >> 4) + 1);
            let (tokens, is_stale) = meant(world, &keys[0], &owner, mode, how);
            let keep_ms = (mode == Mode::Exclusive && how & 8 != 0).then_some(u64::from(how >> 4) + 1);
            let (verb, tokens, is_each) = (Verb::Release, &tokens, false);
            let request = Release { verb, kind, owner: &owner, mode, count, request_id, tokens, keep_ms, is_each };
            let released = world.on(&keys, client, |engine, tx| engine.release(tx, &request));
            assert!(!is_stale || released.is_err(), "a hold was released with another token");
        }
        8 => {
            let (verb, kind, mode) = (Verb::ReleaseMany, Kind::Mutex, Mode::Exclusive);
            let (count, request_id, tokens, keep_ms, is_each) = (1, None, &[], None, how & 1 == 1);
            let request = Release { verb, kind, owner: &owner, mode, count, request_id, tokens, keep_ms, is_each };
            let _ = world.on(&[key(0), key(1)], client, |engine, tx| engine.release(tx, &request));
        }
        9 => {
            let (tokens, is_stale) = meant(world, &keys[0], &owner, mode, how);
            let request = Renew { kind, owner: &owner, mode, lease_ms: Some(u64::from(how) + 1), tokens: &tokens, is_each: false };
            let renewed = world.on(&keys, client, |engine, tx| engine.renew(tx, &request));
            assert!(!is_stale || renewed.is_err(), "a hold was renewed with another token");
        }
        10 => {
            let _ = world.on(&keys, client, |engine, tx| engine.force_release(tx, Some(kind), None));
        }
        11 => {
            let permits = u32::from(how % 4) + 1;
            let _ = match how & 16 {
                0 => world
                    .on(&keys, client, |engine, tx| {
                        engine.init_semaphore(tx, permits, (how > 127).then_some(how.into()))
                    })
                    .map(|_| ()),
                _ => world.on(&keys, client, |engine, tx| engine.resize_semaphore(tx, permits)).map(|_| ()),
            };
        }
        12 => world.leave(how & 1 == 1),
        13 => match how % 9 {
            0 => world.close(u64::from(who)),
            1 => world.engine.confirm_grants(|_| true),
            2 => world.delete(&keys[0]),
            3 => world.engine.promoted(),
            4 => world.publish(true),
            5 => world.publish(false),
            6 => world.demote(),
            7 => world.take_away(channel(who)),
            _ => {
                let cancel = Cancel { kind, owner: &owner, request_id: (how & 16 != 0).then_some(u64::from(how >> 5)) };
                let both = [key(0), key(1)];
                let keys = if kind == Kind::Mutex && who & 4 != 0 { &both[..] } else { &keys[..] };
                let _ = world.on(keys, client, |engine, tx| engine.cancel(tx, &cancel));
            }
        },
        14 => world.pass(u64::from(how)),
        _ => {
            world.pass(u64::from(how));
            world.run_timer();
        }
    }
}

/// The TOKEN option, if given, and whether no hold has that token.
fn meant(world: &World, key: &Key, owner: &[u8], mode: Mode, how: u8) -> (Vec<u64>, bool) {
    let token = world.token_of(key, owner, mode).unwrap_or(1);
    match how >> 6 {
        0 | 1 => (Vec::new(), false),
        2 => (vec![token], false),
        _ => (vec![token + 1], true),
    }
}

fn channel(client: u8) -> Channel {
    Channel(NonZeroU32::MIN.saturating_add(u32::from(client % 2)))
}

fn request(world: &World, verb: Verb, (kind, mode, count): (Kind, Mode, u32), how: u8) -> Request {
    let span_ms = u64::from(how >> 2) + 1;
    let ask = match how & 3 {
        0 => Ask::Try,
        1 if kind == Kind::Fair => Ask::Queue { life_ms: span_ms },
        // The longest wait is unlimited.
        _ => Ask::Wait { until_us: (span_ms < 64).then(|| world.now.after_ms(span_ms)) },
    };
    Request {
        verb,
        kind,
        mode,
        count,
        lease_ms: 65 - span_ms,
        request_id: (how & 16 != 0).then_some(span_ms),
        session_ms: (how & 32 != 0).then_some(span_ms / 8),
        claim_ms: (how & 8 != 0).then_some(span_ms / 4 + 1),
        grace_ms: None,
        is_once: how & 64 != 0,
        is_timed: how & 128 != 0,
        notify: None,
        ask,
    }
}

fn acquire(world: &mut World, keys: &[Key], who: u8, mut request: Request) {
    if request.is_once && request.request_id.is_some() && matches!(request.ask, Ask::Wait { .. }) {
        request.notify = Some(channel(who));
    }
    let held = |world: &World| match keys {
        [key] => world
            .values
            .get(key.name.as_slice())?
            .live_hold(&[who], request.mode, world.now)
            .map(|hold| (hold.token(), hold.count())),
        _ => None,
    };
    // Other waiting requests of this owner may be granted in the same step, and count.
    let is_its_only_one =
        |key: &Key| world.engine.first_waiters(key.borrow(), world.now, 100).all(|waiter| waiter.owner != [who]);
    let before = held(world).filter(|_| keys.iter().all(is_its_only_one));
    let acquired = world.on(keys, Some(u64::from(who)), |engine, tx| engine.acquire(tx, &[who], &request));
    if let (true, Ok(Acquired::Granted(_)), Some((token, count))) = (request.is_once, &acquired, before)
        && let Some((now, counts)) = held(world).filter(|(now, _)| *now == token)
    {
        assert!(now == token && counts <= count, "ONCE counted again");
    }
    world.note(acquired);
}
