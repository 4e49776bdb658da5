//! Effects that replicas and the append-only file receive when a lock changes hands. Applying them
//! gives the same state.

use std::time::Duration;

use crate::support::{
    Command, Journal, Reply, Server, eventually, is_multi_or_exec, move_changes_the_database, propagated, show,
    skipped_here,
};

const SOON: Duration = Duration::from_secs(5);

/// `a` holds a lock and `b` waits for it. Asserts that this way hands the lock to `b` and
/// propagates exactly these commands.
#[track_caller]
fn assert_hand_over(family: &str, way: &str, expected: &[&str]) {
    let mut journal = Journal::new();
    let mut client = journal.server.client();
    client.call("RLOCK.ACQUIRE other x PX 60000");
    client.call(format!("{family}.ACQUIRE job a PX 60000"));
    let mut b = journal.server.blocked_waiter(format!("{family}.ACQUIRE job b PX 20000 BLOCK 0"));
    journal.skip();
    let step: Vec<_> = way.split(" | ").map(Command::from).collect();
    for reply in client.call_in_one_step(&step) {
        assert!(!matches!(reply, Reply::Error(_)), "{way}: {reply:?}");
    }
    let token = b.reply().int();
    let granted = format!("job granted {} exclusive {token} 1 @20000 20000 - - b", kind_of(family));
    let expected: Vec<_> =
        expected.iter().map(|line| if *line == "granted" { granted.as_str() } else { line }).collect();
    journal.expect(&format!("{family}: {way}"), &expected);
    // Loading the file again gives the same state.
    let digest = client.call("DEBUG DIGEST");
    assert_eq!(client.call("DEBUG LOADAOF"), "OK");
    assert_eq!(client.call("DEBUG DIGEST"), digest, "{way}");
}

fn kind_of(family: &str) -> &'static str {
    if family == "RLOCK" { "mutex" } else { "fair" }
}

#[test]
fn each_hand_over_propagates_its_effects() {
    for (way, expected) in [
        ("RLOCK.RELEASE job a", &["job released #", "granted"][..]),
        ("MULTI | RLOCK.RELEASE job a | EXEC", &["job released #", "granted"]),
        ("RLOCK.FORCERELEASE job", &["job forced #", "granted"]),
        ("RLOCK.RELEASE job a | RLOCK.RENEW job b PX 5", &["job released #", "granted", "job renewed # 1 # 5 - -"]),
        ("DEL job", &["DEL job", "granted"]),
        ("UNLINK job", &["UNLINK job", "granted"]),
        ("SET job text | DEL job", &["SET job text", "DEL job", "granted"]),
        ("PEXPIREAT job 1", &["DEL job", "granted"]),
        ("FLUSHALL", &["FLUSHALL", "granted"]),
        ("FLUSHDB ASYNC", &["FLUSHDB ASYNC", "granted"]),
        ("RENAME job away", &["RENAME job away", "granted"]),
        ("MOVE job 1", &["MOVE job 1", "granted"]),
        ("SWAPDB 0 1", &["SWAPDB 0 1", "granted"]),
        ("COPY other job REPLACE | RLOCK.FORCERELEASE job", &["COPY other job REPLACE", "job forced #", "granted"]),
        ("RENAME other job | RLOCK.FORCERELEASE job", &["RENAME other job", "job forced #", "granted"]),
    ] {
        if !is_skipped(way) {
            assert_hand_over("RLOCK", way, expected);
        }
    }
}

fn is_skipped(way: &str) -> bool {
    let is_skipped = way.starts_with("MOVE") && move_changes_the_database();
    if is_skipped {
        skipped_here("MOVE changes the database of the connection");
    }
    is_skipped
}

#[test]
fn each_hand_over_of_a_fair_lock_propagates_its_effects() {
    // After the lock is removed the waiter gets a new place with its old arrival number.
    const REJOINED: &str = "job queued connected # - tail b";
    for (way, expected) in [
        ("RFAIRLOCK.RELEASE job a", &["job released #", "granted"][..]),
        ("RFAIRLOCK.FORCERELEASE job", &["job forced #", "granted"]),
        ("DEL job", &["DEL job", REJOINED, "granted"]),
        ("PEXPIREAT job 1", &["DEL job", REJOINED, "granted"]),
        ("FLUSHALL", &["FLUSHALL", REJOINED, "granted"]),
        ("MOVE job 1", &["MOVE job 1", REJOINED, "granted", "job detached @60000"]),
        ("SWAPDB 0 1", &["SWAPDB 0 1", REJOINED, "granted", "job detached @60000"]),
        ("RENAME job away", &["RENAME job away", REJOINED, "granted", "away detached @60000"]),
    ] {
        if !is_skipped(way) {
            assert_hand_over("RFAIRLOCK", way, expected);
        }
    }
}

#[test]
fn changes_without_a_command_propagate_their_effects() {
    let mut journal = Journal::new();
    let mut client = journal.server.client();
    let waiter = |journal: &Journal, owner: &str| {
        journal.server.blocked_waiter(format!("RLOCK.ACQUIRE job {owner} PX 20000 BLOCK 0"))
    };
    let a = client.acquire("job a PX 1000");
    let mut waits = waiter(&journal, "b");
    journal.expect("a grant", &[&format!("job granted mutex exclusive {a} 1 @1000 1000 - - a")]);
    let b = waits.reply().int();
    journal.expect(
        "the end of a lease",
        &[&format!("job expired {a}"), &format!("job granted mutex exclusive {b} 1 @20000 20000 - - b")],
    );

    let mut waits = [waiter(&journal, "c"), waiter(&journal, "d")];
    journal.expect("waiting", &[]);
    client.call("RLOCK.RELEASE job b");
    let c = waits[0].reply().int();
    journal.expect(
        "a hand-over",
        &[&format!("job released {b}"), &format!("job granted mutex exclusive {c} 1 @20000 20000 - - c")],
    );

    // `d` is killed in the turn of its grant, and never receives it.
    let mut e = waiter(&journal, "e");
    let kill = format!("CLIENT KILL ID {}", waits[1].id());
    client.call_in_one_step(&["RLOCK.FORCERELEASE job".into(), kill.into()]);
    let e = e.reply().int();
    journal.expect(
        "a grant that no client received",
        &[
            &format!("job forced {c}"),
            "job granted mutex exclusive # 1 @20000 20000 - - d",
            "job undone #",
            &format!("job granted mutex exclusive {e} 1 @20000 20000 - - e"),
        ],
    );

    let f = waiter(&journal, "f");
    client.call(format!("CLIENT KILL ID {}", f.id()));
    let mut g = waiter(&journal, "g");
    client.call(format!("CLIENT UNBLOCK {} TIMEOUT", g.id()));
    assert_eq!(g.reply(), Reply::Nil);
    assert_eq!(client.call("RLOCK.ACQUIRE job h BLOCK 5"), Reply::Nil);
    let mut h = waiter(&journal, "h REQ 1");
    let _taken_over = waiter(&journal, "h REQ 1");
    h.reply().expect_error("SUPERSEDED");
    client.call("PING");
    journal.expect("waiters that leave", &[]);
}

/// No timer runs between the two commands, so the next command meets the expired lock.
#[test]
fn expired_lock_is_replaced_by_another_kind_on_every_copy() {
    let primary = Server::with_aof(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let mut client = primary.client();
    let kinds = [
        ("RLOCK.ACQUIRE job a PX 5", "RFAIRLOCK.ACQUIRE job b PX 60000", "fair"),
        ("RFAIRLOCK.ACQUIRE job a PX 5", "RLOCK.ACQUIRE job b PX 60000", "mutex"),
        ("RLOCK.ACQUIRE job a PX 5", "RRWLOCK.ACQUIRE job b READ PX 60000", "rwlock"),
        ("RRWLOCK.ACQUIRE job a WRITE PX 5", "RLOCK.MACQUIRE 1 job b PX 60000", "mutex"),
        ("RLOCK.ACQUIRE job a PX 5", "RFAIRLOCK.ACQUIRE job b PX 60000 QUEUE 60000", "fair"),
        ("RLOCK.ACQUIRE job a PX 5", "RSEMAPHORE.INIT job 3", "semaphore"),
    ];
    for (expiring, next, kind) in kinds {
        client.call_in_one_step(&[expiring, "DEBUG SLEEP 0.05", next].map(Command::from));
        assert_eq!(client.call("RLOCK.INFO job").field("kind"), kind, "{next} after {expiring}");
        replica.catch_up_with(&primary);
        let digest = client.call("DEBUG DIGEST");
        assert_eq!(replica.client().call("DEBUG DIGEST"), digest, "{next} after {expiring}");
        assert_eq!(client.call("DEBUG LOADAOF"), "OK");
        assert_eq!(client.call("DEBUG DIGEST"), digest, "{next} after {expiring}");
        client.call("DEL job");
    }
}

#[test]
fn replica_writes_received_effects_to_its_append_only_file() {
    let primary = Server::with_aof(&["rlock.fair-grace-ms 60000"]);
    let mut replica = Server::replica_of(&primary, &["appendonly yes", "appendfsync always"]);
    // After a synchronisation the server rewrites the file.
    let second_hand = Server::replica_of(&replica, &["appendonly yes", "appendfsync always"]);
    for replica in [&replica, &second_hand] {
        let mut observer = replica.client();
        // Valkey 9.1 uses the snapshot of the synchronisation as the base of the file instead.
        eventually(SOON, || {
            let is_idle =
                ["aof_rewrite_in_progress", "aof_rewrite_scheduled"].iter().all(|field| observer.info(field) == "0");
            is_idle && observer.info("aof_enabled") == "1"
        });
    }
    let mut client = primary.client();
    client.acquire("job a PX 60000 REQ 1");
    client.acquire_fair("fair a PX 60000");
    client.call("RFAIRLOCK.ACQUIRE fair b QUEUE 60000");
    let mut waiter = primary.blocked_waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    client.call("RLOCK.RELEASE job a");
    waiter.reply().int();
    client.call("RENAME job away");
    let effects = |server: &Server| {
        let all = propagated(server);
        all.iter().filter(|words| !is_multi_or_exec(words)).map(|words| show(words)).collect::<Vec<_>>()
    };
    replica.catch_up_with(&primary);
    second_hand.catch_up_with(&primary);
    assert_eq!(effects(&primary).len(), 6);
    for replica in [&replica, &second_hand] {
        assert!(effects(replica).ends_with(&effects(&primary)), "{:#?}", effects(replica));
    }
    replica.kill_and_restart();
    replica.catch_up_with(&primary);
    assert_eq!(replica.client().call("DEBUG DIGEST"), client.call("DEBUG DIGEST"));
}

#[test]
fn expired_lock_of_another_kind_that_arrives_makes_way_for_waiters_on_every_copy() {
    let primary = Server::with_aof(&[]);
    let replica = Server::replica_of(&primary, &[]);
    let families = [
        ("RFAIRLOCK.ACQUIRE", "", "fair", "RLOCK.ACQUIRE"),
        ("RRWLOCK.ACQUIRE", " WRITE", "rwlock", "RLOCK.ACQUIRE"),
        ("RLOCK.ACQUIRE", "", "mutex", "RFAIRLOCK.ACQUIRE"),
    ];
    for (family, mode, kind, other) in families {
        for arrival in ["RENAME other job", "COPY other job REPLACE", "swap"] {
            let mut client = primary.client();
            client.call(format!("{family} job a{mode} PX 60000"));
            let mut waiter = primary.blocked_waiter(format!("{family} job b{mode} PX 60000 BLOCK 0"));
            let swap = format!("{other} job x PX 5");
            let rename = format!("{other} other x PX 5");
            let step = match arrival {
                "swap" => ["SELECT 1", &swap, "DEBUG SLEEP 0.05", "SWAPDB 0 1", "SELECT 0"],
                arrival => ["SELECT 0", &rename, "DEBUG SLEEP 0.05", arrival, "SELECT 0"],
            };
            client.call_in_one_step(&step.map(Command::from));
            waiter.reply().int();
            assert_eq!(client.call("RLOCK.INFO job").field("kind"), kind, "{family} {arrival}");
            client.call("CLIENT PAUSE 60000 WRITE");
            replica.catch_up_with(&primary);
            let digest = client.call("DEBUG DIGEST");
            assert_eq!(replica.client().call("DEBUG DIGEST"), digest, "{family} {arrival}");
            assert_eq!(client.call("DEBUG LOADAOF"), "OK");
            assert_eq!(client.call("DEBUG DIGEST"), digest, "{family} {arrival}");
            client.call("CLIENT UNPAUSE");
            client.call("FLUSHALL");
        }
    }
}
