//! MACQUIRE: all keys of a request are granted or none, in one step, whatever other requests
//! compete for them.

use std::time::{Duration, Instant};

use crate::support::{Client, Command, Reply, Server, eventually, propagated};

const SOON: Duration = Duration::from_secs(5);

/// Sends a request for several keys. Fails if they are not granted.
#[track_caller]
fn acquire(client: &mut Client, arguments: &str) -> Vec<i64> {
    numbers(&client.call(format!("RLOCK.MACQUIRE {arguments}")))
}

#[track_caller]
fn numbers(reply: &Reply) -> Vec<i64> {
    reply.array().iter().map(Reply::int).collect()
}

/// The owners of these keys, or "-" for a free key.
#[track_caller]
fn owners(client: &mut Client, keys: &str) -> Vec<String> {
    let owner = |key| client.holder(key).map_or("-".to_owned(), |holder| holder.owner);
    keys.split(' ').map(owner).collect()
}

#[test]
fn macquire_grants_all_keys_or_none() {
    let server = Server::start();
    let mut client = server.client();
    let tokens = acquire(&mut client, "3 x y z a");
    assert!(tokens.is_sorted_by(|one, next| one < next), "one token for each key, in key order: {tokens:?}");
    assert_eq!(client.holder("y").expect("a holder").identity(), ("a", 1, tokens[1]));
    assert_eq!(client.call("RLOCK.MACQUIRE 2 w x b"), Reply::Nil);
    assert_eq!(owners(&mut client, "w x y z"), ["-", "a", "a", "a"]);
    // These locks can be released one by one or together.
    assert_eq!(client.call("RLOCK.RELEASE x a"), 0);
    assert_eq!(numbers(&client.call("RLOCK.MRELEASE 2 z y a")), [0, 0]);
    assert_eq!(client.call("DBSIZE"), 0);
}

/// A command may meet a request of another database whose keys are all free. It leaves the request
/// to the timer and stays in its own database. In a transaction Valkey 9.1 reports the
/// transaction's database, whichever one the module has selected.
#[test]
fn command_stays_in_its_database_when_it_meets_a_request_of_another() {
    const SETS: usize = 20;
    const KEYS: usize = 128;
    let server = Server::start();
    let mut client = server.client();
    let keys = |set: usize| (0..KEYS).map(|key| format!(" {set}:{key}")).collect::<String>();
    let has_met = (1..=10).any(|round| {
        let mut line = vec![Command::from("FLUSHALL"), "SELECT 1".into()];
        for set in 0..SETS {
            line.push(format!("RLOCK.MACQUIRE {KEYS}{} a PX 60000", keys(set)).into());
            let pairs = (0..KEYS).step_by(2).map(|key| format!("{set}:{key} {set}:{} b{key}-{round}", key + 1));
            line.extend(
                pairs.map(|pair| format!("RLOCK.MACQUIRE 2 {pair} BLOCK 0 NOTIFY answers REQ {}", set + 1).into()),
            );
        }
        client.call_in_one_step(&line);
        assert_eq!(client.info_number("rlock_waiting"), (SETS * KEYS / 2) as i64);
        // The grants take more than one turn. If the server is not faster than this client, the
        // next command meets the rest.
        let releases = (0..SETS).map(|set| format!("RLOCK.MRELEASE {KEYS}{} a", keys(set)).into());
        client.call_in_one_step(&releases.collect::<Vec<Command>>());
        assert_eq!(client.call("SELECT 0"), "OK");
        let step = ["INFO rlock", "MULTI", "RLOCK.ACQUIRE job a", "EXEC", "CLIENT INFO"].map(Command::from);
        let replies = client.call_in_one_step(&step);
        assert!(replies[4].text().contains(" db=0 "), "{:?}", replies[4]);
        eventually(SOON, || client.info_number("rlock_waiting") == 0);
        !replies[0].text().contains("rlock_waiting:0\r")
    });
    assert!(has_met, "some waiters are left for a command");
}

#[test]
fn macquire_reenters_keys_that_the_owner_holds() {
    let server = Server::start();
    let mut client = server.client();
    let token = client.acquire("x a PX 60000");
    let _waiting = server.waiter("RLOCK.ACQUIRE x b BLOCK 0");
    let tokens = acquire(&mut client, "2 y x a PX 60000");
    assert_eq!(tokens[1], token);
    assert_eq!(numbers(&client.call("RLOCK.MRELEASE 2 x y a")), [1, 0]);
}

#[test]
fn mrelease_and_mrenew_are_all_or_nothing_and_name_the_first_missing_key() {
    let server = Server::start();
    let mut client = server.client();
    acquire(&mut client, "2 x y a PX 20000");
    client.acquire("second b PX 20000");
    for command in ["RLOCK.MRELEASE 4 x second third y a", "RLOCK.MRENEW 4 x second third y a PX 90000"] {
        let line = client.call(command).expect_error("NOTOWNER").to_owned();
        assert!(line.contains("\"second\""), "{line}");
        assert_eq!(owners(&mut client, "x second y"), ["a", "b", "a"]);
        assert!(client.call("RLOCK.PTTL x").int() <= 20_000);
    }
    client.call("RLOCK.RENEW y a PX 50000");
    let left = client.call("RLOCK.MRENEW 2 x y a PX 30000").int();
    assert!((25_000..=30_000).contains(&left), "the smallest lease: {left}");
    assert!(client.call("RLOCK.PTTL y").int() > 40_000, "MRENEW shortens no lease");
}

#[test]
fn one_key_returns_the_same_shape_as_many() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(acquire(&mut client, "1 x a").len(), 1);
    assert_eq!(client.call("RLOCK.MRENEW 1 x a PX 60000"), 60_000);
    assert_eq!(numbers(&client.call("RLOCK.MRELEASE 1 x a")), [0]);
}

#[test]
fn waiter_is_granted_whatever_frees_its_last_key() {
    type Way = (&'static str, fn(&Server, &mut Client));
    let ways: [Way; 8] = [
        ("the end of a lease", |_, _| {}),
        ("RELEASE", |_, client| assert_eq!(client.call("RLOCK.RELEASE z c"), 0)),
        ("MRELEASE", |_, client| assert_eq!(numbers(&client.call("RLOCK.MRELEASE 1 z c")), [0])),
        ("FORCERELEASE", |_, client| assert_eq!(client.call("RLOCK.FORCERELEASE z"), 1)),
        ("DEL", |_, client| assert_eq!(client.call("DEL z"), 1)),
        ("RENAME", |_, client| assert_eq!(client.call("RENAME z away"), "OK")),
        ("EXPIRE", |_, client| assert_eq!(client.call("PEXPIRE z 50"), 1)),
        ("FLUSHALL", |_, client| assert_eq!(client.call("FLUSHALL"), "OK")),
    ];
    for (name, free) in ways {
        eprintln!("{name}");
        let server = Server::start();
        let mut client = server.client();
        client.acquire("x a PX 100");
        client.acquire("y b PX 60000");
        client.acquire(if name == "the end of a lease" { "z c PX 1500" } else { "z c PX 60000" });
        let mut waiter = server.waiter("RLOCK.MACQUIRE 3 x y z d PX 60000 BLOCK 0");
        // One lease expires and one key is deleted. Both keys stay reserved for the waiter, and
        // nothing is granted yet.
        eventually(SOON, || client.call("EXISTS x") == 0);
        assert_eq!(client.call("DEL y"), 1);
        assert_eq!(client.call("RLOCK.ACQUIRE y e"), Reply::Nil);
        waiter.assert_waits();
        assert_eq!(owners(&mut client, "x y z"), ["-", "-", "c"]);
        free(&server, &mut client);
        let tokens = numbers(&waiter.reply());
        assert_eq!(tokens.len(), 3);
        assert_eq!(owners(&mut client, "x y z"), ["d", "d", "d"]);
    }
}

#[test]
fn waiter_is_not_passed_on_a_free_key() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("x a PX 60000");
    let mut many = server.waiter("RLOCK.MACQUIRE 2 x y b PX 60000 BLOCK 0");
    assert_eq!(client.call("RLOCK.ACQUIRE y c"), Reply::Nil);
    assert_eq!(client.call("RLOCK.MACQUIRE 2 z y c"), Reply::Nil);
    let mut single = server.waiter("RLOCK.ACQUIRE y c PX 60000 BLOCK 0");
    assert_eq!(client.waiting_owners("y"), ["b", "c"]);
    client.call("RLOCK.RELEASE x a");
    many.reply().array();
    client.call("RLOCK.MRELEASE 2 x y b");
    single.reply().int();
}

#[test]
fn leaving_waiter_unblocks_the_queues_of_all_its_keys() {
    type Leaving = fn(&mut Client, Client);
    let ways: [(&str, Leaving); 3] = [
        ("timeout", |_, mut waiter| assert_eq!(waiter.reply(), Reply::Nil)),
        ("disconnect", |_, waiter| drop(waiter)),
        ("CLIENT UNBLOCK", |client, mut waiter| {
            client.call(format!("CLIENT UNBLOCK {} ERROR", waiter.id()));
            waiter.reply().expect_error("UNBLOCKED");
        }),
    ];
    for (name, leave) in ways {
        eprintln!("{name}");
        let server = Server::start();
        let mut client = server.client();
        client.acquire("x a PX 60000");
        let block_ms = if name == "timeout" { 1500 } else { 0 };
        let waiter = server.blocked_waiter(format!("RLOCK.MACQUIRE 3 x y z b BLOCK {block_ms}"));
        let mut on_y = server.blocked_waiter("RLOCK.ACQUIRE y c PX 60000 BLOCK 0");
        let mut on_z = server.blocked_waiter("RLOCK.MACQUIRE 2 z w c PX 60000 BLOCK 0");
        leave(&mut client, waiter);
        on_y.reply().int();
        assert_eq!(on_z.reply().array().len(), 2);
        assert_eq!(client.waiting_owners("x"), [""; 0]);
    }
}

#[test]
fn requests_in_opposite_key_order_do_not_deadlock() {
    let server = Server::start();
    let mut client = server.client();
    acquire(&mut client, "2 x y a PX 60000");
    let mut one = server.waiter("RLOCK.MACQUIRE 2 x y b PX 60000 BLOCK 0");
    let mut other = server.waiter("RLOCK.MACQUIRE 2 y x c PX 60000 BLOCK 0");
    client.call("RLOCK.MRELEASE 2 y x a");
    one.reply().array();
    other.assert_waits();
    client.call("RLOCK.MRELEASE 2 x y b");
    assert_eq!(other.reply().array().len(), 2);
    assert_eq!(owners(&mut client, "x y"), ["c", "c"]);
}

#[test]
fn macquire_waiter_killed_in_the_turn_of_its_grant_keeps_no_key() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("x a PX 60000");
    let leaver = server.waiter("RLOCK.MACQUIRE 2 x y b PX 60000 BLOCK 0");
    let kill = format!("CLIENT KILL ID {}", leaver.id()).into();
    client.call_in_one_step(&["RLOCK.RELEASE x a".into(), kill]);
    eventually(SOON, || client.call("DBSIZE") == 0);
}

#[test]
fn command_on_one_key_confirms_the_grant_of_all_keys() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("x a PX 60000");
    let leaver = server.waiter("RLOCK.MACQUIRE 2 x y b PX 60000 BLOCK 0");
    let kill = format!("CLIENT KILL ID {}", leaver.id()).into();
    client.call_in_one_step(&["RLOCK.RELEASE x a".into(), "RLOCK.RENEW y b".into(), kill]);
    client.acquire("marker m PX 20");
    eventually(SOON, || client.call("EXISTS marker") == 0);
    assert_eq!(owners(&mut client, "x y"), ["b", "b"]);
}

#[test]
fn repeated_keys_and_wrong_numbers_of_keys_are_refused() {
    let server = Server::start();
    let mut client = server.client();
    let many = |count: usize| (0..count).map(|number| format!("k{number} ")).collect::<String>();
    for name in ["RLOCK.MACQUIRE", "RLOCK.MRELEASE", "RLOCK.MRENEW"] {
        for wrong in [
            "2 x x a".to_owned(),
            "3 x y x a".to_owned(),
            "0 a".to_owned(),
            "0 x a".to_owned(),
            "-1 x a".to_owned(),
            "two x y a".to_owned(),
            "2 x y".to_owned(),
            "9 x y a".to_owned(),
            "1 x y a".to_owned(),
            format!("129 {}a", many(129)),
            "99999999999999999999 x a".to_owned(),
        ] {
            client.call(format!("{name} {wrong}")).expect_error("ERR");
        }
    }
    assert_eq!(client.call("DBSIZE"), 0);
    assert_eq!(acquire(&mut client, &format!("128 {}a", many(128))).len(), 128);
    assert_eq!(client.call(format!("RLOCK.MRELEASE 128 {}a", many(128))).array().len(), 128);
    assert_eq!(client.call("DBSIZE"), 0);
}

#[test]
fn block_in_transactions_and_scripts_is_one_attempt() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("x a PX 60000");
    let command = "RLOCK.MACQUIRE 2 x y b BLOCK 0";
    assert_eq!(client.transaction(command), Reply::Nil);
    assert_eq!(client.eval(command), Reply::Nil);
    assert_eq!(client.waiting_owners("y"), [""; 0]);
    client.call("RLOCK.RELEASE x a");
    assert_eq!(client.transaction(command).array().len(), 2);
    assert_eq!(client.eval("RLOCK.MRELEASE 2 x y b"), Reply::Array(vec![Reply::Int(0), Reply::Int(0)]));
    client.eval("RLOCK.MACQUIRE 2 x y b SESSION 0").expect_error("ERR");
}

#[test]
fn repeated_macquire_counts_once() {
    let server = Server::start();
    let mut client = server.client();
    let tokens = acquire(&mut client, "2 x y a PX 60000 REQ 1");
    assert_eq!(acquire(&mut client, "2 x y a PX 60000 REQ 1"), tokens);
    assert_eq!(client.call("RLOCK.HOLDS x a"), 1);
    // Keys are checked separately: a key that already has this id is skipped.
    client.call("RLOCK.FORCERELEASE y");
    let again = acquire(&mut client, "2 x y a PX 60000 REQ 1");
    assert!(again[0] == tokens[0] && again[1] > tokens[1], "{again:?} after {tokens:?}");
    assert_eq!(client.call("RLOCK.HOLDS x a"), 1);
    client.call("RLOCK.ACQUIRE x a REQ 1").expect_error("STALE");

    acquire(&mut client, "2 x y a PX 60000 REQ 2");
    client.call("RLOCK.RELEASE y a REQ 3");
    assert_eq!(numbers(&client.call("RLOCK.MRELEASE 2 x y a REQ 4")), [1, 0]);
    assert_eq!(
        numbers(&client.call("RLOCK.MRELEASE 2 x y a REQ 4")),
        [1, 0],
        "the known key is skipped, the other one is released"
    );
    assert_eq!(client.call("RLOCK.HOLDS x a"), 1);
    client.call("RLOCK.MRELEASE 2 x y a REQ 5").expect_error("NOTOWNER");
    assert_eq!(client.call("RLOCK.RELEASE x a REQ 6"), 0);
}

#[test]
fn waiting_macquire_is_superseded_only_with_the_same_keys() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("x a PX 60000");
    let mut first = server.waiter("RLOCK.MACQUIRE 2 x y b REQ 3 BLOCK 0");
    let _behind = server.waiter("RLOCK.ACQUIRE y c BLOCK 0");
    client.call("RLOCK.MACQUIRE 3 x y z b REQ 3 BLOCK 0").expect_error("STALE");
    client.call("RLOCK.ACQUIRE x b REQ 3 BLOCK 0").expect_error("STALE");
    client.call("RLOCK.MACQUIRE 2 x y b REQ 2").expect_error("STALE");
    let mut second = server.waiter("RLOCK.MACQUIRE 2 y x b REQ 3 BLOCK 0");
    first.reply().expect_error("SUPERSEDED");
    assert_eq!(client.waiting_owners("y"), ["b", "c"]);
    let mut third = server.waiter("RLOCK.MACQUIRE 2 y z b REQ 4 BLOCK 0");
    second.reply().expect_error("SUPERSEDED");
    assert_eq!(client.waiting_owners("y"), ["b"], "c is served when b leaves the queue");
    assert_eq!(owners(&mut client, "x y z"), ["a", "c", "-"]);
    client.call("RLOCK.RELEASE y c");
    assert_eq!(third.reply().array().len(), 2);
}

#[test]
fn session_binds_every_key() {
    let server = Server::start();
    let (mut bound, mut client) = (server.client(), server.client());
    acquire(&mut bound, "3 x y z a PX 60000 SESSION 0");
    assert_eq!(client.holder("z").expect("a holder").session, 1);
    drop(bound);
    eventually(SOON, || client.call("DBSIZE") == 0);
}

#[test]
fn macquire_waiter_counts_once() {
    let server = Server::start();
    let mut client = server.client();
    client.call("CONFIG SET rlock.max-waiters 1");
    client.acquire("x a PX 60000");
    let _waiter = server.waiter("RLOCK.MACQUIRE 3 x y z b BLOCK 0");
    assert_eq!(client.info_number("rlock_waiting"), 1);
    client.call("RLOCK.MACQUIRE 2 x w c BLOCK 0").expect_error("MAXWAITERS");
}

#[test]
fn key_of_another_kind_refuses_the_whole_request() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT semaphore 1");
    client.call("RFAIRLOCK.ACQUIRE fair a");
    client.call("RRWLOCK.ACQUIRE rwlock a READ");
    client.call("SET text x");
    for key in ["semaphore", "fair", "rwlock", "text"] {
        client.call(format!("RLOCK.MACQUIRE 2 x {key} a BLOCK 0")).expect_error("WRONGTYPE");
        client.call(format!("RLOCK.MRELEASE 2 x {key} a")).expect_error("WRONGTYPE");
    }
    assert_eq!(client.call("EXISTS x"), 0);
    // A waiter may also meet another type later.
    client.acquire("y b PX 60000");
    client.acquire("z b PX 60000");
    let mut waiter = server.waiter("RLOCK.MACQUIRE 2 y z a BLOCK 0");
    client.call("SET z text");
    waiter.reply().expect_error("WRONGTYPE");
    assert_eq!(owners(&mut client, "y"), ["b"]);
    assert_eq!(client.waiting_owners("y"), [""; 0]);
}

#[test]
fn macquire_waiter_is_refused_when_a_free_key_gets_another_type() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("held a PX 600000");
    for way in ["RENAME text free", "COPY text free"] {
        client.call("SET text here");
        let mut waiter = server.waiter("RLOCK.MACQUIRE 2 free held b BLOCK 0");
        assert_ne!(client.call(way), 0);
        waiter.reply_within(SOON).expect("the waiter is refused").expect_error("WRONGTYPE");
        client.call("DEL text free");
    }
}

#[test]
fn macquire_needs_permission_for_every_key() {
    let server = Server::start();
    let mut admin = server.client();
    admin.call("ACL SETUSER worker on >secret ~a:* +@all");
    let mut worker = server.client();
    assert_eq!(worker.call("AUTH worker secret"), "OK");
    for name in ["RLOCK.MACQUIRE", "RLOCK.MRELEASE", "RLOCK.MRENEW"] {
        worker.call(format!("{name} 2 a:1 b:1 o")).expect_error("NOPERM");
    }
    assert_eq!(acquire(&mut worker, "2 a:1 a:2 o").len(), 2);
    let keys = admin.call("COMMAND GETKEYS RLOCK.MACQUIRE 3 x y z owner BLOCK 0");
    assert_eq!(keys.array().iter().map(Reply::text).collect::<Vec<_>>(), ["x", "y", "z"]);
}

#[test]
fn macquire_is_one_step_in_the_append_only_file_and_on_a_replica() {
    let mut server = Server::with_aof(&[]);
    let replica = Server::replica_of(&server, &[]);
    let mut client = server.client();
    client.acquire("x a PX 60000");
    let mut waiter = server.waiter("RLOCK.MACQUIRE 3 x y z b PX 60000 BLOCK 0");
    let before = propagated(&server).len();
    client.call("RLOCK.RELEASE x a");
    let tokens = numbers(&waiter.reply());
    let commands = propagated(&server);
    let names: Vec<_> = commands[before..].iter().map(|words| String::from_utf8_lossy(&words[0])).collect();
    assert_eq!((names[0].as_ref(), names[names.len() - 1].as_ref()), ("MULTI", "EXEC"), "{names:?}");
    assert_eq!(names.iter().filter(|name| *name == "RLOCK.APPLY").count(), 4, "{names:?}");
    replica.catch_up_with(&server);
    let state =
        |client: &mut Client| ["x", "y", "z"].map(|key| client.holder(key).map(|holder| (holder.owner, holder.token)));
    let expected = [0, 1, 2].map(|index| Some(("b".to_owned(), tokens[index])));
    assert_eq!(state(&mut replica.client()), expected);
    server.kill_and_restart();
    assert_eq!(state(&mut server.client()), expected);
}

#[test]
fn pause_delays_all_keys_of_a_request() {
    let server = Server::with_aof(&[]);
    let mut client = server.client();
    client.acquire("x a PX 500");
    let mut waiter = server.waiter("RLOCK.MACQUIRE 2 x y b PX 60000 BLOCK 0");
    let start = Instant::now();
    client.call("CLIENT PAUSE 800 WRITE");
    assert_eq!(waiter.reply().array().len(), 2);
    assert!(start.elapsed() >= Duration::from_millis(800), "{:?}", start.elapsed());
}

#[test]
fn macquire_removes_expired_holds_first() {
    let server = Server::start();
    let mut client = server.client();
    // The server sleeps within the step, so the timer cannot have removed the expired holds.
    let step = ["RLOCK.ACQUIRE x a PX 20", "RLOCK.ACQUIRE y b PX 20", "DEBUG SLEEP 0.05", "RLOCK.MACQUIRE 2 x y c"];
    let answers = client.call_in_one_step(&step.map(Command::from));
    assert_eq!(answers[3].array().len(), 2);
}
