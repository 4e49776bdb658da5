//! Waiting for a lock: timeouts, order, and the hand-over.

use std::io::ErrorKind;
use std::time::Duration;

use crate::support::{Command, EXCLUSIVE, MUTEX, REENTRANT, Reply, Server, Stopwatch, WRITE, eventually, in_script};

const SOON: Duration = Duration::from_secs(5);

#[test]
fn timed_wait_times_out_with_nil() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        for block_ms in [1, 50, 300] {
            let watch = Stopwatch::start();
            assert_eq!(client.call(format!("LOCK.ACQUIRE job b BLOCK {block_ms}")), Reply::Nil);
            // The server needs a few milliseconds. The rest is for a busy machine.
            watch.assert_took_ms(block_ms..block_ms + 600, "a wait");
        }
    }
}

#[test]
fn request_that_got_nil_is_never_granted() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        assert_eq!(client.call("LOCK.ACQUIRE job b BLOCK 20"), Reply::Nil);
        assert_eq!(client.waiting_owners("job"), [""; 0]);
        assert_eq!(client.call("LOCK.RELEASE job a"), 0);
        assert!(client.is_free("job"));
        assert_eq!(client.info_number("rlock_held"), 0);
    }
}

#[test]
fn wait_that_ends_with_the_lease_is_either_granted_or_nil() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        let (mut granted, mut denied) = (0, 0);
        for round in 0..100 {
            // Both end within a few milliseconds, with varying order.
            let block_ms = 18 + round % 5;
            let mut steps = client.call_in_one_step(&[
                "LOCK.ACQUIRE job a PX 20".into(),
                format!("LOCK.ACQUIRE job b PX 60000 BLOCK {block_ms}").into(),
            ]);
            let answer = steps.remove(1);
            if answer == Reply::Nil {
                denied += 1;
                eventually(SOON, || client.call("LOCK.HOLDS job a") == 0);
                assert_eq!(client.call("LOCK.HOLDS job b"), 0);
                eventually(SOON, || client.is_free("job"));
            } else {
                granted += 1;
                assert_eq!(client.holder("job").expect("a holder").token, answer.int());
                assert_eq!(client.call("LOCK.RELEASE job b"), 0);
            }
        }
        assert!(granted > 0 && denied > 0, "{granted} granted and {denied} denied: both must occur");
    }
}

#[test]
fn block_0_waits_until_granted() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        let first = client.acquire("job a PX 60000");
        let mut waiter = server.waiter("LOCK.ACQUIRE job b BLOCK 0");
        let still_waiting = waiter.reply_within(Duration::from_millis(500)).unwrap_err();
        assert_eq!(still_waiting.kind(), ErrorKind::TimedOut);
        client.call("LOCK.RELEASE job a");
        assert!(waiter.reply().int() > first);
    }
}

#[test]
fn free_lock_is_granted_at_once_with_block() {
    for server in Server::for_each(REENTRANT) {
        let mut client = server.client();
        for block in ["BLOCK 0", "BLOCK 60000"] {
            client.acquire(&format!("job a {block}"));
            client.acquire(&format!("job a {block}"));
            assert_eq!(client.call("LOCK.HOLDS job a"), 2);
            client.call("LOCK.FORCERELEASE job");
        }
    }
}

#[test]
fn one_hundred_waiters_are_served_in_order_of_arrival() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        let mut last = client.acquire("job first PX 60000");
        let mut waiters: Vec<_> =
            (0..100).map(|number| server.waiter(format!("LOCK.ACQUIRE job owner-{number} PX 60000 BLOCK 0"))).collect();
        let owners: Vec<_> = (0..100).map(|number| format!("owner-{number}")).collect();
        assert_eq!(client.waiting_owners("job"), owners);

        client.call("LOCK.RELEASE job first");
        for (waiter, owner) in waiters.iter_mut().zip(&owners) {
            let token = waiter.reply().int();
            assert!(token > last, "tokens rise in the order of the holds");
            last = token;
            assert_eq!(client.holder("job").expect("a holder").owner, *owner);
            assert_eq!(client.call(format!("LOCK.RELEASE job {owner}")), 0);
        }
        assert!(client.is_free("job"));
    }
}

#[test]
fn lease_of_a_waiter_starts_with_its_grant() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let mut waiter = server.waiter("LOCK.ACQUIRE job b PX 3000 BLOCK 0");
        // The time of the wait must not count.
        std::thread::sleep(Duration::from_millis(1500));
        client.call("LOCK.RELEASE job a");
        waiter.reply().int();
        let left = client.call("LOCK.PTTL job").int();
        assert!((1501..=3000).contains(&left), "{left}");
    }
}

#[test]
fn released_lock_is_granted_to_the_next_waiter_at_once() {
    for server in Server::for_each(EXCLUSIVE) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let mut waiter = server.waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
        // The step that frees the lock grants it: no timer runs between these two commands.
        let step = ["LOCK.RELEASE job a", "LOCK.HOLDS job b"].map(Command::from);
        assert_eq!(client.call_in_one_step(&step), [Reply::Int(0), Reply::Int(1)]);
        waiter.reply().int();
    }
}

#[test]
fn newcomer_does_not_pass_a_waiter() {
    for server in Server::for_each(REENTRANT) {
        let mut client = server.client();
        let barge = Command::from("LOCK.ACQUIRE job barger PX 60000");
        let delete = Command::from("DEL job");
        let multi = ["MULTI", "DEL job", "LOCK.ACQUIRE job barger PX 60000", "EXEC"];
        let ways: [(&str, Vec<Command>); 4] = [
            ("by commands", vec![delete.clone(), barge.clone()]),
            ("by a transaction", multi.map(Command::from).to_vec()),
            ("by scripts", vec![in_script(delete), in_script(barge.clone())]),
            ("after an expiry", vec!["PEXPIRE job 60000".into(), "DEBUG SLEEP 0.6".into(), barge]),
        ];
        for (name, step) in ways {
            let lease_ms = if name == "after an expiry" { 500 } else { 60_000 };
            client.acquire(&format!("job a PX {lease_ms}"));
            let mut waiter = server.waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
            let answers = client.call_in_one_step(&step);
            let barged = match answers.last() {
                Some(Reply::Array(results)) => results[1].clone(),
                last => last.expect("an answer").clone(),
            };
            assert_eq!(barged, Reply::Nil, "{name}");
            let token = waiter.reply().int();
            assert_eq!(client.holder("job").expect("a holder").identity(), ("b", 1, token), "{name}");
            client.call("FLUSHALL");
        }
    }
}

#[test]
fn waiter_whose_owner_already_holds_the_lock_is_granted() {
    for server in Server::for_each(&[MUTEX, WRITE]) {
        let mut client = server.client();
        client.acquire("job a PX 60000");
        let token = client.acquire("other b PX 60000");
        let _first = server.waiter("LOCK.ACQUIRE job c PX 60000 BLOCK 0");
        let mut waiter = server.waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
        client.call("RENAME other job");
        assert_eq!(waiter.reply(), token);
        assert_eq!(client.holder("job").expect("a holder").identity(), ("b", 2, token));
        assert_eq!(client.waiting_owners("job"), ["c"]);
    }
}

#[test]
fn waiters_of_the_same_key_in_two_databases_are_independent() {
    for server in Server::for_each(REENTRANT) {
        let (mut zero, mut one) = (server.client(), server.client());
        one.call("SELECT 1");
        zero.acquire("job a PX 60000");
        one.acquire("job a PX 60000");
        let mut waiter = server.waiter("LOCK.ACQUIRE job b PX 60000 BLOCK 0");
        assert_eq!(one.call("LOCK.RELEASE job a"), 0);
        assert_eq!(one.call("EXISTS job"), 0);
        assert_eq!(zero.waiting_owners("job"), ["b"]);
        assert_eq!(zero.call("LOCK.RELEASE job a"), 0);
        waiter.reply().int();
    }
}

#[test]
fn waiters_are_limited_by_max_waiters() {
    for server in Server::for_each(REENTRANT) {
        let mut client = server.client();
        assert_eq!(client.call("CONFIG SET rlock.max-waiters 2"), "OK");
        client.acquire("job a PX 60000");
        client.acquire("other a PX 60000");
        let _one = server.waiter("LOCK.ACQUIRE job b BLOCK 0");
        let two = server.waiter("LOCK.ACQUIRE other b BLOCK 0");
        client.call("LOCK.ACQUIRE job c BLOCK 0").expect_error("MAXWAITERS");
        assert_eq!(client.call("LOCK.ACQUIRE job c"), Reply::Nil, "an attempt does not wait");
        client.acquire("free c BLOCK 0");
        assert_eq!(client.waiting_owners("job"), ["b"]);

        let gone = two.id();
        drop(two);
        server.wait_for_departure_of(gone);
        let _three = server.waiter("LOCK.ACQUIRE job c BLOCK 0");
        assert_eq!(client.waiting_owners("job"), ["b", "c"]);
    }
}

#[test]
fn waiters_whose_permissions_are_revoked_get_noperm() {
    let server = Server::start();
    let mut admin = server.client();
    for (rights, lost) in [("+@all", "-rlock.acquire -rlock.macquire"), ("+@all", "resetkeys ~other")] {
        admin.call(format!("ACL SETUSER worker on >secret allkeys {rights}"));
        admin.acquire("job a PX 60000");
        let mut workers: Vec<_> = (0..2)
            .map(|_| {
                let mut worker = server.client();
                assert_eq!(worker.call("AUTH worker secret"), "OK");
                worker
            })
            .collect();
        workers[0].send("RLOCK.ACQUIRE job b BLOCK 0");
        eventually(SOON, || admin.waiting_owners("job").len() == 1);
        workers[1].send("RLOCK.MACQUIRE 2 job more c BLOCK 0");
        eventually(SOON, || admin.waiting_owners("job").len() == 2);
        let mut next = server.waiter("RLOCK.ACQUIRE job d PX 60000 BLOCK 0");
        admin.call(format!("ACL SETUSER worker {lost}"));
        assert_eq!(admin.call("RLOCK.RELEASE job a"), 0);
        for worker in &mut workers {
            worker.reply().expect_error("NOPERM");
        }
        next.reply().int();
        assert!(admin.is_free("more"));
        assert_eq!(admin.call("RLOCK.RELEASE job d"), 0);
        admin.call("ACL DELUSER worker");
    }
}

#[test]
fn waiters_of_every_kind_whose_permissions_are_revoked_get_noperm() {
    const WAITS: [(&str, &str, &str); 5] = [
        ("RLOCK.ACQUIRE job a PX 60000", "RLOCK.ACQUIRE job b BLOCK 0", "RLOCK.RELEASE job a"),
        ("RFAIRLOCK.ACQUIRE job a PX 60000", "RFAIRLOCK.ACQUIRE job b BLOCK 0", "RFAIRLOCK.RELEASE job a"),
        ("RRWLOCK.ACQUIRE job a WRITE PX 60000", "RRWLOCK.ACQUIRE job b READ BLOCK 0", "RRWLOCK.RELEASE job a WRITE"),
        ("RRWLOCK.ACQUIRE job a WRITE PX 60000", "RRWLOCK.ACQUIRE job b WRITE BLOCK 0", "RRWLOCK.RELEASE job a WRITE"),
        ("RSEMAPHORE.ACQUIRE job a PX 60000", "RSEMAPHORE.ACQUIRE job b BLOCK 0", "RSEMAPHORE.RELEASE job a"),
    ];
    let server = Server::start();
    let mut admin = server.client();
    // A place kept for an owner without permissions would delay the next waiter for the grace.
    assert_eq!(admin.call("CONFIG SET rlock.fair-grace-ms 60000"), "OK");
    for (hold, wait, release) in WAITS {
        for lost in ["-@all", "resetkeys ~other"] {
            admin.call("ACL SETUSER worker on >secret allkeys +@all");
            if hold.starts_with("RSEMAPHORE") {
                admin.call("RSEMAPHORE.INIT job 1");
            }
            admin.call(hold).int();
            let mut worker = server.client();
            assert_eq!(worker.call("AUTH worker secret"), "OK");
            worker.send(wait);
            eventually(SOON, || admin.waiting_owners("job").len() == 1);
            let mut next = server.client();
            next.send(wait.replace(" b ", " c "));
            eventually(SOON, || admin.waiting_owners("job").len() == 2);
            admin.call(format!("ACL SETUSER worker {lost}"));
            assert_eq!(admin.call(release), 0);
            worker.reply().expect_error("NOPERM");
            next.reply().int();
            admin.call("DEL job");
            admin.call("ACL DELUSER worker");
        }
    }
}
