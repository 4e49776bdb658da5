//! NOTE: a text for people, stored with a hold and shown with it.

use std::time::Duration;

use crate::support::{Client, Command, EXCLUSIVE, MUTEX, Reply, Server, eventually, in_script};

const SOON: Duration = Duration::from_secs(10);

fn text(text: &str) -> Reply {
    Reply::Text(text.as_bytes().to_vec())
}

/// The note that INFO shows for the first holder, if any.
fn note(client: &mut Client, key: &str) -> Option<Reply> {
    let holder = client.call(format!("RLOCK.INFO {key}")).field("holders").array()[0].clone();
    holder.field_names().contains(&"note".to_owned()).then(|| holder.field("note"))
}

/// Rule E1.
#[test]
fn note_is_shown_with_its_hold() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        assert_eq!(note(&mut client, "job"), None);
        client.call("LOCK.RELEASE job a").int();
        client.acquire("job a PX 60000 NOTE host-1");
        assert_eq!(note(&mut client, "job"), Some(text("host-1")));
    }
}

/// Rule E2.
#[test]
fn note_can_be_kept_replaced_and_removed() {
    for server in Server::for_each(&[MUTEX]) {
        let mut client = server.client();
        client.acquire("job a PX 60000 REQ 1 NOTE first");
        for (command, shown) in [
            ("LOCK.ACQUIRE job a PX 60000 REQ 2", "first"),
            ("LOCK.RENEW job a", "first"),
            ("LOCK.ACQUIRE job a PX 60000 REQ 3 NOTE again", "again"),
            ("LOCK.ACQUIRE job a PX 60000 REQ 3 NOTE retried", "retried"),
            ("LOCK.ACQUIRE job a PX 60000 ONCE NOTE once", "once"),
            ("LOCK.RELEASE job a REQ 4", "once"),
            ("LOCK.RENEW job a NOTE renewed", "renewed"),
        ] {
            client.call(command).int();
            assert_eq!(note(&mut client, "job"), Some(text(shown)), "{command}");
        }
        let without: Command = [b"RLOCK.RENEW".as_slice(), b"job", b"a", b"NOTE", b""].into();
        client.call(without).int();
        assert_eq!(note(&mut client, "job"), None);
        client.call("LOCK.RENEW job a NOTE last").int();
        client.call("LOCK.FORCERELEASE job").int();
        client.acquire("job a PX 60000");
        assert_eq!(note(&mut client, "job"), None, "a note ends with its hold");
    }
}

/// Rule E3.
#[test]
fn note_of_a_waiter_is_shown_with_the_waiter_and_later_with_the_hold() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000 NOTE holder");
        let mut waiter = server.waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0 NOTE waiter");
        let shown = client.call("RLOCK.WAITERS job").array()[0].clone();
        assert_eq!(shown.field("note"), text("waiter"));
        client.call("RLOCK.FORCERELEASE job");
        waiter.reply().int();
        assert_eq!(note(&mut client, "job"), Some(text("waiter")));
    }
}

/// Rule E2.
#[test]
fn empty_note_of_a_waiter_removes_the_note_of_the_hold() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT job 2");
    client.call("RSEMAPHORE.ACQUIRE job a PX 60000 NOTE first").int();
    client.call("RSEMAPHORE.ACQUIRE job b PX 60000").int();
    let words: [&[u8]; 9] = [b"RSEMAPHORE.ACQUIRE", b"job", b"a", b"PX", b"60000", b"BLOCK", b"0", b"NOTE", b""];
    let mut waiter = server.waiter(Command::from(words));
    let shown = client.call("RLOCK.WAITERS job").array()[0].clone();
    assert!(!shown.field_names().contains(&"note".to_owned()), "{shown:?}");
    client.call("RSEMAPHORE.RELEASE job b").int();
    waiter.reply().int();
    assert_eq!(note(&mut client, "job"), None);
}

/// Rules E1, I3.
#[test]
fn top_shows_notes_of_all_databases_and_keeps_the_clients_database() {
    let server = Server::start();
    let (mut client, mut elsewhere) = (server.client(), server.client());
    elsewhere.call("SELECT 3");
    elsewhere.acquire("far a PX 60000 NOTE host-1");
    client.call("SELECT 5");
    client.acquire("bare a PX 60000");
    let _waits = ["SELECT 3", "SELECT 5"].map(|select| {
        let mut waiter = server.client();
        waiter.call(select);
        let key = if select == "SELECT 3" { "far" } else { "bare" };
        waiter.send(format!("RLOCK.ACQUIRE {key} b BLOCK 0"));
        waiter
    });
    eventually(SOON, || client.call("RLOCK.TOP").array().len() == 2);
    let misses = client.info_number("keyspace_misses");
    for top in ["RLOCK.TOP".into(), in_script("RLOCK.TOP".into())] {
        let shown = client.call(top);
        for lock in shown.array() {
            let shown = lock.field_names().contains(&"note".to_owned()).then(|| lock.field("note"));
            assert_eq!(shown, (lock.field("key") == "far").then(|| text("host-1")));
        }
        assert_eq!(client.call("RLOCK.HOLDS bare a"), 1, "the client is still in its database");
    }
    assert_eq!(client.info_number("keyspace_misses"), misses);
}

/// Rule E4.
#[test]
fn note_survives_replication_restart_rewrite_and_restore() {
    let mut server = Server::with_aof(&["appendfsync always"]);
    let replica = Server::replica_of(&server, &[]);
    let mut client = server.client();
    client.acquire("job a PX 60000");
    client.call("RLOCK.RENEW job a NOTE host-1").int();
    client.call("RLOCK.MACQUIRE 2 x y a PX 60000 NOTE both").array();
    replica.catch_up_with(&server);
    let payload = client.call("DUMP job").bytes().to_vec();
    let restore: Command = [b"RESTORE".as_slice(), b"copy", b"0", &payload].into();
    assert_eq!(client.call(restore), "OK");
    for key in ["job", "x", "y"] {
        let expected = Some(text(if key == "job" { "host-1" } else { "both" }));
        assert_eq!(note(&mut client, key), expected);
        assert_eq!(note(&mut replica.client(), key), expected);
    }
    let digest = |server: &Server| server.client().call("DEBUG DIGEST-VALUE job x y");
    let before = digest(&server);
    assert_eq!(digest(&replica), before);
    server.kill_and_restart();
    server.client().rewrite_append_only_file();
    server.kill_and_restart();
    for key in ["job", "copy"] {
        assert_eq!(note(&mut server.client(), key), Some(text("host-1")));
    }
    assert_eq!(digest(&server), before);
}

#[test]
fn too_long_note_is_refused() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire(&format!("job a PX 60000 NOTE {}", "n".repeat(256)));
    let refused = client.call(format!("RLOCK.RENEW job a NOTE {}", "n".repeat(257)));
    assert_eq!(refused.expect_error("ERR"), "ERR NOTE takes 0 to 256 bytes, not 257");
}
