//! Semaphores: permits, and requests for several of them.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Client, Command, Reply, Server, Stopwatch, eventually};

const SOON: Duration = Duration::from_secs(5);

/// A server with a semaphore under `job`.
#[track_caller]
fn with_permits(permits: u32) -> (Server, Client) {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(client.call(format!("RSEMAPHORE.INIT job {permits}")), 1);
    (server, client)
}

#[track_caller]
fn take(client: &mut Client, owner: &str, permits: u32) -> Reply {
    client.call(format!("RSEMAPHORE.ACQUIRE job {owner} PERMITS {permits} PX 60000"))
}

#[track_caller]
fn give(client: &mut Client, owner: &str, permits: u32) -> Reply {
    client.call(format!("RSEMAPHORE.RELEASE job {owner} PERMITS {permits}"))
}

#[track_caller]
fn waiter(server: &Server, owner: &str, permits: u32) -> Client {
    server.waiter(format!("RSEMAPHORE.ACQUIRE job {owner} PERMITS {permits} PX 60000 BLOCK 0"))
}

#[track_caller]
fn available(client: &mut Client) -> i64 {
    client.call("RSEMAPHORE.INFO job").field("available").int()
}

#[test]
fn permits_are_acquired_and_released() {
    let (_server, mut client) = with_permits(5);
    let token = take(&mut client, "a", 2).int();
    assert!(take(&mut client, "b", 3).int() > token);
    assert_eq!(take(&mut client, "c", 1), Reply::Nil);
    assert_eq!(available(&mut client), 0);
    assert_eq!(give(&mut client, "b", 1), 2);
    assert_eq!(client.call("RSEMAPHORE.HOLDS job b"), 2);
    assert_eq!(take(&mut client, "a", 1), token, "the permits are added to the hold");
    assert_eq!(client.call("RSEMAPHORE.HOLDS job a"), 3);
    assert_eq!(client.call("RSEMAPHORE.RELEASE job a"), 2, "the default is one permit");
    assert_eq!(give(&mut client, "a", 2), 0);
    assert_eq!(available(&mut client), 3);
}

/// Each client adds its permits to the sum after its grant, and subtracts them before its release.
/// So the sum never exceeds the permits granted by the server.
#[test]
fn permits_never_exceed_the_limit_under_1000_clients() {
    const CLIENTS: i64 = 1000;
    const PERMITS: i64 = 7;
    let (server, mut client) = with_permits(PERMITS as u32);
    let (in_use, most, is_over) = (AtomicI64::new(0), AtomicI64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (server, in_use, most) = (&server, &in_use, &most);
                let work = move || {
                    let mut client = server.client();
                    for round in 0..3 {
                        let permits = 1 + (number + round) % 4;
                        client.send(format!("RSEMAPHORE.ACQUIRE job o{number} PERMITS {permits} BLOCK 0"));
                        client.reply_within(Duration::from_secs(60)).expect("a permit").int();
                        most.fetch_max(in_use.fetch_add(permits, Ordering::SeqCst) + permits, Ordering::SeqCst);
                        thread::yield_now();
                        in_use.fetch_sub(permits, Ordering::SeqCst);
                        assert_eq!(client.call(format!("RSEMAPHORE.RELEASE job o{number} PERMITS {permits}")), 0);
                    }
                };
                thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, work).expect("a thread")
            })
            .collect();
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let free = available(&mut client);
                assert!((0..=PERMITS).contains(&free), "{free} permits are free");
            }
        });
        let results: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::SeqCst);
        assert!(results.into_iter().all(|result| result.is_ok()));
    });
    let most = most.into_inner();
    // More than a single client holds, which is at most four.
    assert!((5..=PERMITS).contains(&most), "{most} permits were in use at once");
    let mut client = server.client();
    assert_eq!(available(&mut client), PERMITS);
    assert_eq!(client.info_number("rlock_waiting"), 0);
}

#[test]
fn small_requests_do_not_pass_a_large_one() {
    let (server, mut client) = with_permits(3);
    take(&mut client, "a", 1);
    let mut large = waiter(&server, "large", 3);
    let mut small = waiter(&server, "small", 1);
    assert_eq!(take(&mut client, "b", 1), Reply::Nil);
    assert_eq!(take(&mut client, "a", 1), Reply::Nil, "a further request of a holder queues like any other");
    assert_eq!(available(&mut client), 2);
    assert_eq!(give(&mut client, "a", 1), 0);
    large.reply().int();
    small.assert_waits();
    give(&mut client, "large", 1);
    small.reply().int();
}

#[test]
fn large_request_is_served_among_many_small_ones() {
    let (server, mut client) = with_permits(8);
    let is_over = AtomicBool::new(false);
    let waits: Vec<Duration> = thread::scope(|scope| {
        for number in 0..16 {
            let (server, is_over) = (&server, &is_over);
            scope.spawn(move || {
                let mut client = server.client();
                while !is_over.load(Ordering::SeqCst) {
                    client.call(format!("RSEMAPHORE.ACQUIRE job small-{number} BLOCK 0")).int();
                    client.call(format!("RSEMAPHORE.RELEASE job small-{number}")).int();
                }
            });
        }
        let waits = (0..50).map(|_| {
            let start = Instant::now();
            client.call("RSEMAPHORE.ACQUIRE job large PERMITS 8 BLOCK 0").int();
            let waited = start.elapsed();
            assert_eq!(give(&mut client, "large", 8), 0);
            waited
        });
        let waits = waits.collect();
        is_over.store(true, Ordering::SeqCst);
        waits
    });
    let longest = waits.iter().max().expect("some waits");
    assert!(*longest < SOON, "{longest:?}");
}

#[test]
fn further_request_of_a_holder_waits_and_adds_to_its_hold() {
    let (server, mut client) = with_permits(4);
    let token = take(&mut client, "a", 2).int();
    take(&mut client, "b", 2);
    let mut further = waiter(&server, "a", 2);
    give(&mut client, "b", 2);
    assert_eq!(further.reply(), token);
    assert_eq!(client.call("RSEMAPHORE.HOLDS job a"), 4);
}

#[test]
fn timed_permits_of_a_dead_owner_return_when_its_lease_expires() {
    let (server, mut client) = with_permits(3);
    let watch = Stopwatch::start();
    client.call("RSEMAPHORE.ACQUIRE job dead PERMITS 2 PX 300").int();
    take(&mut client, "a", 1);
    let mut next = waiter(&server, "b", 2);
    next.reply().int();
    watch.assert_took_ms(299..800, "the lease");
    assert_eq!(client.call("RSEMAPHORE.HOLDS job a"), 1);
    give(&mut client, "dead", 1).expect_error("NOTOWNER");
}

#[test]
fn permits_of_a_dead_owner_return_when_its_connection_closes() {
    let (server, mut client) = with_permits(3);
    let mut bound = server.client();
    bound.call("RSEMAPHORE.ACQUIRE job dead PERMITS 2 PX 60000 SESSION 0").int();
    take(&mut client, "a", 1);
    let mut next = waiter(&server, "b", 2);
    drop(bound);
    next.reply().int();
    assert_eq!(client.call("RSEMAPHORE.HOLDS job a"), 1);
}

#[test]
fn smaller_size_ends_no_hold_and_grants_nothing_until_permits_return() {
    let (server, mut client) = with_permits(5);
    take(&mut client, "a", 5);
    let mut next = waiter(&server, "b", 2);
    assert_eq!(client.call("RSEMAPHORE.RESIZE job 2"), -3);
    assert_eq!(available(&mut client), -3);
    assert_eq!(client.call("RSEMAPHORE.HOLDS job a"), 5);
    assert_eq!(give(&mut client, "a", 3), 2);
    next.assert_waits();
    assert_eq!(give(&mut client, "a", 2), 0);
    next.reply().int();
    assert_eq!(client.call("RSEMAPHORE.RESIZE job 2"), 0);
}

#[test]
fn larger_size_grants_waiters() {
    let (server, mut client) = with_permits(1);
    take(&mut client, "a", 1);
    let mut waiters = ["b", "c", "d"].map(|owner| waiter(&server, owner, 1));
    assert_eq!(client.call("RSEMAPHORE.RESIZE job 3"), 0, "counted after the waiters are granted");
    waiters[0].reply().int();
    waiters[1].reply().int();
    waiters[2].assert_waits();
}

#[test]
fn smaller_size_refuses_waiters_that_ask_for_too_many_permits() {
    let (server, mut client) = with_permits(4);
    take(&mut client, "a", 4);
    // This applies anywhere in the queue, not only at its head.
    let mut small = waiter(&server, "small", 2);
    let mut large = waiter(&server, "large", 3);
    assert_eq!(client.call("RSEMAPHORE.RESIZE job 2"), -2);
    large.reply().expect_error("ERR");
    small.assert_waits();
    assert_eq!(client.waiting_owners("job"), ["small"]);
    take(&mut client, "b", 3).expect_error("ERR");
}

#[test]
fn drain_takes_all_free_permits_unless_a_request_waits() {
    let (server, mut client) = with_permits(5);
    take(&mut client, "a", 2);
    assert_eq!(client.call("RSEMAPHORE.DRAIN job b PX 20000"), 3);
    assert_eq!(client.call("RSEMAPHORE.HOLDS job b"), 3);
    assert_eq!(client.call("RSEMAPHORE.DRAIN job c"), 0);
    assert_eq!(client.call("RSEMAPHORE.HOLDS job c"), 0);
    give(&mut client, "b", 1);
    assert_eq!(client.call("RSEMAPHORE.DRAIN job b PX 60000"), 1, "DRAIN adds to a hold");
    assert!(client.call("RSEMAPHORE.PTTL job").int() > 50_000);
    give(&mut client, "b", 1);
    let _large = waiter(&server, "large", 5);
    assert_eq!(client.call("RSEMAPHORE.DRAIN job c"), 0);
    assert_eq!(available(&mut client), 1);
}

#[test]
fn wrong_numbers_are_refused() {
    let (_server, mut client) = with_permits(2);
    for wrong in [
        "RSEMAPHORE.INIT other 0",
        "RSEMAPHORE.INIT other -1",
        "RSEMAPHORE.INIT other 4294967296",
        "RSEMAPHORE.INIT other many",
        "RSEMAPHORE.INIT other 01",
        "RSEMAPHORE.INIT other",
        "RSEMAPHORE.RESIZE job 0",
        "RSEMAPHORE.RESIZE job -2",
        "RSEMAPHORE.RESIZE job 99999999999999999999",
        "RSEMAPHORE.ACQUIRE job a PERMITS 0",
        "RSEMAPHORE.ACQUIRE job a PERMITS -1",
        "RSEMAPHORE.ACQUIRE job a PERMITS 1.5",
        "RSEMAPHORE.ACQUIRE job a PERMITS 4294967296",
        "RSEMAPHORE.ACQUIRE job a PERMITS",
        "RSEMAPHORE.ACQUIRE job a PERMITS 1 PERMITS 1",
        "RSEMAPHORE.RELEASE job a PERMITS 0",
        "RSEMAPHORE.DRAIN job a PERMITS 1",
        "RSEMAPHORE.DRAIN job a BLOCK 1",
    ] {
        client.call(wrong).expect_error("ERR");
    }
    assert_eq!(client.call("EXISTS other"), 0);
    // More permits than the semaphore has, both for an attempt and with BLOCK.
    for wrong in ["RSEMAPHORE.ACQUIRE job a PERMITS 3", "RSEMAPHORE.ACQUIRE job a PERMITS 4294967295 BLOCK 0"] {
        let line = client.call(wrong).expect_error("ERR").to_owned();
        assert!(line.contains("has 2 permits"), "{line}");
    }
    take(&mut client, "a", 1);
    let line = give(&mut client, "a", 2).expect_error("ERR").to_owned();
    assert!(line.contains("holds only 1"), "{line}");
    assert_eq!((client.call("RSEMAPHORE.HOLDS job a"), available(&mut client)), (Reply::Int(1), 1));
}

#[test]
fn largest_semaphore_has_4294967295_permits() {
    let (_server, mut client) = with_permits(u32::MAX);
    take(&mut client, "a", u32::MAX).int();
    assert_eq!(take(&mut client, "a", 1), Reply::Nil);
    assert_eq!(client.call("RSEMAPHORE.RESIZE job 1"), 1 - i64::from(u32::MAX));
    assert_eq!(give(&mut client, "a", u32::MAX - 1), 1);
    assert_eq!(available(&mut client), 0);
}

#[test]
fn semaphore_must_be_created_and_is_created_once() {
    let server = Server::start();
    let mut client = server.client();
    for writing in [
        "RSEMAPHORE.ACQUIRE job a",
        "RSEMAPHORE.ACQUIRE job a BLOCK 0",
        "RSEMAPHORE.RELEASE job a",
        "RSEMAPHORE.RENEW job a",
        "RSEMAPHORE.DRAIN job a",
        "RSEMAPHORE.RESIZE job 3",
        "RSEMAPHORE.FORCERELEASE job",
    ] {
        client.call(writing).expect_error("NOSEMAPHORE");
    }
    assert_eq!(client.call("RSEMAPHORE.HOLDS job a"), 0);
    assert_eq!(client.call("RSEMAPHORE.PTTL job"), -2);
    assert_eq!(client.call("RSEMAPHORE.INFO job"), Reply::Nil);
    assert_eq!(client.call("RSEMAPHORE.WAITERS job"), Reply::Array(vec![]));
    assert_eq!(client.call("EXISTS job"), 0);

    assert_eq!(client.call("RSEMAPHORE.INIT job 3"), 1);
    assert_eq!(client.call("RSEMAPHORE.INIT job 9"), 0);
    assert_eq!(available(&mut client), 3, "INIT does not change an existing semaphore");
    assert_eq!(client.call("RSEMAPHORE.FORCERELEASE job"), 0);
}

#[test]
fn idle_semaphore_is_not_deleted() {
    let (_server, mut client) = with_permits(2);
    client.call("RSEMAPHORE.ACQUIRE job a PX 20").int();
    eventually(SOON, || client.info_number("rlock_held") == 0);
    assert_eq!(client.call("EXISTS job"), 1);
    take(&mut client, "a", 2);
    give(&mut client, "a", 2);
    let info = client.call("RLOCK.INFO job");
    assert_eq!(info.field_names(), ["available", "holders", "holders-count", "kind", "permits", "waiters"]);
    assert_eq!((info.field("kind"), info.field("permits")), (Reply::Text(b"semaphore".to_vec()), Reply::Int(2)));
}

#[test]
fn waiters_shows_the_requested_permits() {
    let (server, mut client) = with_permits(5);
    take(&mut client, "a", 5);
    let _waiters = [waiter(&server, "b", 4), waiter(&server, "c", 1)];
    let waiters = client.call("RSEMAPHORE.WAITERS job");
    let wanted: Vec<_> = waiters.array().iter().map(|waiter| waiter.field("permits").int()).collect();
    assert_eq!(wanted, [4, 1]);
    assert_eq!(
        waiters.array()[0].field_names(),
        ["client", "connected", "mode", "notify", "owner", "permits", "waited-ms"]
    );
    assert_eq!(waiters.array()[0].field("mode"), "permits");
}

#[test]
fn waiters_of_a_removed_semaphore_get_nosemaphore() {
    for deletion in ["DEL job", "UNLINK job", "FLUSHALL", "RENAME job away", "MOVE job 1", "SWAPDB 0 1"] {
        let (server, mut client) = with_permits(1);
        take(&mut client, "a", 1);
        let mut waiters = ["b", "c"].map(|owner| waiter(&server, owner, 1));
        client.call(deletion);
        for waiter in &mut waiters {
            waiter.reply().expect_error("NOSEMAPHORE");
        }
    }
}

#[test]
fn repeated_request_for_permits_counts_once() {
    let (server, mut client) = with_permits(5);
    let acquire = "RSEMAPHORE.ACQUIRE job a PERMITS 2 PX 60000 REQ 1 BLOCK 0";
    let token = client.call(acquire).int();
    assert_eq!(client.call(acquire), token);
    assert_eq!(client.call("RSEMAPHORE.RELEASE job a PERMITS 1 REQ 2"), 1);
    assert_eq!(client.call("RSEMAPHORE.RELEASE job a PERMITS 1 REQ 2"), 1);
    assert_eq!(available(&mut client), 4);
    // A waiting request of an owner that holds permits: the repeated request takes its place.
    take(&mut client, "b", 4);
    let further = "RSEMAPHORE.ACQUIRE job a PERMITS 3 PX 60000 REQ 3 BLOCK 0";
    let mut first = server.blocked_waiter(further);
    let mut behind = waiter(&server, "c", 1);
    let mut second = server.blocked_waiter(further);
    first.reply().expect_error("SUPERSEDED");
    assert_eq!(client.waiting_owners("job"), ["a", "c"]);
    give(&mut client, "b", 4);
    assert_eq!(second.reply(), token);
    behind.reply().int();
    assert_eq!(client.call("RSEMAPHORE.HOLDS job a"), 4);
}

#[test]
fn forcerelease_ends_every_hold_or_the_one_with_a_token() {
    let (_server, mut client) = with_permits(5);
    let token = take(&mut client, "a", 2).int();
    for owner in ["b", "c"] {
        take(&mut client, owner, 1);
    }
    assert_eq!(client.call(format!("RSEMAPHORE.FORCERELEASE job TOKEN {token}")), 1);
    assert_eq!(available(&mut client), 3);
    assert_eq!(client.call("RSEMAPHORE.FORCERELEASE job"), 1);
    assert_eq!(available(&mut client), 5);
}

#[test]
fn without_memory_init_is_refused_and_permits_can_be_released() {
    let (server, mut client) = with_permits(2);
    take(&mut client, "a", 2);
    let mut next = waiter(&server, "b", 1);
    client.call("CONFIG SET maxmemory-policy noeviction");
    client.call("CONFIG SET maxmemory 1");
    for command in ["RSEMAPHORE.INIT other 1", "RSEMAPHORE.ACQUIRE job c", "RSEMAPHORE.DRAIN job c"] {
        client.call(command).expect_error("OOM");
    }
    assert_eq!(give(&mut client, "a", 2), 0);
    next.reply().int();
    assert_eq!(client.call("RSEMAPHORE.RESIZE job 1"), 0);
}

#[test]
fn size_and_holds_survive_restart_and_replication() {
    for preamble in ["yes", "no"] {
        let mut server = Server::with_aof(&[&format!("aof-use-rdb-preamble {preamble}")]);
        let replica = Server::replica_of(&server, &[]);
        let mut client = server.client();
        client.call("RSEMAPHORE.INIT idle 4294967295");
        client.call("RSEMAPHORE.INIT job 5");
        for owner in ["a", "b", "c"] {
            take(&mut client, owner, 1);
        }
        // More permits in use than the semaphore has.
        assert_eq!(client.call("RSEMAPHORE.RESIZE job 2"), -1);
        assert_eq!(client.call("COPY job copy"), 1);
        let payload = client.call("DUMP job");
        let restore: Command = [b"RESTORE".as_slice(), b"restored", b"0", payload.bytes()].into();
        assert_eq!(client.call(restore), "OK");
        let assert_intact = |client: &mut Client| {
            for key in ["job", "copy", "restored"] {
                let info = client.call(format!("RSEMAPHORE.INFO {key}"));
                assert_eq!((info.field("permits"), info.field("available")), (Reply::Int(2), Reply::Int(-1)), "{key}");
                assert_eq!(info.field("holders").array().len(), 3);
            }
            assert_eq!(client.call("RSEMAPHORE.INFO idle").field("permits"), i64::from(u32::MAX));
        };
        replica.catch_up_with(&server);
        assert_intact(&mut replica.client());
        for rewritten in [false, true] {
            if rewritten {
                client.rewrite_append_only_file();
            }
            server.kill_and_restart();
            client = server.client();
            assert_intact(&mut client);
        }
    }
}

#[test]
fn restored_smaller_semaphore_refuses_waiters_that_no_longer_fit() {
    let (server, mut client) = with_permits(4);
    client.call("RSEMAPHORE.INIT small 1");
    let payload = client.call("DUMP small");
    take(&mut client, "a", 4);
    let mut large = waiter(&server, "large", 2);
    let mut fitting = waiter(&server, "fitting", 1);
    let restore: Command = [b"RESTORE".as_slice(), b"job", b"0", payload.bytes(), b"REPLACE"].into();
    assert_eq!(client.call(restore), "OK");
    large.reply().expect_error("ERR");
    fitting.reply().int();
}
