//! Exclusion through restarts and failovers: `rlock.quarantine-after`, `rlock.min-replicas`.
//! docs/guarantees.md numbers the rules.

use std::thread;
use std::time::Duration;

use crate::support::{Client, Reply, Server, Stopwatch, eventually};

const SOON: Duration = Duration::from_secs(10);

/// The longest lease and the length of a quarantine.
const LEASE: &str = "rlock.max-lease-ms 500";
const RESTART: [&str; 3] = ["rlock.max-lease-ms 5000", "rlock.quarantine-ms 6000", "rlock.quarantine-after restart"];
const FAILOVER: [&str; 5] = [
    LEASE,
    "rlock.quarantine-ms 4500",
    "rlock.quarantine-after failover",
    "rlock.min-replicas 1",
    "repl-ping-replica-period 1",
];

/// How long a master may grant after its replicas have disconnected, in milliseconds.
const LAG_MS: u64 = 3000;

fn may_grant(client: &mut Client) -> bool {
    client.info_number("rlock_may_grant") == 1
}

fn with(settings: &[&'static str], more: &[&'static str]) -> Vec<&'static str> {
    [settings, more].concat()
}

#[test]
fn lease_above_max_lease_is_refused_and_others_are_cut_to_it() {
    let server = Server::with(&["rlock.max-lease-ms 5000"]);
    let mut client = server.client();
    for command in [
        "RLOCK.ACQUIRE job a PX 5001",
        "RLOCK.ACQUIRE job a EX 6",
        "RLOCK.MACQUIRE 1 job a PX 5001",
        "RLOCK.RENEW job a PX 5001",
        "RLOCK.MRENEW 1 job a PX 5001",
    ] {
        let text = client.call(command).expect_error("ERR").to_owned();
        assert!(text.contains("rlock.max-lease-ms, which is 5000 ms"), "{text}");
    }
    client.acquire("job a");
    assert!((1..=5000).contains(&client.call("RLOCK.PTTL job").int()));
    client.call("CONFIG SET rlock.max-lease-ms 1000");
    client.call("RLOCK.RELEASE job a");
    client.acquire("job a PX 1");
    client.acquire("other a PX 1000");
    assert!(client.call("RLOCK.RENEW other a").int() <= 1000);
    assert_eq!(client.info_number("rlock_max_lease_ms"), 1000);
}

#[test]
fn requests_after_a_restart_wait_in_order_until_the_quarantine_ends() {
    let mut server = Server::with(&with(&RESTART, &["appendonly yes", "appendfsync always"]));
    let mut client = server.client();
    eventually(SOON, || may_grant(&mut client));
    client.acquire("job a PX 5000 REQ 1");
    server.kill_and_restart();
    let mut client = server.client();
    assert!(!may_grant(&mut client));
    let text = client.call("RLOCK.ACQUIRE job b").expect_error("QUARANTINE").to_owned();
    assert!(text.contains("restarted"), "{text}");
    assert!(client.call("RLOCK.RENEW job a").int() > 0, "a holder may renew");
    for again in ["BLOCK 0", "REQ 1", "ONCE", "BLOCK 0 ONCE"] {
        client.call(format!("RLOCK.ACQUIRE job a {again}")).expect_error("QUARANTINE");
    }
    let mut first = server.waiter("RLOCK.ACQUIRE job b BLOCK 0");
    let mut second = server.waiter("RLOCK.ACQUIRE job c BLOCK 0");
    assert_eq!(client.call("RLOCK.RELEASE job a"), 0);
    assert!(!may_grant(&mut client) && client.holder("job").is_none(), "the lock is free, and no waiter is granted it");
    assert!(first.reply().int() > 0);
    assert_eq!(client.call("RLOCK.RELEASE job b"), 0);
    assert!(second.reply().int() > 0);
    assert!(server.log().contains("locks are granted again"));
}

#[test]
fn master_grants_and_renews_only_while_enough_replicas_follow() {
    let settings = [LEASE, "rlock.min-replicas 1", "repl-ping-replica-period 1"];
    let master = Server::with(&settings);
    let mut client = master.client();
    client.call("RLOCK.ACQUIRE job a").expect_error("NOREPLICAS");
    let mut waiter = master.waiter("RLOCK.ACQUIRE job b PX 500 BLOCK 0");
    let replica = Server::replica_of(&master, &settings);
    assert!(waiter.reply_within(SOON).expect("a grant").int() > 0);
    assert_eq!(client.info_number("rlock_replicas_following"), 1);

    replica.while_stopped(|| {
        let watch = Stopwatch::start();
        client.call("CONFIG SET rlock.max-lease-ms 60000");
        client.acquire("held a PX 60000");
        eventually(SOON, || !may_grant(&mut client));
        assert!(watch.elapsed() < Duration::from_millis(LAG_MS + 3000), "{:?}", watch.elapsed());
        client.call("RLOCK.ACQUIRE job c").expect_error("NOREPLICAS");
        client.call("RLOCK.RENEW held a").expect_error("NOREPLICAS");
        client.call("RLOCK.ACQUIRE held a BLOCK 0").expect_error("NOREPLICAS");
        assert_eq!(client.call("RLOCK.RELEASE held a"), 0);
        assert_eq!(client.call("SET other data"), "OK", "the server accepts other writes");
    });
    eventually(SOON, || may_grant(&mut client));
    client.acquire("job d PX 100");
}

#[test]
fn promoted_replica_grants_nothing_and_renews_only_once_the_former_master_cannot() {
    let master = Server::with(&FAILOVER);
    let mut client = master.client();
    let replica = Server::replica_of(&master, &FAILOVER);
    let other = Server::replica_of(&master, &FAILOVER);
    eventually(SOON, || may_grant(&mut client));
    client.call("CONFIG SET rlock.max-lease-ms 60000");
    client.acquire("held a PX 60000");
    client.acquire("waited-for a PX 60000");
    let mut waiter = master.waiter("RLOCK.ACQUIRE waited-for b PX 60000 BLOCK 0");
    assert_eq!(client.call("RLOCK.RELEASE waited-for a"), 0);
    assert!(waiter.reply().int() > 0, "a grant after a wait");
    replica.catch_up_with(&master);

    let mut promoted = replica.client();
    promoted.call("CONFIG SET rlock.max-lease-ms 60000");
    let watch = Stopwatch::start();
    assert_eq!(promoted.call("REPLICAOF NO ONE"), "OK");
    let text = promoted.call("RLOCK.RENEW held a");
    assert!(matches!(text, Reply::Error(_)), "the former master may still renew: {text:?}");
    let mut next = replica.waiter("RLOCK.ACQUIRE free c PX 500 BLOCK 0");
    other.client().call(format!("REPLICAOF 127.0.0.1 {}", replica.port()));
    eventually(SOON, || matches!(promoted.call("RLOCK.RENEW held a"), Reply::Int(_)));
    assert!(watch.elapsed() >= Duration::from_millis(LAG_MS), "{:?}", watch.elapsed());
    promoted.call("RLOCK.RENEW waited-for b").expect_error("QUARANTINE");
    promoted.call("RLOCK.ACQUIRE free d").expect_error("QUARANTINE");
    assert!(next.reply_within(SOON).expect("a grant").int() > 0);
    assert!(watch.elapsed() >= Duration::from_millis(4500), "{:?}", watch.elapsed());
    assert!(promoted.call("RLOCK.RENEW waited-for b").int() > 0, "after the quarantine any hold can be renewed");
}

#[test]
fn each_promotion_restarts_the_quarantine() {
    let settings = ["rlock.quarantine-after failover", "rlock.quarantine-ms 60000", "rlock.max-lease-ms 500"];
    let server = Server::with(&settings);
    let mut client = server.client();
    let other = Server::start();
    let follow = format!("REPLICAOF 127.0.0.1 {}", other.port());
    other.client().call("SET some text");
    client.call(follow.clone());
    server.catch_up_with(&other);
    client.call("REPLICAOF NO ONE");
    assert!(client.info_number("rlock_quarantine_left_ms") > 0);
    // Time itself: part of the quarantine.
    thread::sleep(Duration::from_millis(1200));
    let left_ms = client.info_number("rlock_quarantine_left_ms");
    client.call(follow);
    server.catch_up_with(&other);
    client.call("REPLICAOF NO ONE");
    assert!(client.info_number("rlock_quarantine_left_ms") > left_ms);
}

#[test]
fn master_stopped_for_long_refuses_the_requests_queued_in_its_sockets() {
    let settings = ["rlock.min-replicas 1", "repl-ping-replica-period 1"];
    let master = Server::with(&settings);
    let replica = Server::replica_of(&master, &settings);
    let mut client = master.client();
    eventually(SOON, || may_grant(&mut client));
    client.acquire("held a PX 1000");
    let mut waiter = master.waiter("RLOCK.ACQUIRE held b BLOCK 0");
    let mut attempts: Vec<Client> = (0..100).map(|_| master.client()).collect();
    master.while_stopped(|| {
        replica.client().call("REPLICAOF NO ONE");
        for (number, attempt) in attempts.iter_mut().enumerate() {
            attempt.send(format!("RLOCK.ACQUIRE job-{number} a"));
        }
        // Time itself: longer than the right to grant lasts.
        thread::sleep(Duration::from_millis(LAG_MS + 1000));
    });
    for attempt in &mut attempts {
        attempt.reply().expect_error("NOREPLICAS");
    }
    waiter.assert_waits();
    assert!(client.holder("held").is_none(), "the lease has expired, and the lock is not handed over");
}

#[test]
fn contradicting_settings_are_logged() {
    let server = Server::start();
    let mut client = server.client();
    let warned = |server: &Server, text: &str| server.log().contains(text);
    client.call("CONFIG SET rlock.quarantine-after restart");
    assert!(warned(&server, "rlock.quarantine-ms is 0, and must be at least"));
    client.call("CONFIG SET rlock.max-lease-ms 5000 rlock.quarantine-ms 9000 rlock.quarantine-after failover");
    assert!(warned(&server, "rlock.min-replicas is 0, so a former master goes on granting"));
    client.call("CONFIG SET repl-ping-replica-period 10");
    client.call("CONFIG SET rlock.min-replicas 1");
    assert!(warned(&server, "rlock.min-replicas needs repl-ping-replica-period 1"));
    client.call("CONFIG SET rlock.quarantine-after later").expect_error("ERR");
}
