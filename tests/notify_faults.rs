//! Failures with BLOCK … NOTIFY: servers without some command, killed subscribers, and closed
//! connections.

use std::io::ErrorKind;
use std::time::Duration;

use crate::support::{Client, Command, EXCLUSIVE, Sentinels, Server, Stopwatch, eventually, message, subscriber};

/// A fair lock keeps a place for a grace of 5 s before the waiter behind it is served.
const SOON: Duration = Duration::from_secs(30);
const DEMOTED: Duration = Duration::from_secs(30);

const DISABLED: [&str; 2] = ["rename-command PUBSUB \"\"", "rename-command PUBSUB SOMETHING"];

#[test]
fn notify_is_refused_if_the_module_cannot_see_subscribers() {
    for line in DISABLED {
        let server = Server::with(&[line]);
        assert!(server.log().contains("rlock: requests with NOTIFY are refused"), "{line}");
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let refused = client.call("RLOCK.ACQUIRE job b BLOCK 0 NOTIFY answers REQ 1");
        assert!(refused.expect_error("ERR").contains("PUBSUB"), "{refused:?}");
        assert_eq!(client.info_number("rlock_waiting"), 0);
        let mut blocked = server.blocked_waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
        client.call("RLOCK.RELEASE job a");
        blocked.reply().int();
    }
}

/// The module publishes without the PUBLISH command.
#[test]
fn notify_works_with_a_renamed_publish() {
    let server = Server::with(&["rename-command PUBLISH \"\"", "rename-command SUBSCRIBE LISTEN"]);
    assert!(!server.log().contains("NOTIFY are refused"));
    let (mut client, mut messages) = (server.client(), server.client());
    messages.call("LISTEN answers");
    client.acquire("job a PX 60000");
    assert_eq!(client.call("RLOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
    client.call("RLOCK.RELEASE job a");
    assert!(message(&mut messages).starts_with("granted 1 "));
}

#[test]
fn cluster_node_without_exists_logs_a_warning() {
    let cluster_lines = ["cluster-enabled yes", &format!("cluster-port {}", crate::support::free_port())];
    let server = Server::with(&[&cluster_lines[..], &["rename-command EXISTS \"\""]].concat());
    assert!(server.log().contains("command EXISTS is renamed or disabled"));
    let sound = Server::with(&["rename-command EXISTS \"\""]);
    assert!(!sound.log().contains("command EXISTS"));
}

#[test]
fn server_with_all_commands_logs_no_warning() {
    let log = Server::start().log();
    assert!(log.contains("<module> rlock") && !log.contains("is renamed or disabled"), "{log}");
}

/// A RESP3 connection that both waits and listens.
fn listening_waiter(server: &Server) -> Client {
    let mut client = server.client();
    client.call("HELLO 3").pairs();
    client.speak(server.family());
    client.call("SUBSCRIBE answers");
    client
}

/// All messages of one turn go to the subscriber's buffer before anything is sent, and exceed its
/// limit.
#[test]
fn subscriber_killed_by_its_output_buffer_keeps_no_session() {
    const LOCKS: usize = 500;
    for family in EXCLUSIVE {
        let server = Server::with(&["client-output-buffer-limit pubsub 8kb 0 0"]).speaking(*family);
        let (mut client, mut both) = (server.client(), listening_waiter(&server));
        let keys: Vec<String> = (0..LOCKS).map(|number| format!("job-{number}")).collect();
        for (number, key) in keys.iter().enumerate() {
            client.make(key);
            client.acquire(&format!("{key} a PX 60000"));
            let id = number + 1;
            let ask = format!("LOCK.ACQUIRE {key} b PX 60000 SESSION 0 BLOCK 0 NOTIFY answers REQ {id}");
            assert_eq!(both.call(ask), "WAITING");
        }
        let mut next = server.waiter("LOCK.ACQUIRE job-7 c PX 60000 BLOCK 0");
        // In one transaction: a server that reads the releases in parts also publishes in parts,
        // and then the buffer might suffice.
        client.call("MULTI");
        for key in &keys {
            client.call(format!("LOCK.RELEASE {key} a"));
        }
        assert_eq!(client.call("EXEC").array().len(), LOCKS);
        next.reply_within(SOON).expect("the lock is granted").int();
        eventually(SOON, || client.info_number("rlock_held") == 1);
        assert_eq!(client.info_number("rlock_waiting"), 0);
        assert!(server.log().contains("output buffer limits"), "the subscriber was killed for its buffer");
    }
}

#[test]
fn request_cut_at_any_byte_leaves_no_wait() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let request = "LOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ 1";
        let (mut cut, mut length) = (0, usize::MAX);
        while cut <= length {
            let mut asker = server.client();
            length = asker.send_beginning(request, cut);
            if cut == length {
                eventually(SOON, || client.waiting_owners("job") == ["b"]);
            }
            cut += 1;
        }
        eventually(SOON, || client.info_number("rlock_waiting") == 0);
        client.call("LOCK.RELEASE job a");
        assert_eq!(client.call("LOCK.HOLDS job b"), 0);
    }
}

/// The length of a message with a token, with its protocol frame.
const BYTES: usize = 60;

#[test]
fn session_ends_if_the_connection_closes_at_any_byte_of_the_message() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        for cut in 0..BYTES {
            client.acquire("job a PX 60000");
            let mut both = listening_waiter(&server);
            assert_eq!(both.call("LOCK.ACQUIRE job b PX 60000 SESSION 0 BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
            let mut next = server.waiter("LOCK.ACQUIRE job c PX 60000 BLOCK 0");
            client.call("LOCK.RELEASE job a");
            both.read_bytes_and_close(cut);
            next.reply_within(SOON).expect("the lock is granted").int();
            assert_eq!(client.call("LOCK.RELEASE job c"), 0);
        }
    }
}

#[test]
fn repeated_request_returns_the_grant_if_the_message_was_cut() {
    for server in Server::for_each(EXCLUSIVE) {
        let (mut client, mut asker) = (server.client(), server.client());
        for cut in 0..BYTES {
            client.acquire("job a PX 60000");
            let messages = subscriber(&server, "answers");
            let ask = format!("LOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ {}", cut + 1);
            assert_eq!(asker.call(ask.as_str()), "WAITING");
            client.call("LOCK.RELEASE job a");
            messages.read_bytes_and_close(cut);
            let token = asker.call(ask).int();
            assert_eq!(client.holder("job").expect("a holder").identity(), ("b", 1, token));
            assert_eq!(asker.call(format!("LOCK.RELEASE job b TOKEN {token}")), 0);
        }
    }
}

/// `a` holds `job`, and `b` waits for it with NOTIFY. Returns the connection of both, and the
/// subscriber.
fn notified_waiter(server: &Server) -> (Client, Client) {
    let (mut client, messages) = (server.client(), subscriber(server, "answers"));
    client.acquire("job a PX 60000");
    assert_eq!(client.call("LOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
    (client, messages)
}

/// The lock is granted before the server becomes a replica, and the message would come after that.
/// Only the new primary may say who holds the lock.
#[test]
fn grant_in_the_turn_of_a_demotion_is_not_sent() {
    for server in Server::for_each(EXCLUSIVE) {
        let (mut client, mut messages) = notified_waiter(&server);
        let step = ["LOCK.RELEASE job a", "REPLICAOF 127.0.0.1 1"].map(Command::from);
        let replies = client.call_in_one_step(&step);
        assert_eq!(replies[0], 0);
        assert_eq!(replies[1], "OK");
        let received = message(&mut messages);
        assert!(received.starts_with("error 1 UNBLOCKED "), "{received}");
        assert_eq!(client.call("LOCK.HOLDS job b"), 1, "the lock was granted");
    }
}

#[test]
fn waiter_that_loses_permissions_gets_noperm_and_the_next_is_served() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut admin = server.client();
        let mut messages = subscriber(&server, "answers");
        for change in ["resetkeys ~other", "-@all +ping", "resetchannels &other"] {
            admin.acquire("job a PX 60000");
            admin.call("ACL SETUSER worker reset on >secret ~* &* +@all");
            let mut asker = server.client();
            assert_eq!(asker.call("AUTH worker secret"), "OK");
            assert_eq!(asker.call("LOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
            let mut next = server.waiter("LOCK.ACQUIRE job c PX 60000 BLOCK 0");
            assert_eq!(admin.call(format!("ACL SETUSER worker {change}")), "OK");
            admin.call("LOCK.RELEASE job a");
            assert!(message(&mut messages).starts_with("error 1 NOPERM "), "{change}");
            next.reply_within(SOON).expect("the lock is granted").int();
            assert_eq!(admin.call("LOCK.RELEASE job c"), 0);
        }
    }
}

#[test]
fn macquire_waiter_that_loses_its_channel_gets_noperm_and_the_next_is_served() {
    let server = Server::start();
    let mut admin = server.client();
    let mut messages = subscriber(&server, "answers");
    admin.acquire("x a PX 60000");
    admin.call("ACL SETUSER worker on >secret ~* &* +@all");
    let mut asker = server.client();
    assert_eq!(asker.call("AUTH worker secret"), "OK");
    assert_eq!(asker.call("RLOCK.MACQUIRE 2 x y b PX 60000 BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
    let mut next = server.waiter("RLOCK.MACQUIRE 2 x y c PX 60000 BLOCK 0");
    assert_eq!(admin.call("ACL SETUSER worker resetchannels"), "OK");
    admin.call("RLOCK.RELEASE x a");
    assert!(message(&mut messages).starts_with("error 1 NOPERM "));
    next.reply_within(SOON).expect("the locks are granted").array();
}

#[test]
fn without_memory_new_waits_are_refused_and_earlier_ones_served() {
    for server in Server::for_each(EXCLUSIVE) {
        let (mut client, mut messages) = notified_waiter(&server);
        assert_eq!(client.call("CONFIG SET maxmemory 1"), "OK");
        client.call("LOCK.ACQUIRE job c PX 60000 BLOCK 0 NOTIFY answers REQ 2").expect_error("OOM");
        client.call("LOCK.RELEASE job a");
        let token = client.holder("job").expect("a holder").token;
        assert!(message(&mut messages).starts_with(&format!("granted 1 {token} for ")));
        assert_eq!(client.call("CONFIG SET maxmemory 0"), "OK");
    }
}

/// A waiter at a primary that Sentinel replaces learns of it, by a message or by the end of its
/// connection.
#[test]
fn timed_waits_end_when_sentinel_replaces_the_primary() {
    const BLOCK_MS: u64 = 1000;
    let primary = Server::with(&[]);
    let replica = Server::with(&[&format!("replicaof 127.0.0.1 {}", primary.port())]);
    replica.catch_up_with(&primary);
    let sentinels = Sentinels::of(primary.port(), 1);
    let mut client = primary.client();
    client.acquire("job a PX 60000");
    let mut messages = subscriber(&primary, "answers");
    let mut asker = primary.client();
    assert_eq!(asker.call("RLOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTIFY answers REQ 1"), "WAITING");
    let mut sentinel = Client::connect(sentinels.ports().next().expect("a Sentinel")).expect("a connection");
    let mut timed = subscriber(&primary, "timed");
    let watch = Stopwatch::start();
    assert_eq!(sentinel.call("SENTINEL FAILOVER fleet"), "OK");
    let ask = format!("RLOCK.ACQUIRE job c PX 60000 BLOCK {BLOCK_MS} NOTIFY timed REQ 2");
    assert_eq!(client.call(ask), "WAITING");
    let received = timed.reply_within(SOON);
    assert!(!received.as_ref().is_err_and(|error| error.kind() == ErrorKind::TimedOut), "{received:?}");
    watch.assert_took_ms(0..BLOCK_MS + 2000, "the end of a wait with a time");
    if let Ok(received) = received {
        assert!(["nil 2", "error 2 UNBLOCKED"].iter().any(|text| received.array()[2].text().starts_with(text)));
    }
    eventually(SOON, || replica.has_role("master"));
    // Sentinel demotes the old primary when it next polls its role.
    eventually(DEMOTED, || primary.has_role("slave"));
    let since_demoted = Stopwatch::start();
    match messages.reply_within(SOON) {
        Ok(received) => assert!(received.array()[2].text().starts_with("error 1 UNBLOCKED "), "{received:?}"),
        Err(error) => assert_ne!(error.kind(), ErrorKind::TimedOut),
    }
    since_demoted.assert_took_ms(0..2000, "the end of a wait without a time");
    assert!(replica.client().holder("job").is_some_and(|holder| holder.owner == "a"));
}
