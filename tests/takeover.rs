//! A server changes its role: as a replica it decides nothing, and from the moment of its promotion everything that is due.

use std::time::Duration;

use crate::support::{Command, Reply, Server, eventually, propagated};

const SOON: Duration = Duration::from_secs(5);

/// Role changes of a replica whose data came from its own files: no synchronisation tells the module of it.
#[test]
fn a_replica_that_was_restarted_without_its_primary_takes_over_from_its_own_files() {
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
        // After a synchronisation the file is written anew.
        eventually(SOON, || replica.client().info("aof_rewrite_in_progress") == "0");
        drop(connected);
        drop(primary);
        replica.kill_and_restart();

        let mut client = replica.client();
        assert_eq!(client.info("role"), "slave");
        assert_eq!(client.holder("long").expect("it is held").identity(), ("a", 1, token));
        eventually(SOON, || client.call("RLOCK.PTTL short") == -2 && client.call("RLOCK.PTTL fair") == -2);
        assert_eq!(client.call("EXISTS short session fair long"), 4, "a replica has ended a lease");
        client.call("RLOCK.ACQUIRE short b").expect_error("READONLY");

        client.call("REPLICAOF NO ONE");
        eventually(SOON, || client.call("EXISTS short session") == 0);
        assert_eq!(client.places("fair"), ["b detached", "c detached"]);
        assert!(client.acquire_fair("fair b PX 60000") > token);
        assert_eq!(client.acquire("long a REQ 4"), token, "the last request is known");
        assert!(client.acquire("new a") > token);
    }
}

#[test]
fn a_demoted_server_decides_nothing_more_until_it_is_promoted_again() {
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
    // A connection that closes in the very step of the demotion. Nobody listens there, so the server keeps its data.
    let kills = [&session, &holder].map(|client| format!("CLIENT KILL ID {}", client.id()));
    let step = [kills[0].as_str().into(), "REPLICAOF 127.0.0.1 1".into(), kills[1].as_str().into()];
    client.call_in_one_step(&step);
    for waiter in &mut waiters {
        waiter.reply().expect_error("UNBLOCKED");
    }
    let told = propagated(&server);
    eventually(SOON, || client.call("RLOCK.PTTL short") == -2 && client.call("RLOCK.PTTL fair") == -2);
    assert_eq!(client.call("EXISTS short fair long session"), 4);
    assert_eq!(propagated(&server), told, "a replica has propagated something of its own");

    client.call("REPLICAOF NO ONE");
    client.acquire("short d PX 60000 BLOCK 0");
    eventually(SOON, || client.call("EXISTS session") == 0);
    assert_eq!(client.call("RLOCK.HOLDS long a"), 1);
    assert_eq!(client.places("fair"), ["b detached"]);
}

/// Who is told `UNBLOCKED` may hold all the same: a replica takes nothing back.
#[test]
fn what_is_granted_in_the_very_turn_of_a_demotion_is_there_when_its_owner_asks_again() {
    let server = Server::with_aof(&[]);
    let (mut client, mut owner) = (server.client(), server.client());
    client.acquire("job a PX 60000");
    let mut waiter = server.waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0 REQ 1");
    client.call_in_one_step(&["RLOCK.RELEASE job a", "REPLICAOF 127.0.0.1 1"].map(Command::from));
    let told = waiter.reply();
    match &told {
        // It was told first.
        Reply::Int(_) => {}
        Reply::Error(text) => assert!(text.starts_with("UNBLOCKED ") && text.contains("replica"), "{text}"),
        other => panic!("{other:?}"),
    }
    let held = client.holder("job").expect("it is held");
    // In one of these turns its timer goes off, and it forgets what there was to do about the key: another master may tell the owner that it holds.
    for _ in 0..10 {
        client.call("PING");
    }
    client.call("REPLICAOF NO ONE");
    client.acquire("other a BLOCK 0");
    let token = owner.acquire("job b PX 60000 REQ 1");
    assert_eq!(held.identity(), ("b", 1, token), "it is the same hold");
    assert!(matches!(&told, Reply::Error(_)) || told == token, "told {told:?}, holds {token}");
    assert_eq!(client.holder("job").expect("it is held").identity(), ("b", 1, token));
    assert_eq!(owner.call("RLOCK.RELEASE job b"), 0);
}

#[test]
fn a_promotion_serves_waiters_of_the_new_primary_when_a_lease_ends() {
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
fn a_pause_with_a_replica_ends_no_lease_and_propagates_nothing() {
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
    let told = propagated(&primary);
    released.send("RLOCK.RELEASE free a");
    drop(holder);
    for key in ["job", "fair"] {
        eventually(SOON, || client.call(format!("RLOCK.PTTL {key}")) == -2);
    }
    // Time itself: so long the module had to do the wrong thing.
    let [job, fair, free] = &mut waiters;
    for waiter in [job, fair] {
        assert!(waiter.reply_within(Duration::from_millis(100)).is_err());
    }
    assert_eq!(free.reply(), Reply::Nil, "its time is over");
    assert_eq!(propagated(&primary), told);
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
fn a_replica_that_is_paused_itself_takes_in_what_its_primary_decides() {
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
