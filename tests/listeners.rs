//! Effects are propagated only while there is a listener: a replica, a backlog, an append-only file
//! or a snapshot. A server without one still counts changes for save points, keeps an offset that
//! tells two states apart, and propagates everything from the moment a listener appears.

use std::time::Duration;

use crate::support::{Client, Command, Server, describe_locks, eventually, free_port, propagated};

const SOON: Duration = Duration::from_secs(20);

const FREES_THE_BACKLOG: &str = "repl-backlog-ttl 1";

fn propagates(client: &mut Client) -> bool {
    client.info("rlock_propagating") == "1"
}

#[track_caller]
fn assert_stops_propagating(client: &mut Client) {
    eventually(SOON, || !propagates(client));
}

/// Waits longer than the server needs to notice that there is no listener.
#[track_caller]
fn assert_keeps_propagating(client: &mut Client) {
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(700));
        assert!(propagates(client));
    }
}

#[test]
fn effects_are_propagated_with_a_replica_or_a_backlog() {
    let primary = Server::with(&[FREES_THE_BACKLOG]);
    let mut client = primary.client();
    assert_stops_propagating(&mut client);
    client.acquire("job a PX 600000");
    let replica = Server::replica_of(&primary, &[]);
    assert!(propagates(&mut client));
    assert_keeps_propagating(&mut client);
    client.acquire("job a PX 600000");
    replica.catch_up_with(&primary);
    assert_eq!(replica.client().holder("job").expect("a holder").holds, 2);

    drop(replica);
    eventually(SOON, || client.info("connected_slaves") == "0");
    assert!(client.info("repl_backlog_active") == "0" || propagates(&mut client));
    assert_stops_propagating(&mut client);
    assert_eq!(client.info("repl_backlog_active"), "0");
}

#[test]
fn effects_are_propagated_with_an_append_only_file() {
    let server = Server::with_aof(&[]);
    let mut client = server.client();
    assert_keeps_propagating(&mut client);
    client.call("CONFIG SET appendonly no");
    assert_stops_propagating(&mut client);
    client.call("CONFIG SET appendonly yes");
    assert!(propagates(&mut client));
    assert_keeps_propagating(&mut client);
}

#[test]
fn effects_are_always_propagated_in_a_cluster() {
    let node = Server::with(&["cluster-enabled yes", &format!("cluster-port {}", free_port())]);
    assert_keeps_propagating(&mut node.client());
}

#[test]
fn snapshot_starts_propagation_temporarily() {
    let server = Server::start();
    let mut client = server.client();
    for snapshot in ["BGSAVE", "BGREWRITEAOF", "SAVE", "DEBUG RELOAD"] {
        assert_stops_propagating(&mut client);
        client.acquire("job a PX 600000");
        // In one step, so that no timer runs in between.
        let replies = client.call_in_one_step(&[snapshot.into(), "INFO rlock".into()]);
        assert!(replies[1].text().contains("rlock_propagating:1"), "{snapshot}: {replies:?}");
        eventually(SOON, || {
            client.info("rdb_bgsave_in_progress") == "0" && client.info("aof_rewrite_in_progress") == "0"
        });
    }
    assert_eq!(client.holder("job").expect("a holder").holds, 4);
}

#[test]
fn changes_without_a_listener_count_for_save_points() {
    let server = Server::start();
    let mut client = server.client();
    assert_stops_propagating(&mut client);
    let before = client.info_number("rdb_changes_since_last_save");
    client.acquire("job a PX 600000");
    client.eval("RLOCK.RENEW job a PX 600000");
    client.transaction("RLOCK.RELEASE job a");
    assert_eq!(client.info_number("rdb_changes_since_last_save"), before + 3);
    // An expiring lease is a change by the timer.
    client.acquire("job a PX 5");
    eventually(SOON, || client.info_number("rdb_changes_since_last_save") == before + 5);

    assert_eq!(client.call("SAVE"), "OK");
    assert_stops_propagating(&mut client);
    let last_save = client.call("LASTSAVE").int();
    let one_change_in_a_second: Command = [b"CONFIG".as_slice(), b"SET", b"save", b"1 1"].into();
    assert_eq!(client.call(one_change_in_a_second), "OK");
    client.acquire("job b PX 600000");
    eventually(SOON, || client.call("LASTSAVE").int() > last_save);
}

/// While the first replica of a primary waits for its snapshot, the backlog already exists.
#[test]
fn primary_restarted_from_an_old_file_resynchronises_its_replica() {
    let mut primary = Server::with(&["repl-diskless-sync yes", "repl-diskless-sync-delay 3"]);
    let mut client = primary.client();
    client.acquire("early a PX 600000");
    assert_stops_propagating(&mut client);
    let upstream = format!("replicaof 127.0.0.1 {}", primary.port());
    let replica = Server::with(&[upstream.as_str()]);
    eventually(SOON, || client.info("repl_backlog_active") == "1");
    assert!(!propagates(&mut client), "no snapshot has started yet");
    client.acquire("before a PX 600000");
    assert_eq!(client.call("SAVE"), "OK");
    client.acquire("after a PX 600000");
    replica.catch_up_with(&primary);
    assert!(replica.client().holder("after").is_some());

    primary.kill();
    primary.restart_in_place(&[]);
    let mut client = primary.client();
    eventually(SOON, || client.info("connected_slaves") == "1");
    replica.catch_up_with(&primary);
    let mut on_replica = replica.client();
    assert!(client.holder("after").is_none(), "acquired after the file was saved");
    for key in ["early", "before", "after"] {
        let digest = format!("DEBUG DIGEST-VALUE {key}");
        eventually(SOON, || on_replica.call(digest.as_str()) == client.call(digest.as_str()));
    }
}

#[test]
fn append_only_file_enabled_in_a_transaction_has_all_of_it() {
    let mut server = Server::with(&["appendfsync no"]);
    let mut client = server.client();
    assert_stops_propagating(&mut client);
    let transaction = [
        "MULTI",
        "RLOCK.ACQUIRE lock-0 a PX 600000",
        "CONFIG SET appendonly yes",
        "RLOCK.ACQUIRE lock-1 a PX 600000",
        "RLOCK.RELEASE lock-0 a",
        "EXEC",
        "RLOCK.ACQUIRE lock-1 a PX 600000",
    ];
    client.call_in_one_step(&transaction.map(Into::into));
    eventually(SOON, || client.info("aof_rewrite_scheduled") == "0" && client.info("aof_rewrite_in_progress") == "0");
    client.acquire("lock-2 a PX 600000");
    let before = describe_locks(&server, 1, 3);
    let requests: Vec<_> = propagated(&server).into_iter().filter(|words| words[0] != b"RLOCK.APPLY").collect();
    assert_eq!(requests, [[b""; 0]; 0]);
    server.kill();
    server.restart_in_place(&["--appendonly", "yes"]);
    assert_eq!(describe_locks(&server, 1, 3), before);
    assert_eq!(server.client().holder("lock-1").expect("a holder").holds, 2);
}

/// No primary sends requests. If one did, its replica must not grant the lock a second time.
#[test]
fn request_in_the_stream_changes_nothing_on_a_replica() {
    let primary = Server::start();
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    client.acquire("lock-0 a PX 600000");
    replica.catch_up_with(&primary);
    let before = describe_locks(&replica, 1, 2);
    for request in [
        "RLOCK.ACQUIRE lock-1 b PX 600000",
        "RLOCK.ACQUIRE lock-0 b PX 600000 BLOCK 0",
        "RLOCK.RELEASE lock-0 a",
        "RLOCK.RENEW lock-0 a PX 900000",
        "RLOCK.FORCERELEASE lock-0",
        "RLOCK.MACQUIRE 1 lock-1 b PX 600000",
        "RLOCK.MRELEASE 1 lock-0 a",
        "RSEMAPHORE.INIT lock-1 3",
    ] {
        assert_eq!(client.call(format!("DEBUG REPLICATE {request}")), "OK");
    }
    // Later effects in the stream are applied.
    client.acquire("last a PX 600000");
    eventually(SOON, || replica.client().holder("last").is_some());
    assert_eq!(describe_locks(&replica, 1, 2), before);
    assert!(replica.log().contains("sending an error"), "the log has the error");
}
