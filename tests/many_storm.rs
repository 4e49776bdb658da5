//! Many clients acquire random small sets of keys: each wait ends, no key has two owners, and no
//! set is granted in part, even while leases expire and keys are deleted.
//!
//! The test reads the history from the append-only file, which has every change of every key in
//! order. Each attempt has its own owner, whose name ends with the requested keys.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::support::{Client, Reply, Server, at_length, propagated, seed};

const CLIENTS: u64 = 200;
const KEYS: usize = 20;
const ROUND: Duration = Duration::from_secs(3);
/// A wait this many times longer than the mean is starvation. With sets of one to five keys served
/// in order of arrival, a few times the mean is usual.
const LONGEST_BY_MEAN: f64 = 25.0;

/// Acquires random sets until `end`, and returns the duration of each wait. A careless worker does
/// not release some of them.
fn work(mut client: Client, mut random: StdRng, number: u64, end: Instant, careless: bool) -> Vec<Duration> {
    let mut waits = Vec::new();
    let mut keys: Vec<usize> = (0..KEYS).collect();
    while Instant::now() < end {
        let count = random.random_range(1..=5);
        let (set, _) = keys.partial_shuffle(&mut random, count);
        let names: Vec<_> = set.iter().map(usize::to_string).collect();
        let owner = format!("{number}-{}:{}", waits.len(), names.join(","));
        let arguments = format!("{count} {} {owner}", names.join(" "));
        let forgets = careless && random.random_ratio(1, 10);
        let lease_ms = if forgets { 5 } else { 60_000 };
        let start = Instant::now();
        client.send(format!("RLOCK.MACQUIRE {arguments} PX {lease_ms} BLOCK 0"));
        let granted = client.reply_within(Duration::from_secs(60)).expect("a grant");
        waits.push(start.elapsed());
        assert!(!matches!(granted, Reply::Nil | Reply::Error(_)), "{granted:?}");
        if forgets {
            continue;
        }
        match client.call(format!("RLOCK.MRELEASE {arguments}")) {
            Reply::Array(left) => assert!(left.iter().all(|left| *left == 0), "{left:?}"),
            // A key was deleted meanwhile, so release the others one by one.
            Reply::Error(line) if careless && line.starts_with("NOTOWNER") => {
                for name in &names {
                    client.call(format!("RLOCK.RELEASE {name} {owner}"));
                }
            }
            other => panic!("{other:?}"),
        }
    }
    waits
}

/// Deletes keys while they are held and waited for.
fn delete(mut client: Client, mut random: StdRng, is_over: &AtomicBool) {
    while !is_over.load(Ordering::SeqCst) {
        client.call(format!("DEL {}", random.random_range(0..KEYS)));
        // Only so that other commands run between the deletions.
        thread::sleep(Duration::from_millis(2));
    }
}

/// Replays everything that the server did. Fails if a key gets a second owner, or an owner only a
/// part of its keys. Returns how many sets were granted.
#[track_caller]
fn check(commands: &[Vec<Vec<u8>>]) -> usize {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    // The token of each held key, and the grants since the last step began.
    let (mut held, mut step): (HashMap<String, String>, HashMap<String, Vec<String>>) = Default::default();
    let (mut in_transaction, mut sets) = (false, 0);
    for words in commands {
        match text(&words[0]).to_uppercase().as_str() {
            "MULTI" => in_transaction = true,
            "EXEC" => in_transaction = false,
            "DEL" => drop(held.remove(&text(&words[1]))),
            "RLOCK.APPLY" => {
                let (key, facts) = (text(&words[1]), text(&words[2]));
                let facts: Vec<_> = facts.split(' ').collect();
                match facts[0] {
                    "granted" => {
                        let before = held.insert(key.clone(), facts[3].to_owned());
                        assert_eq!(before, None, "{key} was granted to {} while it was held", text(&words[3]));
                        step.entry(text(&words[3])).or_default().push(key);
                    }
                    "released" | "expired" => assert_eq!(held.remove(&key).as_deref(), Some(facts[1]), "{key}"),
                    other => panic!("unexpected effect {other}"),
                }
            }
            other => panic!("unexpected command {other}"),
        }
        if in_transaction {
            continue;
        }
        for (owner, mut granted) in step.drain() {
            let (_, keys) = owner.split_once(':').expect("an owner name with its keys");
            let mut asked: Vec<_> = keys.split(',').map(str::to_owned).collect();
            asked.sort();
            granted.sort();
            assert_eq!(granted, asked, "keys granted to {owner} in one step");
            sets += 1;
        }
    }
    sets
}

/// Runs one round on a new server. Returns all waits, sorted.
#[track_caller]
fn storm(seed: u64, careless: bool) -> Vec<Duration> {
    let server = Server::with_aof(&["appendfsync no", "auto-aof-rewrite-percentage 0"]);
    let is_over = AtomicBool::new(false);
    let end = Instant::now() + ROUND;
    let mut waits: Vec<Duration> = thread::scope(|scope| {
        let workers: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (client, random) = (server.client(), StdRng::seed_from_u64(seed ^ number));
                let work = move || work(client, random, number, end, careless);
                thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, work).expect("a thread")
            })
            .collect();
        if careless {
            let (client, random, is_over) = (server.client(), StdRng::seed_from_u64(seed ^ CLIENTS), &is_over);
            scope.spawn(move || delete(client, random, is_over));
        }
        let waits: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::SeqCst);
        waits.into_iter().flat_map(|waits| waits.expect("no panic")).collect()
    });
    assert_eq!(server.client().info_number("rlock_waiting"), 0);
    let sets = check(&propagated(&server));
    assert_eq!(sets, waits.len(), "each set is granted once");
    waits.sort();
    waits
}

#[track_caller]
fn assert_storms(careless: bool) {
    let seed = seed();
    // One minute, in rounds whose files are small enough to read.
    for round in 0..at_length(1, 20) {
        let waits = storm(seed.wrapping_add(round * 1000), careless);
        let mean = waits.iter().sum::<Duration>() / waits.len() as u32;
        let longest = waits[waits.len() - 1];
        let by_mean = longest.as_secs_f64() / mean.as_secs_f64();
        eprintln!("{} sets, mean wait {mean:?}, longest {longest:?}, {by_mean:.1} times the mean", waits.len());
        assert!(by_mean < LONGEST_BY_MEAN, "a wait of {by_mean} times the mean");
    }
}

#[test]
fn random_sets_neither_deadlock_nor_starve() {
    assert_storms(false);
}

#[test]
fn sets_are_granted_whole_while_leases_expire_and_keys_are_deleted() {
    assert_storms(true);
}
