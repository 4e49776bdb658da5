//! Compares each decision to wait or to refuse a deadlock with an independent search, which lists
//! all edges between all owners and follows them.
//!
//! A request closes a cycle if an edge of that request is part of the cycle. As long as values stay
//! under their keys, every cycle is closed by a request.
//!
//! `RLOCK_DEADLOCK_REQUESTS` is the number of random requests.

use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

use super::world::{Output, World, key, releasing};
use crate::bytes::{Key, Owner};
use crate::engine::Acquired;
use crate::kind::{Kind, Mode};
use crate::limits::Limits;
use crate::outbox::Answer;
use crate::registry::{Rank, Waiter};
use crate::request::{Ask, Refusal, Request, Verb, WaitEdge};

const OWNERS: u32 = 12;
const MUTEXES: u32 = 6;
const FAIR: u32 = 2;
const RWLOCKS: u32 = 3;

/// A request and its owner.
type Asked = (Owner, Request);

/// A request in a queue, as the oracle sees it.
#[derive(Clone, Debug)]
struct Standing {
    owner: Owner,
    mode: Mode,
    /// This is the request in question.
    is_asked: bool,
}

/// A question to the oracle: does this request close a cycle?
enum About<'a> {
    /// It waits with this ticket.
    Waiting(u64),
    /// It was refused; the oracle puts it where it would have waited.
    Refused(&'a [Key], &'a Asked),
}

fn mutex(number: u32) -> Key {
    key(&std::format!("m{number}"))
}

fn all_keys() -> Vec<Key> {
    let rest = (0..FAIR).map(|n| std::format!("f{n}")).chain((0..RWLOCKS).map(|n| std::format!("r{n}")));
    (0..MUTEXES).map(mutex).chain(rest.map(|name| key(&name))).chain([key("s")]).collect()
}

/// Whether the request of `about` ends this waiter: an owner waits for a key with at most one
/// request.
fn is_superseded(world: &World, waiter: &Waiter, about: Option<&About<'_>>) -> bool {
    let Some(About::Refused(keys, (owner, _))) = about else { return false };
    let queues = &world.engine.registry;
    let mut names = waiter.names().iter().filter_map(|name| queues.key(*name));
    queues.owner_of(waiter) == owner.as_slice() && names.any(|key| keys.contains(&key.to_key()))
}

/// The arrival number of an owner's waiting request under a key.
fn arrival(world: &World, owner: &Owner, key: &Key) -> Option<u64> {
    let queues = &world.engine.registry;
    let ticket = queues.own_wait(owner.as_slice(), queues.find(key.borrow())?)?;
    Some(queues.get(ticket)?.arrival())
}

/// The queues of all keys.
fn lines(world: &World, about: Option<&About<'_>>) -> BTreeMap<Key, Vec<Standing>> {
    let mut lines = BTreeMap::new();
    for key in all_keys() {
        let queues = &world.engine.registry;
        let name = queues.find(key.borrow());
        let waiters = name.into_iter().flat_map(|name| queues.in_order(name));
        let waiters = waiters.filter(|(_, waiter)| !waiter.has_timed_out(world.now));
        let waiters: Vec<_> = waiters.filter(|(_, waiter)| !is_superseded(world, waiter, about)).collect();
        let is_asked = |ticket| matches!(about, Some(About::Waiting(asked)) if *asked == ticket);
        let mut line: Vec<Standing> = waiters
            .iter()
            .map(|(ticket, waiter)| Standing {
                owner: queues.owner_of(waiter).into(),
                mode: waiter.request().mode,
                is_asked: is_asked(*ticket),
            })
            .collect();
        let waiters: Vec<_> = waiters.into_iter().map(|(_, waiter)| waiter).collect();
        if let Some(About::Refused(keys, (owner, request))) = about
            && keys.contains(&key)
        {
            let lock = world.lock(&key);
            let reads = lock.is_some_and(|lock| lock.live_hold(owner.as_slice(), Mode::Read, world.now).is_some());
            let place = lock.and_then(|lock| lock.place(owner.as_slice()));
            let index = match (request.mode, place) {
                (Mode::Write, _) if reads => waiters.iter().take_while(|waiter| waiter.rank() == Rank::Upgrade).count(),
                (_, Some(place)) => waiters.iter().take_while(|waiter| waiter.arrival() < place.arrival).count(),
                _ => line.len(),
            };
            let standing = Standing { owner: owner.clone(), mode: request.mode, is_asked: true };
            line.insert(index, standing);
        }
        lines.insert(key, line);
    }
    lines
}

/// An owner that waits, an owner that blocks it, and whether the edge belongs to the request in
/// question.
type Edge = (Owner, Owner, bool);

fn edges(world: &World, about: Option<&About<'_>>) -> BTreeSet<Edge> {
    let mut edges = BTreeSet::new();
    for (key, line) in lines(world, about) {
        let holds: Vec<_> = world.lock(&key).into_iter().flat_map(|lock| lock.live_holds(world.now)).collect();
        for (index, waiter) in line.iter().enumerate() {
            let holds_it = holds.iter().any(|hold| *hold.owner() == waiter.owner && hold.mode() == Mode::Exclusive);
            if waiter.mode == Mode::Permits || holds_it {
                continue;
            }
            let in_the_way = holds.iter().filter(|hold| !(waiter.mode == Mode::Read && hold.mode() == Mode::Read));
            let held_by = in_the_way.map(|hold| (hold.owner().clone(), waiter.is_asked));
            let behind = line[..index].iter().map(|ahead| (ahead.owner.clone(), waiter.is_asked || ahead.is_asked));
            let others = held_by.chain(behind).filter(|(other, _)| *other != waiter.owner);
            edges.extend(others.map(|(other, is_asked)| (waiter.owner.clone(), other, is_asked)));
        }
    }
    edges
}

/// Whether the edges lead from one owner to another.
fn leads(edges: &BTreeSet<Edge>, from: &Owner, to: &Owner) -> bool {
    let mut reached = BTreeSet::from([from.clone()]);
    let mut todo = std::vec![from.clone()];
    while let Some(from) = todo.pop() {
        for (_, to, _) in edges.iter().filter(|(waiter, ..)| *waiter == from) {
            if reached.insert(to.clone()) {
                todo.push(to.clone());
            }
        }
    }
    reached.contains(to)
}

/// Whether an edge of the request is part of a cycle.
fn closes_cycle(world: &World, about: &About<'_>) -> bool {
    let edges = edges(world, Some(about));
    edges.iter().any(|(from, to, is_asked)| *is_asked && leads(&edges, to, from))
}

/// An edge of any cycle.
fn any_cycle(world: &World) -> Option<Edge> {
    let edges = edges(world, None);
    edges.iter().find(|(from, to, _)| leads(&edges, to, from)).cloned()
}

/// splitmix64: the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 32) as u32 % end
    }
}

/// The number of random requests.
fn requests() -> u32 {
    std::env::var("RLOCK_DEADLOCK_REQUESTS").ok().and_then(|number| number.parse().ok()).unwrap_or(30_000)
}

fn world() -> World {
    let mut world = World::new();
    world.limits = Limits { max_waiters: 1000, max_places: 1000, fair_grace_ms: 20, ..Limits::NONE };
    world.on_key(&key("s"), |engine, tx| engine.init_semaphore(tx, 2, None)).unwrap();
    world
}

#[test]
fn deadlocks_match_an_independent_search() {
    let requests = requests();
    let (mut random, mut world) = (Random(1), world());
    let (mut waited, mut known, mut refused) = (0, 0, 0);
    for _ in 0..requests {
        disturb(&mut world, &mut random, true);
        let (keys, asked) = request(&world, &mut random);
        let (owner, request) = &asked;
        let earlier = arrival(&world, owner, &keys[0]);
        let outcome = acquire(&mut world, &keys, &asked);
        match outcome {
            Outcome::Waits(ticket) => {
                waited += 1;
                // A request that takes over the place of an earlier one closes no new cycle. The
                // engine does not know the change of a dirty name before it reconciles the key.
                let is_new = earlier.is_none() || arrival(&world, owner, &keys[0]) != earlier;
                let is_known = is_new && !world.has_dirty() && request.mode != Mode::Permits;
                known += u32::from(is_known);
                let is_missed = is_known && closes_cycle(&world, &About::Waiting(ticket));
                assert!(!is_missed, "missed: {owner:?} {request:?} for {keys:?}, {:?}", lines(&world, None));
            }
            Outcome::Deadlock(cycle) => {
                refused += 1;
                let is_true = closes_cycle(&world, &About::Refused(&keys, &asked));
                assert!(is_true, "false alarm: {asked:?} for {keys:?}: {cycle:?}, {:?}", lines(&world, None));
            }
            Outcome::Other => {}
        }
        world.outputs.clear();
    }
    // Random steps that never reach these states would prove nothing.
    assert!(waited > requests / 10 && refused > requests / 50, "{waited} waited, {refused} were refused");
    assert!(known > requests / 20, "only {known} of those that waited were compared");
}

/// Shows that two searches suffice for a request: when it begins to wait, and when its owner loses
/// an earlier request or a hold that would have granted it. Fair locks are left out: the grant of a
/// place without a connection creates edges without a search.
#[test]
fn no_cycle_remains_if_values_stay_under_their_keys() {
    let requests = requests();
    let (mut random, mut world) = (Random(2), world());
    let mut refused = [0, 0];
    for _ in 0..requests {
        disturb(&mut world, &mut random, false);
        let (keys, asked) = request(&world, &mut random);
        let is_refused =
            asked.1.kind != Kind::Fair && matches!(acquire(&mut world, &keys, &asked), Outcome::Deadlock(_));
        world.run_timer();
        let cycle = any_cycle(&world);
        assert_eq!(cycle, None, "after {asked:?} for {keys:?}: {:?}", lines(&world, None));
        let is_deadlock =
            |output: &Output| matches!(output, Output::Answer { answer: Answer::Refused(Refusal::Deadlock(_)), .. });
        let later = world.outputs.drain(..).filter(|(_, output)| is_deadlock(output)).count();
        refused = [refused[0] + u32::from(is_refused), refused[1] + u32::try_from(later).unwrap()];
    }
    // Among as few requests as under Miri, none may be refused later.
    let later_is_tried = refused[1] > 0 || requests < 500;
    assert!(refused[0] > requests / 50 && later_is_tried, "{refused:?} were refused at once and later");
}

enum Outcome {
    /// With this ticket.
    Waits(u64),
    Deadlock(Box<[WaitEdge]>),
    Other,
}

fn acquire(world: &mut World, keys: &[Key], (owner, request): &Asked) -> Outcome {
    let acquired = world.on_keys(keys, |engine, tx| engine.acquire(tx, owner.as_slice(), request));
    let acquired = acquired.map(|acquired| match acquired {
        Acquired::Waiting(ticket) => Some(ticket),
        _ => None,
    });
    match acquired {
        Ok(Some(ticket)) => {
            world.expect_answer(ticket);
            Outcome::Waits(ticket)
        }
        Err(Refusal::Deadlock(cycle)) => {
            assert!((1..=4).contains(&cycle.len()));
            Outcome::Deadlock(cycle)
        }
        _ => Outcome::Other,
    }
}

fn request(world: &World, random: &mut Random) -> (Vec<Key>, Asked) {
    let owner = Owner::from(&[b'a' + random.below(OWNERS) as u8][..]);
    let (verb, kind, mode, keys) = match random.below(10) {
        0..4 => (Verb::Acquire, Kind::Mutex, Mode::Exclusive, std::vec![mutex(random.below(MUTEXES))]),
        4..6 => {
            let first = random.below(MUTEXES);
            let second = (first + 1 + random.below(MUTEXES - 1)) % MUTEXES;
            (Verb::AcquireMany, Kind::Mutex, Mode::Exclusive, std::vec![mutex(first), mutex(second)])
        }
        6 => (Verb::Acquire, Kind::Fair, Mode::Exclusive, std::vec![key(&std::format!("f{}", random.below(FAIR)))]),
        7..9 => {
            let mode = if random.below(2) == 0 { Mode::Read } else { Mode::Write };
            (Verb::Acquire, Kind::RwLock, mode, std::vec![key(&std::format!("r{}", random.below(RWLOCKS)))])
        }
        _ => (Verb::Acquire, Kind::Semaphore, Mode::Permits, std::vec![key("s")]),
    };
    let ask = match random.below(8) {
        0 if kind == Kind::Fair => Ask::Queue { life_ms: 40 },
        0 => Ask::Try,
        1 => Ask::Wait { until_us: Some(world.now.after_ms(u64::from(random.below(50)) + 1)) },
        _ => Ask::Wait { until_us: None },
    };
    let lease_ms = u64::from(random.below(200)) + 1;
    let (request_id, session_ms) = (None, None);
    (
        keys,
        (
            owner,
            Request {
                verb,
                kind,
                mode,
                count: 1,
                lease_ms,
                request_id,
                session_ms,
                claim_ms: None,
                grace_ms: None,
                is_once: false,
                is_timed: false,
                notify: None,
                ask,
            },
        ),
    )
}

/// Removes or moves edges.
fn disturb(world: &mut World, random: &mut Random, moves: bool) {
    match random.below(12) {
        0..4 => {
            let keys = all_keys();
            let key = keys[random.below(keys.len() as u32) as usize].clone();
            let hold = world.lock(&key).and_then(|lock| {
                let hold = lock.holds().first()?;
                Some((lock.kind(), hold.owner().clone(), hold.mode()))
            });
            if let Some((kind, owner, mode)) = hold {
                let request = releasing(kind, mode, owner.as_slice());
                let _ = world.on_key(&key, |engine, tx| engine.release(tx, &request));
            }
        }
        4..6 => world.advance(u64::from(random.below(20))),
        6 => world.pause(u64::from(random.below(20))),
        7 => {
            let waiting = world.waiting_numbers();
            if !waiting.is_empty() {
                let ticket = waiting[random.below(waiting.len() as u32) as usize];
                world.waiter_left(ticket, random.below(2) == 0);
            }
        }
        8 if moves => {
            let (from, to) = (mutex(random.below(MUTEXES)), mutex(random.below(MUTEXES)));
            if from != to
                && let Some(value) = world.unlink(&from)
            {
                world.arrive(&to, value);
            }
        }
        _ => {}
    }
    // The timer processes server events before the next command, except those of the command's
    // keys.
    if random.below(2) == 0 {
        world.run_timer();
    }
}
