//! Locks that the server frees on another thread while locks with the same names are acquired.

use std::time::Duration;

use crate::support::{Client, Command, Server, at_length, eventually};

const SOON: Duration = Duration::from_secs(20);
const LOCKS: usize = 20_000;

/// Acquires many locks, some of them with a queue.
#[track_caller]
fn fill(client: &mut Client, owner: &str) {
    let numbers: Vec<_> = (0..LOCKS).collect();
    for chunk in numbers.chunks(1000) {
        let mut step: Vec<Command> = Vec::new();
        for number in chunk {
            step.push(format!("RLOCK.ACQUIRE lock-{number} {owner} PX 600000 SESSION 600000").into());
            if number % 10 == 0 {
                step.push(format!("RFAIRLOCK.ACQUIRE fair-{number} {owner} PX 600000").into());
                step.push(format!("RFAIRLOCK.ACQUIRE fair-{number} waiting QUEUE 600000").into());
            }
        }
        client.call_in_one_step(&step);
    }
    let step: Vec<_> =
        numbers.iter().map(|number| format!("RFAIRLOCK.ACQUIRE long w{number} QUEUE 600000").into()).collect();
    client.call("RFAIRLOCK.ACQUIRE long a PX 600000");
    client.call_in_one_step(&step);
}

#[test]
fn only_large_locks_are_freed_on_another_thread() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT permits 1000");
    client.acquire("small a PX 600000");
    client.acquire_fair("queue a PX 600000");
    for number in 0..200 {
        client.call(format!("RSEMAPHORE.ACQUIRE permits owner-{number} PX 600000")).int();
        client.call(format!("RFAIRLOCK.ACQUIRE queue owner-{number} QUEUE 600000"));
    }
    let mut freed = client.info_number("lazyfreed_objects");
    for (key, elsewhere) in [("small", 0), ("permits", 1), ("queue", 1)] {
        assert_eq!(client.call(format!("UNLINK {key}")), 1);
        eventually(SOON, || client.info_number("lazyfree_pending_objects") == 0);
        freed += elsewhere;
        assert_eq!(client.info_number("lazyfreed_objects"), freed, "{key}");
    }
}

#[test]
fn locks_are_freed_on_another_thread_while_their_names_are_reused() {
    let lines = ["lazyfree-lazy-user-del yes", "lazyfree-lazy-user-flush yes", "lazyfree-lazy-server-del yes"];
    let primary = Server::with(&lines);
    let replica = Server::replica_of(&primary, &["replica-lazy-flush yes"]);
    let mut client = primary.client();
    let held = (LOCKS + LOCKS / 10 + 1) as i64;
    for round in 0..at_length(2, 20) {
        for flush in ["FLUSHALL ASYNC", "FLUSHDB", "SWAPDB 0 1"] {
            fill(&mut client, &format!("owner-{round}"));
            assert_eq!(client.info_number("rlock_held"), held, "{flush}");
            // In one step, so that nothing has been freed when the first lock is acquired again.
            let step = [flush, "RLOCK.ACQUIRE lock-1 new PX 600000", "RLOCK.RENEW lock-1 new", "UNLINK lock-2"];
            client.call_in_one_step(&step.map(Command::from));
            assert_eq!(client.holder("lock-1").expect("a holder").owner, "new");
            if flush.starts_with("SWAPDB") {
                assert_eq!(client.info_number("rlock_held"), held + 1);
                client.call("FLUSHALL ASYNC");
            } else {
                assert_eq!(client.info_number("rlock_held"), 1);
                assert_eq!(client.call("DEL lock-1"), 1);
            }
            eventually(SOON, || client.info_number("rlock_held") == 0);
        }
        fill(&mut client, "last");
        replica.catch_up_with(&primary);
        // The replica discards all of it for a full synchronisation.
        client.call("CLIENT KILL TYPE replica");
        replica.client().call("REPLICAOF NO ONE");
        client.call("FLUSHALL ASYNC");
        client.acquire("new a PX 600000");
        replica.client().call(format!("REPLICAOF 127.0.0.1 {}", primary.port()));
        replica.catch_up_with(&primary);
        assert_eq!(replica.client().call("DEBUG DIGEST"), client.call("DEBUG DIGEST"));
        client.call("FLUSHALL");
    }
    eventually(SOON, || client.info_number("lazyfree_pending_objects") == 0);
}
