//! A server that is killed during its work, with an append-only file that is synced before each
//! reply: every acknowledged change survives, and tokens keep rising.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::support::{Client, Reply, Server, WallClock, at_length, eventually, seed};

const WORKERS: u64 = 4;

/// What one worker knows of its own locks, which no other worker uses: holds and token of each held
/// lock.
#[derive(Default)]
struct Known {
    held: HashMap<String, (i64, i64)>,
    /// The lock of the command without a reply, which may have been executed.
    in_doubt: Option<String>,
    highest_token: i64,
    acknowledged: i64,
}

/// Acquires, renews and releases the worker's own locks until the server is gone.
fn work(mut client: Client, worker: u64, mut known: Known, mut random: StdRng, total: &AtomicI64) -> Known {
    loop {
        let number = random.random_range(0..20);
        let key = format!("lock-{worker}-{number}");
        let family = if number % 2 == 0 { "RLOCK" } else { "RFAIRLOCK" };
        let verb = *["ACQUIRE", "ACQUIRE", "RELEASE", "RENEW", "FORCERELEASE"].choose(&mut random).expect("not empty");
        let command = match verb {
            "FORCERELEASE" => format!("{family}.FORCERELEASE {key}"),
            "RELEASE" => format!("{family}.RELEASE {key} me"),
            _ => format!("{family}.{verb} {key} me PX 600000"),
        };
        let sent = client.try_send(&[command.as_str().into()]);
        match sent.and_then(|()| client.reply_within(Duration::from_secs(10))) {
            Ok(reply) => {
                match (verb, reply) {
                    ("ACQUIRE", Reply::Int(token)) => {
                        let (holds, held_token) = known.held.entry(key).or_insert((0, token));
                        assert_eq!(*held_token, token, "{command}");
                        *holds += 1;
                        known.highest_token = known.highest_token.max(token);
                    }
                    ("RELEASE", Reply::Int(0)) | ("FORCERELEASE", Reply::Int(_)) => drop(known.held.remove(&key)),
                    ("RELEASE", Reply::Int(left)) => known.held.get_mut(&key).expect("a held lock").0 = left,
                    ("RENEW", Reply::Int(_)) => assert!(known.held.contains_key(&key)),
                    (_, Reply::Error(error)) => {
                        assert!(error.starts_with("NOTOWNER"), "{command}: {error}");
                        assert!(!known.held.contains_key(&key), "{command}: {error}");
                    }
                    (_, other) => panic!("{command}: {other:?}"),
                }
                known.acknowledged += 1;
                total.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => {
                known.in_doubt = Some(key);
                return known;
            }
        }
    }
}

/// Asserts that acknowledged changes survived. The lock of the command without a reply is taken as
/// found.
#[track_caller]
fn check(client: &mut Client, worker: u64, known: &mut Known) {
    for number in 0..20 {
        let key = format!("lock-{worker}-{number}");
        let found = client.holder(&key).map(|holder| (holder.holds, holder.token));
        if known.in_doubt.as_ref() != Some(&key) {
            assert_eq!(found, known.held.get(&key).copied(), "{key}");
        }
        match found {
            Some(found) => drop(known.held.insert(key, found)),
            None => drop(known.held.remove(&key)),
        }
    }
    known.in_doubt = None;
}

/// Kills the server `kills` times. Before each restart its wall clock goes back by `steps_back`.
#[track_caller]
fn assert_nothing_acknowledged_is_lost(
    lines: &[&str],
    kills: usize,
    steps_back: Duration,
    mut meanwhile: impl FnMut(&mut Client),
) {
    let seed = seed();
    let clock = WallClock::new();
    let mut server = Server::with_wall_clock(&clock, &[&["appendonly yes", "appendfsync always"], lines].concat());
    let mut all: Vec<_> = (0..WORKERS).map(|_| Known::default()).collect();
    for kill in 0..kills as u64 {
        let total = AtomicI64::new(0);
        all = thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS)
                .zip(all)
                .map(|(worker, known)| {
                    let (client, total) = (server.client(), &total);
                    let random = StdRng::seed_from_u64(seed ^ (kill * WORKERS + worker));
                    scope.spawn(move || work(client, worker, known, random, total))
                })
                .collect();
            let mut observer = server.client();
            eventually(Duration::from_secs(20), || total.load(Ordering::Relaxed) > 300);
            meanwhile(&mut observer);
            drop(observer);
            server.kill();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
        });
        clock.step_back(steps_back * (kill as u32 + 1));
        server.restart();
        let mut client = server.client();
        let newest = client.acquire("new a PX 600000");
        client.call("RLOCK.RELEASE new a");
        for (worker, known) in (0..).zip(&mut all) {
            check(&mut client, worker, known);
            // With a clock that never goes back, tokens would rise without the saved ones.
            assert!(newest > known.highest_token, "tokens keep rising");
            known.highest_token = newest;
        }
    }
    let acknowledged: i64 = all.iter().map(|known| known.acknowledged).sum();
    assert!(acknowledged > 100 * kills as i64, "{acknowledged}");
}

#[test]
fn kill_loses_no_acknowledged_change() {
    for preamble in ["yes", "no"] {
        let preamble = format!("aof-use-rdb-preamble {preamble}");
        assert_nothing_acknowledged_is_lost(&[&preamble], at_length(10, 100), Duration::from_secs(3600), |_| {});
    }
}

#[test]
fn kill_during_a_rewrite_loses_no_acknowledged_change() {
    for preamble in ["yes", "no"] {
        let preamble = format!("aof-use-rdb-preamble {preamble}");
        let mut random = StdRng::seed_from_u64(seed());
        // The delay (1000 µs for each key) makes the rewrite slow enough that kills hit every stage
        // of it.
        let lines = [preamble.as_str(), "rdb-key-save-delay 1000"];
        let (mut kills, mut met) = (0, 0);
        // Not every server stores the last token in a rewritten file, so the clock is not stepped.
        assert_nothing_acknowledged_is_lost(&lines, at_length(10, 100), Duration::ZERO, |client| {
            let is_rewriting = |client: &mut Client| client.info("aof_rewrite_in_progress") == "1";
            let answer = client.call("BGREWRITEAOF").text();
            assert!(answer.starts_with("Background append only file rewriting"), "{answer}");
            kills += 1;
            match kills % 3 {
                0 => eventually(Duration::from_secs(20), || !is_rewriting(client)),
                // Vary how far the rewrite gets.
                _ => thread::sleep(Duration::from_millis(random.random_range(0..30))),
            }
            met += i32::from(is_rewriting(client));
        });
        assert!(met > 0, "no kill came during a rewrite");
    }
}
