//! ONCE and TOKEN: a repeated ACQUIRE leaves no second hold, and a former holder cannot end the
//! hold of its successor.

use std::time::Duration;

use crate::support::{ALL, Command, EXCLUSIVE, MUTEX, Server, eventually};

const SOON: Duration = Duration::from_secs(5);

#[test]
fn repeated_acquire_with_once_leaves_one_hold() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        let token = client.acquire("job a ONCE");
        // The library may use another connection for each repetition.
        for _ in 0..3 {
            assert_eq!(server.client().acquire("job a ONCE"), token);
        }
        assert_eq!(client.call("LOCK.HOLDS job a"), 1);
        assert_eq!(client.call("LOCK.RELEASE job a"), 0);
        assert_eq!(client.call("LOCK.HOLDS job a"), 0);
    }
}

#[test]
fn repeated_waiting_request_takes_the_place_and_counts_once() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job b");
        let mut first = server.blocked_waiter("LOCK.ACQUIRE job a PX 60000 BLOCK 0 ONCE");
        let mut repeat = server.blocked_waiter("LOCK.ACQUIRE job a PX 60000 BLOCK 0 ONCE");
        client.call("LOCK.RELEASE job b");
        let token = repeat.reply().int();
        first.reply().expect_error("SUPERSEDED");
        assert_eq!(client.holder("job").expect("a holder").identity(), ("a", 1, token));
        assert_eq!(client.call("LOCK.RELEASE job a"), 0);
    }
}

#[test]
fn undone_request_with_a_session_does_not_end_the_earlier_hold() {
    for server in Server::for_each(&[MUTEX]) {
        let mut client = server.client();
        client.acquire("{s}x a PX 60000");
        client.acquire("{s}y b PX 60000");
        let waiter = server.blocked_waiter("LOCK.MACQUIRE 2 {s}x {s}y a PX 60000 SESSION 0 BLOCK 0 ONCE");
        let step = ["LOCK.RELEASE {s}y b".to_owned(), format!("CLIENT KILL ID {}", waiter.id())];
        client.call_in_one_step(&step.map(Command::from));
        eventually(SOON, || client.is_free("{s}y"));
        assert!(client.holder("{s}x").is_some(), "the hold has no session");
    }
}

#[test]
fn once_renews_the_lease_and_joins_a_session() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a PX 1000 ONCE");
        let other = server.client().acquire("job a PX 60000 ONCE");
        assert!(client.call("LOCK.PTTL job").int() > 50_000);
        assert_eq!(client.holder("job").expect("a holder").identity(), ("a", 1, other));
        let mut bound = server.client();
        bound.acquire("job a PX 60000 SESSION 0 ONCE");
        drop(bound);
        eventually(SOON, || client.is_free("job"));
    }
}

#[test]
fn once_requires_the_same_number_of_permits() {
    for server in Server::for_each(&[MUTEX]) {
        let mut client = server.client();
        client.call("RSEMAPHORE.INIT pool 5");
        let token = client.call("RSEMAPHORE.ACQUIRE pool a PERMITS 2 ONCE").int();
        assert_eq!(client.call("RSEMAPHORE.ACQUIRE pool a PERMITS 2 ONCE"), token);
        let error = client.call("RSEMAPHORE.ACQUIRE pool a ONCE");
        assert!(error.expect_error("ERR").contains("which is 2"), "{error:?}");
        assert_eq!(client.call("RSEMAPHORE.RELEASE pool a PERMITS 2"), 0);
    }
}

#[test]
fn token_of_a_lost_hold_cannot_release_or_renew_its_successor() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        let lost = client.acquire("job worker-7");
        client.call("LOCK.FORCERELEASE job");
        let token = client.acquire("job worker-7 PX 60000");
        client.call(format!("LOCK.RELEASE job worker-7 TOKEN {lost}")).expect_error("NOTOWNER");
        client.call(format!("LOCK.RENEW job worker-7 PX 90000 TOKEN {lost}")).expect_error("NOTOWNER");
        assert!(client.call("LOCK.PTTL job").int() <= 60_000);
        assert!(client.call(format!("LOCK.RENEW job worker-7 PX 90000 TOKEN {token}")).int() > 60_000);
        assert_eq!(client.call(format!("LOCK.RELEASE job worker-7 TOKEN {token}")), 0);
    }
}

#[test]
fn tokens_match_the_keys_in_order() {
    for server in Server::for_each(&[MUTEX]) {
        let mut client = server.client();
        let tokens = client.call("RLOCK.MACQUIRE 2 one two a ONCE");
        assert_eq!(client.call("RLOCK.MACQUIRE 2 one two a ONCE"), tokens);
        let [one, two] = tokens.array() else { panic!("{tokens:?}") };
        let (one, two) = (one.int(), two.int());
        client.call(format!("RLOCK.MRENEW 2 one two a TOKENS {two} {one}")).expect_error("NOTOWNER");
        assert!(client.call(format!("RLOCK.MRENEW 2 one two a TOKENS {one} {two} PX 60000")).int() > 50_000);
        client.call(format!("RLOCK.MRELEASE 2 one two a TOKENS {one}")).expect_error("ERR");
        client.call(format!("RLOCK.MRELEASE 2 one two a TOKENS {one} 0")).expect_error("ERR");
        let left = client.call(format!("RLOCK.MRELEASE 2 one two a TOKENS {one} {two} REQ 5"));
        assert!(left.array().iter().all(|left| *left == 0), "{left:?}");
    }
}
