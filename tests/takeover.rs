//! Role changes: a replica decides nothing, and from its promotion on it does everything that is
//! due.

use std::time::Duration;

use crate::support::{Command, Reply, Server, eventually, propagated};

const SOON: Duration = Duration::from_secs(5);

/// A replica whose data came from its own files: no synchronisation event tells the module about
/// them.
#[test]
fn restarted_replica_takes_over_from_its_own_files() {
    let aof = ["appendonly yes", "appendfsync always", "rlock.fair-grace-ms 60000"];
    for lines in [&aof[..], &["rlock.fair-grace-ms 60000"]] {
        let primary = Server::start();
        let mut replica = Server::replica_of(&primary, lines);
        let mut client = primary.client();
        let token = client.acquire("long a PX 60000 REQ 4");
        client.acquire("short a PX 2500");
        client.acquire("session a PX 60000 SESSION 0");
        client.acquire_fair("fair a PX 2500");
        client.call("RFAIRLOCK.ACQUIRE fair b QUEUE 60000");
        let connected = primary.waiter("RFAIRLOCK.ACQUIRE fair c PX 60000 BLOCK 0");
        replica.catch_up_with(&primary);
        if lines.len() == 1 {
            assert_eq!(replica.client().call("SAVE"), "OK");
        }
        // After a synchronisation the server rewrites the file.
        eventually(SOON, || replica.client().info("aof_rewrite_in_progress") == "0");
        drop(connected);
        drop(primary);
        replica.kill_and_restart();

        let mut client = replica.client();
        assert_eq!(client.info("role"), "slave");
        assert_eq!(client.holder("long").expect("a holder").identity(), ("a", 1, token));
        eventually(SOON, || client.call("RLOCK.PTTL short") == -2 && client.call("RLOCK.PTTL fair") == -2);
        assert_eq!(client.call("EXISTS short session fair long"), 4, "a replica must not end a lease");
        client.call("RLOCK.ACQUIRE short b").expect_error("READONLY");

        client.call("REPLICAOF NO ONE");
        eventually(SOON, || client.call("EXISTS short session") == 0);
        assert_eq!(client.places("fair"), ["b detached", "c detached"]);
        assert!(client.acquire_fair("fair b PX 60000") > token);
        assert_eq!(client.acquire("long a REQ 4"), token, "the last request id is kept");
        assert!(client.acquire("new a") > token);
    }
}

#[test]
fn demoted_server_decides_nothing_until_it_is_promoted() {
    let server = Server::with_aof(&["rlock.fair-grace-ms 60000"]);
    let mut client = server.client();
    client.acquire("short a PX 2000");
    client.acquire_fair("fair a PX 2000");
    client.acquire("long a PX 60000");
    let session = server.waiter("RLOCK.ACQUIRE long b BLOCK 0");
    let mut holder = server.client();
    holder.acquire("session a PX 60000 SESSION 0");
    let mut waiters = [
        server.waiter("RLOCK.ACQUIRE short b PX 60000 BLOCK 0"),
        server.waiter("RFAIRLOCK.ACQUIRE fair b PX 60000 BLOCK 0"),
        server.waiter("RLOCK.ACQUIRE long c PX 60000 BLOCK 60000"),
    ];
    // One connection closes in the same step as the demotion. No server listens on this port, so
    // the demoted server keeps its data.
    let kills = [&session, &holder].map(|client| format!("CLIENT KILL ID {}", client.id()));
    let step = [kills[0].as_str().into(), "REPLICAOF 127.0.0.1 1".into(), kills[1].as_str().into()];
    client.call_in_one_step(&step);
    for waiter in &mut waiters {
        waiter.reply().expect_error("UNBLOCKED");
    }
    let before = propagated(&server);
    eventually(SOON, || client.call("RLOCK.PTTL short") == -2 && client.call("RLOCK.PTTL fair") == -2);
    assert_eq!(client.call("EXISTS short fair long session"), 4);
    assert_eq!(propagated(&server), before, "a replica must not propagate by itself");

    client.call("REPLICAOF NO ONE");
    client.acquire("short d PX 60000 BLOCK 0");
    eventually(SOON, || client.call("EXISTS session") == 0);
    assert_eq!(client.call("RLOCK.HOLDS long a"), 1);
    assert_eq!(client.places("fair"), ["b detached"]);
}

/// An owner whose wait ended with `UNBLOCKED` may still hold the lock, because a replica does not
/// undo grants.
#[test]
fn grant_in_the_turn_of_a_demotion_is_kept_until_its_owner_asks_again() {
    let server = Server::with_aof(&[]);
    let (mut client, mut owner) = (server.client(), server.client());
    client.acquire("job a PX 60000");
    let mut waiter = server.waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0 REQ 1");
    client.call_in_one_step(&["RLOCK.RELEASE job a", "REPLICAOF 127.0.0.1 1"].map(Command::from));
    let reply = waiter.reply();
    match &reply {
        // The reply was sent before the demotion.
        Reply::Int(_) => {}
        Reply::Error(text) => assert!(text.starts_with("UNBLOCKED ") && text.contains("replica"), "{text}"),
        other => panic!("{other:?}"),
    }
    let held = client.holder("job").expect("a holder");
    // During one of these turns the timer fires. It drops the pending undo of the grant, because a
    // new primary may already have confirmed it to the owner.
    for _ in 0..10 {
        client.call("PING");
    }
    client.call("REPLICAOF NO ONE");
    client.acquire("other a BLOCK 0");
    let token = owner.acquire("job b PX 60000 REQ 1");
    assert_eq!(held.identity(), ("b", 1, token), "the same hold");
    assert!(matches!(&reply, Reply::Error(_)) || reply == token, "replied {reply:?}, holds {token}");
    assert_eq!(client.holder("job").expect("a holder").identity(), ("b", 1, token));
    assert_eq!(owner.call("RLOCK.RELEASE job b"), 0);
}

#[test]
fn promoted_replica_grants_waiters_when_a_lease_expires() {
    let primary = Server::start();
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    let keys: Vec<_> = (0..50).map(|number| format!("job-{number}")).collect();
    for key in &keys {
        client.acquire(&format!("{key} a PX 3000"));
    }
    replica.catch_up_with(&primary);
    drop(primary);
    replica.client().call("REPLICAOF NO ONE");
    let mut waiters: Vec<_> =
        keys.iter().map(|key| replica.waiter(format!("RLOCK.ACQUIRE {key} b PX 60000 BLOCK 0"))).collect();
    let mut last = 0;
    for waiter in &mut waiters {
        last = last.max(waiter.reply().int());
    }
    assert!(replica.client().acquire("new a") > last);
}

#[test]
fn pause_ends_no_lease_and_propagates_nothing() {
    let primary = Server::with_aof(&["rlock.fair-grace-ms 50"]);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    client.acquire("job a PX 1000");
    client.acquire_fair("fair a PX 1000");
    client.call("RFAIRLOCK.ACQUIRE fair b QUEUE 1000");
    client.acquire("free a PX 60000");
    let mut holder = primary.client();
    holder.acquire("session a PX 60000 SESSION 0");
    let mut waiters =
        ["RLOCK.ACQUIRE job c BLOCK 0", "RFAIRLOCK.ACQUIRE fair c BLOCK 0", "RLOCK.ACQUIRE free c BLOCK 600"]
            .map(|command| primary.waiter(command));
    let mut released = primary.client();
    client.call("CLIENT PAUSE 60000 WRITE");
    let before = propagated(&primary);
    released.send("RLOCK.RELEASE free a");
    drop(holder);
    for key in ["job", "fair"] {
        eventually(SOON, || client.call(format!("RLOCK.PTTL {key}")) == -2);
    }
    // A module that grants by mistake has 100 ms to do so.
    let [job, fair, free] = &mut waiters;
    for waiter in [job, fair] {
        assert!(waiter.reply_within(Duration::from_millis(100)).is_err());
    }
    assert_eq!(free.reply(), Reply::Nil, "the wait times out");
    assert_eq!(propagated(&primary), before);
    replica.catch_up_with(&primary);
    client.call("CLIENT UNPAUSE");
    waiters[0].reply().int();
    waiters[1].reply().int();
    assert_eq!(released.reply(), 0);
    eventually(SOON, || client.call("EXISTS session free") == 0);
    replica.catch_up_with(&primary);
    client.call("CLIENT PAUSE 60000 WRITE");
    replica.catch_up_with(&primary);
    assert_eq!(replica.client().call("DEBUG DIGEST"), client.call("DEBUG DIGEST"));
}

#[test]
fn paused_replica_applies_the_changes_of_its_primary() {
    let primary = Server::start();
    let replica = Server::replica_of(&primary, &["appendonly yes", "appendfsync always"]);
    let (mut client, mut on_replica) = (primary.client(), replica.client());
    for pause in ["CLIENT PAUSE 300 WRITE", "CLIENT PAUSE 300 ALL"] {
        client.acquire("job a PX 60000");
        client.acquire("short a PX 50");
        on_replica.call(pause);
        client.call("SET text x");
        client.acquire("job a PX 60000");
        client.acquire("other a PX 60000");
        client.call("RLOCK.RELEASE other a");
        eventually(SOON, || client.call("EXISTS short") == 0);
        replica.catch_up_with(&primary);
        assert_eq!(on_replica.call("DEBUG DIGEST"), client.call("DEBUG DIGEST"), "{pause}");
    }
}
