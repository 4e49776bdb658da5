//! Holders and waiters in INFO, WAITERS and PTTL.

use std::time::Duration;

use crate::support::{EXCLUSIVE, FAIR, MUTEX, Reply, Server, WRITE, eventually};

const SOON: Duration = Duration::from_secs(20);

/// Rule I1.
#[test]
fn info_shows_the_age_of_a_hold_and_its_connections() {
    for server in Server::for_each(EXCLUSIVE) {
        let [mut one, mut two] = [server.client(), server.client()];
        one.acquire("job a PX 60000");
        let clients = |client: &mut crate::support::Client| {
            client.call("LOCK.INFO job").field("holders").array()[0].field("clients")
        };
        assert_eq!(clients(&mut one), Reply::Array(Vec::new()));
        assert_eq!(one.call("LOCK.RELEASE job a"), 0);

        one.acquire("job a PX 60000 SESSION 1000");
        two.call("LOCK.RENEW job a").int();
        let ids = [one.call("CLIENT ID"), two.call("CLIENT ID")];
        assert_eq!(clients(&mut one), Reply::Array(ids.to_vec()));
        let holder =
            |client: &mut crate::support::Client| client.call("LOCK.INFO job").field("holders").array()[0].clone();
        eventually(SOON, || holder(&mut one).field("held-ms").int() >= 20);
        let (held_ms, token) = (holder(&mut one).field("held-ms").int(), holder(&mut one).field("token").int());
        let wall_us = one
            .call("TIME")
            .array()
            .iter()
            .map(Reply::text)
            .map(|part| part.parse::<i64>().expect("a number"))
            .fold(0, |sum, part| sum * 1_000_000 + part);
        assert!((0..1000).contains(&((wall_us - token) / 1000 - held_ms)), "{held_ms}");
    }
}

/// Rule I2.
#[test]
fn waiters_shows_the_waiting_connection() {
    for server in Server::for_each(EXCLUSIVE) {
        let [mut client, mut waiter] = [server.client(), server.client()];
        client.acquire("job a PX 60000");
        let id = waiter.call("CLIENT ID");
        waiter.send("LOCK.ACQUIRE job b BLOCK 0");
        eventually(SOON, || client.waiting_owners("job") == ["b"]);
        assert_eq!(client.call("LOCK.WAITERS job").array()[0].field("client"), id);
    }
}

#[test]
fn place_without_a_connection_shows_client_0() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RFAIRLOCK.ACQUIRE job a PX 60000").int();
    assert_eq!(client.call("RFAIRLOCK.ACQUIRE job b QUEUE 60000"), Reply::Nil);
    assert_eq!(client.call("RFAIRLOCK.WAITERS job").array()[0].field("client"), 0);
}

/// Rule I2.
#[test]
fn waiters_shows_at_most_1000() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("job a PX 60000");
    let mut subscriber = server.client();
    subscriber.call("SUBSCRIBE answers");
    for number in 1..=1100 {
        client.call(format!("RLOCK.ACQUIRE job owner-{number} BLOCK 0 NOTIFY answers REQ {number}"));
    }
    for count in ["", " COUNT 1100", " COUNT 9223372036854775807"] {
        assert_eq!(client.call(format!("RLOCK.WAITERS job{count}")).array().len(), 1000, "{count}");
    }
    assert_eq!(client.call("RLOCK.WAITERS job COUNT 999").array().len(), 999);
    for number in 1..=1100 {
        client.call(format!("RFAIRLOCK.ACQUIRE fair owner-{number} QUEUE 60000"));
    }
    assert_eq!(client.call("RFAIRLOCK.WAITERS fair COUNT 1100").array().len(), 1000);
}

/// Rule I1.
///
/// The waiter is granted only after the transaction.
#[test]
fn info_of_a_free_key_with_waiters_has_no_holders() {
    for server in Server::for_each(&[MUTEX, FAIR, WRITE]) {
        let [mut client, mut waiter] = [server.client(), server.client()];
        client.acquire("job a PX 60000");
        waiter.send("LOCK.ACQUIRE job b BLOCK 0");
        eventually(SOON, || client.waiting_owners("job") == ["b"]);
        client.call("MULTI");
        client.call("DEL job");
        client.call("LOCK.INFO job");
        client.call("LOCK.INFO job OWNER a");
        let answers = client.call("EXEC");
        let [_, all, of_owner] = answers.array() else { panic!("{answers:?}") };
        for info in [all, of_owner] {
            assert_eq!((info.field("holders"), info.field("holders-count").int()), (Reply::Array(Vec::new()), 0));
            assert_eq!(info.field("waiters"), 1);
        }
        waiter.reply().int();
        assert_eq!(client.call("LOCK.INFO none"), Reply::Nil);
    }
}

/// Rule I4.
#[test]
fn pttl_with_token_shows_only_that_hold() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        let token = client.acquire("job a PX 60000");
        let left_ms = client.call(format!("LOCK.PTTL job TOKEN {token}")).int();
        assert!((50_000..=60_000).contains(&left_ms), "{left_ms}");
        assert_eq!(client.call(format!("LOCK.PTTL job TOKEN {}", token + 1)), -2);
        assert_eq!(client.call(format!("LOCK.PTTL free TOKEN {token}")), -2);
        client.call("PEXPIRE job 20000");
        assert!(client.call(format!("LOCK.PTTL job TOKEN {token}")).int() <= 20_000);
        client.call("LOCK.RELEASE job a");
        assert_eq!(client.call(format!("LOCK.PTTL job TOKEN {token}")), -2);
    }
}

/// Rule I4.
#[test]
fn pttl_with_token_distinguishes_readers_and_permit_owners() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT permits 5");
    for [acquire, pttl] in [
        ["RRWLOCK.ACQUIRE map OWNER READ PX", "RRWLOCK.PTTL map TOKEN"],
        ["RSEMAPHORE.ACQUIRE permits OWNER PX", "RSEMAPHORE.PTTL permits TOKEN"],
    ] {
        let tokens = [("a", 30_000), ("b", 90_000)]
            .map(|(owner, lease_ms)| client.call(format!("{} {lease_ms}", acquire.replace("OWNER", owner))).int());
        let [a, b] = tokens.map(|token| client.call(format!("{pttl} {token}")).int());
        assert!((20_000..=30_000).contains(&a) && (80_000..=90_000).contains(&b), "{a} {b}");
    }
}
