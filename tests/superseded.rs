//! An owner waits for a key with one request at most: a newer one ends the older one.

use std::time::Duration;

use crate::support::{EXCLUSIVE, MUTEX, REENTRANT, Reply, Server, eventually, waits_by_notify};

const SOON: Duration = Duration::from_secs(5);

/// Rules W1, W2.
#[test]
fn a_blind_retry_of_a_request_that_waits_takes_its_place_and_counts_once() {
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
        let holder = client.holder("job").expect("it is held");
        assert_eq!(holder.identity(), ("b", 1, token));
        assert!(holder.lease_ms > 30_000, "the lease of the retry counts: {holder:?}");
        assert_eq!(first.call("PING"), "PONG");
        client.call("LOCK.RELEASE job b");
        behind.reply().int();
    }
}

/// Rule W2.
#[test]
fn a_request_for_something_else_goes_to_the_end() {
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
fn requests_for_one_key_and_for_many_end_each_other() {
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
fn a_request_that_is_refused_leaves_the_earlier_one_waiting() {
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
fn an_attempt_leaves_the_request_that_waits_alone() {
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
fn a_retry_needs_no_room_among_the_waiters() {
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

/// The commands that a client library sends again by itself.
#[test]
fn fifty_retries_wait_once() {
    if waits_by_notify() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.acquire("job a PX 60000");
    let mut waiters: Vec<_> = (0..50).map(|_| server.blocked_waiter("RLOCK.ACQUIRE job b BLOCK 0")).collect();
    let mut last = waiters.pop().expect("there are fifty");
    for mut superseded in waiters {
        superseded.reply().expect_error("SUPERSEDED");
    }
    eventually(SOON, || client.info_number("rlock_waiting") == 1);
    client.call("RLOCK.RELEASE job a");
    last.reply().int();
    assert_eq!(client.call("RLOCK.HOLDS job b"), 1);
}
