//! Contexts in which commands run: transactions, scripts, other modules, replicas, ACL users,
//! without memory, during a pause.

use std::time::Duration;

use crate::support::{
    ALL, Client, Command, EXCLUSIVE, Events, MUTEX, Reply, Server, TRANSIENT, calling_module, eventually, free_port,
    propagated, skipped_here,
};

const SOON: Duration = Duration::from_secs(5);

const WRITING_COMMANDS: [&str; 6] = [
    "RLOCK.ACQUIRE job a",
    "RLOCK.ACQUIRE free c",
    "RLOCK.ACQUIRE job c BLOCK 0",
    "RLOCK.RELEASE job a",
    "RLOCK.RENEW job a",
    "RLOCK.FORCERELEASE job",
];

const READING_COMMANDS: [&str; 4] = ["RLOCK.HOLDS job a", "RLOCK.PTTL job", "RLOCK.INFO job", "RLOCK.WAITERS job"];

#[test]
fn block_in_transactions_and_scripts_is_one_attempt() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let command = "LOCK.ACQUIRE job b BLOCK 0";
        assert_eq!(client.transaction(command), Reply::Nil);
        assert_eq!(client.eval(command), Reply::Nil);
        assert_eq!(client.waiting_owners("job"), [""; 0]);
        client.call("LOCK.RELEASE job a");
        assert!(client.is_free("job"));

        assert!(client.transaction(command).int() > 0);
        client.call("LOCK.RELEASE job b");
        assert!(client.eval(command).int() > 0);
        assert_eq!(client.call("LOCK.HOLDS job b"), 1);
    }
}

#[test]
fn commands_return_the_same_in_transactions_and_scripts() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        let ways: [fn(&mut Client, &str) -> Reply; 3] =
            [|c, command| c.call(command), |c, command| c.transaction(command), |c, command| c.eval(command)];
        for run in ways {
            let token = run(&mut client, "LOCK.ACQUIRE job a PX 20000").int();
            assert_eq!(run(&mut client, "LOCK.ACQUIRE job a PX 20000"), token);
            assert_eq!(run(&mut client, "LOCK.HOLDS job a"), 2);
            assert!(run(&mut client, "LOCK.RENEW job a PX 60000").int() > 50_000);
            assert!(run(&mut client, "LOCK.PTTL job").int() > 50_000);
            assert_eq!(run(&mut client, "LOCK.INFO job").field("waiters"), 0);
            assert_eq!(run(&mut client, "LOCK.WAITERS job"), Reply::Array(vec![]));
            assert_eq!(run(&mut client, "LOCK.RELEASE job a"), 1);
            run(&mut client, "LOCK.RELEASE job b").expect_error("NOTOWNER");
            assert_eq!(run(&mut client, "LOCK.FORCERELEASE job"), 1);
            assert!(client.is_free("job"));
        }
    }
}

/// A call by another module has no connection that could close or receive a message.
#[test]
fn module_calls_can_hold_a_lock_without_a_session_and_never_wait() {
    let server = Server::with(&[&format!("loadmodule {}", calling_module().display())]);
    let mut client = server.client();
    for options in ["SESSION 1000", "BLOCK 0 NOTIFY answers REQ 1"] {
        for call in ["CALLER.CALL", "CALLER.USER"] {
            let refused = client.call(format!("{call} RLOCK.ACQUIRE job a PX 60000 {options}"));
            assert!(refused.expect_error("ERR").contains("other modules"), "{call} {options}: {refused:?}");
            client.call("MULTI");
            client.call(format!("{call} RLOCK.ACQUIRE job a PX 60000 {options}"));
            let refused = client.call("EXEC");
            assert!(refused.array()[0].expect_error("ERR").contains("other modules"), "{call} {options}: {refused:?}");
        }
        for call in blocking_calls(&mut client) {
            let refused = client.call(format!("{call} RLOCK.ACQUIRE job a PX 60000 {options}"));
            assert!(refused.expect_error("ERR").contains("other modules"), "{call} {options}: {refused:?}");
        }
    }
    let token = client.call("CALLER.CALL RLOCK.ACQUIRE job a PX 60000").int();
    assert_eq!(client.call("CALLER.CALL RLOCK.ACQUIRE job b BLOCK 0"), Reply::Nil);
    assert_eq!(client.info_number("rlock_waiting"), 0);
    assert_eq!(client.holder("job").expect("a holder").identity(), ("a", 1, token));
    assert_eq!(client.call("CALLER.CALL RLOCK.RELEASE job a"), 0);
}

/// The commands of the calling module that may block: in the module's own name, and in that of the
/// calling user. Redis 7.0 has none.
fn blocking_calls(client: &mut Client) -> &'static [&'static str] {
    if client.call("CALLER.WAIT PING") == "PONG" { &["CALLER.WAIT", "CALLER.BOTH"] } else { &[] }
}

#[test]
fn block_in_a_module_call_is_one_attempt() {
    for family in EXCLUSIVE {
        let server = server_with_a_calling_module(Server::with, &[]).speaking(*family);
        let mut client = server.client();
        let calls = blocking_calls(&mut client);
        if calls.is_empty() {
            return skipped_here("no call of a module may be blocked");
        }
        for call in calls {
            let command = format!("{call} LOCK.ACQUIRE job b BLOCK 0");
            client.acquire("job a PX 60000");
            assert_eq!(client.call(command.as_str()), Reply::Nil);
            assert_eq!(client.transaction(command.as_str()), Reply::Nil);
            assert_eq!(client.waiting_owners("job"), [""; 0]);
            client.call("LOCK.RELEASE job a");
            assert!(client.is_free("job"));
            assert!(client.call(command.as_str()).int() > 0);
            assert_eq!(client.call("LOCK.RELEASE job b"), 0);
        }
    }
}

#[test]
fn macquire_with_block_in_a_module_call_is_one_attempt() {
    let server = server_with_a_calling_module(Server::with, &[]);
    let mut client = server.client();
    let calls = blocking_calls(&mut client);
    if calls.is_empty() {
        return skipped_here("no call of a module may be blocked");
    }
    for call in calls {
        let command = format!("{call} RLOCK.MACQUIRE 2 job other b BLOCK 60000");
        client.acquire("job a PX 60000");
        assert_eq!(client.call(command.as_str()), Reply::Nil);
        assert_eq!(client.info_number("rlock_waiting"), 0);
        client.call("RLOCK.RELEASE job a");
        assert_eq!(client.call("DBSIZE"), 0);
        assert_eq!(client.call(command.as_str()).array().len(), 2);
        client.call("RLOCK.MRELEASE 2 job other b").array();
    }
}

/// A client stays in the database that a module has selected for it. In a transaction some servers
/// do not report the new database.
#[test]
fn commands_use_the_database_selected_by_another_module() {
    let server = server_with_a_calling_module(Server::with, &[]);
    let (mut client, mut there) = (server.client(), server.client());
    there.call("SELECT 1");
    there.acquire("one a PX 60000");
    there.acquire("two a PX 60000");
    client.acquire("one x PX 60000");
    let waiter = |command: &str| {
        let mut client = server.client();
        client.call("SELECT 1");
        client.send(command);
        client
    };
    let mut b = waiter("RLOCK.ACQUIRE one b BLOCK 0");
    eventually(SOON, || there.waiting_owners("one") == ["b"]);
    let mut c = waiter("RLOCK.MACQUIRE 2 two three c BLOCK 0");
    eventually(SOON, || there.waiting_owners("two") == ["c"]);

    client.call("MULTI");
    for command in [
        "CALLER.SELECT 1",
        "RLOCK.WAITERS one",
        "RLOCK.WAITERS two",
        "RLOCK.RELEASE one a",
        "RLOCK.RELEASE two a",
        "RLOCK.ACQUIRE short a PX 50",
    ] {
        assert_eq!(client.call(command), "QUEUED");
    }
    let answers = client.call("EXEC");
    let [_, one, two, released @ .., short] = answers.array() else { panic!("{answers:?}") };
    assert_eq!(one.array()[0].field("owner"), "b");
    assert_eq!(two.array()[0].field("owner"), "c");
    assert_eq!(released, [Reply::Int(0), Reply::Int(0)]);
    short.clone().int();
    b.reply().int();
    assert_eq!(c.reply().array().len(), 2);
    eventually(SOON, || there.call("EXISTS short") == 0);
    let mut original = server.client();
    assert_eq!(original.holder("one").expect("a holder").owner, "x");
    assert_eq!(client.call("RLOCK.HOLDS one b"), 1);
}

/// The server creates and deletes keys in the middle of a change by the module.
#[test]
fn commands_in_the_event_of_a_new_key_are_refused() {
    let server = server_with_a_calling_module(Server::with, &[]);
    let mut client = server.client();
    client.acquire("held a PX 60000");
    for command in ["RLOCK.ACQUIRE other b PX 60000", "RLOCK.RELEASE held a", "RLOCK.MACQUIRE 2 job other b"] {
        client.call(format!("CALLER.NEW {command}"));
        client.acquire("job a PX 60000");
        let answer = client.call("CALLER.ANSWER");
        assert!(answer.expect_error("ERR").contains("cannot run while it creates or deletes a key"), "{answer:?}");
        assert_eq!(client.call("RLOCK.RELEASE job a"), 0);
        assert!(client.is_free("other") && client.holder("held").is_some());
    }
    client.call("CALLER.NEW RLOCK.HOLDS held a");
    client.acquire("job a PX 60000");
    assert_eq!(client.call("CALLER.ANSWER"), 1);
}

#[test]
fn lock_deleted_in_the_event_of_another_key_is_handed_over() {
    let server = server_with_a_calling_module(Server::with, &[]);
    let mut client = server.client();
    for event in ["NEW", "DELETED"] {
        client.acquire("held a PX 60000");
        let mut waiter = server.client();
        waiter.send("RLOCK.ACQUIRE held b PX 60000 BLOCK 0");
        eventually(SOON, || client.waiting_owners("held") == ["b"]);
        client.call(format!("CALLER.{event} DEL held"));
        client.acquire("job a PX 60000");
        assert_eq!(client.call("RLOCK.RELEASE job a"), 0);
        if event == "DELETED" && matches!(client.call("CALLER.ANSWER"), Reply::Error(_)) {
            return skipped_here("the server tells modules of no deletion");
        }
        assert_eq!(client.call("CALLER.ANSWER"), 1);
        waiter.reply().int();
        assert_eq!(client.call("RLOCK.RELEASE held b"), 0);
    }
}

fn server_with_a_calling_module(start: impl FnOnce(&[&str]) -> Server, lines: &[&str]) -> Server {
    let module = format!("loadmodule {}", calling_module().display());
    start(&[lines, &[module.as_str()]].concat())
}

/// A server with another module that runs a command when a key expires. Active expiry is off, so
/// the next command on the key triggers it.
fn server_with_a_listener(expired_key: &str, command: &str) -> Server {
    let server = server_with_a_calling_module(Server::with, &[]);
    let mut client = server.client();
    client.call("DEBUG SET-ACTIVE-EXPIRE 0");
    client.call(format!("SET {expired_key} text PX 1"));
    std::thread::sleep(Duration::from_millis(5));
    client.call(format!("CALLER.EXPIRED {command}"));
    server
}

/// The key is free when the request arrives, and held when the module opens it.
#[test]
fn lock_acquired_by_another_module_during_open_is_not_granted_twice() {
    let server = server_with_a_listener("job", "RLOCK.ACQUIRE job b PX 60000");
    let mut client = server.client();
    assert_eq!(client.call("RLOCK.ACQUIRE job a PX 60000"), Reply::Nil);
    assert_eq!(client.call("RLOCK.HOLDS job b"), 1);
    assert_eq!(client.call("RLOCK.RELEASE job b"), 0);
}

/// The module must not overwrite a value that appears while it opens the key.
#[test]
fn value_set_by_another_module_during_open_is_not_overwritten() {
    let server = server_with_a_listener("job", "SET job text");
    let mut client = server.client();
    client.call("RLOCK.ACQUIRE job a PX 60000").expect_error("WRONGTYPE");
    assert_eq!(client.call("GET job"), "text");
}

/// The first key is open when the second one expires.
#[test]
fn open_lock_deleted_by_another_module_is_created_again() {
    let server = server_with_a_listener("two", "DEL one");
    let mut client = server.client();
    let first = client.acquire("one a PX 60000");
    let tokens = client.call("RLOCK.MACQUIRE 2 one two a PX 60000");
    assert!(tokens.array().iter().all(|token| token.clone().int() > first), "{tokens:?}");
    for key in ["one", "two"] {
        assert_eq!(client.call(format!("RLOCK.HOLDS {key} a")), 1);
        assert_eq!(client.call(format!("RLOCK.RELEASE {key} a")), 0);
    }
    assert_eq!(client.call("DBSIZE"), 0);
}

/// In a cluster the timer first asks the server whether this node serves the key. The server then
/// notices that the key has expired.
#[test]
fn changes_by_another_module_during_the_timer_survive_a_restart() {
    let bus = format!("cluster-port {}", free_port());
    let mut server = server_with_a_calling_module(Server::with_aof, &["cluster-enabled yes", &bus]);
    let mut client = server.client();
    let is_up = |client: &mut Client| client.call("CLUSTER INFO").text().contains("cluster_state:ok");
    assert_eq!(client.call("CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
    eventually(SOON, || is_up(&mut client));
    client.call("DEBUG SET-ACTIVE-EXPIRE 0");
    client.acquire("{job}:1 a PX 300");
    assert_eq!(client.call("PEXPIRE {job}:1 100"), 1);
    client.call("CALLER.EXPIRED RLOCK.ACQUIRE {job}:2 b PX 600000");
    eventually(SOON, || client.call("RLOCK.HOLDS {job}:2 b") == 1);
    server.kill_and_restart();
    client = server.client();
    eventually(SOON, || is_up(&mut client));
    assert_eq!(client.call("RLOCK.HOLDS {job}:2 b"), 1);
}

/// Rule P1. A fair lock ends the wait, too, although its place is removed only after the pause.
#[test]
fn wait_times_out_during_a_pause_and_nothing_is_granted() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 300");
        let mut next = server.waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
        let mut late = server.waiter("LOCK.ACQUIRE job c PX 60000 BLOCK 500");
        client.call("CLIENT PAUSE 600000 WRITE");
        assert_eq!(late.reply(), Reply::Nil);
        next.assert_waits();
        client.call("CLIENT UNPAUSE");
        next.reply().int();
        assert_eq!(client.waiting_owners("job"), [""; 0]);
        assert_eq!(client.info_number("rlock_timed_out"), 1);
    }
}

#[test]
fn replica_refuses_to_grant_even_if_writable() {
    let primary = Server::start();
    let replica = Server::replica_of(&primary, &[]);
    let token = primary.client().acquire("job a PX 60000");
    replica.catch_up_with(&primary);
    let mut client = replica.client();
    for read_only in ["yes", "no"] {
        client.call(format!("CONFIG SET replica-read-only {read_only}"));
        for command in WRITING_COMMANDS {
            client.call(command).expect_error("READONLY");
            client.eval(command).expect_error("READONLY");
        }
        assert_eq!(client.holder("job").expect("a holder").identity(), ("a", 1, token));
        assert_eq!(client.call("DBSIZE"), 1);
    }
}

#[test]
fn replica_shows_the_same_locks_as_the_primary() {
    let primary = Server::start();
    let mut on_primary = primary.client();
    let mut acquire_all = |name| {
        for family in ALL {
            on_primary.speak(*family);
            on_primary.make(&family.key(name));
            on_primary.acquire(&format!("{} a PX 60000", family.key(name)));
            on_primary.acquire(&format!("{} a PX 60000", family.key(name)));
        }
    };
    // Some locks come with the first synchronisation, others in the stream.
    acquire_all("early");
    let replica = Server::replica_of(&primary, &[]);
    acquire_all("job");
    let _waiter = primary.waiter(format!("RLOCK.ACQUIRE {} b BLOCK 0", MUTEX.key("job")));
    replica.catch_up_with(&primary);
    let mut on_replica = replica.client();
    for (family, name) in ALL.iter().flat_map(|family| ["early", "job"].map(|name| (family, name))) {
        let key = family.key(name);
        let original = on_primary.holder(&key).expect("a holder");
        let copy = on_replica.holder(&key).expect("a holder on the replica");
        assert_eq!(copy.identity(), original.identity());
        assert_eq!(copy.holds, 2);
        assert!((copy.lease_ms - original.lease_ms).abs() < 1000, "{copy:?} and {original:?}");
        on_replica.speak(*family);
        assert_eq!(on_replica.call(format!("LOCK.HOLDS {key} a")), original.holds);
        assert!((50_001..=60_000).contains(&on_replica.call(format!("LOCK.PTTL {key}")).int()));
    }
    // Only the primary knows its blocked waiters.
    assert_eq!(on_replica.call(format!("RLOCK.WAITERS {}", MUTEX.key("job"))), Reply::Array(vec![]));
}

#[test]
fn replica_hides_an_expired_lease_until_the_primary_ends_it() {
    let primary = Server::start();
    let replica = Server::replica_of(&primary, &[]);
    let (mut on_primary, mut on_replica) = (primary.client(), replica.client());
    for family in ALL {
        on_primary.speak(*family);
        on_primary.make(&family.key("job"));
        on_primary.acquire(&format!("{} a PX 2500", family.key("job")));
    }
    on_primary.call("CLIENT PAUSE 60000 WRITE");
    replica.catch_up_with(&primary);
    for family in ALL {
        on_replica.speak(*family);
        assert_eq!(on_replica.call(format!("LOCK.HOLDS {} a", family.key("job"))), 1);
    }
    for family in ALL {
        let key = family.key("job");
        on_replica.speak(*family);
        eventually(SOON, || on_replica.call(format!("LOCK.PTTL {key}")) == -2);
        assert_eq!(on_replica.call(format!("LOCK.HOLDS {key} a")), 0);
        assert_eq!(on_replica.holder(&key), None);
        assert_eq!(on_replica.call(format!("EXISTS {key}")), 1, "a replica must not remove a lock by itself");
    }
    on_primary.call("CLIENT UNPAUSE");
    for family in TRANSIENT {
        eventually(SOON, || on_replica.call(format!("EXISTS {}", family.key("job"))) == 0);
    }
}

#[test]
fn promoted_replica_expires_leases() {
    let primary = Server::start();
    let replica = Server::replica_of(&primary, &[]);
    let mut on_primary = primary.client();
    let mut tokens = Vec::new();
    for family in EXCLUSIVE {
        on_primary.speak(*family);
        let (long, short) = (family.key("long"), family.key("short"));
        on_primary.make(&long);
        on_primary.make(&short);
        tokens.push(on_primary.acquire(&format!("{long} a PX 60000 REQ 4")));
        on_primary.acquire(&format!("{short} a PX 2500"));
    }
    replica.catch_up_with(&primary);
    drop(primary);

    let mut events = Events::subscribe(&replica);
    let mut promoted = replica.client();
    promoted.call("REPLICAOF NO ONE");
    for (family, last) in EXCLUSIVE.iter().zip(tokens) {
        promoted.speak(*family);
        let (long, short) = (family.key("long"), family.key("short"));
        let token = promoted.acquire(&format!("{short} b PX 60000 BLOCK 0"));
        assert!(token > last);
        assert_eq!(promoted.acquire(&format!("{long} a REQ 4")), last, "the hold and its id are the same");
        assert_eq!(promoted.call(format!("LOCK.HOLDS {long} a")), 1);
    }
    let mut turns = events.so_far();
    turns.sort();
    let expected = |event: &str| EXCLUSIVE.iter().map(|family| format!("{event} {}", family.key("short"))).collect();
    let mut both: Vec<String> =
        [expected("rlock.acquire"), expected("rlock.expire")].into_iter().flat_map(|of: Vec<_>| of).collect();
    both.sort();
    assert_eq!(turns, both);
}

#[test]
fn demotion_ends_waits_with_unblocked() {
    let (server, other) = (Server::start(), Server::start());
    let mut client = server.client();
    client.acquire("job a PX 60000");
    let mut waiter = server.waiter("RLOCK.ACQUIRE job b BLOCK 0");
    client.call(format!("REPLICAOF 127.0.0.1 {}", other.port()));
    waiter.reply().expect_error("UNBLOCKED");
    server.catch_up_with(&other);
    client.call("REPLICAOF NO ONE");
    client.acquire("job c PX 60000");
    assert_eq!(client.waiting_owners("job"), [""; 0]);
    assert_eq!(client.info_number("rlock_waiting"), 0);
}

/// Watches `job`, runs `action` over another connection, and returns whether the transaction
/// still runs.
#[track_caller]
fn watch_survives(server: &Server, action: impl FnOnce(&mut Client)) -> bool {
    let (mut watcher, mut other) = (server.client(), server.client());
    assert_eq!(watcher.call("WATCH job"), "OK");
    action(&mut other);
    watcher.call("MULTI");
    watcher.call("PING");
    watcher.call("EXEC") != Reply::Nil
}

#[test]
fn macquire_and_mrelease_break_a_watch_of_any_key() {
    let server = Server::start();
    for keys in ["job other", "other job"] {
        assert!(!watch_survives(&server, |client| {
            client.call(format!("RLOCK.MACQUIRE 2 {keys} a PX 20000")).array();
        }));
        assert!(!watch_survives(&server, |client| {
            client.call(format!("RLOCK.MRELEASE 2 {keys} a")).array();
        }));
    }
}

#[test]
fn watch_is_broken_by_a_change_but_not_by_a_denied_attempt() {
    let server = Server::start();
    let mut client = server.client();
    assert!(!watch_survives(&server, |other| {
        other.acquire("job a PX 20000");
    }));
    for harmless in [
        "RLOCK.ACQUIRE job b",
        "RLOCK.ACQUIRE job b BLOCK 10",
        "RLOCK.RELEASE job b",
        "RLOCK.RENEW job b",
        "RLOCK.FORCERELEASE job TOKEN 1",
    ] {
        assert!(watch_survives(&server, |other| drop(other.call(harmless))), "{harmless}");
    }
    for harmless in READING_COMMANDS {
        assert!(watch_survives(&server, |other| drop(other.call(harmless))), "{harmless}");
    }
    for change in ["RLOCK.ACQUIRE job a", "RLOCK.RENEW job a PX 60000", "RLOCK.RELEASE job a", "RLOCK.FORCERELEASE job"]
    {
        assert!(!watch_survives(&server, |other| drop(other.call(change))), "{change}");
    }
    client.acquire("job a PX 100");
    let expire = |other: &mut Client| eventually(SOON, || other.call("EXISTS job") == 0);
    assert!(!watch_survives(&server, expire), "an expired lease");

    client.acquire("job a PX 500");
    let mut waiter = server.waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    assert!(!watch_survives(&server, |_| drop(waiter.reply())), "a hand-over after an expired lease");
}

/// WATCH as described in docs/guarantees.md, while the timer has no chance to remove the hold.
#[test]
fn watch_is_broken_by_the_next_grant_but_not_by_the_deadline() {
    let expire = ["LOCK.ACQUIRE job a PX 200", "WATCH job", "LOCK.HOLDS job a", "DEBUG SLEEP 0.25", "LOCK.HOLDS job a"];
    let write = ["MULTI", "SET text written", "EXEC"];
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        let step: Vec<Command> = expire.iter().chain(&write).map(|command| (*command).into()).collect();
        let replies = client.call_in_one_step(&step);
        assert_eq!((&replies[2], &replies[4]), (&Reply::Int(1), &Reply::Int(0)), "the lease expires in between");
        assert_eq!(replies[7].array(), ["OK"], "no other owner has the lock");
        eventually(SOON, || client.info_number("rlock_expired") == 1);

        let grant = ["LOCK.ACQUIRE job b PX 60000"];
        let step: Vec<Command> = expire.iter().chain(&grant).chain(&write).map(|command| (*command).into()).collect();
        let replies = client.call_in_one_step(&step);
        assert_eq!((&replies[2], &replies[4]), (&Reply::Int(1), &Reply::Int(0)), "the lease expires in between");
        assert!(replies[5].clone().int() > 0);
        assert_eq!(replies[8], Reply::Nil, "another owner has the lock");
    }
}

#[test]
fn watch_is_broken_by_the_removal_of_an_earlier_expired_hold() {
    for server in Server::for_each(EXCLUSIVE) {
        let (mut watcher, mut other) = (server.client(), server.client());
        let step = ["LOCK.ACQUIRE job a PX 20", "DEBUG SLEEP 0.05", "WATCH job", "LOCK.HOLDS job a"].map(Command::from);
        assert_eq!(watcher.call_in_one_step(&step)[3], 0);
        eventually(SOON, || other.info_number("rlock_expired") == 1);
        watcher.call("MULTI");
        watcher.call("PING");
        assert_eq!(watcher.call("EXEC"), Reply::Nil);
    }
}

#[test]
fn key_permissions_of_a_user_apply() {
    let server = Server::start();
    let mut admin = server.client();
    admin.call("ACL SETUSER worker on >secret ~a:* +@all");
    admin.acquire("job a PX 60000");
    let mut worker = server.client();
    assert_eq!(worker.call("AUTH worker secret"), "OK");
    for command in WRITING_COMMANDS.iter().chain(&READING_COMMANDS) {
        worker.call(*command).expect_error("NOPERM");
    }
    assert_eq!(admin.call("RLOCK.HOLDS job a"), 1);
    worker.acquire("a:job a");
    assert_eq!(worker.call("RLOCK.RELEASE a:job a"), 0);
}

#[test]
fn user_with_read_permission_can_inspect_but_not_acquire() {
    let server = Server::start();
    let mut admin = server.client();
    admin.call("ACL SETUSER viewer on >secret %R~* +@all");
    admin.acquire("job a PX 60000");
    let mut viewer = server.client();
    assert_eq!(viewer.call("AUTH viewer secret"), "OK");
    for command in WRITING_COMMANDS {
        viewer.call(command).expect_error("NOPERM");
    }
    for command in READING_COMMANDS {
        assert!(!matches!(viewer.call(command), Reply::Error(_)), "{command}");
    }
}

#[test]
fn without_memory_acquire_is_refused_and_release_works() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("job a PX 20000");
    client.acquire("other a PX 20000");
    let mut waiter = server.waiter("RLOCK.ACQUIRE job c PX 20000 BLOCK 0");
    client.call("CONFIG SET maxmemory-policy noeviction");
    client.call("CONFIG SET maxmemory 1");
    for command in [
        "RLOCK.ACQUIRE free b",
        "RLOCK.ACQUIRE job a",
        "RLOCK.ACQUIRE job b BLOCK 0",
        "RLOCK.ACQUIRE job b BLOCK 0 NOTIFY answers REQ 1",
    ] {
        client.call(command).expect_error("OOM");
    }
    assert_eq!(client.call("RLOCK.HOLDS job a"), 1);
    assert!(client.call("RLOCK.RENEW job a PX 60000").int() > 50_000);
    assert_eq!(client.call("RLOCK.RELEASE job a"), 0);
    assert!(waiter.reply().int() > 0, "an earlier waiter is served");
    assert_eq!(client.call("RLOCK.RELEASE job c"), 0);
    assert_eq!(client.call("RLOCK.FORCERELEASE other"), 1);
    assert_eq!(client.call("DBSIZE"), 0);
}

#[test]
fn effects_are_propagated_and_requests_never() {
    let server = Server::with_aof(&[]);
    let mut client = server.client();
    client.acquire("job a PX 60000");
    let before = propagated(&server).len();
    for unchanged in ["RLOCK.ACQUIRE job b", "RLOCK.RELEASE job b", "RLOCK.INFO job"] {
        client.call(unchanged);
        client.eval(unchanged);
    }
    assert_eq!(propagated(&server).len(), before);

    client.acquire("job a");
    client.call("RLOCK.RENEW job a PX 90000");
    let mut waiter = server.waiter("RLOCK.ACQUIRE job b PX 100 BLOCK 0");
    client.call("RLOCK.FORCERELEASE job");
    waiter.reply().int();
    eventually(SOON, || client.call("EXISTS job") == 0);
    let commands = propagated(&server);
    assert!(commands.len() > before + 3, "{commands:?}");
    for words in &commands {
        let name = String::from_utf8_lossy(&words[0]);
        assert!(["RLOCK.APPLY", "MULTI", "EXEC", "DEL"].contains(&name.as_ref()), "{name}");
    }
}

#[test]
fn clients_cannot_send_effects() {
    let server = Server::with_aof(&[]);
    let mut client = server.client();
    client.acquire("job a PX 60000");
    let effects = propagated(&server);
    assert!(!effects.is_empty());
    client.call("RLOCK.RELEASE job a");
    for words in effects {
        let effect = Command(words);
        assert!(matches!(client.call(effect.clone()), Reply::Error(_)));
        assert!(matches!(client.transaction(effect.clone()), Reply::Error(_)));
        assert!(matches!(client.eval(effect), Reply::Error(_)));
    }
    client.call("RLOCK.APPLY").expect_error("ERR");
    assert_eq!(client.call("EXISTS job"), 0);
}
