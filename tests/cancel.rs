//! CANCEL with REQ ends one request, whether it waits or was granted.

use crate::support::{ALL, Client, EXCLUSIVE, REENTRANT, Reply, Server};

fn holds(client: &mut Client) -> i64 {
    client.call("LOCK.HOLDS job a").int()
}

/// Rules X2, X4, X5, X6.
#[test]
fn cancel_takes_back_what_the_request_has_added() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a REQ 1");
        client.acquire("job a REQ 2");
        client.acquire("job a REQ 2");
        assert_eq!(holds(&mut client), 2);
        assert_eq!(client.call("LOCK.CANCEL job a REQ 1"), 0, "the mark of another request");
        assert_eq!(client.call("LOCK.CANCEL job a REQ 2"), 1);
        assert_eq!(holds(&mut client), 1);
        assert_eq!(client.call("LOCK.CANCEL job a REQ 2"), 0, "a repeat");
        client.call("LOCK.ACQUIRE job a REQ 2").expect_error("STALE");
        assert_eq!(client.call("LOCK.CANCEL job a"), 0, "without REQ it ends only waits");
        assert_eq!(holds(&mut client), 1);
    }
}

/// Rule X2.
#[test]
fn cancel_of_the_first_request_ends_the_hold_and_the_lock_goes_on() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000 REQ 1");
        let mut waiter = server.waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
        assert_eq!(client.call("LOCK.CANCEL job a REQ 1"), 1);
        assert!(waiter.reply().int() > 0);
        assert_eq!(holds(&mut client), 0);
    }
}

/// Rule X2.
#[test]
fn cancel_gives_back_as_many_permits_as_the_request_took() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT job 9");
    client.call("RSEMAPHORE.ACQUIRE job a PERMITS 2 REQ 1");
    client.call("RSEMAPHORE.ACQUIRE job a PERMITS 3 REQ 2");
    assert_eq!(client.call("RSEMAPHORE.CANCEL job a REQ 2"), 1);
    assert_eq!(client.call("RSEMAPHORE.HOLDS job a"), 2);
}

/// Rule X3.
#[test]
fn cancel_of_a_request_with_once_ends_the_hold() {
    for server in Server::for_each(REENTRANT) {
        let mut client = server.client();
        client.acquire("job a");
        client.acquire("job a REQ 1 ONCE");
        assert_eq!(client.call("LOCK.CANCEL job a REQ 1"), 1);
        assert_eq!(holds(&mut client), 0);
    }
}

/// Rule X4.
#[test]
fn neither_a_release_nor_a_kept_lock_is_cancelled() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RLOCK.ACQUIRE job a");
    client.call("RLOCK.ACQUIRE job a");
    client.call("RLOCK.RELEASE job a REQ 1");
    assert_eq!(client.call("RLOCK.CANCEL job a REQ 1"), 0);
    client.call("RLOCK.RELEASE job a");
    client.call("RLOCK.ACQUIRE job a REQ 2");
    client.call("RLOCK.RELEASE job a KEEP 60000");
    assert_eq!(client.call("RLOCK.CANCEL job a REQ 2"), 0);
    assert_eq!(client.call("RLOCK.ACQUIRE job b"), Reply::Nil);
}

/// Rules X6, X8.
#[test]
fn files_and_replicas_know_what_a_request_has_added() {
    let mut server = Server::with_aof(&["appendfsync always"]);
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT job 9");
    client.call("RSEMAPHORE.ACQUIRE job a PX 600000 PERMITS 2 REQ 1");
    client.call("RSEMAPHORE.ACQUIRE job a PX 600000 PERMITS 3 REQ 2");
    client.call("RLOCK.ACQUIRE once a PX 600000");
    client.call("RLOCK.ACQUIRE once a PX 600000 ONCE REQ 5");
    client.call("RLOCK.ACQUIRE twice a PX 600000");
    client.call("RLOCK.ACQUIRE twice a PX 600000 REQ 5");
    client.call("RLOCK.CANCEL twice a REQ 5");
    let replica = Server::replica_of(&server, &[]);
    replica.catch_up_with(&server);
    let check = |client: &mut Client| {
        client.call("RLOCK.ACQUIRE twice a REQ 5").expect_error("STALE");
        assert_eq!(client.call("RSEMAPHORE.CANCEL job a REQ 2"), 1);
        assert_eq!(client.call("RSEMAPHORE.HOLDS job a"), 2);
        assert_eq!(client.call("RLOCK.CANCEL once a REQ 5"), 1);
        assert_eq!(client.call("RLOCK.HOLDS once a"), 0);
    };
    server.kill_and_restart();
    check(&mut server.client());
    let mut promoted = replica.client();
    promoted.call("REPLICAOF NO ONE");
    check(&mut promoted);
}

/// Rules M2, M3, X1.
#[test]
fn mcancel_ends_a_request_for_several_keys() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RLOCK.MACQUIRE 2 {s}x {s}y a PX 60000 REQ 1");
    let mut waiter = server.waiter("RLOCK.MACQUIRE 2 {s}y {s}z b PX 60000 BLOCK 0 REQ 7");
    assert_eq!(client.call("RLOCK.MCANCEL 2 {s}x {s}y a REQ 2"), 0);
    assert_eq!(client.call("RLOCK.MCANCEL 2 {s}x {s}y a REQ 1"), 1);
    assert_eq!(waiter.reply().array().len(), 2);
    let mut other = server.waiter("RLOCK.MACQUIRE 2 {s}y {s}z c PX 60000 BLOCK 0 REQ 9");
    assert_eq!(client.call("RLOCK.MCANCEL 2 {s}y {s}z c REQ 9"), 1);
    other.reply().expect_error("UNBLOCKED");
    client.call("SET {s}text 1");
    client.call("RLOCK.MCANCEL 2 {s}y {s}text b REQ 7").expect_error("WRONGTYPE");
    assert_eq!(client.call("RLOCK.HOLDS {s}y b"), 1);
}

/// Rules M4, M5, M6.
#[test]
fn each_key_is_judged_alone() {
    let server = Server::start();
    let mut client = server.client();
    let granted = client.call("RLOCK.MACQUIRE 2 x y a PX 60000");
    let [x, y] = [0, 1].map(|at| granted.array()[at].int());
    let left = client.call(format!("RLOCK.MRENEW 3 x z y a PX 70000 TOKENS {x} 1 {y} EACH"));
    assert!(matches!(left.array(), [Reply::Int(60_001..=70_000), Reply::Nil, Reply::Int(60_001..=70_000)]), "{left:?}");
    let left = client.call(format!("RLOCK.MRENEW 2 x y a TOKENS {x} 1 EACH"));
    assert!(matches!(left.array(), [Reply::Int(_), Reply::Nil]), "{left:?}");
    client.call("SET text 1");
    client.call("RLOCK.MRENEW 2 x text a EACH").expect_error("WRONGTYPE");
    client.call("RLOCK.MRELEASE 2 x text a EACH").expect_error("WRONGTYPE");
    let release = format!("RLOCK.MRELEASE 3 x z y a TOKENS {x} 1 {y} EACH");
    assert_eq!(client.call(release.as_str()).array(), [Reply::Int(0), Reply::Nil, Reply::Int(0)]);
    assert_eq!(client.call(release.as_str()).array(), [Reply::Nil, Reply::Nil, Reply::Nil], "done");
}

/// Rule X7.
#[test]
fn cancel_of_a_granted_macquire_ends_it_on_one_key() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RLOCK.MACQUIRE 2 x y a PX 60000 REQ 1");
    assert_eq!(client.call("RLOCK.CANCEL x a REQ 1"), 1);
    assert_eq!([client.call("RLOCK.HOLDS x a"), client.call("RLOCK.HOLDS y a")], [Reply::Int(0), Reply::Int(1)]);
}

/// Rule C3.
#[test]
fn release_and_cancel_end_an_unclaimed_hold_and_a_part_of_it_stays_unclaimed() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        for end in ["RELEASE", "CANCEL"] {
            client.acquire("job a PX 60000 CLAIM 20000 REQ 1");
            client.call(format!("LOCK.{end} job a REQ {}", if end == "RELEASE" { 2 } else { 1 })).int();
            assert_eq!(holds(&mut client), 0);
        }
    }
    let server = Server::start();
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT job 9");
    for (end, left) in [("RELEASE job a PERMITS 1 REQ 2", 2), ("CANCEL job a REQ 1", 0)] {
        client.call("RSEMAPHORE.ACQUIRE job a PX 60000 CLAIM 20000 PERMITS 3 REQ 1");
        client.call(format!("RSEMAPHORE.{end}"));
        assert_eq!(client.call("RSEMAPHORE.HOLDS job a"), left);
        assert!(client.call("RSEMAPHORE.PTTL job").int() <= 20_000);
        client.call("RSEMAPHORE.FORCERELEASE job");
    }
}
