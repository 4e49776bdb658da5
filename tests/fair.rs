//! Fair locks: which requests get a place, how long it lives, and how an owner may ask.

use std::time::Duration;

use crate::support::{Client, Events, Reply, Server, Stopwatch, eventually};

const SOON: Duration = Duration::from_secs(5);
const YEAR_MS: u64 = 365 * 24 * 3600 * 1000;

/// Takes a place for an owner that polls.
#[track_caller]
fn queue(client: &mut Client, owner: &str) {
    assert_eq!(client.call(format!("RFAIRLOCK.ACQUIRE job {owner} PX 60000 QUEUE 60000")), Reply::Nil);
}

#[track_caller]
fn waiter(server: &Server, owner: &str) -> Client {
    server.waiter(format!("RFAIRLOCK.ACQUIRE job {owner} PX 60000 BLOCK 0"))
}

#[test]
fn free_lock_without_a_queue_is_granted_in_every_mode() {
    let server = Server::start();
    let mut client = server.client();
    let mut last = 0;
    for how in ["", "BLOCK 0", "QUEUE 60000"] {
        let token = client.acquire_fair(&format!("job a PX 60000 {how}"));
        assert!(token > last);
        last = token;
        assert_eq!(client.holder("job").expect("a holder").identity(), ("a", 1, token));
        assert_eq!(client.places("job"), [""; 0], "a holder has no place");
        assert_eq!(client.call("RFAIRLOCK.RELEASE job a"), 0);
        assert_eq!(client.call("EXISTS job"), 0);
    }
}

#[test]
fn attempt_without_block_or_queue_takes_no_place() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    assert_eq!(client.call("RFAIRLOCK.ACQUIRE job b"), Reply::Nil);
    assert_eq!(client.places("job"), [""; 0]);
    client.call("RFAIRLOCK.RELEASE job a");
    assert_eq!(client.call("EXISTS job"), 0);
}

#[test]
fn attempt_does_not_pass_the_queue_of_a_free_lock() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    queue(&mut client, "b");
    assert_eq!(client.call("RFAIRLOCK.RELEASE job a"), 0);
    for _ in 0..3 {
        assert_eq!(client.call("RFAIRLOCK.PTTL job"), -2, "the lock is free");
        assert_eq!(client.call("RFAIRLOCK.ACQUIRE job c"), Reply::Nil);
    }
    assert_eq!(client.places("job"), ["b detached"]);
    // With an empty queue the attempt succeeds.
    assert_eq!(client.call("RFAIRLOCK.CANCEL job b"), 1);
    client.acquire_fair("job c");
}

#[test]
fn newcomer_waits_behind_the_owner_of_a_reserved_lock() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    queue(&mut client, "b");
    client.call("RFAIRLOCK.RELEASE job a");
    let mut c = waiter(&server, "c");
    queue(&mut client, "d");
    assert_eq!(client.places("job"), ["b detached", "c connected", "d detached"]);
    client.acquire_fair("job b");
    client.call("RFAIRLOCK.RELEASE job b");
    c.reply().int();
    assert_eq!(client.places("job"), ["d detached"]);
}

#[test]
fn owner_has_one_place_and_its_last_request_decides_how_it_waits() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    queue(&mut client, "b");
    queue(&mut client, "c");

    let mut one = waiter(&server, "b");
    assert_eq!(client.places("job"), ["b connected", "c detached"]);
    let mut two = waiter(&server, "b");
    one.reply().expect_error("SUPERSEDED");
    assert_eq!(client.places("job"), ["b connected", "c detached"]);
    assert_eq!(client.call("RFAIRLOCK.ACQUIRE job b"), Reply::Nil);
    assert_eq!(client.places("job"), ["b connected", "c detached"], "an attempt does not change the place");
    queue(&mut client, "b");
    two.reply().expect_error("SUPERSEDED");
    assert_eq!(client.places("job"), ["b detached", "c detached"]);
    assert_eq!(client.call("RFAIRLOCK.INFO job").field("waiters"), 2);
    assert_eq!(client.info_number("rlock_waiting"), 0);

    let mut three = waiter(&server, "b");
    client.call("RFAIRLOCK.RELEASE job a");
    let token = three.reply().int();
    assert_eq!(client.holder("job").expect("a holder").identity(), ("b", 1, token));
    // Superseded connections can be used again.
    assert_eq!([one.call("PING"), two.call("PING")], ["PONG", "PONG"]);
}

#[test]
fn owner_with_the_turn_is_granted_in_every_mode() {
    let server = Server::start();
    let mut client = server.client();
    for how in ["", "BLOCK 0", "QUEUE 1", "BLOCK 1", "REQ 7"] {
        client.acquire_fair("job a PX 60000");
        queue(&mut client, "b");
        client.call("RFAIRLOCK.RELEASE job a");
        client.acquire_fair(&format!("job b {how}"));
        assert_eq!(client.places("job"), [""; 0], "{how}");
        client.call("RFAIRLOCK.RELEASE job b");
    }
}

#[test]
fn timed_place_lives_as_long_as_the_last_queue_option() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    let watch = Stopwatch::start();
    for (owner, life_ms) in [("longer", 600), ("shorter", 60_000), ("plain", 1000)] {
        client.call(format!("RFAIRLOCK.ACQUIRE job {owner} QUEUE {life_ms}"));
    }
    client.call("RFAIRLOCK.ACQUIRE job longer QUEUE 60000");
    client.call("RFAIRLOCK.ACQUIRE job shorter QUEUE 300");
    assert_eq!(client.places("job"), ["longer detached", "shorter detached", "plain detached"]);
    let mut keep_asking = |until: &[&str]| {
        eventually(SOON, || {
            assert_eq!(client.call("RFAIRLOCK.ACQUIRE job plain"), Reply::Nil);
            client.places("job") == until
        });
    };
    keep_asking(&["longer detached", "plain detached"]);
    watch.assert_took_ms(300..1000, "a shorter QUEUE time");
    keep_asking(&["longer detached"]);
    watch.assert_took_ms(1000..1700, "a QUEUE time that an attempt does not prolong");
}

#[test]
fn timed_block_that_times_out_gives_up_the_place() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    queue(&mut client, "b");
    for _ in 0..2 {
        let watch = Stopwatch::start();
        assert_eq!(client.call("RFAIRLOCK.ACQUIRE job b BLOCK 100"), Reply::Nil);
        watch.assert_took_ms(100..400, "a wait");
        assert_eq!(client.places("job"), [""; 0]);
    }
    client.call("RFAIRLOCK.RELEASE job a");
    assert_eq!(client.call("EXISTS job"), 0);
}

#[test]
fn reentry_passes_the_queue_in_every_mode() {
    let server = Server::start();
    let mut client = server.client();
    let token = client.acquire_fair("job a PX 60000");
    let mut b = waiter(&server, "b");
    queue(&mut client, "c");
    for how in ["", "BLOCK 0", "QUEUE 60000"] {
        assert_eq!(client.acquire_fair(&format!("job a {how}")), token);
    }
    assert_eq!(client.places("job"), ["b connected", "c detached"]);
    for left in [3, 2, 1] {
        assert_eq!(client.call("RFAIRLOCK.RELEASE job a"), left);
    }
    assert_eq!(client.call("RFAIRLOCK.HOLDS job b"), 0);
    assert_eq!(client.call("RFAIRLOCK.RELEASE job a"), 0);
    b.reply().int();
}

#[test]
fn expired_lease_is_granted_to_the_next_waiter() {
    let server = Server::start();
    let mut client = server.client();
    let mut events = Events::subscribe(&server);
    client.acquire_fair("job a PX 700");
    let mut b = server.waiter("RFAIRLOCK.ACQUIRE job b PX 700 BLOCK 0");
    queue(&mut client, "c");
    b.reply().int();
    let seen: Vec<_> = (0..5).map(|_| events.next()).collect();
    let (acquire, expire) = ("rlock.acquire job", "rlock.expire job");
    assert_eq!(seen, [acquire, expire, acquire, expire, "rlock.turn job"]);
    client.acquire_fair("job c");
}

#[test]
fn forcerelease_grants_the_next_waiter() {
    let server = Server::start();
    let mut client = server.client();
    let token = client.acquire_fair("job a PX 60000");
    let mut b = waiter(&server, "b");
    queue(&mut client, "c");
    assert_eq!(client.call("RFAIRLOCK.FORCERELEASE job TOKEN 1"), 0);
    assert_eq!(client.call(format!("RFAIRLOCK.FORCERELEASE job TOKEN {token}")), 1);
    b.reply().int();
    assert_eq!(client.call("RFAIRLOCK.FORCERELEASE job"), 1);
    assert_eq!(client.call("RFAIRLOCK.FORCERELEASE job"), 0, "a place is not a hold");
    client.acquire_fair("job c");
}

#[test]
fn cancel_gives_up_a_place() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(client.call("RFAIRLOCK.CANCEL job b"), 0);
    assert_eq!(client.call("EXISTS job"), 0);
    client.acquire_fair("job a PX 60000");
    queue(&mut client, "b");
    let mut c = waiter(&server, "c");
    let mut d = waiter(&server, "d");
    assert_eq!(client.call("RFAIRLOCK.CANCEL job a"), 0, "a hold is not a place");
    for (owner, left) in [("b", &["c connected", "d connected"][..]), ("c", &["d connected"])] {
        assert_eq!(client.call(format!("RFAIRLOCK.CANCEL job {owner}")), 1);
        assert_eq!(client.call(format!("RFAIRLOCK.CANCEL job {owner}")), 0);
        assert_eq!(client.places("job"), left);
    }
    c.reply().expect_error("UNBLOCKED");

    client.call("RFAIRLOCK.RELEASE job a");
    d.reply().int();
    queue(&mut client, "b");
    let mut c = waiter(&server, "c");
    client.call("RFAIRLOCK.RELEASE job d");
    assert_eq!(client.call("RFAIRLOCK.CANCEL job b"), 1);
    assert_eq!(client.call("RFAIRLOCK.HOLDS job c"), 1, "the cancelled place was ahead");
    c.reply().int();
}

#[test]
fn waiting_request_is_superseded_by_an_equal_or_higher_id() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    let mut one = server.blocked_waiter("RFAIRLOCK.ACQUIRE job b PX 5000 REQ 5 BLOCK 0");
    let mut c = waiter(&server, "c");
    for how in ["BLOCK 0", "QUEUE 60000", ""] {
        client.call(format!("RFAIRLOCK.ACQUIRE job b REQ 4 {how}")).expect_error("STALE");
    }
    let mut two = server.blocked_waiter("RFAIRLOCK.ACQUIRE job b PX 40000 REQ 5 SESSION 700 BLOCK 0");
    one.reply().expect_error("SUPERSEDED");
    let mut three = server.blocked_waiter("RFAIRLOCK.ACQUIRE job b PX 60000 REQ 6 SESSION 700 BLOCK 0");
    two.reply().expect_error("SUPERSEDED");
    assert_eq!(client.places("job"), ["b connected", "c connected"]);

    client.call("RFAIRLOCK.RELEASE job a");
    let token = three.reply().int();
    let holder = client.holder("job").expect("a holder");
    assert_eq!((holder.identity(), holder.session), (("b", 1, token), 1));
    assert!(holder.lease_ms > 50_000, "the lease of the last request counts: {holder:?}");
    assert_eq!(client.acquire_fair("job b REQ 6 BLOCK 0"), token, "a repeat");
    client.call("RFAIRLOCK.ACQUIRE job b REQ 5").expect_error("STALE");
    assert_eq!(client.call("RFAIRLOCK.HOLDS job b"), 1);
    assert_eq!(client.call("RFAIRLOCK.RELEASE job b REQ 7"), 0);
    c.reply().int();
}

#[test]
fn poller_with_req_may_repeat_the_request_after_its_grant() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    assert_eq!(client.call("RFAIRLOCK.ACQUIRE job b REQ 3 QUEUE 60000"), Reply::Nil);
    assert_eq!(client.call("RFAIRLOCK.ACQUIRE job b REQ 3 QUEUE 60000"), Reply::Nil);
    assert_eq!(client.places("job"), ["b detached"]);
    client.call("RFAIRLOCK.RELEASE job a");
    let token = client.acquire_fair("job b REQ 3 QUEUE 60000");
    assert_eq!(client.acquire_fair("job b REQ 3 QUEUE 60000"), token);
    assert_eq!(client.call("RFAIRLOCK.HOLDS job b"), 1);
}

#[test]
fn wrong_arguments_are_refused_and_change_nothing() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    let too_long = (YEAR_MS + 1).to_string();
    for wrong in ["0", "-1", "x", "1.5", "01", too_long.as_str(), "99999999999999999999"] {
        let error = client.call(format!("RFAIRLOCK.ACQUIRE job b QUEUE {wrong}"));
        assert!(error.expect_error("ERR").contains("QUEUE"), "{wrong}: {error:?}");
    }
    for wrong in [
        "ACQUIRE job b QUEUE",
        "ACQUIRE job b QUEUE 1000 BLOCK 1000",
        "ACQUIRE job b BLOCK 0 QUEUE 1000",
        "ACQUIRE job b QUEUE 1000 QUEUE 1000",
        "CANCEL job",
        "CANCEL job b c",
    ] {
        client.call(format!("RFAIRLOCK.{wrong}")).expect_error("ERR");
    }
    client.call("RLOCK.ACQUIRE mutex b QUEUE 1000").expect_error("ERR");
    assert_eq!(client.places("job"), [""; 0]);
    assert_eq!(client.call("DBSIZE"), 1);
    for right in ["1".to_owned(), YEAR_MS.to_string()] {
        assert_eq!(client.call(format!("RFAIRLOCK.ACQUIRE job b queue {right}")), Reply::Nil);
    }
    assert_eq!(client.places("job"), ["b detached"]);
}

#[test]
fn commands_refuse_locks_of_other_families() {
    const COMMON: [&str; 6] =
        ["ACQUIRE key a", "ACQUIRE key b BLOCK 0", "RELEASE key a", "RENEW key a", "CANCEL key a", "HOLDS key a"];
    // The RLOCK versions of these accept a lock of any kind.
    const FOR_ANY: [&str; 4] = ["INFO key", "PTTL key", "WAITERS key", "FORCERELEASE key"];
    let server = Server::start();
    let mut client = server.client();
    client.acquire("mutex a PX 60000");
    client.acquire_fair("fair a PX 60000");
    client.call("RFAIRLOCK.ACQUIRE fair b QUEUE 60000");
    client.call("SET text text");
    let mut call =
        |family: &str, command: &str, key: &str| client.call(format!("{family}.{}", command.replace("key", key)));
    for command in COMMON {
        call("RLOCK", command, "fair").expect_error("WRONGTYPE");
    }
    for key in ["mutex", "text"] {
        for command in COMMON.iter().chain(&FOR_ANY).chain(&["ACQUIRE key b QUEUE 1000"]) {
            call("RFAIRLOCK", command, key).expect_error("WRONGTYPE");
        }
    }
    assert_eq!(call("RLOCK", "INFO key", "fair").field("kind"), "fair");
    assert!(call("RLOCK", "PTTL key", "fair").int() > 50_000);
    assert_eq!(call("RLOCK", "WAITERS key", "fair").array().len(), 1);
    assert_eq!(client.call("RLOCK.HOLDS mutex a"), 1);
    assert_eq!(client.call("RFAIRLOCK.HOLDS fair a"), 1);
    assert_eq!(client.call("RLOCK.FORCERELEASE fair"), 1);
}

#[test]
fn queue_is_limited_by_max_places() {
    let server = Server::with(&["rlock.max-places 2"]);
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    queue(&mut client, "b");
    let _c = waiter(&server, "c");
    for how in ["QUEUE 1000", "BLOCK 0"] {
        client.call(format!("RFAIRLOCK.ACQUIRE job d {how}")).expect_error("MAXWAITERS");
    }
    assert_eq!(client.call("RFAIRLOCK.ACQUIRE job d"), Reply::Nil, "an attempt takes no place");
    // An owner with a place may change how it waits.
    queue(&mut client, "c");
    let _b = waiter(&server, "b");
    assert_eq!(client.places("job"), ["b connected", "c detached"]);
    assert_eq!(client.call("RFAIRLOCK.CANCEL job c"), 1);
    queue(&mut client, "d");
    // The limit applies to each lock separately, and places of pollers do not count as waiting
    // clients.
    assert_eq!(client.call("CONFIG SET rlock.max-waiters 1"), "OK");
    client.acquire_fair("other a");
    assert_eq!(client.call("RFAIRLOCK.ACQUIRE other b QUEUE 1000"), Reply::Nil);
    client.call("RFAIRLOCK.ACQUIRE other c BLOCK 0").expect_error("MAXWAITERS");
}

#[test]
fn in_transactions_and_scripts_block_is_one_attempt_and_queue_takes_a_place() {
    let server = Server::start();
    let mut client = server.client();
    let ways: [fn(&mut Client, &str) -> Reply; 2] = [|c, command| c.transaction(command), |c, command| c.eval(command)];
    for run in ways {
        client.acquire_fair("job a PX 60000");
        assert_eq!(run(&mut client, "RFAIRLOCK.ACQUIRE job b BLOCK 0"), Reply::Nil);
        assert_eq!(client.places("job"), [""; 0]);
        assert_eq!(run(&mut client, "RFAIRLOCK.ACQUIRE job b PX 60000 QUEUE 60000"), Reply::Nil);
        assert_eq!(client.places("job"), ["b detached"]);
        assert_eq!(run(&mut client, "RFAIRLOCK.ACQUIRE job b BLOCK 0"), Reply::Nil);
        assert_eq!(client.places("job"), ["b detached"], "one attempt does not change the place");
        let mut c = waiter(&server, "c");
        assert_eq!(run(&mut client, "RFAIRLOCK.RELEASE job a"), 0);
        let token = run(&mut client, "RFAIRLOCK.ACQUIRE job b BLOCK 0").int();
        assert!(token > 0);
        assert_eq!(run(&mut client, "RFAIRLOCK.RELEASE job b"), 0);
        assert!(c.reply().int() > token);
        queue(&mut client, "d");
        assert_eq!(run(&mut client, "RFAIRLOCK.CANCEL job d"), 1);
        assert_eq!(run(&mut client, "RFAIRLOCK.FORCERELEASE job"), 1);
        assert_eq!(client.call("EXISTS job"), 0);
    }
}
