//! REQ: a request can be repeated after its reply was lost.

use std::time::Duration;

use crate::support::{ALL, BINARY, Client, EXCLUSIVE, MUTEX, REENTRANT, Reply, Server, WRITE, eventually, propagated};

const SOON: Duration = Duration::from_secs(5);
const HIGHEST_ID: i64 = i64::MAX;

#[test]
fn repeated_acquire_counts_one_hold() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        let token = client.acquire("job a REQ 1");
        for _ in 0..3 {
            assert_eq!(server.client().acquire("job a REQ 1"), token);
        }
        assert_eq!(client.call("LOCK.HOLDS job a"), 1);
        assert_eq!(client.acquire("job a REQ 2"), token);
        assert_eq!(client.acquire("job a REQ 2"), token);
        assert_eq!(client.call("LOCK.HOLDS job a"), 2);
    }
}

#[test]
fn acquire_may_be_repeated_after_a_wait() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let mut waiter = server.waiter("LOCK.ACQUIRE job b REQ 5 PX 60000 BLOCK 0");
        client.call("LOCK.RELEASE job a");
        let token = waiter.reply().int();
        assert_eq!(client.acquire("job b REQ 5 BLOCK 0"), token);
        assert_eq!(client.holder("job").expect("a holder").identity(), ("b", 1, token));
    }
}

#[test]
fn repeated_release_returns_the_same_reply() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a REQ 1");
        client.acquire("job a REQ 2");
        client.acquire("job a REQ 3");
        for _ in 0..3 {
            assert_eq!(client.call("LOCK.RELEASE job a REQ 4"), 2);
            assert_eq!(client.call("LOCK.HOLDS job a"), 2);
        }
        assert_eq!(client.call("LOCK.RELEASE job a REQ 5"), 1);
        assert_eq!(client.call("LOCK.RELEASE job a REQ 5"), 1);
    }
}

#[test]
fn repeated_last_release_gets_notowner_and_does_not_end_a_later_hold() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a REQ 1");
        assert_eq!(client.call("LOCK.RELEASE job a REQ 2"), 0);
        client.call("LOCK.RELEASE job a REQ 2").expect_error("NOTOWNER");
        let token = client.acquire("job b");
        client.call("LOCK.RELEASE job a REQ 2").expect_error("NOTOWNER");
        assert_eq!(client.holder("job").expect("a holder").identity(), ("b", 1, token));
    }
}

#[test]
fn acquire_repeated_after_the_hold_ended_is_a_new_request() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        let first = client.acquire("job a REQ 5");
        client.call("LOCK.RELEASE job a REQ 6");
        let second = client.acquire("job a REQ 5");
        assert!(second > first);
        // The ids ended with the hold, so a lower id is accepted, too.
        client.call("LOCK.FORCERELEASE job");
        assert!(client.acquire("job a REQ 1") > second);
    }
}

#[test]
fn lower_id_or_id_of_another_command_is_stale() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        let token = client.acquire("job a PX 20000 REQ 4");
        client.acquire("job a REQ 5");
        let stale = |client: &mut Client, commands: &[&str]| {
            for command in commands {
                client.call(*command).expect_error("STALE");
                let holder = client.holder("job").expect("a holder");
                assert_eq!(holder.identity(), ("a", 2, token), "{command}");
                assert!(holder.lease_ms <= 30_000, "{command} renewed the lease: {holder:?}");
            }
        };
        stale(
            &mut client,
            &[
                "LOCK.ACQUIRE job a REQ 4 PX 90000",
                "LOCK.ACQUIRE job a REQ 1 PX 90000 BLOCK 0",
                "LOCK.RELEASE job a REQ 4",
                "LOCK.RELEASE job a REQ 5",
            ],
        );
        client.acquire("job a REQ 6");
        assert_eq!(client.call("LOCK.RELEASE job a REQ 7"), 2);
        stale(&mut client, &["LOCK.ACQUIRE job a REQ 7 PX 90000", "LOCK.ACQUIRE job a REQ 6 PX 90000"]);
    }
}

#[test]
fn ids_range_from_1_to_the_largest_signed_number() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        let token = client.acquire("job a REQ 1");
        assert_eq!(client.acquire(&format!("job a REQ {HIGHEST_ID}")), token);
        assert_eq!(client.acquire(&format!("job a REQ {HIGHEST_ID}")), token);
        assert_eq!(client.call("LOCK.HOLDS job a"), 2);
        client.call(format!("LOCK.RELEASE job a REQ {}", HIGHEST_ID - 1)).expect_error("STALE");
    }
}

#[test]
fn renew_does_not_change_the_id() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        let token = client.acquire("job a REQ 1");
        client.call("LOCK.RENEW job a");
        assert_eq!(client.acquire("job a REQ 1"), token);
        assert_eq!(client.call("LOCK.HOLDS job a"), 1);
    }
}

#[test]
fn repeated_acquire_renews_the_lease_and_never_shortens_it() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a PX 20000 REQ 1");
        client.acquire("job a PX 60000 REQ 1");
        assert!(client.call("LOCK.PTTL job").int() > 50_000);
        client.acquire("job a PX 1000 REQ 1");
        assert!(client.call("LOCK.PTTL job").int() > 50_000);
    }
}

#[test]
fn repeated_acquire_is_always_propagated() {
    for family in ALL {
        let server = Server::with_aof(&[]).speaking(*family);
        let mut client = server.client();
        client.acquire("job a PX 90000 REQ 1");
        client.call("LOCK.RENEW job a PX 60000");
        let before = propagated(&server).len();
        // The repeated ACQUIRE sets the last lease again, which cannot move the deadline, so
        // nothing changes. It is propagated even so, because a WAIT behind it has to prove
        // something.
        client.acquire("job a PX 60000 REQ 1");
        assert_eq!(propagated(&server).len(), before + 1);
        // A RENEW that changes nothing is not propagated.
        client.call("LOCK.RENEW job a PX 60000");
        assert_eq!(propagated(&server).len(), before + 1);
    }
}

#[test]
fn ids_are_per_owner_and_per_key() {
    for server in Server::for_each(REENTRANT) {
        let mut client = server.client();
        client.acquire("job a REQ 9");
        client.acquire("other a REQ 3");
        assert_eq!(client.call("LOCK.RELEASE other a REQ 4"), 0);
        let mut waiter = server.waiter("LOCK.ACQUIRE job b REQ 2 BLOCK 0");
        client.call("LOCK.RELEASE job a REQ 10");
        waiter.reply().int();
    }
}

#[test]
fn denied_attempt_does_not_use_up_its_id() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a");
        assert_eq!(client.call("LOCK.ACQUIRE job b REQ 3"), Reply::Nil);
        assert_eq!(client.call("LOCK.ACQUIRE job b REQ 3 BLOCK 10"), Reply::Nil);
        client.call("LOCK.RELEASE job a");
        client.acquire("job b REQ 3");
    }
}

#[test]
fn repeated_waiting_request_takes_the_place_over() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let mut old = server.blocked_waiter("LOCK.ACQUIRE job b REQ 1 PX 1000 BLOCK 60000");
        let mut behind = server.blocked_waiter("LOCK.ACQUIRE job c BLOCK 0");
        let mut new = server.blocked_waiter("LOCK.ACQUIRE job b REQ 1 PX 40000 SESSION 700 BLOCK 0");
        old.reply().expect_error("SUPERSEDED");
        assert_eq!(client.waiting_owners("job"), ["b", "c"]);

        client.call("LOCK.RELEASE job a");
        let token = new.reply().int();
        let holder = client.holder("job").expect("a holder");
        assert_eq!(holder.identity(), ("b", 1, token));
        assert!(holder.lease_ms > 30_000, "the new lease counts: {holder:?}");
        assert_eq!(holder.session, 1, "the new session counts");
        // The old connection can be used again, and the hold does not depend on it.
        assert_eq!(old.call("PING"), "PONG");
        assert_eq!(client.waiting_owners("job"), ["c"]);
        client.call("LOCK.RELEASE job b");
        behind.reply().int();
    }
}

#[test]
fn repeated_waiting_request_has_the_new_timeout() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let mut old = server.waiter("LOCK.ACQUIRE job b REQ 1 BLOCK 0");
        assert_eq!(client.call("LOCK.ACQUIRE job b REQ 1 BLOCK 50"), Reply::Nil);
        old.reply().expect_error("SUPERSEDED");
        assert_eq!(client.waiting_owners("job"), [""; 0]);
    }
}

#[test]
fn repeated_request_without_block_gives_up_the_place() {
    for server in Server::for_each(&[MUTEX, WRITE, BINARY]) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let mut old = server.waiter("LOCK.ACQUIRE job b REQ 1 BLOCK 0");
        assert_eq!(client.call("LOCK.ACQUIRE job b REQ 1"), Reply::Nil);
        old.reply().expect_error("SUPERSEDED");
        assert_eq!(client.waiting_owners("job"), [""; 0]);
        client.call("LOCK.RELEASE job a");
        assert!(client.is_free("job"));
    }
}

#[test]
fn higher_id_ends_a_lower_one_that_waits() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let mut old = server.waiter("LOCK.ACQUIRE job b REQ 1 BLOCK 0");
        let mut new = server.waiter("LOCK.ACQUIRE job b REQ 2 BLOCK 0");
        old.reply().expect_error("SUPERSEDED");
        assert_eq!(client.waiting_owners("job"), ["b"]);
        client.call("LOCK.RELEASE job a");
        let token = new.reply().int();
        assert_eq!(client.holder("job").expect("a holder").identity(), ("b", 1, token));
        client.call("LOCK.ACQUIRE job b REQ 1").expect_error("STALE");
    }
}

#[test]
fn id_below_a_waiting_one_is_stale() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let mut waiter = server.waiter("LOCK.ACQUIRE job b REQ 5 BLOCK 0");
        client.call("LOCK.ACQUIRE job b REQ 4 BLOCK 0").expect_error("STALE");
        client.call("LOCK.ACQUIRE job b REQ 4").expect_error("STALE");
        assert_eq!(client.waiting_owners("job"), ["b"]);
        client.call("LOCK.RELEASE job a");
        waiter.reply().int();
    }
}

#[test]
fn repeated_request_over_a_new_connection_rejoins_the_session() {
    for server in Server::for_each(ALL) {
        let (mut one, mut two, mut client) = (server.client(), server.client(), server.client());
        let token = one.acquire("job a PX 60000 SESSION 20000 REQ 1");
        drop(one);
        eventually(SOON, || client.holder("job").is_some_and(|holder| holder.session == 0));
        assert_eq!(two.acquire("job a PX 60000 SESSION 20000 REQ 1"), token);
        let holder = client.holder("job").expect("a holder");
        assert_eq!((holder.identity(), holder.session), (("a", 1, token), 1));
        assert!(holder.lease_ms > 50_000, "{holder:?}");
    }
}
