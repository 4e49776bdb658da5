//! GRACE: how long a fair lock keeps a place after its connection is gone.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Client, Command, FAIR, Reply, Server, eventually, waits_by_notify};

const SOON: Duration = Duration::from_secs(5);

fn places(client: &mut Client) -> Vec<String> {
    client.places("job")
}

/// Rule G1.
#[test]
fn place_is_kept_for_the_grace_of_its_request() {
    let server = Server::with_module_arguments("", &["rlock.fair-grace-ms 600000"]).speaking(FAIR);
    let mut client = server.client();
    client.acquire("job a PX 600000");
    let [none, short, usual] = [" GRACE 0", " GRACE 300", ""].map(|grace| {
        let owner = format!("waits-with{}", grace.trim().replace(' ', "-"));
        server.waiter(format!("LOCK.ACQUIRE job {owner} BLOCK 0{grace}"))
    });
    assert_eq!(client.waiting_owners("job").len(), 3);
    drop((none, short, usual));
    eventually(SOON, || places(&mut client) == ["waits-with detached"]);
}

/// Rule G3.
#[test]
fn last_request_with_a_grace_decides() {
    let server = Server::with_module_arguments("", &["rlock.fair-grace-ms 600000"]).speaking(FAIR);
    let mut client = server.client();
    client.acquire("job a PX 600000");
    let first = server.waiter("LOCK.ACQUIRE job b BLOCK 0 GRACE 0");
    let second = server.waiter("LOCK.ACQUIRE job b BLOCK 0 GRACE 600000");
    let third = server.waiter("LOCK.ACQUIRE job b BLOCK 0");
    drop((first, second, third));
    eventually(SOON, || places(&mut client) == ["b detached"]);
}

/// Rule G2.
#[test]
fn grace_limits_the_reservation_of_a_free_lock() {
    let server = Server::with_module_arguments("", &["rlock.fair-grace-ms 600000"]).speaking(FAIR);
    let mut client = server.client();
    client.acquire("job a PX 600000");
    assert_eq!(client.call("LOCK.ACQUIRE job b QUEUE 600000 GRACE 50"), Reply::Nil);
    let mut next = server.waiter("LOCK.ACQUIRE job c BLOCK 0");
    client.call("LOCK.RELEASE job a");
    next.reply_within(SOON).expect("the turn of b ends soon").int();
}

/// Rules G1, G3.
#[test]
fn grace_survives_replication_restart_and_restore() {
    let lines = ["appendonly yes", "appendfsync always", "rlock.fair-grace-ms 600000"];
    let mut server = Server::with(&lines).speaking(FAIR);
    let replica = Server::replica_of(&server, &["rlock.fair-grace-ms 600000"]).speaking(FAIR);
    let mut client = server.client();
    client.acquire("job a PX 600000");
    let _none = server.waiter("LOCK.ACQUIRE job b BLOCK 0 GRACE 0");
    let _short = server.waiter("LOCK.ACQUIRE job c BLOCK 0 GRACE 500");
    let _usual = server.waiter("LOCK.ACQUIRE job d BLOCK 0");
    let payload = client.call("DUMP job").bytes().to_vec();
    let restore: Command = [b"RESTORE".as_slice(), b"copy", b"0", &payload].into();
    assert_eq!(client.call(restore), "OK");
    eventually(SOON, || client.places("copy") == ["d detached"]);
    replica.catch_up_with(&server);
    replica.client().call("REPLICAOF NO ONE");
    server.kill_and_restart();
    for mut client in [server.client(), replica.client()] {
        eventually(SOON, || places(&mut client) == ["d detached"]);
    }
}

/// Rule G4.
#[test]
fn grace_without_a_place_is_refused() {
    let server = Server::start();
    let mut client = server.client();
    for (options, text) in [
        ("GRACE 5", "ERR GRACE requires BLOCK or QUEUE; it applies to the place that they take in the queue"),
        (
            "QUEUE 5 GRACE 0",
            "ERR QUEUE requires a GRACE above 0; with GRACE 0 its place, which has no connection, would not be kept",
        ),
    ] {
        assert_eq!(client.call(format!("RFAIRLOCK.ACQUIRE job a {options}")).expect_error("ERR"), text);
    }
    assert!(client.call("RLOCK.ACQUIRE job a BLOCK 0 GRACE 5").expect_error("ERR").contains("unknown option 'GRACE'"));
}

/// Counts how often four workers hold one fair lock within 400 ms. Meanwhile a client connects
/// under new names again and again, asks, and dies.
fn rounds(crashing: Option<&str>) -> u64 {
    const WHILE: Duration = Duration::from_millis(400);
    let server = Server::start().speaking(FAIR);
    let end = Instant::now() + WHILE;
    let left = || end.saturating_duration_since(Instant::now());
    let work = |number: usize| {
        let mut client = server.client();
        let mut rounds = 0;
        while let left_ms @ 1.. = left().as_millis() {
            let asked = client.call(format!("LOCK.ACQUIRE job worker-{number} PX 60000 BLOCK {left_ms}"));
            if asked == Reply::Nil {
                break;
            }
            client.call(format!("LOCK.RELEASE job worker-{number}")).int();
            rounds += 1;
        }
        rounds
    };
    let crash = |options: &str| {
        for number in 0.. {
            if left().is_zero() {
                return;
            }
            let ask = format!("LOCK.ACQUIRE job crashes-{number} PX 60000 BLOCK 0 SESSION 0{options}");
            drop(server.client().try_send(&[ask.into()]));
            thread::sleep(Duration::from_millis(20));
        }
    };
    thread::scope(|scope| {
        if let Some(options) = crashing {
            scope.spawn(move || crash(options));
        }
        let workers: Vec<_> = (0..4).map(|number| scope.spawn(move || work(number))).collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).sum()
    })
}

/// Returns the median of the shares.
fn median(mut shares: Vec<f64>) -> f64 {
    shares.sort_by(f64::total_cmp);
    shares[shares.len() / 2]
}

/// Rule G1.
#[test]
fn timed_client_that_crashes_repeatedly_delays_a_fair_queue_little() {
    if waits_by_notify() {
        return;
    }
    let share = |crashing| median((0..5).map(|_| rounds(crashing) as f64 / rounds(None) as f64).collect());
    let (none, usual) = (share(Some(" GRACE 0")), share(Some("")));
    println!("share of the hand-overs without crashes: {none:.3} with GRACE 0, {usual:.3} with the default grace");
    assert!(none > 0.6, "{none}");
    assert!(usual < 0.3, "{usual}");
}
