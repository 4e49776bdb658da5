//! An owner waits for a key with at most one request: a newer request ends the older one.

use std::time::Duration;

use crate::support::{EXCLUSIVE, MUTEX, REENTRANT, Reply, Server, eventually, waits_by_notify};

const SOON: Duration = Duration::from_secs(5);

/// Rules W1, W2.
#[test]
fn retry_without_id_takes_the_place_and_counts_once() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let mut first = server.blocked_waiter("LOCK.ACQUIRE job b PX 1000 BLOCK 0");
        let mut behind = server.blocked_waiter("LOCK.ACQUIRE job c BLOCK 0");
        let mut retry = server.blocked_waiter("LOCK.ACQUIRE job b PX 40000 BLOCK 0");
        first.reply().expect_error("SUPERSEDED");
        assert_eq!(client.waiting_owners("job"), ["b", "c"]);
        assert_eq!(client.info_number("rlock_waiting"), 2);

        client.call("LOCK.RELEASE job a");
        let token = retry.reply().int();
        let holder = client.holder("job").expect("a holder");
        assert_eq!(holder.identity(), ("b", 1, token));
        assert!(holder.lease_ms > 30_000, "the lease of the retry counts: {holder:?}");
        assert_eq!(first.call("PING"), "PONG");
        client.call("LOCK.RELEASE job b");
        behind.reply().int();
    }
}

/// Rule W2.
#[test]
fn request_with_another_mode_goes_to_the_tail() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RRWLOCK.ACQUIRE job a WRITE PX 60000").int();
    let mut write = server.blocked_waiter("RRWLOCK.ACQUIRE job b WRITE BLOCK 0");
    let mut behind = server.blocked_waiter("RRWLOCK.ACQUIRE job c WRITE BLOCK 0");
    let mut read = server.blocked_waiter("RRWLOCK.ACQUIRE job b READ BLOCK 0");
    write.reply().expect_error("SUPERSEDED");
    assert_eq!(client.waiting_owners("job"), ["c", "b"]);
    client.call("RRWLOCK.RELEASE job a WRITE");
    behind.reply().int();
    client.call("RRWLOCK.RELEASE job c WRITE");
    read.reply().int();
}

/// Rule W1.
#[test]
fn acquire_and_macquire_supersede_each_other() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("{s}x a PX 60000");
    let mut one = server.waiter("RLOCK.ACQUIRE {s}x b PX 60000 BLOCK 0");
    let mut many = server.waiter("RLOCK.MACQUIRE 2 {s}x {s}y b PX 60000 BLOCK 0");
    one.reply().expect_error("SUPERSEDED");
    let mut behind = server.waiter("RLOCK.ACQUIRE {s}y c BLOCK 0");
    let mut again = server.waiter("RLOCK.ACQUIRE {s}x b PX 60000 BLOCK 0");
    many.reply().expect_error("SUPERSEDED");
    behind.reply().int();
    client.call("RLOCK.RELEASE {s}x a");
    again.reply().int();
    assert_eq!(client.call("RLOCK.HOLDS {s}x b"), 1);
}

/// Rule W3.
#[test]
fn refused_request_does_not_end_the_waiting_one() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("{s}x a PX 60000");
    client.acquire("{s}z b PX 60000");
    client.acquire("{s}y c PX 60000");
    let mut waiting = server.waiter("RLOCK.ACQUIRE {s}y b PX 60000 BLOCK 0");
    let _closes = server.waiter("RLOCK.ACQUIRE {s}z a PX 60000 BLOCK 0");
    client.call("RLOCK.MACQUIRE 2 {s}y {s}x b PX 60000 BLOCK 0").expect_error("DEADLOCK");
    assert_eq!(client.waiting_owners("{s}y"), ["b"]);
    client.call("RLOCK.RELEASE {s}y c");
    waiting.reply().int();
}

/// Rule W4.
#[test]
fn attempt_does_not_end_the_waiting_request() {
    for server in Server::for_each(REENTRANT) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let mut waiting = server.blocked_waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
        assert_eq!(client.call("LOCK.ACQUIRE job b"), Reply::Nil);
        assert_eq!(client.waiting_owners("job"), ["b"]);
        client.call("LOCK.RELEASE job a");
        waiting.reply().int();
    }
}

/// Rule W2.
#[test]
fn retry_does_not_count_against_max_waiters() {
    for server in Server::for_each(&[MUTEX]) {
        let mut client = server.client();
        client.call("CONFIG SET rlock.max-waiters 1");
        client.acquire("job a PX 60000");
        let mut first = server.waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
        let mut retry = server.waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
        first.reply().expect_error("SUPERSEDED");
        client.call("LOCK.ACQUIRE job c BLOCK 1000 REQ 1").expect_error("MAXWAITERS");
        client.call("LOCK.RELEASE job a");
        retry.reply().int();
    }
}

/// Retries that a client library sends by itself.
#[test]
fn fifty_retries_wait_once() {
    if waits_by_notify() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.acquire("job a PX 60000");
    let mut waiters: Vec<_> = (0..50).map(|_| server.blocked_waiter("RLOCK.ACQUIRE job b BLOCK 0")).collect();
    let mut last = waiters.pop().expect("50 waiters");
    for mut superseded in waiters {
        superseded.reply().expect_error("SUPERSEDED");
    }
    eventually(SOON, || client.info_number("rlock_waiting") == 1);
    client.call("RLOCK.RELEASE job a");
    last.reply().int();
    assert_eq!(client.call("RLOCK.HOLDS job b"), 1);
}
