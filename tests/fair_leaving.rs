//! Fair locks whose waiters are disconnected, unblocked or demoted, and whose keys are removed or
//! replaced.

use std::thread;
use std::time::Duration;

use crate::support::{Client, Command, Reply, Server, Stopwatch, eventually, move_changes_the_database, skipped_here};

const SOON: Duration = Duration::from_secs(5);

/// Runs of each race. Each run takes 1 to 2 ms.
const RACES: usize = 100;

#[track_caller]
fn queue(client: &mut Client, owner: &str) {
    assert_eq!(client.call(format!("RFAIRLOCK.ACQUIRE job {owner} PX 60000 QUEUE 60000")), Reply::Nil);
}

#[track_caller]
fn waiter(server: &Server, owner: &str) -> Client {
    server.blocked_waiter(format!("RFAIRLOCK.ACQUIRE job {owner} PX 60000 BLOCK 0"))
}

fn start_with_grace_ms(grace_ms: u64) -> Server {
    Server::with(&[&format!("rlock.fair-grace-ms {grace_ms}")])
}

/// Ways to disconnect or unblock a waiter that leave its place in the queue.
const CUTS: [&str; 3] = ["a closed socket", "CLIENT KILL ID id", "CLIENT UNBLOCK id ERROR"];

#[track_caller]
fn cut(client: &mut Client, way: &str, mut waiter: Client) {
    if way.starts_with("CLIENT") {
        assert_eq!(client.call(way.replace("id", &waiter.id().to_string())), 1);
    }
    if way.ends_with("ERROR") {
        waiter.reply().expect_error("UNBLOCKED");
        assert_eq!(waiter.call("PING"), "PONG");
    }
}

#[test]
fn owner_that_returns_within_the_grace_keeps_its_place() {
    let server = start_with_grace_ms(60_000);
    let mut client = server.client();
    for way in CUTS {
        for again in ["BLOCK 0", "QUEUE 60000", ""] {
            client.acquire_fair("job a PX 60000");
            let b = waiter(&server, "b");
            let mut c = waiter(&server, "c");
            cut(&mut client, way, b);
            eventually(SOON, || client.places("job") == ["b detached", "c connected"]);
            if again == "BLOCK 0" {
                let mut b = waiter(&server, "b");
                assert_eq!(client.places("job"), ["b connected", "c connected"], "{way}");
                client.call("RFAIRLOCK.RELEASE job a");
                b.reply().int();
            } else {
                let ask = format!("RFAIRLOCK.ACQUIRE job b PX 60000 {again}");
                assert_eq!(client.call(ask.as_str()), Reply::Nil);
                assert_eq!(client.places("job"), ["b detached", "c connected"], "{way}");
                client.call("RFAIRLOCK.RELEASE job a");
                assert!(client.call(ask).int() > 0, "{way} {again}");
            }
            assert_eq!(client.call("RFAIRLOCK.RELEASE job b"), 0);
            c.reply().int();
            assert_eq!(client.call("RFAIRLOCK.RELEASE job c"), 0);
        }
    }
}

#[test]
fn timed_owner_that_returns_after_the_grace_is_at_the_tail() {
    let server = start_with_grace_ms(200);
    let mut client = server.client();
    for way in CUTS {
        client.acquire_fair("job a PX 60000");
        let b = waiter(&server, "b");
        let mut c = waiter(&server, "c");
        let watch = Stopwatch::start();
        cut(&mut client, way, b);
        eventually(SOON, || client.places("job") == ["c connected"]);
        watch.assert_took_ms(200..700, way);
        let mut b = waiter(&server, "b");
        assert_eq!(client.places("job"), ["c connected", "b connected"]);
        for (holder, next) in [("a", &mut c), ("c", &mut b)] {
            assert_eq!(client.call(format!("RFAIRLOCK.RELEASE job {holder}")), 0);
            next.reply().int();
        }
        assert_eq!(client.call("RFAIRLOCK.RELEASE job b"), 0);
    }
}

#[test]
fn reclaimed_place_survives_the_grace() {
    let server = start_with_grace_ms(1500);
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    let (b, c) = (waiter(&server, "b"), waiter(&server, "c"));
    let _d = waiter(&server, "d");
    drop((b, c));
    eventually(SOON, || client.places("job") == ["b detached", "c detached", "d connected"]);
    let _b = waiter(&server, "b");
    queue(&mut client, "c");
    // Wait until a grace that was not cancelled would have ended.
    thread::sleep(Duration::from_millis(2000));
    assert_eq!(client.places("job"), ["b connected", "c detached", "d connected"]);
}

#[test]
fn timed_disconnected_place_is_kept_for_the_grace_even_if_queue_created_it() {
    let server = start_with_grace_ms(300);
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    queue(&mut client, "b");
    let b = waiter(&server, "b");
    let watch = Stopwatch::start();
    drop(b);
    eventually(SOON, || client.places("job").is_empty());
    watch.assert_took_ms(300..800, "the grace: the last request decides, not the earlier QUEUE");
}

#[test]
fn timed_disconnected_head_has_the_turn_until_its_grace_ends() {
    let server = start_with_grace_ms(500);
    let mut client = server.client();
    for returns in [true, false] {
        client.acquire_fair("job a PX 60000");
        let b = waiter(&server, "b");
        let mut c = waiter(&server, "c");
        let watch = Stopwatch::start();
        drop(b);
        eventually(SOON, || client.places("job") == ["b detached", "c connected"]);
        client.call("RFAIRLOCK.RELEASE job a");
        assert_eq!(client.call("RFAIRLOCK.HOLDS job c"), 0);
        if returns {
            client.acquire_fair("job b PX 60000 BLOCK 0");
            client.call("RFAIRLOCK.RELEASE job b");
            c.reply().int();
        } else {
            c.reply().int();
            watch.assert_took_ms(500..1200, "the grace of the head");
        }
        client.call("RFAIRLOCK.RELEASE job c");
    }
}

#[test]
fn client_unblock_timeout_gives_up_the_place() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    queue(&mut client, "b");
    let mut b = waiter(&server, "b");
    let mut c = waiter(&server, "c");
    assert_eq!(client.call(format!("CLIENT UNBLOCK {} TIMEOUT", b.id())), 1);
    assert_eq!(b.reply(), Reply::Nil);
    eventually(SOON, || client.places("job") == ["c connected"]);
    client.call("RFAIRLOCK.RELEASE job a");
    c.reply().int();
}

#[test]
fn waiter_killed_in_the_turn_of_its_grant_is_at_the_head_again() {
    let server = start_with_grace_ms(60_000);
    let mut client = server.client();
    for round in 0..RACES {
        client.acquire_fair("job a PX 60000");
        let b = waiter(&server, "b");
        let mut c = waiter(&server, "c");
        let release = Command::from("RFAIRLOCK.RELEASE job a");
        let kill = Command::from(format!("CLIENT KILL ID {}", b.id()));
        let step = if round % 2 == 0 { [release, kill] } else { [kill, release] };
        client.call_in_one_step(&step);
        eventually(SOON, || client.places("job") == ["b detached", "c connected"]);
        assert_eq!(client.call("RFAIRLOCK.PTTL job"), -2, "the lock has no holder");
        client.acquire_fair("job b PX 60000");
        assert_eq!(client.call("RFAIRLOCK.RELEASE job b"), 0, "the owner has one hold");
        c.reply().int();
        assert_eq!(client.call("RFAIRLOCK.RELEASE job c"), 0);
    }
    assert_eq!(client.call("EXISTS job"), 0);
}

#[test]
fn timed_end_of_a_session_grants_the_next_waiter() {
    let server = Server::start();
    let (mut holder, mut client) = (server.client(), server.client());
    holder.acquire_fair("job a PX 60000 SESSION 0");
    let mut b = server.blocked_waiter("RFAIRLOCK.ACQUIRE job b PX 60000 SESSION 0 BLOCK 0");
    queue(&mut client, "c");
    drop(holder);
    let token = b.reply().int();
    let hold = client.holder("job").expect("a holder");
    assert_eq!((hold.identity(), hold.session), (("b", 1, token), 1));

    // The session is bound to the waiter's own connection, whose end is noticed as well.
    drop(b);
    eventually(SOON, || client.call("RFAIRLOCK.PTTL job") == -2);
    // A poller's session is bound to the connection over which it is granted.
    let mut c = server.client();
    c.acquire_fair("job c PX 60000 SESSION 300");
    assert_eq!(client.holder("job").expect("a holder").session, 1);
    let watch = Stopwatch::start();
    drop(c);
    eventually(SOON, || client.call("EXISTS job") == 0);
    watch.assert_took_ms(299..800, "the grace of a session");
}

#[test]
fn connected_waiters_keep_their_order_after_a_removal_and_detached_places_are_lost() {
    let server = start_with_grace_ms(60_000);
    let mut client = server.client();
    for removal in
        ["DEL job", "UNLINK job", "FLUSHALL", "PEXPIREAT job 1", "RENAME job away", "MOVE job 1", "SWAPDB 0 1"]
    {
        if removal == "MOVE job 1" && move_changes_the_database() {
            skipped_here("MOVE changes the database of the connection");
            continue;
        }
        client.acquire_fair("job a PX 60000");
        queue(&mut client, "p");
        let mut b = waiter(&server, "b");
        queue(&mut client, "q");
        let c = waiter(&server, "c");
        let mut d = waiter(&server, "d");
        // An owner that reconnects keeps its original place, not the one of its reconnection.
        drop(c);
        eventually(SOON, || client.places("job")[3] == "c detached");
        let mut c = waiter(&server, "c");
        let gone = waiter(&server, "e");
        drop(gone);
        eventually(SOON, || client.places("job")[5] == "e detached");

        // No timer runs between the removal and the newcomer's request.
        let step = [removal, "RFAIRLOCK.ACQUIRE job newcomer"].map(Command::from);
        let answers = client.call_in_one_step(&step);
        assert!(!matches!(answers[0], Reply::Error(_)), "{removal}: {answers:?}");
        assert_eq!(answers[1], Reply::Nil, "{removal}");
        let mut last = b.reply().int();
        assert_eq!(client.places("job"), ["c connected", "d connected"], "{removal}");
        for (holder, next) in [("b", &mut c), ("c", &mut d)] {
            assert_eq!(client.call(format!("RFAIRLOCK.RELEASE job {holder}")), 0);
            let token = next.reply().int();
            assert!(token > last);
            last = token;
        }
        client.call("FLUSHALL");
        assert_eq!(client.call("EXISTS job"), 0);
    }
}

#[test]
fn waiters_are_refused_by_another_type_and_join_another_fair_lock() {
    let server = Server::start();
    let mut client = server.client();
    for other in ["SET job text", "RENAME mutex job"] {
        client.acquire("mutex x PX 60000");
        client.acquire_fair("job a PX 60000");
        let waiters = ["b", "c"].map(|owner| waiter(&server, owner));
        assert_eq!(client.call(other), "OK");
        for mut waiter in waiters {
            waiter.reply().expect_error("WRONGTYPE");
        }
        client.call("FLUSHALL");
    }

    client.acquire_fair("other x PX 60000");
    for owner in ["p", "b"] {
        assert_eq!(client.call(format!("RFAIRLOCK.ACQUIRE other {owner} QUEUE 60000")), Reply::Nil);
    }
    client.acquire_fair("job a PX 60000");
    let mut c = waiter(&server, "c");
    let mut b = waiter(&server, "b");
    assert_eq!(client.call("RENAME other job"), "OK");
    eventually(SOON, || client.places("job") == ["p detached", "b connected", "c connected"]);
    assert_eq!(client.call("RFAIRLOCK.RELEASE job x"), 0);
    client.acquire_fair("job p PX 60000");
    client.call("RFAIRLOCK.RELEASE job p");
    b.reply().int();
    client.call("RFAIRLOCK.RELEASE job b");
    c.reply().int();
}

#[test]
fn demotion_detaches_places_and_promotion_restores_them() {
    let server = start_with_grace_ms(60_000);
    let mut client = server.client();
    client.acquire_fair("job a PX 60000");
    let mut b = waiter(&server, "b");
    queue(&mut client, "p");
    let mut c = waiter(&server, "c");
    // No server listens on this port, so the demoted server keeps its data.
    client.call("REPLICAOF 127.0.0.1 1");
    for waiter in [&mut b, &mut c] {
        waiter.reply().expect_error("UNBLOCKED");
    }
    client.call("REPLICAOF NO ONE");
    eventually(SOON, || client.places("job") == ["b detached", "p detached", "c detached"]);
    let mut newcomer = waiter(&server, "n");
    let mut c = waiter(&server, "c");
    assert_eq!(client.places("job"), ["b detached", "p detached", "c connected", "n connected"]);
    client.call("RFAIRLOCK.RELEASE job a");
    for owner in ["b", "p"] {
        client.acquire_fair(&format!("job {owner} PX 60000"));
        client.call(format!("RFAIRLOCK.RELEASE job {owner}"));
    }
    c.reply().int();
    client.call("RFAIRLOCK.RELEASE job c");
    newcomer.reply().int();
}
