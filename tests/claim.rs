//! CLAIM: the owner has to claim a hold that begins.

use std::time::Duration;

use crate::support::{Client, Command, EXCLUSIVE, REENTRANT, Reply, Server, Stopwatch, eventually};

const SOON: Duration = Duration::from_secs(5);

const MINUTE_MS: i64 = 60_000;

/// The time until the lock expires, in milliseconds.
#[track_caller]
fn left_ms(client: &mut Client) -> i64 {
    client.call("RLOCK.PTTL job").int()
}

/// `b` is granted the lock after a wait, and has not claimed it.
#[track_caller]
fn granted_after_a_wait(server: &Server, claim_ms: u32) -> (Client, i64) {
    let mut client = server.client();
    client.acquire("job a PX 60000");
    let mut waiter = server.waiter(format!("LOCK.ACQUIRE job b PX 60000 BLOCK 0 CLAIM {claim_ms}"));
    client.call("LOCK.RELEASE job a");
    let token = waiter.reply().int();
    (client, token)
}

/// Rule C1.
#[test]
fn unclaimed_hold_expires_after_the_claim_time() {
    for server in Server::for_each(EXCLUSIVE) {
        let (mut client, _) = granted_after_a_wait(&server, 300);
        assert!(left_ms(&mut client) <= 300);
        assert!(client.acquire("job c PX 60000 BLOCK 0") > 0);
        assert_eq!(client.call("LOCK.HOLDS job b"), 0);
        assert_eq!(client.info_number("rlock_unclaimed"), 1);
        assert_eq!(client.info_number("rlock_expired"), 1);
    }
}

/// Rule C2.
#[test]
fn renew_claims_for_its_own_lease_or_that_of_the_acquire() {
    for server in Server::for_each(EXCLUSIVE) {
        for (renew, lease_ms) in [("", MINUTE_MS), (" PX 30000", 30_000)] {
            let (mut client, token) = granted_after_a_wait(&server, 20_000);
            let left = client.call(format!("LOCK.RENEW job b TOKEN {token}{renew}")).int();
            assert!((20_001..=lease_ms).contains(&left), "{left}");
            client.call("LOCK.RELEASE job b").int();
            assert_eq!(client.info_number("rlock_unclaimed"), 0);
        }
    }
}

/// Rule C2.
#[test]
fn repeated_request_claims_with_req_or_once() {
    for server in Server::for_each(REENTRANT) {
        for option in ["REQ 7", "ONCE"] {
            let mut client = server.client();
            client.call("RLOCK.FORCERELEASE job");
            client.acquire("job a PX 60000");
            let request = format!("LOCK.ACQUIRE job b PX 60000 BLOCK 0 CLAIM 20000 {option}");
            let mut waiter = server.waiter(request.as_str());
            client.call("RLOCK.FORCERELEASE job");
            let token = waiter.reply().int();
            assert_eq!(client.call(format!("LOCK.ACQUIRE job b PX 60000 {option}")), token);
            assert!(left_ms(&mut client) > 20_000);
            assert_eq!(client.call("LOCK.HOLDS job b"), 1);
        }
    }
}

/// Rule C1.
#[test]
fn immediate_grant_has_to_be_claimed() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        for options in ["", "BLOCK 0"] {
            client.acquire(&format!("job a PX 60000 {options} CLAIM 300"));
            assert!(left_ms(&mut client) <= 300);
            assert!(client.call("LOCK.RENEW job a").int() > 300);
            client.call("LOCK.RELEASE job a");
        }
        // In a transaction BLOCK is a single attempt.
        client.transaction("LOCK.ACQUIRE job a PX 60000 BLOCK 0 CLAIM 300");
        assert!(left_ms(&mut client) <= 300);
    }
}

/// Rule C2.
#[test]
fn reentry_at_once_is_for_the_lease_and_claims() {
    for server in Server::for_each(REENTRANT) {
        let mut client = server.client();
        client.acquire("job a PX 60000 CLAIM 300");
        client.acquire("job a PX 50000 CLAIM 300");
        assert!(left_ms(&mut client) > 300);
    }
}

/// Rule C1.
#[test]
fn queued_owner_that_acquires_at_its_turn_has_to_claim() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    assert_eq!(client.call("RFAIRLOCK.ACQUIRE job b QUEUE 60000"), Reply::Nil);
    client.call("RFAIRLOCK.RELEASE job a");
    client.acquire_fair("job b PX 60000 QUEUE 60000 CLAIM 300");
    assert!(left_ms(&mut client) <= 300);
}

/// Rule C4.
#[test]
fn claim_does_not_shorten_an_existing_hold() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT job 2");
    client.call("RSEMAPHORE.ACQUIRE job b PX 60000").int();
    client.call("RSEMAPHORE.ACQUIRE job a PX 60000").int();
    let mut waiter = server.waiter("RSEMAPHORE.ACQUIRE job b PX 60000 BLOCK 0 CLAIM 300");
    client.call("RSEMAPHORE.RELEASE job a");
    waiter.reply().int();
    assert_eq!(client.call("RSEMAPHORE.HOLDS job b"), 2);
    assert!(client.call("RSEMAPHORE.PTTL job").int() > 300);
}

/// Rules C1, C2.
#[test]
fn mrenew_claims_all_keys_and_renew_claims_one() {
    let server = Server::start();
    let mut client = server.client();
    let mut granted = |server: &Server| {
        client.acquire("{s}x a PX 60000");
        let mut waiter = server.waiter("RLOCK.MACQUIRE 2 {s}x {s}y b PX 60000 BLOCK 0 CLAIM 300");
        client.call("RLOCK.RELEASE {s}x a");
        waiter.reply().array().len()
    };
    assert_eq!(granted(&server), 2);
    let mut other = server.client();
    assert!(other.call("RLOCK.MRENEW 2 {s}x {s}y b").int() > 300);
    other.call("RLOCK.MRELEASE 2 {s}x {s}y b");
    assert_eq!(granted(&server), 2);
    assert!(other.call("RLOCK.RENEW {s}x b").int() > 300);
    eventually(SOON, || other.is_free("{s}y"));
    assert_eq!(other.call("RLOCK.HOLDS {s}x b"), 1);

    assert_eq!(other.call("RLOCK.MACQUIRE 2 {s}y {s}x b PX 60000 BLOCK 0 CLAIM 300").array().len(), 2);
    assert!(other.call("RLOCK.PTTL {s}y").int() <= 300);
    assert!(other.call("RLOCK.PTTL {s}x").int() > 300);
}

/// Rule C5.
#[test]
fn claim_longer_than_the_lease_is_refused() {
    let server = Server::start();
    let mut client = server.client();
    let longer = "is longer than the lease, which is";
    for (request, text) in [
        ("RLOCK.ACQUIRE job a PX 1000 BLOCK 0 CLAIM 1001", longer),
        // Without PX the lease is the configured default.
        ("RLOCK.ACQUIRE job a BLOCK 0 CLAIM 30001", longer),
        ("RLOCK.ACQUIRE job a BLOCK 0 CLAIM 0", "CLAIM takes an integer from 1"),
    ] {
        let refused = client.call(request);
        assert!(refused.expect_error("ERR").contains(text), "{request}: {refused:?}");
    }
    client.acquire("job a BLOCK 0 CLAIM 30000");
}

/// Rule C6.
#[test]
fn claim_deadline_survives_replication_restart_and_restore() {
    let mut server = Server::with_aof(&["appendfsync always"]);
    let replica = Server::replica_of(&server, &[]);
    let (mut client, token) = granted_after_a_wait(&server, 20_000);
    replica.catch_up_with(&server);
    let payload = client.call("DUMP job").bytes().to_vec();
    let restore: Command = [b"RESTORE".as_slice(), b"copy", b"0", &payload].into();
    assert_eq!(client.call(restore), "OK");
    let copied_left = client.call("RLOCK.PTTL copy").int();
    assert!(copied_left <= 20_001, "{copied_left}");
    for mut after in [client, replica.client()] {
        assert!(left_ms(&mut after) <= 20_001);
    }
    server.kill_and_restart();
    let mut client = server.client();
    assert!(left_ms(&mut client) <= 20_001);
    for key in ["job", "copy"] {
        let left = client.call(format!("RLOCK.RENEW {key} b TOKEN {token}")).int();
        assert!(left > 20_001, "the lease of the ACQUIRE is kept: {left}");
    }
    replica.client().call("REPLICAOF NO ONE");
    let left = replica.client().call(format!("RLOCK.RENEW job b TOKEN {token}")).int();
    assert!(left > 20_001, "{left}");
}

/// Rule C1.
#[test]
fn timed_six_vanished_waiters_delay_the_next_one_by_their_claims_not_their_leases() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        // Connected clients that never react to their grants.
        let _vanished: Vec<_> = (0..6)
            .map(|number| server.waiter(format!("LOCK.ACQUIRE job gone-{number} PX 30000 BLOCK 0 CLAIM 300")))
            .collect();
        let mut next = server.waiter("LOCK.ACQUIRE job b PX 30000 BLOCK 0 CLAIM 300");
        let watch = Stopwatch::start();
        client.call("LOCK.RELEASE job a");
        next.reply_within(Duration::from_secs(30)).expect("a reply").int();
        watch.assert_took_ms(1790..3000, "six claims");
        assert_eq!(client.info_number("rlock_unclaimed"), 6);
    }
}
