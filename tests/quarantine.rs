//! Quarantine: a server that lost its data grants nothing until every lease that it may have
//! granted has expired.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Client, Reply, Server, Stopwatch, WallClock, at_length, eventually, free_port};

const SOON: Duration = Duration::from_secs(5);
/// A server that starts without data waits for the longest lease, even if nothing else is promised.
const LONG: &str = "rlock.max-lease-ms 60000";
/// Longer than any machine has been up.
const LONGEST: &str = "rlock.max-lease-ms 31535999999";
const IN_THE_LOG: &str = "no lock is granted: locks that were granted before may be missing here";

/// One attempt with each command that acquires.
const ACQUIRING: [&str; 6] = [
    "RLOCK.ACQUIRE job b PX 1000",
    "RFAIRLOCK.ACQUIRE fair b PX 1000",
    "RRWLOCK.ACQUIRE rw b READ PX 1000",
    "RSEMAPHORE.ACQUIRE semaphore b PX 1000",
    "RSEMAPHORE.DRAIN semaphore b PX 1000",
    "RLOCK.MACQUIRE 2 one two b PX 1000",
];

/// Asserts that attempts get the error. A request that waits is queued; in transactions and scripts
/// it counts as an attempt.
#[track_caller]
fn assert_quarantined(client: &mut Client) {
    client.call("RSEMAPHORE.INIT semaphore 2");
    for command in ACQUIRING {
        let blocking = format!("{command} BLOCK 0");
        for once in
            [command, &blocking].into_iter().filter(|command| !command.contains("DRAIN") || !command.contains("BLOCK"))
        {
            client.eval(once).expect_error("QUARANTINE");
            client.transaction(once).expect_error("QUARANTINE");
        }
        let text = client.call(command).expect_error("QUARANTINE").to_owned();
        let words: Vec<_> = text.split(' ').collect();
        let [.., left_ms, "ms", "left"] = words[..] else {
            panic!("{text} does not end with the time left");
        };
        assert!((1..=61_000).contains(&left_ms.parse().expect("a number")), "{text}");
    }
    assert_eq!(client.call("RLOCK.ACQUIRE job b PX 1000 BLOCK 10"), Reply::Nil, "the wait times out");
    assert_eq!(client.call("RFAIRLOCK.ACQUIRE fair b PX 1000 QUEUE 100"), Reply::Nil, "QUEUE takes a place");
    assert_eq!(client.call("RFAIRLOCK.CANCEL fair b"), 1);
    client.call("DEL semaphore");
    assert!((1..=61_000).contains(&client.info_number("rlock_quarantine_left_ms")));
    assert_eq!(client.info_number("rlock_may_grant"), 0);
}

#[track_caller]
fn assert_grants(client: &mut Client) {
    assert_eq!(client.info_number("rlock_quarantine_left_ms"), 0);
    client.acquire("granted a PX 1000");
    client.acquire_fair("granted-fair a PX 1000");
}

#[test]
fn empty_start_refuses_acquire_and_allows_other_commands() {
    let server = Server::with(&[LONG]);
    let mut client = server.client();
    assert_quarantined(&mut client);
    assert!(server.log().contains(IN_THE_LOG));
    assert_eq!(client.call("DBSIZE"), 0);

    client.call("RLOCK.RELEASE job a").expect_error("NOTOWNER");
    client.call("RLOCK.RENEW job a").expect_error("NOTOWNER");
    assert_eq!(client.call("RLOCK.FORCERELEASE job"), 0);
    assert_eq!(client.call("RLOCK.HOLDS job a"), 0);
    assert_eq!(client.call("RLOCK.PTTL job"), -2);
    assert_eq!(client.call("RLOCK.INFO job"), Reply::Nil);
    assert_eq!(client.call("RLOCK.WAITERS job"), Reply::Array(vec![]));
    assert_eq!(client.call("RFAIRLOCK.CANCEL job a"), 0);
    client.call("RLOCK.ACQUIRE job b PX").expect_error("ERR");

    // A restored lock can be renewed and released.
    let elsewhere = Server::start();
    elsewhere.client().acquire("job a PX 60000");
    let payload = elsewhere.client().call("DUMP job");
    let restore = [b"RESTORE".as_slice(), b"job", b"0", payload.bytes()];
    assert_eq!(client.call(restore), "OK");
    assert_quarantined(&mut client);
    assert!(client.call("RLOCK.RENEW job a").int() > 0);
    assert_eq!(client.call("RLOCK.RELEASE job a"), 0);
}

#[test]
fn list_has_every_command_that_acquires() {
    let server = Server::start();
    let all = server.client().call("COMMAND LIST FILTERBY MODULE rlock");
    let names = all.array().iter().map(|name| name.text().to_uppercase());
    let acquiring: BTreeSet<_> = names.filter(|name| name.ends_with("ACQUIRE") || name.ends_with("DRAIN")).collect();
    let called: BTreeSet<_> = ACQUIRING.iter().filter_map(|call| call.split(' ').next()).map(str::to_owned).collect();
    assert_eq!(called, acquiring);
}

#[test]
fn timed_quarantine_ends_on_time() {
    let beginning = Instant::now();
    let server = Server::with(&["rlock.max-lease-ms 500"]);
    let mut client = server.client();
    let watch = Stopwatch::start();
    let left_ms = client.info_number("rlock_quarantine_left_ms");
    assert!((1..=1500).contains(&left_ms), "{left_ms}");
    let mut refused = 0;
    eventually(SOON, || {
        let answer = client.call("RLOCK.ACQUIRE job a");
        if !matches!(answer, Reply::Int(_)) {
            answer.expect_error("QUARANTINE");
            refused += 1;
            return false;
        }
        true
    });
    assert!(refused > 0);
    let longest_lease_and_margin = Duration::from_millis(1500);
    assert!(beginning.elapsed() >= longest_lease_and_margin, "{:?}", beginning.elapsed());
    let left_ms = left_ms.unsigned_abs();
    watch.assert_took_ms(left_ms - 1..left_ms + 500, "the remaining quarantine");
}

#[test]
fn off_ends_a_quarantine_and_no_setting_begins_one() {
    let server = Server::with(&[LONG, "rlock.exclusion restart"]);
    let mut client = server.client();
    assert_quarantined(&mut client);
    assert_eq!(client.call(format!("CONFIG SET {LONGEST}")), "OK");
    assert!(client.info_number("rlock_quarantine_left_ms") <= 61_000, "a running quarantine keeps its length");
    assert_eq!(client.call("CONFIG SET rlock.exclusion off"), "OK");
    eventually(SOON, || client.info_number("rlock_may_grant") == 1);
    assert_grants(&mut client);
    assert_eq!(client.call("CONFIG SET rlock.exclusion restart"), "OK");
    assert_grants(&mut client);
}

#[test]
fn step_of_the_wall_clock_does_not_end_the_quarantine() {
    let clock = WallClock::new();
    let server = Server::with_wall_clock(&clock, &[LONG]);
    clock.step_forward(Duration::from_secs(3600));
    let mut client = server.client();
    assert_quarantined(&mut client);
}

#[test]
fn start_with_any_key_begins_no_quarantine() {
    for persistence in [&["appendonly yes", "appendfsync always", LONG][..], &[LONG]] {
        let mut server = Server::with(persistence);
        let mut client = server.client();
        // A key in another database than 0, which is not a lock.
        client.call("SELECT 9");
        client.call("SET some text");
        client.call("SAVE");
        assert_quarantined(&mut client);
        server.kill_and_restart();
        let mut client = server.client();
        assert_grants(&mut client);
        assert!(!server.log().contains(IN_THE_LOG));
        assert_eq!(client.call(format!("CONFIG SET {LONGEST}")), "OK");
        assert_grants(&mut client);
    }
}

#[test]
fn emptying_a_running_server_begins_no_quarantine() {
    let mut server = Server::with(&[LONG]);
    let mut client = server.client();
    client.call("SET some text");
    client.call("SAVE");
    server.kill_and_restart();
    let mut client = server.client();
    for emptying in ["FLUSHALL", "FLUSHALL ASYNC", "DEL some granted granted-fair", "SWAPDB 0 1", "DEBUG RELOAD"] {
        client.call(emptying);
        assert_grants(&mut client);
    }
}

#[test]
fn promoted_replica_begins_a_quarantine_only_without_data() {
    let promote = |replica: &Server| {
        let mut client = replica.client();
        assert_eq!(client.call("REPLICAOF NO ONE"), "OK");
        client
    };
    // A replica that never reached its primary.
    let orphan = Server::with(&[LONG, &format!("replicaof 127.0.0.1 {}", free_port())]);
    orphan.client().call(ACQUIRING[0]).expect_error("READONLY");
    assert_quarantined(&mut promote(&orphan));

    // A primary that restarted without its data gives its replica no data.
    let primary = Server::start();
    let replica = Server::replica_of(&primary, &[LONG]);
    assert_quarantined(&mut promote(&replica));

    primary.client().acquire("job a PX 60000");
    let replica = Server::replica_of(&primary, &[LONG]);
    assert_grants(&mut promote(&replica));

    // The primary loses its data, and the replica copies the empty data set.
    let emptied = Server::start();
    let mut client = replica.client();
    client.call(format!("REPLICAOF 127.0.0.1 {}", emptied.port()));
    replica.catch_up_with(&emptied);
    assert_quarantined(&mut promote(&replica));
}

/// The lease by the holder's clock, and the longest one.
const LEASE: Duration = Duration::from_millis(150);

/// The owner that believes it holds the lock, and until when.
type Belief = Mutex<Option<(usize, Instant)>>;

struct Campaign {
    server: Mutex<Server>,
    stop: AtomicBool,
    grants: AtomicUsize,
    double_holds: AtomicUsize,
    belief: Belief,
}

impl Campaign {
    /// Acquires the lock again and again, uses it for a while, and keeps believing in its hold when
    /// the server is gone.
    fn work(&self, worker: usize) {
        let acquire = format!("RLOCK.ACQUIRE job worker-{worker} PX {}", LEASE.as_millis());
        let release = format!("RLOCK.RELEASE job worker-{worker}");
        let mut connection = None;
        while !self.stop.load(Ordering::Relaxed) {
            let Some(client) = &mut connection else {
                connection = self.server.lock().expect("no panic").try_client().ok();
                continue;
            };
            let asked = Instant::now();
            match ask(client, &acquire) {
                Some(Reply::Int(_)) => self.hold(worker, asked + LEASE),
                Some(_) => {
                    // Only a pause between two attempts. The test does not depend on its length.
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                None => {
                    connection = None;
                    continue;
                }
            }
            // Half of the holds are released early, the others run until their lease expires.
            if self.grants.load(Ordering::Relaxed).is_multiple_of(2) {
                self.belief.lock().expect("no panic").take_if(|(holder, _)| *holder == worker);
                connection = ask(client, &release).and(connection);
            }
        }
    }

    /// Records a grant. No other owner may believe that it holds the lock.
    fn hold(&self, worker: usize, until: Instant) {
        self.grants.fetch_add(1, Ordering::Relaxed);
        let mut belief = self.belief.lock().expect("no panic");
        let now = Instant::now();
        if now >= until {
            // This thread was delayed so long that its lease has expired.
            return;
        }
        if belief.is_some_and(|(holder, believed)| holder != worker && now < believed) {
            self.double_holds.fetch_add(1, Ordering::Relaxed);
        }
        *belief = Some((worker, until));
        drop(belief);
        // The lock is in use.
        thread::sleep(LEASE / 10);
    }
}

/// Stops the workers, even if the test fails.
struct StopOnDrop<'c>(&'c AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the reply, or None if the server is gone.
fn ask(client: &mut Client, command: &str) -> Option<Reply> {
    client.try_send(&[command.into()]).ok()?;
    client.reply_within(Duration::from_secs(10)).ok()
}

#[test]
fn killed_server_without_persistence_grants_no_lock_twice() {
    let settings = ["rlock.exclusion restart".to_owned(), format!("rlock.max-lease-ms {}", LEASE.as_millis())];
    let campaign = Campaign {
        server: Mutex::new(Server::with(&settings.each_ref().map(String::as_str))),
        stop: AtomicBool::new(false),
        grants: AtomicUsize::new(0),
        double_holds: AtomicUsize::new(0),
        belief: Mutex::new(None),
    };
    thread::scope(|scope| {
        let _stop = StopOnDrop(&campaign.stop);
        for worker in 0..4 {
            let campaign = &campaign;
            scope.spawn(move || campaign.work(worker));
        }
        for _ in 0..at_length(12, 100) {
            let before = campaign.grants.load(Ordering::Relaxed);
            eventually(Duration::from_secs(20), || campaign.grants.load(Ordering::Relaxed) > before + 3);
            campaign.server.lock().expect("no panic").kill_and_restart();
        }
    });
    assert_eq!(campaign.double_holds.into_inner(), 0, "double holds in {} grants", campaign.grants.into_inner());
}
