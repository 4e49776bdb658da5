//! BLOCK … NOTIFY: waiting without a blocked connection. The whole suite also runs in this mode
//! (`RLOCK_WAIT_BY_NOTIFY`). This file tests channels, subscribers and messages, which only this
//! mode has.

use std::time::{Duration, Instant};

use crate::support::{
    ALL, Client, Command, EXCLUSIVE, FAIR, MUTEX, Reply, Server, Stopwatch, assert_silent, eventually, message,
    subscriber,
};

const SOON: Duration = Duration::from_secs(5);

/// The setup of most tests.
struct Scene {
    server: Server,
    client: Client,
    /// Subscribed to the channel `answers`.
    messages: Client,
}

/// One scene for each family: `a` holds `job`.
fn scenes() -> impl Iterator<Item = Scene> {
    Server::for_each(EXCLUSIVE).map(|server| {
        let (mut client, messages) = (server.client(), subscriber(&server, "answers"));
        client.acquire("job a PX 60000");
        Scene { server, client, messages }
    })
}

/// A RESP3 connection, which can wait and listen at the same time.
fn resp3(server: &Server) -> Client {
    let mut client = server.client();
    client.call("HELLO 3").pairs();
    client
}

/// Rule N1.
#[test]
fn one_connection_can_wait_for_many_locks_and_send_other_commands() {
    for server in Server::for_each(EXCLUSIVE) {
        let (mut holder, mut client) = (server.client(), server.client());
        let mut messages = subscriber(&server, "answers");
        for number in 0..10 {
            client.make(&format!("job-{number}"));
            holder.acquire(&format!("job-{number} a PX 60000"));
            assert_eq!(
                client.call(format!("LOCK.ACQUIRE job-{number} b BLOCK 0 NOTIFY answers REQ {}", number + 1)),
                "WAITING"
            );
        }
        assert_eq!(client.call("PING"), "PONG");
        for number in (0..10).rev() {
            assert_eq!(holder.call(format!("LOCK.RELEASE job-{number} a")), 0);
            let token = client.holder(&format!("job-{number}")).expect("a holder").token;
            assert!(message(&mut messages).starts_with(&format!("granted {} {token} for ", number + 1)));
        }
        assert_eq!(client.info_number("rlock_waiting"), 0);
    }
}

#[test]
fn message_has_the_reply_that_a_blocked_connection_would_get() {
    let server = Server::start();
    let mut client = server.client();
    let mut messages = subscriber(&server, "answers");
    client.acquire("x a PX 60000");
    client.acquire("y b PX 60000");
    assert_eq!(client.call("RLOCK.ACQUIRE x b BLOCK 50 NOTIFY answers REQ 1"), "WAITING");
    assert_eq!(message(&mut messages), "nil 1");
    assert_eq!(client.call("RLOCK.MACQUIRE 2 x z c BLOCK 0 NOTIFY answers REQ 2"), "WAITING");
    client.call("RLOCK.RELEASE x a");
    let tokens = ["x", "z"].map(|key| client.holder(key).expect("a holder").token.to_string());
    assert!(message(&mut messages).starts_with(&format!("granted 2 {} for ", tokens.join(" "))));
    assert_eq!(client.call("RLOCK.ACQUIRE y d BLOCK 0 NOTIFY answers REQ 3"), "WAITING");
    client.call("SET y string");
    assert!(message(&mut messages).starts_with("error 3 WRONGTYPE "));
    assert_eq!(client.call("RLOCK.ACQUIRE x d BLOCK 0 NOTIFY answers REQ 4"), "WAITING");
    assert_eq!(client.call("RLOCK.CANCEL x d REQ 4"), 1);
    assert!(message(&mut messages).starts_with("error 4 UNBLOCKED "));
}

/// Rule N1.
#[test]
fn resp3_connection_gets_the_reply_before_the_message() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = resp3(&server);
        client.speak(server.family());
        client.call("SUBSCRIBE answers");
        client.call("LOCK.ACQUIRE job a PX 60000");
        // First in one step, then in one transaction that frees the lock for which it has just
        // begun to wait.
        let answers = client.call_in_one_step(&[
            "LOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ 1".into(),
            "LOCK.RELEASE job a".into(),
        ]);
        assert_eq!(answers, [Reply::Text(b"WAITING".to_vec()), Reply::Int(0)]);
        assert!(message(&mut client).starts_with("granted 1 "));
        for (command, answer) in [
            ("MULTI", "OK"),
            ("LOCK.ACQUIRE job c PX 60000 BLOCK 0 NOTIFY answers REQ 2", "QUEUED"),
            ("LOCK.RELEASE job b", "QUEUED"),
        ] {
            assert_eq!(client.call(command), answer);
        }
        assert_eq!(client.call("EXEC").array(), [Reply::Text(b"WAITING".to_vec()), Reply::Int(0)]);
        assert!(message(&mut client).starts_with("granted 2 "));
    }
}

#[test]
fn grant_without_a_subscriber_is_undone_and_the_next_waiter_served() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        // A subscriber of a pattern does not count as a listener of the channel.
        let mut pattern = server.client();
        pattern.call("PSUBSCRIBE *");
        assert_eq!(client.call("LOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY no-listener REQ 1"), "WAITING");
        let mut next = server.notified_waiter("LOCK.ACQUIRE job c PX 60000 BLOCK 0");
        client.call("LOCK.RELEASE job a");
        if server.family() == FAIR {
            // The place stays at the head for the grace.
            eventually(SOON, || client.places("job") == ["b detached", "c connected"]);
            assert_eq!(client.call("RFAIRLOCK.CANCEL job b"), 1);
        }
        let token = next.reply().int();
        assert_eq!(client.holder("job").expect("a holder").identity(), ("c", 1, token));
        assert_eq!(client.info_number("rlock_unheard"), 1);
        let received = pattern.reply().array()[3].text();
        assert!(
            received.contains(&format!(" {token} for ")),
            "only messages with a subscriber are published: {received}"
        );
    }
}

#[test]
fn unsubscribed_waiter_loses_the_grant_and_can_ask_again() {
    for Scene { server: _server, mut client, mut messages } in scenes() {
        assert_eq!(client.call("LOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
        messages.call("UNSUBSCRIBE answers");
        client.call("LOCK.RELEASE job a");
        eventually(SOON, || client.call("LOCK.HOLDS job b") == 0);
        assert!(client.acquire("job b PX 60000 BLOCK 0 NOTIFY answers REQ 1") > 0);
    }
}

#[test]
fn wait_ends_with_the_connection_that_asked() {
    for Scene { server, mut client, mut messages } in scenes() {
        let mut asked = server.client();
        assert_eq!(asked.call("LOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
        drop(asked);
        assert!(message(&mut messages).starts_with("error 1 UNBLOCKED "));
        client.call("LOCK.RELEASE job a");
        assert_eq!(client.call("LOCK.HOLDS job b"), 0);
        assert_silent(&mut messages);
    }
}

#[test]
fn connection_closed_between_grant_and_message_holds_nothing() {
    for Scene { server, mut client, mut messages } in scenes() {
        let mut asked = server.client();
        assert_eq!(asked.call("LOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
        // In one step: the messages of a turn are sent at its end.
        let kill = format!("CLIENT KILL ID {}", asked.id());
        let answers = client.call_in_one_step(&["LOCK.RELEASE job a".into(), kill.into()]);
        assert_eq!(answers, [Reply::Int(0), Reply::Int(1)]);
        assert!(message(&mut messages).starts_with("error 1 UNBLOCKED "));
        eventually(SOON, || client.call("LOCK.HOLDS job b") == 0);
        assert_eq!(client.info_number("rlock_waiting"), 0);
    }
}

#[test]
fn killed_subscriber_leaves_no_hold() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let mut both = resp3(&server);
        both.speak(server.family());
        both.call("SUBSCRIBE answers");
        both.send("LOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ 1");
        eventually(SOON, || client.waiting_owners("job") == ["b"]);
        assert_eq!(client.call(format!("CLIENT KILL ID {}", both.id())), 1);
        client.call("LOCK.RELEASE job a");
        eventually(SOON, || client.call("LOCK.HOLDS job b") == 0);
    }
}

#[test]
fn repeated_request_moves_the_wait() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        let (mut one, mut other) = (subscriber(&server, "one"), subscriber(&server, "other"));
        client.acquire("job a PX 60000");
        let ask = |channel| format!("LOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY {channel} REQ 1");
        let mut first = server.client();
        assert_eq!(first.call(ask("one")), "WAITING");
        // Over another connection, to the same channel: no message is sent, and the wait now
        // belongs to that connection.
        let mut second = server.client();
        assert_eq!(second.call(ask("one")), "WAITING");
        drop(first);
        assert_silent(&mut one);
        assert_eq!(client.waiting_owners("job"), ["b"]);
        assert_eq!(second.call(ask("other")), "WAITING");
        assert!(message(&mut one).starts_with("error 1 SUPERSEDED "));
        // From a message to a blocked connection, and back.
        let mut blocked = server.blocked_waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0 REQ 1");
        assert!(message(&mut other).starts_with("error 1 SUPERSEDED "));
        assert_eq!(second.call(ask("other")), "WAITING");
        blocked.reply().expect_error("SUPERSEDED");
        client.call("LOCK.RELEASE job a");
        let token = message(&mut other);
        assert_eq!(second.call(ask("other")).int().to_string(), token.split(' ').nth(2).expect("a token"));
        assert_eq!(client.call("LOCK.HOLDS job b"), 1);
    }
}

#[test]
fn repeated_request_without_block_ends_the_wait() {
    for Scene { server, mut client, mut messages } in scenes() {
        assert_eq!(client.call("LOCK.ACQUIRE job b BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
        assert_eq!(client.call("LOCK.ACQUIRE job b REQ 1"), Reply::Nil);
        assert!(message(&mut messages).starts_with("error 1 SUPERSEDED "));
        assert_eq!(client.info_number("rlock_waiting"), 0);
        if server.family() == FAIR {
            assert_eq!(client.places("job"), ["b detached"]);
        }
    }
}

#[test]
fn notify_needs_a_connection_and_an_id() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.call("LOCK.ACQUIRE job b BLOCK 0 NOTIFY answers").expect_error("ERR");
        client.call("LOCK.ACQUIRE job b NOTIFY answers REQ 1").expect_error("ERR");
        client.call("LOCK.ACQUIRE job b BLOCK 0 NOTIFY REQ 1").expect_error("ERR");
        client.call("LOCK.ACQUIRE job b BLOCK 0 REQ 1 NOTIFY").expect_error("ERR");
        client.call("LOCK.ACQUIRE job b BLOCK 0 NOTIFY one REQ 1 NOTIFY two").expect_error("ERR");
        client.eval("LOCK.ACQUIRE job b BLOCK 0 NOTIFY answers REQ 1").expect_error("ERR");
        assert!(client.is_free("job"));
    }
}

#[test]
fn notify_needs_permission_to_publish_to_the_channel() {
    for server in Server::for_each(ALL) {
        let mut admin = server.client();
        assert_eq!(admin.call("ACL SETUSER worker on >secret ~* +@all resetchannels &mine:*"), "OK");
        let mut client = server.client();
        assert_eq!(client.call("AUTH worker secret"), "OK");
        client.call("LOCK.ACQUIRE job b BLOCK 0 NOTIFY others REQ 1").expect_error("NOPERM");
        client.call("LOCK.ACQUIRE job b ONCE REQ 1 NOTIFY others BLOCK 0").expect_error("NOPERM");
        assert!(client.is_free("job"));
        let denied = format!("{:?}", admin.call("ACL LOG 1"));
        assert!(denied.contains("others") && denied.contains("channel"), "{denied}");
        client.acquire("job b BLOCK 0 NOTIFY mine:1 REQ 1");
    }
    let server = Server::start();
    let mut admin = server.client();
    assert_eq!(admin.call("ACL SETUSER worker on >secret ~* +@all resetchannels &mine:*"), "OK");
    let mut client = server.client();
    assert_eq!(client.call("AUTH worker secret"), "OK");
    client.call("RLOCK.MACQUIRE 2 x y b BLOCK 0 NOTIFY others REQ 1").expect_error("NOPERM");
    client.call("RLOCK.MACQUIRE 2 x y b BLOCK 0 NOTIFY mine:1 REQ 1").array();
}

#[test]
fn demotion_sends_unblocked_to_waiters() {
    for Scene { server: _server, mut client, mut messages } in scenes() {
        let other = Server::start();
        assert_eq!(client.call("LOCK.ACQUIRE job b BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
        assert_eq!(client.call(format!("REPLICAOF 127.0.0.1 {}", other.port())), "OK");
        assert!(message(&mut messages).starts_with("error 1 UNBLOCKED "));
        eventually(SOON, || client.info_number("rlock_waiting") == 0);
    }
}

#[test]
fn cancel_ends_blocked_and_notified_waits_and_returns_their_number() {
    for Scene { server, mut client, mut messages } in scenes() {
        assert_eq!(client.call("LOCK.CANCEL job b"), 0);
        assert_eq!(client.call("LOCK.ACQUIRE job b BLOCK 0 NOTIFY answers REQ 7"), "WAITING");
        let mut blocked = server.blocked_waiter("LOCK.ACQUIRE job c BLOCK 0");
        assert_eq!(client.call("LOCK.CANCEL job b REQ 6"), 0);
        assert_eq!(client.call("LOCK.CANCEL job b REQ 7"), 1);
        assert!(message(&mut messages).starts_with("error 7 UNBLOCKED "));
        assert_eq!(client.call("LOCK.CANCEL job c"), 1);
        blocked.reply().expect_error("UNBLOCKED");
        assert_eq!(client.info_number("rlock_waiting"), 0);
    }
}

#[test]
fn connection_with_replies_off_gets_its_messages() {
    for Scene { server, mut client, mut messages } in scenes() {
        let mut mute = server.client();
        mute.send("CLIENT REPLY OFF");
        mute.send("LOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ 1");
        eventually(SOON, || client.waiting_owners("job") == ["b"]);
        client.call("LOCK.RELEASE job a");
        assert!(message(&mut messages).starts_with("granted 1 "));
    }
}

#[test]
fn repeated_request_gets_no_message_of_its_earlier_wait() {
    for Scene { server: _server, mut client, mut messages } in scenes() {
        let ask = "LOCK.ACQUIRE job b PX 60000 BLOCK 50 NOTIFY answers REQ 1";
        assert_eq!(client.call(ask), "WAITING");
        // DEBUG SLEEP and the repeated request come in one step, so that no timer runs in between.
        let again = "LOCK.ACQUIRE job b PX 60000 BLOCK 60000 NOTIFY answers REQ 1";
        let step = ["DEBUG SLEEP 0.2".into(), Command::from(again), "LOCK.RELEASE job a".into()];
        assert_eq!(client.call_in_one_step(&step)[1], "WAITING");
        assert!(message(&mut messages).starts_with("granted 1 "));
        assert_eq!(client.call("LOCK.HOLDS job b"), 1);
    }
}

/// On a busy machine a message may arrive after its lease has expired. At least one of 200 does
/// not.
#[test]
fn grant_with_a_lease_of_1_ms_is_sent() {
    for Scene { server: _server, mut client, mut messages } in scenes() {
        let mut received = (1..=200).map(|id| {
            assert_eq!(client.call(format!("LOCK.ACQUIRE job b PX 1 BLOCK 0 NOTIFY answers REQ {id}")), "WAITING");
            client.call("LOCK.RELEASE job a");
            let received = message(&mut messages);
            eventually(SOON, || client.is_free("job"));
            client.acquire("job a PX 60000");
            received
        });
        assert!(received.any(|message| message.starts_with("granted ")));
    }
}

/// When a wait ends, the server runs the next command of that connection after it has announced
/// that it will sleep.
#[test]
fn timed_grant_by_a_command_behind_a_wait_does_not_wait_for_the_next_tick() {
    let server = Server::with(&["hz 1", "dynamic-hz no"]);
    let mut messages = subscriber(&server, "answers");
    let (mut client, mut holder) = (server.client(), server.client());
    let mut waited = Duration::ZERO;
    for round in 1..=5 {
        holder.acquire("job a PX 60000");
        assert_eq!(client.call(format!("RLOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ {round}")), "WAITING");
        holder.try_send(&["BLPOP list 0".into(), "RLOCK.RELEASE job a".into()]).expect("the commands are sent");
        eventually(Duration::from_secs(5), || client.info("blocked_clients") == "1");
        let began = Instant::now();
        client.call("LPUSH list 1");
        assert!(message(&mut messages).starts_with("granted"), "round {round}");
        waited += began.elapsed();
        holder.reply();
        assert_eq!(holder.reply(), 0);
        assert_eq!(client.call("RLOCK.RELEASE job b"), 0);
    }
    // 2.5 seconds in total if each grant waits for the tick.
    assert!(waited < Duration::from_millis(1000), "{waited:?}");
}

/// Ends more requests in one transaction than the server sends messages for in one turn. Nothing
/// except the messages would wake the server.
#[test]
fn timed_6000_messages_at_once_do_not_wait_for_the_next_tick() {
    const REQUESTS: usize = 6000;
    /// Enough that no connection gets more bytes in one turn than its socket takes.
    const CHANNELS: usize = 4;
    let server = Server::with(&["hz 1"]);
    let mut client = server.client();
    let mut subscribers: Vec<_> =
        (0..CHANNELS).map(|number| subscriber(&server, &format!("answers:{number}"))).collect();
    client.acquire("job a PX 600000");
    for first in (0..REQUESTS).step_by(100) {
        let ask = |id: usize| {
            format!("RLOCK.ACQUIRE job owner-{id} BLOCK 0 NOTIFY answers:{} REQ {id}", id % CHANNELS).into()
        };
        client.call_in_one_step(&(first + 1..=first + 100).map(ask).collect::<Vec<Command>>());
    }
    client.call("MULTI");
    let cancel = |id: usize| format!("RLOCK.CANCEL job owner-{id}").into();
    client.call_in_one_step(&(1..=REQUESTS).map(cancel).collect::<Vec<Command>>());
    let watch = Stopwatch::start();
    client.send("EXEC");
    for messages in &mut subscribers {
        for _ in 0..REQUESTS / CHANNELS {
            assert!(message(messages).starts_with("error "));
        }
    }
    watch.assert_took_ms(0..500, "the messages");
}

#[test]
fn repeated_request_that_waits_again_keeps_no_earlier_grant() {
    for server in Server::for_each(&[MUTEX]) {
        let (mut client, mut asker) = (server.client(), server.client());
        let mut messages = subscriber(&server, "answers");
        client.call("LOCK.MACQUIRE 2 {s}x {s}y a PX 60000").array();
        assert_eq!(asker.call("LOCK.MACQUIRE 2 {s}x {s}y b PX 60000 BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
        // The request is granted both keys, loses one, and is sent again before the message goes
        // out.
        let step = [
            "LOCK.MRELEASE 2 {s}x {s}y a",
            "LOCK.FORCERELEASE {s}x",
            "LOCK.ACQUIRE {s}x c PX 60000",
            "LOCK.MACQUIRE 2 {s}x {s}y b PX 60000 BLOCK 50 NOTIFY answers REQ 1",
        ];
        assert_eq!(asker.call_in_one_step(&step.map(Command::from))[3], "WAITING");
        assert_eq!(message(&mut messages), "nil 1");
        eventually(SOON, || client.is_free("{s}y"));
    }
}

#[test]
fn timed_100_waiters_without_subscribers_delay_the_next_by_less_than_500_ms() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("job a PX 60000");
    for number in 0..100 {
        let ask = format!("RLOCK.ACQUIRE job unsubscribed-{number} PX 60000 BLOCK 0 NOTIFY no-listener-{number} REQ 1");
        assert_eq!(client.call(ask), "WAITING");
    }
    let mut next = server.notified_waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    let watch = Stopwatch::start();
    client.call("RLOCK.RELEASE job a");
    next.reply_within(SOON).expect("the lock is granted").int();
    watch.assert_took_ms(0..500, "the grants without subscribers");
    assert_eq!(client.info_number("rlock_unheard"), 100);
}

#[test]
fn channel_name_is_limited_to_512_bytes() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("job a PX 60000");
    let ask = |length| format!("RLOCK.ACQUIRE job b BLOCK 100 NOTIFY {} REQ {length}", "c".repeat(length));
    client.call(ask(513)).expect_error("ERR");
    assert_eq!(client.call(ask(512)), "WAITING");
}
