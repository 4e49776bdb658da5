//! IDLE: semaphores that are deleted after a time without holders and waiters.

use std::time::Duration;

use crate::support::{Client, Command, Reply, Server, eventually};

const SOON: Duration = Duration::from_secs(10);

#[track_caller]
fn is_there(client: &mut Client) -> bool {
    client.call("EXISTS job") == 1
}

/// Rule S1.
#[test]
fn unused_semaphore_is_deleted_with_an_event() {
    let server = Server::with(&["notify-keyspace-events Ed"]);
    let replica = Server::replica_of(&server, &[]);
    let (mut client, mut listener) = (server.client(), server.client());
    listener.call("SUBSCRIBE __keyevent@0__:rlock.unused");
    assert_eq!(client.call("RSEMAPHORE.INIT job 2 IDLE 100"), 1);
    replica.catch_up_with(&server);
    assert!(is_there(&mut replica.client()));
    eventually(SOON, || !is_there(&mut client));
    assert_eq!(listener.reply().array()[2], "job");
    replica.catch_up_with(&server);
    assert!(!is_there(&mut replica.client()));
    client.call("RSEMAPHORE.ACQUIRE job a").expect_error("NOSEMAPHORE");
}

/// Rule S1.
#[test]
fn idle_time_begins_when_the_last_holder_leaves() {
    for end in ["RSEMAPHORE.RELEASE job a", "RLOCK.FORCERELEASE job", "", "close"] {
        let server = Server::start();
        let (mut client, mut holder) = (server.client(), server.client());
        client.call("RSEMAPHORE.INIT job 2 IDLE 200");
        let lease_ms = if end.is_empty() { 600 } else { 60_000 };
        holder.call(format!("RSEMAPHORE.ACQUIRE job a PX {lease_ms} SESSION 0")).int();
        std::thread::sleep(Duration::from_millis(400));
        assert!(is_there(&mut client), "{end}");
        match end {
            "" => {}
            "close" => drop(holder),
            command => drop(client.call(command).int()),
        }
        eventually(SOON, || !is_there(&mut client));
    }
}

/// Rule S2.
#[test]
fn repeated_init_changes_or_removes_the_idle_time() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT job 2 IDLE 600000");
    assert_eq!(client.call("RSEMAPHORE.INIT job 5"), 0);
    let info = client.call("RLOCK.INFO job");
    assert_eq!((info.field("idle-ms"), info.field("permits")), (Reply::Int(600_000), Reply::Int(2)));
    assert_eq!(client.call("RSEMAPHORE.INIT job 2 IDLE 0"), 0);
    assert!(!client.call("RLOCK.INFO job").field_names().contains(&"idle-ms".to_owned()));
    assert_eq!(client.call("RSEMAPHORE.INIT job 2 IDLE 50"), 0);
    eventually(SOON, || !is_there(&mut client));
}

/// Rules S3, S4.
#[test]
fn idle_time_survives_replication_restart_rewrite_and_restore() {
    let mut server = Server::with_aof(&["appendfsync always"]);
    let replica = Server::replica_of(&server, &[]);
    let idle_ms = |server: &Server, key: &str| server.client().call(format!("RLOCK.INFO {key}")).field("idle-ms");
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT job 2 IDLE 600000");
    client.call("RSEMAPHORE.INIT used 2 IDLE 600000");
    client.call("RSEMAPHORE.ACQUIRE used a PX 600000");
    let payload = client.call("DUMP job").bytes().to_vec();
    let restore: Command = [b"RESTORE".as_slice(), b"copy", b"0", &payload].into();
    assert_eq!(client.call(restore), "OK");
    replica.catch_up_with(&server);
    let digest = |server: &Server| server.client().call("DEBUG DIGEST-VALUE job copy used");
    let before = digest(&server);
    assert_eq!(digest(&replica), before);
    server.kill_and_restart();
    server.client().rewrite_append_only_file();
    server.kill_and_restart();
    assert_eq!(digest(&server), before);
    for key in ["job", "copy", "used"] {
        assert_eq!(idle_ms(&server, key), 600_000);
        assert_eq!(idle_ms(&replica, key), 600_000);
    }
}

/// Rule S3.
#[test]
fn idle_time_continues_after_a_promotion() {
    let server = Server::start();
    let replica = Server::replica_of(&server, &[]);
    server.client().call("RSEMAPHORE.INIT job 2 IDLE 1000");
    replica.catch_up_with(&server);
    let mut on_replica = replica.client();
    assert!(is_there(&mut on_replica));
    on_replica.call("REPLICAOF NO ONE");
    eventually(SOON, || !is_there(&mut on_replica));
}

/// Rule S3.
#[test]
fn no_semaphore_is_deleted_in_a_quarantine() {
    let server = Server::with(&["rlock.exclusion restart", "rlock.max-lease-ms 600000"]);
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT job 2 IDLE 50");
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_there(&mut client));
    client.call("CONFIG SET rlock.exclusion off");
    eventually(SOON, || !is_there(&mut client));
}

#[test]
fn idle_semaphore_stays_small_after_use() {
    const KEYS: usize = 20_000;
    let server = Server::start();
    let mut client = server.client();
    let mut in_all = |command: &str| {
        let command = |number: usize| command.replace("KEY", &format!("semaphore-{number:010}")).into();
        for first in (0..KEYS).step_by(100) {
            client.call_in_one_step(&(first..first + 100).map(command).collect::<Vec<Command>>());
        }
        client.info_number("used_memory")
    };
    let before = in_all("PING KEY");
    let bytes_each = |used: i64| usize::try_from(used - before).expect("memory that is in use") / KEYS;
    let unused = bytes_each(in_all("RSEMAPHORE.INIT KEY 2"));
    in_all("RSEMAPHORE.ACQUIRE KEY a PX 60000");
    let idle = bytes_each(in_all("RSEMAPHORE.RELEASE KEY a"));
    println!("{unused} bytes each before use, {idle} bytes after");
    assert!(unused <= 250 && idle <= 250, "{unused} bytes each before use, {idle} bytes after");
}
