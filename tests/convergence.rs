//! A replica has the same state as its primary, whatever commands ran and whatever the replica
//! missed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::support::{
    Command, Server, any_key, any_lock_command, at_length, describe_lock, eventually, move_changes_the_database, seed,
};

const SOON: Duration = Duration::from_secs(20);
const CLIENTS: usize = 4;
const DATABASES: usize = 2;

/// Commands in one write. A command that waits delays those behind it.
const BATCH: usize = 50;

const KEYS: usize = 30;

fn random_command(random: &mut StdRng) -> String {
    let (key, other_key) = (any_key(random, KEYS), any_key(random, KEYS));
    match random.random_range(0..1000) {
        0..910 => {
            // Some leases expire during the run, others are still held at each comparison.
            let lease_ms =
                if random.random() { random.random_range(1..50) } else { random.random_range(60_000..600_000) };
            any_lock_command(random, KEYS, lease_ms, 100)
        }
        910..925 => format!("DEL {key}"),
        925..935 => format!("UNLINK {key}"),
        935..945 => format!("PEXPIRE {key} {}", random.random_range(1..30)),
        945..955 => format!("SET {key} text PX {}", random.random_range(1..30)),
        955..965 => format!("RENAME {key} {other_key}"),
        965..980 => format!("COPY {key} {other_key} REPLACE"),
        980..990 if !move_changes_the_database() => format!("MOVE {key} {}", random.random_range(0..DATABASES)),
        980..997 => format!("SELECT {}", random.random_range(0..DATABASES)),
        997..999 => "SWAPDB 0 1".to_owned(),
        _ => ["FLUSHDB", "FLUSHALL ASYNC"].choose(random).expect("not empty").to_string(),
    }
}

/// Several connections together send at least `commands` random commands, and continue until
/// `action` returns.
fn run_random_commands<R>(primary: &Server, seed: u64, commands: usize, action: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let stop = &stop;
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed.wrapping_mul(31).wrapping_add(number as u64));
                let mut client = primary.client();
                let mut batches = 0;
                while batches < commands / CLIENTS / BATCH || !stop.load(Ordering::Relaxed) {
                    let batch: Vec<_> = (0..BATCH).map(|_| Command::from(random_command(&mut random))).collect();
                    client.call_in_one_step(&batch);
                    batches += 1;
                }
            });
        }
        let _stop = StopOnDrop(&stop);
        action()
    })
}

/// Stops the commands even if `action` panics.
struct StopOnDrop<'o>(&'o AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Pauses all writes and compares everything.
#[track_caller]
fn assert_same(primary: &Server, replicas: &[&Server]) -> usize {
    let mut original = primary.client();
    original.call("CLIENT PAUSE 60000 WRITE");
    let mut compared = 0;
    for replica in replicas {
        // A replica may also receive the stream from another replica.
        replica.catch_up_with(primary);
        let mut copy = replica.client();
        for db in 0..DATABASES {
            for client in [&mut original, &mut copy] {
                client.call(format!("SELECT {db}"));
            }
            for number in 0..KEYS {
                let key = format!("lock-{number}");
                let digest = format!("DEBUG DIGEST-VALUE {key}");
                assert_eq!(copy.call(digest.as_str()), original.call(digest.as_str()), "{key} in {db}");
                // A lease may expire between the two calls. Afterwards they agree again.
                eventually(SOON, || describe_lock(&mut copy, &key) == describe_lock(&mut original, &key));
                compared += usize::from(describe_lock(&mut original, &key).len() > 3);
            }
        }
        assert_eq!(copy.call("DEBUG DIGEST"), original.call("DEBUG DIGEST"));
        let log = replica.log();
        let complaint =
            log.lines().find(|line| line.contains("sending an error") || line.contains("could not be read"));
        assert_eq!(complaint, None);
    }
    original.call("CLIENT UNPAUSE");
    compared
}

#[test]
fn replica_equals_its_primary_whatever_it_missed() {
    let seed = seed();
    let share = at_length(25_000, 250_000);
    // Large enough for everything that a replica misses while it is away.
    let primary = Server::with(&["repl-backlog-size 64mb", "client-output-buffer-limit replica 0 0 0"]);
    let first = Server::replica_of(&primary, &[]);
    let mut observer = primary.client();
    run_random_commands(&primary, seed, share, || ());
    let mut compared = assert_same(&primary, &[&first]);

    let late = run_random_commands(&primary, seed + 1, share, || Server::replica_of(&primary, &[]));
    compared += assert_same(&primary, &[&first, &late]);

    first.while_stopped(|| run_random_commands(&primary, seed + 2, share, || ()));
    compared += assert_same(&primary, &[&first, &late]);

    // Both replicas lose their connection, and then receive what they missed.
    let full = observer.info_number("sync_full");
    run_random_commands(&primary, seed + 3, share, || {
        for _ in 0..3 {
            let before = observer.info_number("sync_partial_ok");
            assert_eq!(observer.call("CLIENT KILL TYPE replica"), 2);
            eventually(SOON, || observer.info_number("sync_partial_ok") == before + 2);
            // A replica that is disconnected before its partial synchronisation ends would start a
            // full one.
            for replica in [&first, &late] {
                eventually(SOON, || replica.client().info("master_link_status") == "up");
            }
        }
    });
    compared += assert_same(&primary, &[&first, &late]);
    assert_eq!(observer.info_number("sync_full"), full, "each link was restored without a full synchronisation");

    let second_hand = run_random_commands(&primary, seed + 4, share, || Server::replica_of(&late, &[]));
    compared += assert_same(&primary, &[&first, &late, &second_hand]);
    assert!(compared > 50, "only {compared} locks were compared");
}
