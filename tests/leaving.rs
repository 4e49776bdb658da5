//! Waiters that disconnect or give up: they keep nothing, and the next waiter is served.

use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use crate::support::{Client, Reply, Server, eventually, skipped_here, version_of};

const SOON: Duration = Duration::from_secs(5);

/// Runs of each race. Each run takes 1 to 2 ms.
const RACES: usize = 200;

#[test]
fn client_unblock_ends_a_wait_with_nil_or_an_error() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("job a PX 60000");
    let mut one = server.blocked_waiter("RLOCK.ACQUIRE job b BLOCK 0");
    let mut two = server.blocked_waiter("RLOCK.ACQUIRE job c BLOCK 0");
    assert_eq!(client.call(format!("CLIENT UNBLOCK {}", one.id())), 1);
    assert_eq!(one.reply(), Reply::Nil);
    assert_eq!(client.call(format!("CLIENT UNBLOCK {} ERROR", two.id())), 1);
    two.reply().expect_error("UNBLOCKED");
    assert_eq!(client.waiting_owners("job"), [""; 0]);
    client.call("RLOCK.RELEASE job a");
    assert_eq!(client.call("EXISTS job"), 0);
    // Both connections can be used again.
    assert_eq!([one.call("PING"), two.call("PING")], ["PONG", "PONG"]);
}

#[test]
fn waiter_that_left_is_skipped() {
    let server = Server::start();
    let mut client = server.client();
    for way in ["a closed socket", "CLIENT KILL ID id", "CLIENT UNBLOCK id TIMEOUT", "CLIENT UNBLOCK id ERROR"] {
        client.acquire("job a PX 60000");
        let head = server.blocked_waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
        let mut next = server.blocked_waiter("RLOCK.ACQUIRE job c PX 60000 BLOCK 0");
        if way.starts_with("CLIENT") {
            assert_eq!(client.call(way.replace("id", &head.id().to_string())), 1);
        } else {
            drop(head);
        }
        eventually(SOON, || client.waiting_owners("job") == ["c"]);
        client.call("RLOCK.RELEASE job a");
        let token = next.reply().int();
        assert_eq!(client.holder("job").expect("a holder").identity(), ("c", 1, token), "{way}");
        client.call("RLOCK.RELEASE job c");
        assert_eq!(client.call("EXISTS job"), 0, "{way}");
    }
}

/// Races `leave` against the hand-over to the leaving waiter, with and without another waiter
/// behind it.
///
/// `leave` gets the leaving waiter and sends the release. The server may or may not serve that
/// waiter first, but the waiter must not stay the holder.
#[track_caller]
fn assert_leaver_keeps_nothing(wait: impl Fn(&Server, &str) -> Client, leave: impl Fn(&Server, &mut Client, Client)) {
    let server = Server::start();
    let mut client = server.client();
    for round in 0..RACES {
        client.acquire("job a PX 60000");
        let leaver = wait(&server, "RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
        let next = (round % 2 == 1).then(|| server.waiter("RLOCK.ACQUIRE job c PX 60000 BLOCK 0"));
        leave(&server, &mut client, leaver);
        if let Some(mut next) = next {
            let token = next.reply().int();
            let holder = client.holder("job").expect("a holder");
            assert_eq!(holder.identity(), ("c", 1, token), "round {round}");
            assert_eq!(client.call("RLOCK.RELEASE job c"), 0);
        }
        eventually(SOON, || client.call("EXISTS job") == 0);
    }
    assert_eq!(client.info_number("rlock_held"), 0);
    assert_eq!(client.info_number("rlock_waiting"), 0);
}

#[test]
fn waiter_killed_in_the_turn_of_its_grant_keeps_nothing() {
    assert_leaver_keeps_nothing(
        |server, command| server.waiter(command),
        |_, client, leaver| {
            let kill = format!("CLIENT KILL ID {}", leaver.id()).into();
            let answers = client.call_in_one_step(&["RLOCK.RELEASE job a".into(), kill]);
            assert_eq!(answers, [Reply::Int(0), Reply::Int(1)]);
        },
    );
}

#[test]
fn waiter_killed_before_its_grant_keeps_nothing() {
    assert_leaver_keeps_nothing(
        |server, command| server.waiter(command),
        |_, client, leaver| {
            let kill = format!("CLIENT KILL ID {}", leaver.id()).into();
            let answers = client.call_in_one_step(&[kill, "RLOCK.RELEASE job a".into()]);
            assert_eq!(answers, [Reply::Int(1), Reply::Int(0)]);
        },
    );
}

#[test]
fn waiter_unblocked_before_its_grant_keeps_nothing() {
    assert_leaver_keeps_nothing(
        |server, command| server.blocked_waiter(command),
        |_, client, mut leaver| {
            let unblock = format!("CLIENT UNBLOCK {}", leaver.id()).into();
            let answers = client.call_in_one_step(&[unblock, "RLOCK.RELEASE job a".into()]);
            assert_eq!(answers, [Reply::Int(1), Reply::Int(0)]);
            assert_eq!(leaver.reply(), Reply::Nil);
        },
    );
}

#[test]
fn waiter_whose_socket_closed_before_the_release_keeps_nothing() {
    assert_leaver_keeps_nothing(
        |server, command| server.waiter(command),
        |_, client, leaver| {
            drop(leaver);
            assert_eq!(client.call("RLOCK.RELEASE job a"), 0);
        },
    );
}

#[test]
fn waiter_whose_socket_closed_in_the_turn_of_its_grant_keeps_nothing() {
    assert_leaver_keeps_nothing(
        |server, command| server.waiter(command),
        |server, client, leaver| {
            server.while_stopped(|| {
                drop(leaver);
                client.send("RLOCK.RELEASE job a");
            });
            assert_eq!(client.reply(), 0);
        },
    );
    assert_leaver_keeps_nothing(
        |server, command| server.waiter(command),
        |server, client, leaver| {
            server.while_stopped(|| {
                client.send("RLOCK.RELEASE job a");
                drop(leaver);
            });
            assert_eq!(client.reply(), 0);
        },
    );
}

#[test]
fn waiter_unblocked_in_the_turn_of_its_grant_gets_one_true_reply() {
    let server = Server::start();
    let mut client = server.client();
    for way in ["TIMEOUT", "ERROR"].into_iter().cycle().take(RACES) {
        client.acquire("job a PX 60000");
        let mut waiter = server.waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
        let unblock = format!("CLIENT UNBLOCK {} {way}", waiter.id()).into();
        client.call_in_one_step(&["RLOCK.RELEASE job a".into(), unblock]);
        match waiter.reply() {
            Reply::Nil | Reply::Error(_) => eventually(SOON, || client.call("EXISTS job") == 0),
            token => {
                let holder = client.holder("job").expect("a holder");
                assert_eq!(holder.identity(), ("b", 1, token.int()));
                assert_eq!(client.call("RLOCK.RELEASE job b"), 0);
            }
        }
        assert_eq!(waiter.call("PING"), "PONG", "a second reply came");
    }
}

/// The server sends the token, and closes the connection before the end of its turn.
#[test]
fn confirmed_grant_stays_when_its_connection_quits() {
    let server = Server::start();
    let mut client = server.client();
    for _ in 0..RACES / 10 {
        client.acquire("job a PX 60000");
        let mut quits = server.client();
        quits.try_send(&["RLOCK.ACQUIRE job b PX 60000 BLOCK 0".into(), "QUIT".into()]).expect("the commands are sent");
        eventually(SOON, || client.waiting_owners("job") == ["b"]);
        let mut next = server.blocked_waiter("RLOCK.ACQUIRE job c PX 60000 BLOCK 0");
        assert_eq!(client.call("RLOCK.RELEASE job a"), 0);
        let token = quits.reply().int();
        assert_eq!(quits.reply(), "OK");
        assert_eq!(
            quits.reply_within(SOON).expect_err("the connection is still open").kind(),
            ErrorKind::UnexpectedEof
        );
        // The expiry of a later lease shows that the timer has run.
        client.acquire("marker c PX 20");
        eventually(SOON, || client.call("EXISTS marker") == 0);
        assert_eq!(client.holder("job").expect("a holder").identity(), ("b", 1, token));
        next.assert_waits();
        assert_eq!(client.call("RLOCK.RELEASE job b"), 0);
        next.reply().int();
        assert_eq!(client.call("RLOCK.RELEASE job c"), 0);
    }
}

/// The server writes nothing to a connection that it is about to close, so no reply is left to
/// send.
#[test]
fn waiter_whose_user_is_deleted_in_the_turn_of_its_grant_keeps_nothing() {
    let server = Server::start();
    let mut client = server.client();
    for delete_first in [false, true].into_iter().cycle().take(RACES / 10) {
        client.call("ACL SETUSER guest on nopass +@all ~* &*");
        client.acquire("job a PX 60000");
        let mut guest = server.client();
        assert_eq!(guest.call("AUTH guest any"), "OK");
        guest.send("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
        eventually(SOON, || client.waiting_owners("job") == ["b"]);
        let mut step = ["RLOCK.RELEASE job a", "ACL DELUSER guest"].map(Into::into);
        if delete_first {
            step.reverse();
        }
        client.call_in_one_step(&step);
        assert_eq!(
            guest.reply_within(SOON).expect_err("the connection is still open").kind(),
            ErrorKind::UnexpectedEof
        );
        eventually(SOON, || client.call("EXISTS job") == 0);
    }
}

/// Valkey delays the next holder's reply until the command that hands over has ended. Here that is
/// after the server has announced that it will sleep.
#[test]
fn delayed_grant_is_undone_when_its_connection_closes() {
    let server = Server::start();
    let mut client = server.client();
    if version_of(&mut client).1.starts_with(&[7, 2]) {
        return skipped_here("the server sends pending replies before it checks for closed connections");
    }
    client.acquire("job a PX 60000");
    let mut first = server.client();
    let step = ["RLOCK.ACQUIRE job b PX 60000 BLOCK 0", "RLOCK.RELEASE job b", "DEBUG SLEEP 0.5"].map(Into::into);
    first.try_send(&step).expect("the commands are sent");
    eventually(SOON, || client.waiting_owners("job") == ["b"]);
    let leaver = server.blocked_waiter("RLOCK.ACQUIRE job c PX 60000 BLOCK 0");
    client.send("RLOCK.RELEASE job a");
    // By now the server sleeps.
    thread::sleep(Duration::from_millis(100));
    drop(leaver);
    assert_eq!(client.reply(), 0);
    eventually(SOON, || client.call("EXISTS job") == 0);
}

/// The effects of a script are propagated when it ends. During a long script the server already
/// sends replies, but no client may rely on the grant yet.
#[test]
fn grant_by_a_script_is_sent_after_the_script_ends() {
    const SCRIPT: &str = "redis.call('RLOCK.RELEASE', KEYS[1], 'a')
        local function now() local time = redis.call('TIME'); return time[1] * 1000 + time[2] / 1000 end
        local began = now()
        while now() - began < 1000 do end
        return 'ended'";
    let server = Server::with(&["busy-reply-threshold 20"]);
    let mut client = server.client();
    client.acquire("job a PX 60000");
    let mut waiter = server.blocked_waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    client.send([&b"EVAL"[..], SCRIPT.as_bytes(), b"1", b"job"]);
    let early = waiter.reply_within(Duration::from_millis(500));
    assert_eq!(early.expect_err("a reply arrived during the script").kind(), ErrorKind::TimedOut);
    assert_eq!(client.reply(), "ended");
    assert!(waiter.reply().int() > 0);
}

#[test]
fn grant_used_by_its_owner_survives_the_connection() {
    let server = Server::start();
    let mut client = server.client();
    // The owner uses the hold over another connection, in the same turn in which the first one is
    // killed.
    for touch in ["RLOCK.RENEW job b", "RLOCK.ACQUIRE job b REQ 1", "RLOCK.ACQUIRE job b REQ 2"] {
        client.acquire("job a PX 60000");
        let leaver = server.waiter("RLOCK.ACQUIRE job b PX 60000 REQ 1 BLOCK 0");
        let kill = format!("CLIENT KILL ID {}", leaver.id()).into();
        let step = ["RLOCK.RELEASE job a".into(), touch.into(), kill];
        assert!(client.call_in_one_step(&step)[1].int() > 0, "{touch}");
        // The expiry of a later lease shows that the timer has run.
        client.acquire("marker c PX 20");
        eventually(SOON, || client.call("EXISTS marker") == 0);
        assert!(client.call("RLOCK.HOLDS job b").int() > 0, "{touch}");
        assert_eq!(client.call("RLOCK.FORCERELEASE job"), 1);
    }
}

#[test]
fn request_repeated_after_its_connection_was_killed_holds_once() {
    let server = Server::start();
    let mut client = server.client();
    for _ in 0..RACES {
        client.acquire("job a PX 60000");
        let leaver = server.waiter("RLOCK.ACQUIRE job b PX 60000 REQ 1 BLOCK 0");
        let kill = format!("CLIENT KILL ID {}", leaver.id()).into();
        let repeat = "RLOCK.ACQUIRE job b PX 60000 REQ 1 BLOCK 0".into();
        let token = client.call_in_one_step(&["RLOCK.RELEASE job a".into(), kill, repeat])[2].int();
        client.acquire("marker c PX 5");
        eventually(SOON, || client.call("EXISTS marker") == 0);
        let holder = client.holder("job").expect("a holder");
        assert_eq!(holder.identity(), ("b", 1, token));
        assert_eq!(client.call("RLOCK.RELEASE job b"), 0);
    }
}

#[test]
fn killed_waiter_does_not_crash_the_server() {
    let mut server = Server::with_aof(&["appendfsync no"]);
    let mut client = server.client();
    client.acquire("job a PX 60000");
    let mut next = server.waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    let killed = server.waiter("RLOCK.ACQUIRE job c PX 60000 BLOCK 0");
    // The grant creates the key while another client waits for it. When Redis 7.0 signals the key
    // to a blocked client outside of a command, and that client does not accept it, the client
    // stays the server's "current client", even after a later command has freed it.
    client.call("DEL job");
    next.reply().int();
    assert_eq!(client.call(format!("CLIENT KILL ID {}", killed.id())), 1);
    // Reuse the freed memory.
    for size in (300..1400).step_by(20) {
        for number in 0..40 {
            client.call(format!("SET filler:{size}:{number} {}", "x".repeat(size)));
        }
    }
    // Then the timer propagates two effects at once, for which the server reads its current client.
    client.call("RLOCK.FORCERELEASE job");
    client.acquire("job a PX 50");
    client.acquire("job b PX 60000 BLOCK 0");
    server.assert_alive();
}

#[test]
fn unused_grant_uses_no_memory() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("job a PX 60000");
    let mut waiter = server.waiter("RLOCK.ACQUIRE job b PX 3600000 BLOCK 0");
    client.call("RLOCK.RELEASE job a");
    waiter.reply().int();
    let before = client.info_number("used_memory");
    for _ in 0..20_000 {
        client.call("PING");
    }
    let grown = client.info_number("used_memory") - before;
    assert!(grown < 200_000, "{grown} more bytes after 20,000 turns of the event loop");
}
