//! Random histories of all kinds over several keys, with closed connections, imports, removed
//! values, pauses and late timers. There is no oracle for these; `World::check` checks the
//! invariants of any history.

use core::num::NonZeroU32;

use proptest::prelude::*;

use super::keyspace::Value;
use super::model::wait_ms;
use super::world::{World, asking, key, releasing};
use crate::budget::Scarcity;
use crate::bytes::Key;
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::lock::Lock;
use crate::outbox::Outbox;
use crate::place::Stay;
use crate::request::{Ask, Cancel, Channel, Release, Renew, Request, Verb};

const PERMITS: u32 = 3;
const CLIENTS: u64 = 4;

/// The steps of one history. More would take minutes under Miri, as each is followed by a complete
/// check.
const MOST_STEPS: usize = if cfg!(miri) { 12 } else { 120 };

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        key: u8,
        owner: u8,
        mode: Mode,
        count: u32,
        lease_ms: u64,
        block_ms: Option<u64>,
        id: Option<u64>,
        session_ms: Option<u64>,
        is_once: bool,
        is_notified: bool,
        client: u64,
    },
    Release {
        key: u8,
        owner: u8,
        mode: Mode,
        id: Option<u64>,
    },
    Renew {
        key: u8,
        owner: u8,
        mode: Mode,
        client: u64,
    },
    Force {
        key: u8,
    },
    /// `keys` is a set of bits: key 0 and two more mutexes.
    AcquireMany {
        keys: u8,
        owner: u8,
        lease_ms: u64,
        block_ms: Option<u64>,
        id: Option<u64>,
        client: u64,
    },
    ReleaseMany {
        keys: u8,
        owner: u8,
        id: Option<u64>,
    },
    RenewMany {
        keys: u8,
        owner: u8,
    },
    Init(u32),
    Resize(u32),
    Drain(u8),
    Advance(u64),
    Pause(u64),
    Timer,
    RefusedTimer,
    Closes(u64),
    Leaves(usize, bool),
    Cancel {
        key: u8,
        owner: u8,
        id: Option<u64>,
    },
    Sent,
    Publish(bool),
    Demote,
    /// The server is demoted, and promoted again before any wait has ended.
    DemoteBriefly,
    ChannelGone(bool),
    Delete(u8),
    Foreign(u8),
    Rename(u8, u8),
    Copy(u8, u8),
    Swap,
    Flush,
    Promote,
    FailOver,
}

/// Commands use key 0 as a mutex, key 1 as a rwlock, key 2 as a semaphore and key 3 as a fair lock.
fn mode(key: u8) -> Mode {
    match key {
        0 | 3 => Mode::Exclusive,
        1 => Mode::Write,
        _ => Mode::Permits,
    }
}

fn kind(key: u8, mode: Mode) -> Kind {
    match mode {
        Mode::Exclusive if key == 3 => Kind::Fair,
        Mode::Exclusive => Kind::Mutex,
        Mode::Read | Mode::Write => Kind::RwLock,
        Mode::Permits => Kind::Semaphore,
    }
}

fn step() -> impl Strategy<Value = Step> {
    let at = || {
        (0..4u8, 0..4u8, any::<bool>()).prop_map(|(key, owner, read)| {
            let mode = if key == 1 && read { Mode::Read } else { mode(key) };
            (key, owner, mode)
        })
    };
    let id = || proptest::option::weighted(0.3, 1..6u64);
    let client = || 0..CLIENTS;
    prop_oneof![
        10 => (at(), 1..=PERMITS, 1..80u64, proptest::option::of(wait_ms()), id(), proptest::option::of(0..40u64), any::<(bool, bool)>(), client())
            .prop_map(|((key, owner, mode), permits, lease_ms, block_ms, id, session_ms, (is_once, is_notified), client)| {
                let count = if mode == Mode::Permits { permits } else { 1 };
                Step::Acquire { key, owner, mode, count, lease_ms, block_ms, id, session_ms, is_once, is_notified, client }
            }),
        6 => (at(), id()).prop_map(|((key, owner, mode), id)| Step::Release { key, owner, mode, id }),
        2 => (at(), client()).prop_map(|((key, owner, mode), client)| Step::Renew { key, owner, mode, client }),
        1 => (0..4u8).prop_map(|key| Step::Force { key }),
        6 => (1..16u8, 0..4u8, 1..80u64, proptest::option::of(wait_ms()), id(), client()).prop_map(
            |(keys, owner, lease_ms, block_ms, id, client)| {
                Step::AcquireMany { keys, owner, lease_ms, block_ms, id, client }
            }
        ),
        3 => (1..16u8, 0..4u8, id()).prop_map(|(keys, owner, id)| Step::ReleaseMany { keys, owner, id }),
        1 => (1..16u8, 0..4u8).prop_map(|(keys, owner)| Step::RenewMany { keys, owner }),
        1 => (1..5u32).prop_map(Step::Init),
        1 => (1..5u32).prop_map(Step::Resize),
        1 => (0..4u8).prop_map(Step::Drain),
        5 => (0..60u64).prop_map(Step::Advance),
        2 => (0..60u64).prop_map(Step::Pause),
        2 => Just(Step::Timer),
        1 => Just(Step::RefusedTimer),
        2 => client().prop_map(Step::Closes),
        2 => (1..40usize, any::<bool>()).prop_map(|(ticket, timed_out)| Step::Leaves(ticket, timed_out)),
        1 => (0..4u8, 0..4u8, id()).prop_map(|(key, owner, id)| Step::Cancel { key, owner, id }),
        2 => Just(Step::Sent),
        4 => proptest::bool::weighted(0.7).prop_map(Step::Publish),
        1 => Just(Step::Demote),
        1 => Just(Step::DemoteBriefly),
        1 => any::<bool>().prop_map(Step::ChannelGone),
        1 => (0..4u8).prop_map(Step::Delete),
        1 => (0..4u8).prop_map(Step::Foreign),
        1 => (0..4u8, 0..4u8).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => (0..4u8, 0..4u8).prop_map(|(from, to)| Step::Copy(from, to)),
        1 => Just(Step::Swap),
        1 => Just(Step::Flush),
        1 => Just(Step::Promote),
        1 => Just(Step::FailOver),
    ]
}

fn name(number: u8) -> Key {
    key(match number {
        0 => "mutex",
        1 => "rwlock",
        2 => "semaphore",
        _ => "fair",
    })
}

/// The keys of a set, for requests for many: mutexes, and the name of the fair lock, which can be a
/// mutex while the fair lock is absent.
fn several(set: u8) -> Vec<Key> {
    ["mutex", "mutex 2", "mutex 3", "fair"]
        .iter()
        .zip(0..)
        .filter(|(_, bit)| set & (1 << bit) != 0)
        .map(|(name, _)| key(name))
        .collect()
}

/// Two channels, which the clients share.
fn notify(is_notified: bool, id: Option<u64>, client: u64) -> Option<Channel> {
    let number = NonZeroU32::new(if client.is_multiple_of(2) { 1 } else { 2 });
    number.filter(|_| is_notified && id.is_some()).map(Channel)
}

fn wait_or_try(world: &World, block_ms: Option<u64>) -> Ask {
    block_ms.map_or(Ask::Try, |block_ms| Ask::Wait { until_us: (block_ms != 0).then(|| world.now.after_ms(block_ms)) })
}

fn run(world: &mut World, step: Step) {
    match step {
        Step::Acquire { key, owner, mode, count, lease_ms, block_ms, id, session_ms, is_once, is_notified, client } => {
            let request = Request {
                verb: Verb::Acquire,
                kind: kind(key, mode),
                mode,
                count,
                lease_ms,
                request_id: id,
                session_ms,
                claim_ms: None,
                grace_ms: None,
                is_once,
                is_timed: false,
                notify: notify(is_notified && block_ms.is_some(), id, client),
                ask: match block_ms {
                    // Only a fair lock accepts QUEUE.
                    None if key == 3 && lease_ms % 2 == 0 => Ask::Queue { life_ms: lease_ms },
                    _ => wait_or_try(world, block_ms),
                },
            };
            world.client = Some(client);
            let acquired = world.on_key(&name(key), |engine, tx| engine.acquire(tx, &[owner], &request));
            if let Ok(Acquired::Waiting(ticket)) = acquired {
                world.expect_answer(ticket);
            }
        }
        Step::Release { key, owner, mode, id } => {
            let owner = [owner];
            let request = Release { request_id: id, ..releasing(kind(key, mode), mode, &owner) };
            let _ = world.on_key(&name(key), |engine, tx| engine.release(tx, &request));
        }
        Step::Renew { key, owner, mode, client } => {
            let owner = [owner];
            let request =
                Renew { kind: kind(key, mode), owner: &owner, mode, lease_ms: None, tokens: &[], is_each: false };
            world.client = Some(client);
            let _ = world.on_key(&name(key), |engine, tx| engine.renew(tx, &request));
        }
        Step::Force { key } => {
            let kind = kind(key, mode(key));
            let _ = world.on_key(&name(key), |engine, tx| engine.force_release(tx, Some(kind), None));
        }
        Step::AcquireMany { keys, owner, lease_ms, block_ms, id, client } => {
            let request = Request {
                verb: Verb::AcquireMany,
                kind: Kind::Mutex,
                mode: Mode::Exclusive,
                count: 1,
                lease_ms,
                request_id: id,
                session_ms: Some(5),
                claim_ms: None,
                grace_ms: None,
                is_once: false,
                is_timed: false,
                notify: notify(lease_ms.is_multiple_of(2) && block_ms.is_some(), id, client),
                ask: wait_or_try(world, block_ms),
            };
            let keys = several(keys);
            world.client = Some(client);
            let acquired = world.on_keys(&keys, |engine, tx| engine.acquire(tx, &[owner], &request));
            if let Ok(Acquired::Waiting(ticket)) = acquired {
                world.expect_answer(ticket);
            }
            if let Ok(Acquired::Granted(_)) = acquired {
                let all = keys.iter().all(|key| {
                    world.lock(key).is_some_and(|lock| lock.live_hold(&[owner], Mode::Exclusive, world.now).is_some())
                });
                assert!(all, "all or nothing");
            }
        }
        Step::ReleaseMany { keys, owner, id } => {
            let owner = [owner];
            let one = releasing(Kind::Mutex, Mode::Exclusive, &owner);
            let request = Release { verb: Verb::ReleaseMany, request_id: id, ..one };
            let _ = world.on_keys(&several(keys), |engine, tx| engine.release(tx, &request));
        }
        Step::RenewMany { keys, owner } => {
            let owner = [owner];
            let (kind, mode) = (Kind::Mutex, Mode::Exclusive);
            let request = Renew { kind, owner: &owner, mode, lease_ms: None, tokens: &[], is_each: false };
            let _ = world.on_keys(&several(keys), |engine, tx| engine.renew(tx, &request));
        }
        Step::Init(permits) => {
            let _ = world.on_key(&name(2), |engine, tx| engine.init_semaphore(tx, permits, None));
        }
        Step::Resize(permits) => {
            let _ = world.on_key(&name(2), |engine, tx| engine.resize_semaphore(tx, permits));
        }
        Step::Drain(owner) => {
            let request = Request {
                verb: Verb::Acquire,
                kind: Kind::Semaphore,
                mode: Mode::Permits,
                count: 1,
                lease_ms: 30,
                request_id: None,
                session_ms: None,
                claim_ms: None,
                grace_ms: None,
                is_once: false,
                is_timed: false,
                notify: None,
                ask: Ask::Try,
            };
            let _ = world.on_key(&name(2), |engine, tx| engine.drain_semaphore(tx, &[owner], &request));
        }
        Step::Advance(ms) => world.advance(ms),
        Step::Pause(ms) => world.pause(ms),
        Step::Timer => world.run_timer(),
        Step::RefusedTimer => drop(world.end_waits()),
        Step::Closes(client) => world.client_closes(client, false),
        Step::Leaves(ticket, timed_out) if world.is_waiting(ticket) => world.waiter_left(ticket, timed_out),
        Step::Leaves(..) => {}
        Step::Cancel { key, owner, id } => {
            let request = Cancel { kind: kind(key, mode(key)), owner: &[owner], request_id: id };
            let _ = world.on_key(&name(key), |engine, tx| engine.cancel(tx, &request));
        }
        Step::Sent => world.engine.confirm_grants(|_| true),
        Step::Publish(is_heard) => world.publish(is_heard),
        Step::Demote => world.demote(),
        Step::DemoteBriefly => {
            world.publish(true);
            world.engine.demoted();
            world.engine.promoted();
        }
        Step::ChannelGone(first) => {
            if let Some(channel) = notify(true, Some(1), u64::from(!first)) {
                world.engine.channel_gone(channel);
            }
        }
        Step::Delete(key) => {
            world.unlink(&name(key));
            world.engine.value_changed(name(key).borrow());
        }
        Step::Foreign(key) => world.arrive(&name(key), Value::Foreign),
        Step::Rename(from, to) => {
            if from != to
                && let Some(value) = world.unlink(&name(from))
            {
                world.arrive(&name(to), value);
            }
        }
        Step::Copy(from, to) => {
            if let Some(lock) = world.lock(&name(from)).cloned() {
                world.arrive(&name(to), Value::Lock(lock));
            }
        }
        Step::Swap => world.swap(),
        Step::Flush => world.flush(),
        Step::FailOver => world.fail_over(),
        Step::Promote => world.engine.promoted(),
    }
}

/// Runs a history to its end, and checks that nothing remains.
fn run_all(world: &mut World, steps: Vec<Step>) {
    world.arrive(&name(2), Value::Lock(Lock::new(Kind::Semaphore, PERMITS)));
    for step in steps {
        run(world, step);
        world.check();
    }
    // Everything has a deadline except waiters without a limit, so nothing else remains in the end.
    for _ in 0..50 {
        world.advance(200);
    }
    world.publish(true);
    world.observe_on_replica();
    world.engine.confirm_grants(|_| true);
    let idle = world.values.values().all(|value| match value {
        Value::Lock(lock) => lock.holds().is_empty(),
        Value::Foreign => true,
    });
    assert!(idle, "a hold outlived its lease");
    assert_eq!(world.engine.held(), 0);
    assert_eq!(world.engine.waiting(), 0, "no request waits for a free lock");
    assert!(!(0..CLIENTS).any(|client| world.engine.concerns_client(client)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 2000 }, ..ProptestConfig::default() })]

    #[test]
    fn any_history_is_safe_and_leaves_nothing_behind(steps in prop::collection::vec(step(), 1..MOST_STEPS)) {
        run_all(&mut World::new(), steps);
    }

    /// All work stops in the middle, and the timer has to continue it.
    #[test]
    fn any_history_is_safe_with_a_tiny_budget(
        own in 0..12u32,
        shared in 1..10u32,
        search_steps in 300..1000u32,
        parts in 1..16u32,
        bindings in 1..3usize,
        shares_turns in any::<bool>(),
        steps in prop::collection::vec(step(), 1..MOST_STEPS),
    ) {
        let mut world = World::new();
        world.shares_turns = shares_turns;
        world.engine.budget.make_scarce(Scarcity { own, shared, search_steps, parts, bindings });
        run_all(&mut world, steps);
    }
}

/// The server removes a value without an event, as when it trims a slot that has moved to another
/// node.
#[test]
fn alarm_of_an_unreported_removed_value_is_forgotten() {
    let mut world = World::new();
    run(&mut world, Step::AcquireMany { keys: 1, owner: 0, lease_ms: 10, block_ms: None, id: None, client: 0 });
    world.values.clear();
    world.pause(10);
    let job = world.engine.next_job(world.now, &mut Outbox::new(true)).expect("an expired lease");
    world.observe(&job);
    assert_eq!(world.engine.held(), 0);
}

/// The slot moves to another node while the lease expires, and is trimmed later.
#[test]
fn fired_alarm_of_an_unreported_removed_value_is_forgotten() {
    let mut world = World::new();
    run(&mut world, Step::AcquireMany { keys: 1, owner: 0, lease_ms: 10, block_ms: None, id: None, client: 0 });
    world.pause(10);
    let job = world.engine.next_job(world.now, &mut Outbox::new(true)).expect("an expired lease");
    world.engine.postpone(job, world.now);
    world.values.clear();
    let mut looks = 0;
    while world.engine.held() > 0 {
        looks += 1;
        assert!(looks < 10, "it is forgotten");
        world.pause(1000);
        while let Some(job) = world.engine.next_job(world.now, &mut Outbox::new(true)) {
            world.observe(&job);
        }
    }
}

/// The second detach gives less time than the first one left.
#[test]
fn places_detached_twice_have_the_same_deadline_on_each_copy() {
    let mut world = World::new();
    world.limits.fair_grace_ms = 5000;
    let names = ["first", "second", "third"].map(key);
    let ask = asking(Kind::Fair, Mode::Exclusive, Ask::Queue { life_ms: 60 });
    world.on_key(&names[0], |engine, tx| engine.acquire(tx, b"holder", &ask)).unwrap();
    world.on_key(&names[0], |engine, tx| engine.acquire(tx, b"waiter", &ask)).unwrap();
    for (from, to) in [(0, 1), (1, 2)] {
        let value = world.unlink(&names[from]).unwrap();
        world.arrive(&names[to], value);
        world.run_timer();
        world.limits.fair_grace_ms = 20;
    }
    let stays = |lock: &Lock| lock.queue().unwrap().iter().map(|place| place.stay).collect::<Vec<_>>();
    let until_us = world.now.after_ms(5000);
    assert_eq!(stays(world.lock(&names[2]).unwrap()), [Stay::Polled { until_us }]);
    let Some(Value::Lock(copy)) = world.replica_values.get(&(0, b"third".to_vec())) else { panic!("a copy") };
    assert_eq!(stays(copy), [Stay::Polled { until_us }]);
}
