//! Everything at once: many clients run all kinds of commands on a few locks. The test cannot
//! predict the holders, but at every pause all copies of the keyspace agree, and at the end nothing
//! is left.

use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::support::{
    Client, Command, LOCK_ERRORS, Reply, Server, any_key, any_lock_command, at_length, eventually, in_script,
    move_changes_the_database, seed, skipped_here,
};

const CLIENTS: u64 = 16;
const ROUND: Duration = Duration::from_millis(400);
/// Minimum number of grants. A busy machine needs more rounds to reach it.
const MANY: usize = 1000;

/// Errors of the server itself that random commands may cause.
const SERVER_ERRORS: [&str; 3] = ["ERR no such key", "ERR source and", "ERR No such client"];

const KEYS: usize = 5;

fn random_command(random: &mut StdRng) -> String {
    let (key, other_key) = (any_key(random, KEYS), any_key(random, KEYS));
    // Every lease is short, so that no hold outlasts the test.
    let short = |random: &mut StdRng| random.random_range(1..30);
    match random.random_range(0..100) {
        0..80 => {
            let lease_ms = short(random);
            any_lock_command(random, KEYS, lease_ms, 2)
        }
        80..83 => format!("DEL {key}"),
        83..85 => format!("UNLINK {key}"),
        85..87 => format!("PEXPIRE {key} {}", short(random)),
        87..89 => format!("SET {key} text PX {}", short(random)),
        89..91 => format!("RENAME {key} {other_key}"),
        91..93 => format!("COPY {key} {other_key} REPLACE"),
        93..95 if !move_changes_the_database() => format!("MOVE {key} 1"),
        95..97 => "SWAPDB 0 1".to_owned(),
        97 => "FLUSHDB".to_owned(),
        98 => "FLUSHALL ASYNC".to_owned(),
        _ if random.random_ratio(1, 5) => "CLIENT PAUSE 3 WRITE".to_owned(),
        _ => "DBSIZE".to_owned(),
    }
}

/// Connects. Other clients kill connections at random, so an attempt may fail.
fn connect(server: &Server) -> Client {
    let attempts = (0..100).find_map(|_| server.try_client().ok());
    attempts.expect("the server accepts connections")
}

/// Runs one client until the round is over. Returns how many of its commands acquired a lock.
fn run_client(server: &Server, mut random: StdRng) -> usize {
    let mut client = connect(server);
    let mut granted = 0;
    let end = Instant::now() + ROUND;
    while Instant::now() < end {
        if random.random_ratio(1, 30) {
            // The old connection may close during a wait.
            let _ = client.try_send(&[random_command(&mut random).into()]);
            client = connect(server);
        }
        let line = match random.random_ratio(1, 50) {
            // Client ids begin at 1, so the first clients cannot subtract 9.
            true => format!("CLIENT KILL ID {}", (client.id() - random.random_range(1..10)).max(1)),
            false => random_command(&mut random),
        };
        let mut command = Command::from(line.as_str());
        if !line.contains("SESSION") && !line.starts_with("CLIENT") && random.random_ratio(1, 10) {
            command = in_script(command);
        }
        let sent = client.try_send(&[command]);
        match sent.and_then(|()| client.reply_within(Duration::from_secs(10))) {
            Ok(Reply::Error(error)) => {
                let mut expected = LOCK_ERRORS.iter().chain(&SERVER_ERRORS);
                assert!(expected.any(|start| error.starts_with(start)), "{line}: {error}");
            }
            Ok(Reply::Int(_)) if line.contains("LOCK.ACQUIRE") => granted += 1,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::TimedOut => panic!("no reply to {line}"),
            // Another client has killed this connection.
            Err(_) => client = connect(server),
        }
    }
    granted
}

#[track_caller]
fn digest(client: &mut Client) -> String {
    client.call("DEBUG DIGEST").text()
}

/// The server keeps idle semaphores, because clients create them explicitly.
fn remove_idle_semaphores(client: &mut Client) {
    for number in 0..KEYS {
        let info = client.call(format!("RLOCK.INFO lock-{number}"));
        let is_lock = !matches!(info, Reply::Nil | Reply::Error(_));
        if is_lock && info.field("kind") == "semaphore" && info.field("holders").array().is_empty() {
            client.call(format!("DEL lock-{number}"));
        }
    }
}

#[test]
fn storm_leaves_all_copies_equal_and_nothing_behind() {
    if move_changes_the_database() {
        skipped_here("MOVE changes the database of the connection");
    }
    let seed = seed();
    let primary = Server::with_aof(&["appendfsync no", "rlock.fair-grace-ms 20"]);
    let replica = Server::replica_of(&primary, &[]);
    let (mut granted, mut round) = (0, 0);
    while round < at_length(6, 100) || granted <= MANY {
        assert!(round < at_length(100, 1000), "only {granted} grants in {round} rounds");
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let random = StdRng::seed_from_u64(seed ^ (round * CLIENTS + client));
                    let primary = &primary;
                    scope.spawn(move || run_client(primary, random))
                })
                .collect();
            granted += clients.into_iter().map(|client| client.join().expect("no panic")).sum::<usize>();
        });
        let (mut on_primary, mut on_replica) = (primary.client(), replica.client());
        // During the pause nothing changes, not even by the timer.
        on_primary.call("CLIENT PAUSE 60000 WRITE");
        replica.catch_up_with(&primary);
        let original = digest(&mut on_primary);
        assert_eq!(digest(&mut on_replica), original, "the replica in round {round}");
        assert_eq!(on_primary.call("DEBUG LOADAOF"), "OK");
        assert_eq!(digest(&mut on_primary), original, "the append-only file in round {round}");
        on_primary.call("CLIENT UNPAUSE");
        round += 1;
    }

    for (name, server) in [("primary", &primary), ("replica", &replica)] {
        eprintln!("{name}");
        let mut client = server.client();
        eventually(Duration::from_secs(5), || {
            if name == "primary" {
                remove_idle_semaphores(&mut client);
            }
            client.call("DBSIZE") == 0
        });
        eventually(Duration::from_secs(5), || client.info_number("rlock_held") == 0);
        eventually(Duration::from_secs(5), || client.info_number("rlock_waiting") == 0);
    }
}
