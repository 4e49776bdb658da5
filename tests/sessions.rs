//! SESSION: the end of a connection ends the holds that are bound to it.

use std::time::Duration;

use crate::support::{
    ALL, Client, Command, EXCLUSIVE, REENTRANT, Reply, Server, Stopwatch, TRANSIENT, calling_module, eventually,
};

const SOON: Duration = Duration::from_secs(5);

/// Closes a connection and waits until the server has noticed.
#[track_caller]
fn close(server: &Server, client: Client) {
    let id = client.id();
    drop(client);
    server.wait_for_departure_of(id);
}

#[test]
fn timed_crash_of_the_holder_frees_the_lock_before_its_lease_expires() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut holder = server.client();
        holder.acquire("job a PX 60000 SESSION 0");
        let mut next = server.waiter("LOCK.ACQUIRE job b BLOCK 0");
        let watch = Stopwatch::start();
        drop(holder);
        next.reply().int();
        watch.assert_took_ms(0..600, "the end of a session");
    }
}

#[test]
fn timed_session_grace_counts_from_the_end_of_the_connection() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut holder = server.client();
        holder.acquire("job a PX 60000 SESSION 500");
        let mut next = server.waiter("LOCK.ACQUIRE job b BLOCK 0");
        // Time while the connection is open must not count.
        assert!(next.reply_within(Duration::from_millis(700)).is_err());
        let watch = Stopwatch::start();
        drop(holder);
        next.reply().int();
        watch.assert_took_ms(499..1200, "the grace of a session");
    }
}

#[test]
fn killed_connection_ends_the_session() {
    for server in Server::for_each(ALL) {
        let (mut holder, mut client) = (server.client(), server.client());
        holder.acquire("job a PX 60000 SESSION 0");
        assert_eq!(client.call(format!("CLIENT KILL ID {}", holder.id())), 1);
        eventually(SOON, || client.is_free("job"));
    }
}

#[test]
fn closed_connection_ends_all_its_holds_and_no_others() {
    for server in Server::for_each(TRANSIENT) {
        let (mut holder, mut client) = (server.client(), server.client());
        for number in 0..100 {
            holder.acquire(&format!("job-{number} a PX 60000 SESSION 0"));
        }
        holder.acquire("unbound a PX 60000");
        close(&server, holder);
        eventually(SOON, || client.call("DBSIZE") == 1);
        assert_eq!(client.call("LOCK.HOLDS unbound a"), 1);
    }
}

#[test]
fn closed_connection_does_not_end_a_later_hold_of_the_same_owner() {
    for server in Server::for_each(TRANSIENT) {
        let (mut holder, mut client) = (server.client(), server.client());
        holder.acquire("job a PX 60000 SESSION 0");
        holder.call("LOCK.RELEASE job a");
        // A new hold of the same owner, over another connection and without SESSION.
        client.acquire("job a PX 60000");
        close(&server, holder);
        client.acquire("marker b PX 50");
        eventually(SOON, || client.call("EXISTS marker") == 0);
        assert_eq!(client.call("LOCK.HOLDS job a"), 1);
    }
}

#[test]
fn session_lasts_until_its_last_connection_closes() {
    for server in Server::for_each(TRANSIENT) {
        let mut client = server.client();
        for bind in ["LOCK.RENEW job a", "LOCK.ACQUIRE job a", "LOCK.ACQUIRE job a REQ 7"] {
            for first_closes_first in [true, false] {
                let (mut one, mut two) = (server.client(), server.client());
                one.acquire("job a PX 60000 SESSION 0 REQ 7");
                assert!(two.call(bind).int() > 0);
                let (first, last) = if first_closes_first { (one, two) } else { (two, one) };
                close(&server, first);
                // The expiry of this later lease shows that the timer has run.
                client.acquire("marker b PX 20");
                eventually(SOON, || client.call("EXISTS marker") == 0);
                let holder = client.holder("job").unwrap_or_else(|| panic!("{bind} did not bind"));
                assert_eq!(holder.session, 1, "{bind}");
                assert!(holder.lease_ms > 50_000, "{bind}: {holder:?}");
                close(&server, last);
                eventually(SOON, || client.call("EXISTS job") == 0);
            }
        }
    }
}

#[test]
fn renew_and_reentry_do_not_bind_a_hold_without_session() {
    for server in Server::for_each(TRANSIENT) {
        let (mut one, mut two) = (server.client(), server.client());
        one.acquire("job a PX 60000");
        two.call("LOCK.RENEW job a");
        two.acquire("job a");
        assert_eq!(one.holder("job").expect("a holder").session, 0);
        close(&server, two);
        one.acquire("marker b PX 20");
        eventually(SOON, || one.call("EXISTS marker") == 0);
        assert!(one.call("LOCK.PTTL job").int() > 50_000);
    }
}

#[test]
fn timed_renewal_over_a_new_connection_rejoins_the_session_within_the_grace() {
    for server in Server::for_each(EXCLUSIVE) {
        let (mut one, mut two, mut client) = (server.client(), server.client(), server.client());
        one.acquire("job a PX 60000 SESSION 1500");
        close(&server, one);
        eventually(SOON, || client.holder("job").is_some_and(|holder| holder.session == 0));
        let left = client.call("LOCK.PTTL job").int();
        assert!((1..=1500).contains(&left), "the grace runs: {left}");
        let renewed = two.call("LOCK.RENEW job a PX 60000").int();
        assert!(renewed > 55_000, "{renewed}");
        assert_eq!(client.holder("job").expect("a holder").session, 1);

        let watch = Stopwatch::start();
        drop(two);
        client.acquire("job b BLOCK 0");
        watch.assert_took_ms(1499..2100, "the grace of a rejoined session");
    }
}

#[test]
fn ended_session_cannot_be_resumed() {
    for server in Server::for_each(ALL) {
        let (mut one, mut two) = (server.client(), server.client());
        one.acquire("job a PX 60000 SESSION 0");
        close(&server, one);
        two.call("LOCK.RENEW job a").expect_error("NOTOWNER");
        two.call("LOCK.RELEASE job a").expect_error("NOTOWNER");
    }
}

#[test]
fn timed_closed_connection_never_extends_the_lease() {
    for server in Server::for_each(EXCLUSIVE) {
        let (mut one, mut client) = (server.client(), server.client());
        let watch = Stopwatch::start();
        one.acquire("job a PX 400 SESSION 60000");
        close(&server, one);
        client.acquire("job b BLOCK 0");
        watch.assert_took_ms(399..1000, "a lease that expires before the grace ends");
    }
}

#[test]
fn last_acquire_with_session_sets_the_grace() {
    for server in Server::for_each(ALL) {
        let (mut one, mut client) = (server.client(), server.client());
        one.acquire("job a PX 60000 SESSION 60000");
        one.acquire("job a PX 60000 SESSION 0");
        // Without SESSION nothing changes.
        one.acquire("job a PX 60000");
        close(&server, one);
        eventually(SOON, || client.is_free("job"));

        let mut one = server.client();
        one.acquire("job a PX 60000");
        one.acquire("job a PX 60000 SESSION 0");
        close(&server, one);
        eventually(SOON, || client.is_free("job"));
    }
}

#[test]
fn grant_after_a_wait_has_the_session_of_the_request() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let mut next = server.waiter("LOCK.ACQUIRE job b PX 60000 SESSION 0 BLOCK 0");
        client.call("LOCK.RELEASE job a");
        let token = next.reply().int();
        let holder = client.holder("job").expect("a holder");
        assert_eq!((holder.identity(), holder.session), (("b", 1, token), 1));
        drop(next);
        eventually(SOON, || client.is_free("job"));
    }
}

#[test]
fn session_is_refused_in_a_script_but_not_in_a_transaction() {
    for server in Server::for_each(ALL) {
        let (mut one, mut client) = (server.client(), server.client());
        one.eval("LOCK.ACQUIRE job a SESSION 0").expect_error("ERR");
        // A script inside a transaction is still a script.
        one.call("MULTI");
        assert_eq!(one.eval("LOCK.ACQUIRE job a SESSION 0"), "QUEUED");
        one.call("EXEC").array()[0].expect_error("ERR");
        assert!(client.is_free("job"));
        assert!(one.transaction("LOCK.ACQUIRE job a PX 60000 SESSION 0").int() > 0);
        close(&server, one);
        eventually(SOON, || client.is_free("job"));
    }
}

#[test]
fn commands_in_a_script_do_not_join_the_session() {
    for server in Server::for_each(ALL) {
        let (mut one, mut two, mut client) = (server.client(), server.client(), server.client());
        one.acquire("job a PX 60000 SESSION 0");
        assert!(two.eval("LOCK.RENEW job a").int() > 0);
        let token = client.holder("job").expect("a holder").token;
        assert_eq!(two.eval("LOCK.ACQUIRE job a"), token);
        // Only the first connection is bound, so its end ends the session.
        close(&server, one);
        eventually(SOON, || client.is_free("job"));
    }
}

#[test]
fn commands_of_another_module_do_not_join_the_session() {
    for family in ALL {
        let loads_another = format!("loadmodule {}", calling_module().display());
        let server = Server::with(&[&loads_another]).speaking(*family);
        let (mut one, mut client) = (server.client(), server.client());
        let token = one.acquire("job a PX 60000 SESSION 0");
        // Redis 7.0 has no module calls that may block.
        let may_wait = client.call("CALLER.WAIT PING") == "PONG";
        let calls = ["CALLER.CALL", "CALLER.USER", "CALLER.WAIT", "CALLER.BOTH"];
        for call in &calls[..if may_wait { 4 } else { 2 }] {
            assert!(client.call(format!("{call} LOCK.RENEW job a")).int() > 0, "{call}");
            assert_eq!(client.call(format!("{call} LOCK.ACQUIRE job a")), token, "{call}");
        }
        close(&server, one);
        eventually(SOON, || client.is_free("job"));
    }
}

#[test]
fn moving_a_lock_ends_its_session() {
    for server in Server::for_each(TRANSIENT) {
        let mut client = server.client();
        client.call("SELECT 0");
        let moves: [(&str, i64, &str); 3] =
            [("RENAME job away", 0, "away"), ("MOVE job 1", 1, "job"), ("SWAPDB 0 1", 1, "job")];
        for (command, database, key) in moves {
            let mut holder = server.client();
            holder.acquire("job a PX 60000 SESSION 300");
            assert_ne!(client.call(command), 0);
            client.call(format!("SELECT {database}"));
            let left = client.call(format!("LOCK.PTTL {key}")).int();
            assert!(left <= 300, "{command}: {left} ms left");
            eventually(SOON, || client.call(format!("EXISTS {key}")) == 0);
            client.call("FLUSHALL");
            client.call("SELECT 0");
        }
    }
}

#[test]
fn copy_has_no_session_and_the_original_keeps_its_own() {
    for server in Server::for_each(TRANSIENT) {
        let (mut holder, mut client) = (server.client(), server.client());
        holder.acquire("job a PX 60000 SESSION 300");
        assert_eq!(client.call("COPY job copy"), 1);
        eventually(SOON, || client.call("EXISTS copy") == 0);
        let original = client.holder("job").expect("a holder");
        assert_eq!(original.session, 1);
        assert!(original.lease_ms > 50_000, "{original:?}");
    }
}

/// Binds a hold of each kind to a connection, saves them with `save`, and restarts the server.
#[track_caller]
fn assert_restart_ends_sessions(mut server: Server, save: fn(&mut Client)) {
    let mut holder = server.client();
    for family in ALL {
        holder.speak(*family);
        for (name, options) in [("job", "SESSION 2000"), ("unbound", "")] {
            let key = family.key(name);
            holder.make(&key);
            holder.acquire(&format!("{key} a PX 60000 {options}"));
        }
    }
    save(&mut holder);
    server.kill_and_restart();
    let mut client = server.client();
    for family in ALL {
        let left = client.call(format!("RLOCK.PTTL {}", family.key("job"))).int();
        assert!((1..=2000).contains(&left), "{family:?}: {left}");
        assert_eq!(client.holder(&family.key("job")).expect("a holder").session, 0);
    }
    for family in ALL {
        client.speak(*family);
        eventually(SOON, || client.is_free(&family.key("job")));
        assert!(client.call(format!("LOCK.PTTL {}", family.key("unbound"))).int() > 50_000);
    }
}

#[test]
fn restart_from_a_snapshot_ends_sessions() {
    let save = |client: &mut Client| assert_eq!(client.call("SAVE"), "OK");
    assert_restart_ends_sessions(Server::start(), save);
}

#[test]
fn restart_from_an_append_only_file_ends_sessions() {
    assert_restart_ends_sessions(Server::with_aof(&[]), |_| {});
}

#[test]
fn restart_from_a_rewritten_append_only_file_ends_sessions() {
    for preamble in ["yes", "no"] {
        let server = Server::with_aof(&[&format!("aof-use-rdb-preamble {preamble}")]);
        assert_restart_ends_sessions(server, Client::rewrite_append_only_file);
    }
}

#[test]
fn promotion_ends_sessions() {
    let primary = Server::start();
    let replica = Server::replica_of(&primary, &[]);
    let (mut holder, mut promoted) = (primary.client(), replica.client());
    holder.acquire("job a PX 60000 SESSION 2000");
    replica.catch_up_with(&primary);
    assert!(promoted.call("RLOCK.PTTL job").int() > 50_000, "a replica ends no session");
    promoted.call("REPLICAOF NO ONE");
    eventually(SOON, || promoted.call("RLOCK.PTTL job").int() <= 2000);
    eventually(SOON, || promoted.call("EXISTS job") == 0);
    assert_eq!(primary.client().call("RLOCK.HOLDS job a"), 1);
}

#[test]
fn wait_that_times_out_binds_nothing() {
    for server in Server::for_each(REENTRANT) {
        let (mut waiter, mut client) = (server.client(), server.client());
        client.acquire("job a PX 60000");
        assert_eq!(waiter.call("LOCK.ACQUIRE job b SESSION 0 BLOCK 10"), Reply::Nil);
        client.call("LOCK.RELEASE job a");
        client.acquire("job b PX 60000");
        close(&server, waiter);
        client.acquire("marker c PX 20");
        eventually(SOON, || client.call("EXISTS marker") == 0);
        assert_eq!(client.call("LOCK.HOLDS job b"), 1);
    }
}

/// Redis 8.6 crashes when a module asks for the expiry of a key that has just been deleted.
#[test]
fn lock_granted_and_forced_in_one_step_leaves_nothing() {
    let server = Server::start();
    let (mut client, mut holder) = (server.client(), server.client());
    let last = holder.acquire("job a PX 60000 SESSION 0");
    let mut waiter = server.waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    // FORCERELEASE finds that the holder's connection is gone, grants the waiter, and ends that
    // hold, too.
    let step = [format!("CLIENT KILL ID {}", holder.id()), "RLOCK.FORCERELEASE job".to_owned()].map(Command::from);
    assert_eq!(client.call_in_one_step(&step), [Reply::Int(1), Reply::Int(1)]);
    // A blocked waiter has the answer already; the message to a notified one says that the hold has ended.
    match waiter.reply() {
        Reply::Int(token) => assert!(token > last),
        ended => assert!(ended.expect_error("UNBLOCKED").contains("the hold ended")),
    }
    assert_eq!(client.call("EXISTS job"), 0);
}
