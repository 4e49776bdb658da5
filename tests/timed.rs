//! For how long a grant can be believed: in the reply with TIMED, and in each message of NOTIFY.

use std::time::{Duration, Instant};

use crate::support::{Client, EXCLUSIVE, Reply, Server, message, subscriber};

/// The token and the milliseconds of a timed reply.
#[track_caller]
fn timed(reply: &Reply) -> (i64, i64) {
    match reply.array() {
        [token, ms] => (token.int(), ms.int()),
        other => panic!("{other:?} is no timed reply"),
    }
}

/// The milliseconds of a message.
#[track_caller]
fn believed_ms(granted: &str) -> u64 {
    let (_, ms) = granted.rsplit_once(" for ").unwrap_or_else(|| panic!("{granted}"));
    ms.parse().expect("milliseconds")
}

/// Whether a belief that began at `sent` ends before the hold does.
fn ends_before_the_hold(client: &mut Client, sent: Instant, ms: u64) -> bool {
    let left_ms = client.call("RLOCK.PTTL job").int();
    sent + Duration::from_millis(ms) <= Instant::now() + Duration::from_millis(left_ms.unsigned_abs() + 1)
}

/// Rule T1.
#[test]
fn every_reply_that_grants_says_for_how_long() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        let at_once = client.call("LOCK.ACQUIRE job a PX 60000 REQ 1 TIMED");
        let (token, ms) = timed(&at_once);
        assert!((59_000..=60_000).contains(&ms), "{ms}");
        let (again, ms) = timed(&client.call("LOCK.ACQUIRE job a PX 50000 REQ 1 TIMED"));
        assert!(again == token && (59_000..=60_000).contains(&ms), "{ms}");
        let (once, ms) = timed(&client.call("LOCK.ACQUIRE job a PX 70000 ONCE TIMED"));
        assert!(once == token && (69_000..=70_000).contains(&ms), "{ms}");
        let mut waiter = server.blocked_waiter("LOCK.ACQUIRE job b PX 60000 CLAIM 5000 BLOCK 0 TIMED");
        client.call("LOCK.RELEASE job a REQ 2");
        let (_, ms) = timed(&waiter.reply());
        assert!((4_000..60_000).contains(&ms), "{ms}");
        assert_eq!(client.call("LOCK.ACQUIRE job c TIMED"), Reply::Nil);
    }
    let server = Server::start();
    let mut client = server.client();
    client.call("RLOCK.ACQUIRE x a PX 5000");
    let granted = client.call("RLOCK.MACQUIRE 2 x y a PX 3000 TIMED");
    assert!(matches!(granted.array(), [_, _, Reply::Int(2000..=3000)]), "the first of the holds: {granted:?}");
    client.call("RLOCK.ACQUIRE one a PX 5000 TIMED").array();
    assert_eq!(client.call("RLOCK.MACQUIRE 1 one a TIMED").array().len(), 2);
}

/// Rules T3, T4.
#[test]
fn a_timed_request_shortens_its_lease_and_claim() {
    let server = Server::start();
    let mut client = server.client();
    // As a line of the configuration it would begin a quarantine.
    client.call("CONFIG SET rlock.max-lease-ms 10000");
    client.call("RLOCK.ACQUIRE job a PX 60000").expect_error("ERR");
    let (token, ms) = timed(&client.call("RLOCK.ACQUIRE job a PX 60000 TIMED"));
    assert!((9_000..=10_000).contains(&ms), "{ms}");
    for (renew, many) in [(format!("RLOCK.RENEW job a TOKEN {token}"), false), ("RLOCK.MRENEW 1 job a".into(), true)] {
        client.call(format!("{renew} PX 60000")).expect_error("ERR");
        let left = client.call(format!("{renew} PX 60000 TIMED")).int();
        assert!((9_000..=10_000).contains(&left), "{left} {many}");
        assert!(client.call(renew).int() <= 10_000);
    }
    for request in ["RLOCK.ACQUIRE claimed a CLAIM 20000 TIMED", "RLOCK.MACQUIRE 1 other a PX 5000 CLAIM 20000 TIMED"] {
        let reply = client.call(request);
        let ms = reply.array().last().expect("milliseconds").int();
        assert!((4_000..=10_000).contains(&ms), "{request}: {ms}");
    }
}

/// Rules T2, N2.
#[test]
fn an_expire_on_the_key_counts() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT job 3");
    client.call("PEXPIRE job 4000");
    let (_, ms) = timed(&client.call("RSEMAPHORE.ACQUIRE job a PX 60000 TIMED"));
    assert!(ms <= 4_000, "{ms}");
    client.call("RSEMAPHORE.ACQUIRE job a PERMITS 2");
    let mut messages = subscriber(&server, "answers");
    assert_eq!(client.call("RSEMAPHORE.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
    client.call("RSEMAPHORE.RELEASE job a");
    let ms = believed_ms(&message(&mut messages));
    assert!(ms <= 4_000, "{ms}");

    client.call("RRWLOCK.ACQUIRE shelf a READ PX 60000");
    client.call("PEXPIRE shelf 4000");
    let (_, ms) = timed(&client.call("RRWLOCK.ACQUIRE shelf b READ PX 60000 TIMED"));
    assert!(ms <= 4_000, "{ms}");

    // A grant clears the EXPIRE that was meant for another holder.
    client.call("RLOCK.ACQUIRE left x PX 60000");
    client.call("PEXPIRE left 4000");
    let mut waiter = server.blocked_waiter("RLOCK.ACQUIRE left y PX 60000 BLOCK 0 TIMED");
    client.call("RLOCK.RELEASE left x");
    let (_, ms) = timed(&waiter.reply());
    assert!(ms > 4_000, "{ms}");
}

/// Rules N2, T5.
#[test]
fn a_message_counts_from_the_receipt_of_the_first_copy() {
    let server = Server::start();
    let (mut holder, mut client, mut messages) = (server.client(), server.client(), subscriber(&server, "answers"));
    holder.acquire("job a PX 60000");
    const REQUEST: &str = "LOCK.ACQUIRE job b PX 60000 CLAIM 2000 BLOCK 0 NOTIFY answers REQ 1";
    let sent = Instant::now();
    assert_eq!(client.call(REQUEST), "WAITING");
    std::thread::sleep(Duration::from_millis(300));
    // A copy of the same request, over another connection.
    let mut copy = server.client();
    assert_eq!(copy.call(REQUEST), "WAITING");
    holder.call("RLOCK.RELEASE job a");
    let ms = believed_ms(&message(&mut messages));
    assert!(ms >= 2_300, "{ms}");
    assert!(ends_before_the_hold(&mut client, sent, ms), "{ms}");
}

/// Rules N2, T5.
#[test]
fn a_higher_id_counts_from_its_own_receipt() {
    let server = Server::start();
    let (mut holder, mut client, mut messages) = (server.client(), server.client(), subscriber(&server, "answers"));
    holder.acquire("job a PX 60000");
    const REQUEST: &str = "LOCK.ACQUIRE job b PX 60000 CLAIM 20000 BLOCK 0 NOTIFY answers REQ";
    assert_eq!(client.call(format!("{REQUEST} 1")), "WAITING");
    std::thread::sleep(Duration::from_millis(300));
    // It takes over the place of the first request.
    let sent = Instant::now();
    assert_eq!(client.call(format!("{REQUEST} 2")), "WAITING");
    assert!(message(&mut messages).starts_with("error 1 SUPERSEDED"));
    holder.call("RLOCK.RELEASE job a");
    let granted = message(&mut messages);
    assert!(granted.starts_with("granted 2 "), "{granted}");
    let ms = believed_ms(&granted);
    assert!(ends_before_the_hold(&mut client, sent, ms), "{ms}");
}

/// Rule T2.
#[test]
fn a_reply_counts_from_the_receipt_of_the_copy_that_it_answers() {
    let server = Server::start();
    let mut holder = server.client();
    holder.acquire("job a PX 60000");
    let _first = server.blocked_waiter("RLOCK.ACQUIRE job b PX 60000 CLAIM 20000 BLOCK 0 REQ 1 TIMED");
    std::thread::sleep(Duration::from_millis(300));
    let sent = Instant::now();
    let mut copy = server.client();
    copy.send("RLOCK.ACQUIRE job b PX 60000 CLAIM 20000 BLOCK 0 REQ 1 TIMED");
    copy.assert_waits();
    holder.call("RLOCK.RELEASE job a");
    let (_, ms) = timed(&copy.reply());
    assert!(ends_before_the_hold(&mut holder, sent, ms.unsigned_abs()), "{ms}");
}

/// Rule N2.
#[test]
fn a_long_command_in_the_turn_of_the_grant_does_not_prolong_the_belief() {
    let server = Server::with(&["enable-debug-command yes"]);
    let (mut holder, mut client, mut messages) = (server.client(), server.client(), subscriber(&server, "answers"));
    holder.acquire("job a PX 60000");
    let sent = Instant::now();
    assert_eq!(client.call("RLOCK.ACQUIRE job b PX 60000 CLAIM 2000 BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
    for command in ["MULTI", "RLOCK.RELEASE job a", "DEBUG SLEEP 0.3", "EXEC"] {
        holder.call(command);
    }
    let ms = believed_ms(&message(&mut messages));
    assert!(ends_before_the_hold(&mut client, sent, ms), "{ms}");
}

/// Rule N3.
#[test]
fn the_same_request_again_says_the_same_and_claims() {
    for server in Server::for_each(EXCLUSIVE) {
        let (mut holder, mut client, mut messages) = (server.client(), server.client(), subscriber(&server, "answers"));
        holder.acquire("job a PX 60000");
        const REQUEST: &str = "LOCK.ACQUIRE job b PX 60000 CLAIM 5000 BLOCK 0 NOTIFY answers REQ 1 TIMED";
        assert_eq!(client.call(REQUEST), "WAITING");
        holder.call("LOCK.RELEASE job a");
        let granted = message(&mut messages);
        let (token, ms) = timed(&client.call(REQUEST));
        assert!(granted.starts_with(&format!("granted 1 {token} for ")), "{granted}");
        assert!(ms > 5_000, "{ms}");
        assert_eq!(client.call("LOCK.HOLDS job b"), 1);
    }
}

/// Rules M1, N3.
#[test]
fn macquire_again_grants_what_is_missing() {
    let server = Server::start();
    let mut client = server.client();
    let tokens = |reply: Reply| reply.array().iter().map(Reply::int).collect::<Vec<_>>();
    let first = tokens(client.call("RLOCK.MACQUIRE 2 x y a PX 60000 CLAIM 5000 REQ 1"));
    client.call("RLOCK.FORCERELEASE x");
    let again = tokens(client.call("RLOCK.MACQUIRE 2 x y a PX 60000 CLAIM 5000 REQ 1"));
    assert!(again[0] > first[1] && again[1] == first[1], "{first:?}, {again:?}");
    assert!(client.call("RLOCK.PTTL x").int() <= 5_000);
    assert!(client.call("RLOCK.PTTL y").int() > 5_000);
}

/// Rule N2.
#[test]
fn a_hold_that_has_ended_before_the_message_is_not_told_of() {
    for end in ["RLOCK.FORCERELEASE job", "DEL job", "RLOCK.CANCEL job b REQ 1"] {
        let server = Server::start();
        let (mut holder, mut client, mut messages) = (server.client(), server.client(), subscriber(&server, "answers"));
        holder.acquire("job a PX 60000");
        assert_eq!(client.call("RLOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
        for command in ["MULTI", "RLOCK.RELEASE job a", end, "RLOCK.ACQUIRE job c", "EXEC"] {
            holder.call(command);
        }
        let told = message(&mut messages);
        assert!(told.starts_with("error 1 UNBLOCKED the lock was granted, but the hold ended "), "{end}: {told}");
        assert_eq!(client.holder("job").expect("a holder").owner, "c");
    }
}

/// The number of things that may happen between a request and its message.
const ATTACKS: usize = 8;

fn request(id: usize) -> String {
    format!("RLOCK.ACQUIRE job b PX 5000 CLAIM 2000 BLOCK 0 NOTIFY answers REQ {id} TIMED")
}

/// Makes an attack, and releases the lock. Returns the id under which the grant is published, and
/// when that id was sent first.
fn attack(number: usize, id: usize, sent: Instant, [holder, client, copy]: [&mut Client; 3]) -> (usize, Instant) {
    let (mut published, mut first_sent) = (id, sent);
    let mut release = vec!["RLOCK.RELEASE job a"];
    match number {
        0 => release = vec!["MULTI", "RLOCK.RELEASE job a", "DEBUG SLEEP 0.03", "EXEC"],
        1 => assert_eq!(copy.call(request(id)), "WAITING"),
        2 => {
            first_sent = Instant::now();
            published = id + 1;
            assert_eq!(copy.call(request(id + 1)), "WAITING");
        }
        3 => release = vec!["MULTI", "PEXPIRE job 300", "RLOCK.RELEASE job a", "EXEC"],
        4 => release = vec!["CONFIG SET rlock.max-lease-ms 1000", "RLOCK.RELEASE job a"],
        5 => release = vec!["CLIENT PAUSE 30 WRITE", "RLOCK.RELEASE job a"],
        // A copy whose answer is read later.
        6 => client.send(request(id)),
        _ => release = vec!["RLOCK.FORCERELEASE job"],
    }
    for command in release {
        holder.call(command);
    }
    (published, first_sent)
}

/// Rule N2. `RLOCK_GRANTS=1000` for more grants.
#[test]
fn no_belief_outlives_its_hold_whatever_happens_before_the_message() {
    let grants = std::env::var("RLOCK_GRANTS").map_or(80, |grants| grants.parse().expect("a number"));
    let server = Server::with(&["enable-debug-command yes"]);
    let (mut holder, mut client, mut copy) = (server.client(), server.client(), server.client());
    let mut messages = subscriber(&server, "answers");
    for number in 0..grants {
        // After the attack with a lower limit all leases are shorter.
        holder.call("RLOCK.ACQUIRE job a PX 60000 TIMED").array();
        let (id, sent) = (2 * number + 1, Instant::now());
        assert_eq!(client.call(request(id)), "WAITING");
        let attacked = number % ATTACKS;
        let (id, sent) = attack(attacked, id, sent, [&mut holder, &mut client, &mut copy]);
        let mut said = message(&mut messages);
        while said.starts_with("error ") {
            said = message(&mut messages);
        }
        let words: Vec<&str> = said.split(' ').collect();
        let ["granted", of, token, "for", ms] = words[..] else { panic!("attack {attacked}: {said}") };
        assert_eq!(of, id.to_string(), "attack {attacked}");
        let ms = ms.parse().expect("milliseconds");
        assert!(ends_before_the_hold(&mut holder, sent, ms), "attack {attacked}: {said}");
        if attacked == 6 {
            client.reply();
        }
        assert_eq!(holder.call(format!("RLOCK.RELEASE job b TOKEN {token}")), 0);
    }
}

/// Rule N2.
#[test]
fn a_belief_ends_before_the_hold_on_a_promoted_server_too() {
    let server = Server::start();
    let replica = Server::replica_of(&server, &[]);
    let (mut holder, mut client, mut messages) = (server.client(), server.client(), subscriber(&server, "answers"));
    holder.acquire("job a PX 60000");
    let sent = Instant::now();
    assert_eq!(client.call("RLOCK.ACQUIRE job b PX 60000 CLAIM 5000 BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
    std::thread::sleep(Duration::from_millis(200));
    holder.call("RLOCK.RELEASE job a");
    let ms = believed_ms(&message(&mut messages));
    replica.catch_up_with(&server);
    let mut promoted = replica.client();
    promoted.call("REPLICAOF NO ONE");
    assert!(ends_before_the_hold(&mut promoted, sent, ms), "{ms}");
}
