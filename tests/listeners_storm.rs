//! A listener is attached to a server without one, while its locks change all the time. In the end
//! the listener has the same state as the server.
//!
//! `make test-patched` runs this file with a module that ignores new listeners. Then each round
//! must find a difference.

use std::path::Path;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::support::{Client, Scope, Server, Writers, at_length, describe_locks, eventually, propagated, seed};

const SOON: Duration = Duration::from_secs(20);

const KEYS: usize = 20;
const DATABASES: usize = 2;

const EVERYTHING: Scope = Scope { keys: KEYS, databases: DATABASES, sessions: true };
/// Without holds that end with a server or at a change of roles.
const LASTING: Scope = Scope { sessions: false, ..EVERYTHING };

/// Commands at each stage of a round.
const MANY: usize = 1500;

/// Any of the servers can be a primary without listeners: it frees the backlog soon after its last
/// replica is gone.
const LINES: [&str; 5] = [
    "repl-backlog-ttl 1",
    "repl-backlog-size 64mb",
    "client-output-buffer-limit replica 0 0 0",
    "appendfsync no",
    "rlock.fair-grace-ms 600000",
];

/// Whether the module under test is deliberately wrong.
fn is_mutant() -> bool {
    std::env::var_os("RLOCK_PATCH").is_some()
}

/// One line for each difference.
type Differences = Vec<String>;

/// Runs rounds. Each must find no difference, or at least one if the module is deliberately wrong.
fn run(rounds: usize, mut round: impl FnMut(&mut StdRng) -> Differences) {
    let mut random = StdRng::seed_from_u64(seed());
    for number in 1..=rounds {
        let differences = round(&mut random);
        eprintln!("round {number} of {rounds}: {} differences", differences.len());
        if is_mutant() {
            assert!(!differences.is_empty(), "round {number} did not notice the mutant");
        } else {
            assert_eq!(differences, [""; 0], "round {number}");
        }
    }
}

/// Starts writers, waits until the server no longer propagates their changes, and lets them
/// continue.
fn writers_without_listener(server: &Server, ports: &[u16], scope: Scope, random: &mut StdRng) -> Writers {
    let writers = Writers::start(ports, scope, random.random());
    let mut observer = server.client();
    eventually(SOON, || observer.info("rlock_propagating") == "0");
    writers.wait_for(MANY);
    assert_eq!(observer.info("rlock_propagating"), "0");
    writers
}

/// Compares `copy` with `original` after both have settled, and returns the differences.
fn compare(original: impl Fn() -> Vec<String>, copy: &Server) -> Differences {
    let patience = if is_mutant() { Duration::from_secs(1) } else { SOON };
    let start = Instant::now();
    loop {
        let (wanted, found) = (original(), describe_locks(copy, DATABASES, KEYS));
        let pairs = wanted.into_iter().zip(found).filter(|(wanted, found)| wanted != found);
        let mut differences: Vec<_> = pairs.map(|(wanted, found)| format!("{wanted}\n  but {found}")).collect();
        // The last short leases may expire during the comparison.
        if differences.is_empty() || start.elapsed() > patience {
            differences.extend(complaints(copy));
            return differences;
        }
    }
}

/// Log lines about commands that do not fit the server's state, such as requests in place of
/// effects.
fn complaints(server: &Server) -> Vec<String> {
    let log = server.log();
    let marks = ["sending an error", "could not be read"];
    log.lines().filter(|line| marks.iter().any(|mark| line.contains(mark))).take(3).map(str::to_owned).collect()
}

fn configure(client: &mut Client, pairs: &[(&str, &str)]) {
    for (name, value) in pairs {
        assert_eq!(client.call(format!("CONFIG SET {name} {value}")), "OK", "{name}");
    }
}

/// The setting with which this server sends snapshots over a separate connection, if it has one.
fn snapshot_channel_setting(client: &mut Client) -> Option<&'static str> {
    let names = ["repl-rdb-channel", "dual-channel-replication-enabled"];
    names.into_iter().find(|name| !client.call(format!("CONFIG GET {name}")).pairs().is_empty())
}

#[test]
fn replica_attached_during_writes_has_all_changes() {
    let primary = Server::with(&LINES);
    let mut observer = primary.client();
    let channel = snapshot_channel_setting(&mut observer);
    run(at_length(3, 25), |random| {
        let writers = writers_without_listener(&primary, &[primary.port()], EVERYTHING, random);
        let yes_or_no = |random: &mut StdRng| *["yes", "no"].choose(random).expect("not empty");
        let mut lines = vec![format!(
            "repl-diskless-load {}",
            ["disabled", "swapdb", "on-empty-db"].choose(random).expect("not empty")
        )];
        configure(&mut observer, &[("repl-diskless-sync", yes_or_no(random))]);
        configure(&mut observer, &[("repl-diskless-sync-delay", if random.random() { "1" } else { "0" })]);
        if let Some(channel) = channel {
            let value = yes_or_no(random);
            configure(&mut observer, &[(channel, value)]);
            lines.push(format!("{channel} {value}"));
        }
        eprintln!("{lines:?}");
        let lines: Vec<_> = lines.iter().map(String::as_str).chain(LINES).collect();
        let replica = Server::replica_of(&primary, &lines);
        writers.wait_for(MANY);
        // This replica uses no separate channel: Valkey 8.0.1 to 9.1.2 would tell a replica of a
        // replica the wrong database.
        let second_hand = random.random_ratio(1, 3).then(|| Server::replica_of(&replica, &LINES));
        // A lost connection is restored from the backlog.
        if random.random_ratio(1, 3) {
            assert_eq!(observer.call("CLIENT KILL TYPE replica"), 1);
        }
        writers.wait_for(MANY);
        writers.stop();
        let mut differences = Differences::new();
        for copy in [Some(&replica), second_hand.as_ref()].into_iter().flatten() {
            copy.catch_up_with(&primary);
            differences.extend(compare(|| describe_locks(&primary, DATABASES, KEYS), copy));
        }
        differences
    });
}

#[test]
fn append_only_file_enabled_during_writes_has_all_changes() {
    let mut server = Server::with(&LINES);
    run(at_length(3, 25), |random| {
        let writers = writers_without_listener(&server, &[server.port()], LASTING, random);
        let mut observer = server.client();
        configure(&mut observer, &[("aof-use-rdb-preamble", if random.random() { "yes" } else { "no" })]);
        // The server postpones a rewrite while another child runs.
        let is_postponed = random.random();
        if is_postponed {
            configure(&mut observer, &[("rdb-key-save-delay", "10000")]);
            observer.call("BGSAVE").text();
        }
        configure(&mut observer, &[("appendonly", "yes")]);
        writers.wait_for(MANY);
        configure(&mut observer, &[("rdb-key-save-delay", "0")]);
        if is_postponed {
            // The running child does not see the new setting.
            eventually(SOON, || observer.info("rdb_bgsave_in_progress") == "0");
        }
        eventually(SOON, || {
            observer.info("aof_rewrite_scheduled") == "0" && observer.info("aof_rewrite_in_progress") == "0"
        });
        writers.wait_for(MANY);
        writers.stop();
        let before = at_rest(&server);
        let mut differences: Vec<_> = propagated(&server)
            .iter()
            .map(|words| String::from_utf8_lossy(&words[0]).to_uppercase())
            .filter(|name| name.starts_with('R') && name.contains('.') && name != "RLOCK.APPLY")
            .take(3)
            .collect();
        server.kill();
        server.restart_in_place(&["--appendonly", "yes"]);
        differences.extend(compare(|| before.clone(), &server));
        configure(&mut server.client(), &[("appendonly", "no")]);
        differences
    });
    assert!(Path::new(server.folder()).join("appendonlydir").exists());
}

/// The state of a server after all writes, once the last short leases and waits have ended.
fn at_rest(server: &Server) -> Vec<String> {
    let mut last = describe_locks(server, DATABASES, KEYS);
    loop {
        // Longer than the short leases and waits last.
        std::thread::sleep(Duration::from_millis(150));
        let now = describe_locks(server, DATABASES, KEYS);
        if now == last {
            return now;
        }
        last = now;
    }
}

#[test]
fn lone_server_loses_nothing_when_it_swaps_roles_with_its_first_replica() {
    let servers = [Server::with(&LINES), Server::with(&LINES)];
    let ports = servers.each_ref().map(Server::port);
    let mut first = 0;
    run(at_length(2, 15), |random| {
        let (alone, other) = (&servers[first], &servers[1 - first]);
        let writers = writers_without_listener(alone, &ports[first..=first], LASTING, random);
        let mut on_other = other.client();
        on_other.call(format!("REPLICAOF 127.0.0.1 {}", alone.port()));
        other.catch_up_with(alone);
        writers.wait_for(MANY);
        writers.stop();
        other.catch_up_with(alone);
        let mut differences = compare(|| describe_locks(alone, DATABASES, KEYS), other);

        let writers = Writers::start(&ports, LASTING, random.random());
        writers.wait_for(MANY);
        let mut on_alone = alone.client();
        if random.random() {
            let replies = [on_alone.call(format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 10000", other.port()))];
            assert_eq!(replies[0], "OK");
        } else {
            // For a moment both are primaries. Changes by the first one in that time are lost.
            on_other.call("REPLICAOF NO ONE");
            on_alone.call(format!("REPLICAOF 127.0.0.1 {}", other.port()));
        }
        eventually(SOON, || on_other.info("role") == "master" && on_alone.info("role") == "slave");
        alone.catch_up_with(other);
        writers.wait_for(MANY);
        writers.stop();
        alone.catch_up_with(other);
        differences.extend(compare(|| describe_locks(other, DATABASES, KEYS), alone));
        on_alone.call("REPLICAOF NO ONE");
        first = 1 - first;
        differences
    });
}
