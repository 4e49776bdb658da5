//! The primary dies or steps down, and a replica takes over: by Sentinel, and in a planned
//! failover.
//!
//! Replication is asynchronous, so the last grants may be lost with their server. Even then tokens
//! rise, one server never grants a lock twice, and every client gets an answer or loses its
//! connection.

use std::collections::HashSet;
use std::env;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Client, Reply, Sentinels, Server, Stopwatch, eventually};

/// The number of primaries that one run of the test kills. `make failover` sets more.
const FAILOVERS: &str = "RLOCK_FAILOVERS";
const FAILOVERS_BY_DEFAULT: u32 = 2;

const WORKERS: u32 = 6;
const KEYS: u32 = 2;

const SOON: Duration = Duration::from_secs(30);

/// A client that is blocked on a server that dies or steps down learns of it within this time.
const NO_LONGER_THAN_MS: u64 = 2000;

/// The observations of all workers.
#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    /// Raised by each death of a primary: earlier grants may be lost.
    era: AtomicU64,
    highest_token: AtomicI64,
    tokens: Mutex<HashSet<i64>>,
    /// The locks between the answer to an ACQUIRE and the RELEASE, by era, server and key.
    inside: Mutex<HashSet<(u64, u16, u32)>>,
    /// The number of grants in the era.
    grants: AtomicU64,
    /// How often a worker lost its connection while it waited for an answer.
    cut_off: AtomicU64,
}

/// Another worker's failed assertion must not hide behind a poisoned lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Load {
    /// Acquires and releases locks until the load ends, wherever the primary is.
    fn work(&self, worker: u32, sentinels: &Sentinels) {
        let mut attempts = 0_u64;
        while !self.is_over.load(Ordering::SeqCst) {
            let era = self.era.load(Ordering::SeqCst);
            let primary = sentinels.primary().and_then(|port| Some((port, Client::connect(port).ok()?)));
            let Some((port, mut client)) = primary else {
                // Only a pause between two attempts.
                thread::sleep(Duration::from_millis(5));
                continue;
            };
            while era == self.era.load(Ordering::SeqCst) && !self.is_over.load(Ordering::SeqCst) {
                attempts += 1;
                // Each attempt has its own owner, so each grant is a new hold.
                let owner = format!("w{worker}-{attempts}");
                if !self.acquire_and_release(&mut client, (era, port, worker % KEYS), &owner) {
                    break;
                }
            }
        }
    }

    /// Returns `false` if the connection can no longer be used.
    fn acquire_and_release(&self, client: &mut Client, place: (u64, u16, u32), owner: &str) -> bool {
        let (era, _, key) = place;
        let highest_before = self.highest_token.load(Ordering::SeqCst);
        let acquire = format!("RLOCK.ACQUIRE load-{key} {owner} PX 60000 SESSION 0 BLOCK 1000");
        let answer = client.try_send(&[acquire.into()]).and_then(|()| client.reply_within(Duration::from_secs(3)));
        let token = match answer {
            Ok(Reply::Int(token)) => token,
            Ok(Reply::Nil) => return true,
            // The server is a replica by now, or not yet a primary.
            Ok(Reply::Error(error)) => {
                let expected = ["READONLY", "UNBLOCKED", "LOADING", "MASTERDOWN"];
                assert!(expected.iter().any(|code| error.starts_with(code)), "{error}");
                return false;
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) if error.kind() == ErrorKind::TimedOut => panic!("{owner} hangs"),
            Err(_) => {
                self.cut_off.fetch_add(1, Ordering::SeqCst);
                return false;
            }
        };
        assert!(token > highest_before, "{token} was granted after {highest_before}");
        assert!(lock(&self.tokens).insert(token), "{token} was granted twice");
        self.highest_token.fetch_max(token, Ordering::SeqCst);
        // A grant of an earlier era may be lost, so it proves nothing.
        if era == self.era.load(Ordering::SeqCst) {
            assert!(lock(&self.inside).insert(place), "load-{key} is held twice");
            self.grants.fetch_add(1, Ordering::SeqCst);
            // Stands for the work under the lock, and leaves CPU time to other processes.
            thread::sleep(Duration::from_millis(1));
            lock(&self.inside).remove(&place);
        }
        let release = format!("RLOCK.RELEASE load-{key} {owner}");
        let answer = client.try_send(&[release.into()]).and_then(|()| client.reply_within(Duration::from_secs(3)));
        matches!(answer, Ok(Reply::Int(0)))
    }

    #[track_caller]
    fn wait_for_grants(&self) {
        self.grants.store(0, Ordering::SeqCst);
        eventually(SOON, || self.grants.load(Ordering::SeqCst) > 200);
    }
}

/// Ends the load even if the test fails, so that the workers end.
struct EndOnDrop<'l>(&'l Load);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}

/// The holds and waiters of a primary when it dies. Its replicas have the holds.
struct Left {
    kept_token: i64,
    expires_at: Instant,
    blocked: Vec<Client>,
}

impl Left {
    #[track_caller]
    fn on(primary: &Server, round: u32) -> Left {
        let mut client = primary.client();
        let kept_token = client.acquire(&format!("kept-{round} a PX 60000"));
        client.acquire(&format!("expiring-{round} a PX 2500"));
        let expires_at = Instant::now() + Duration::from_millis(2500);
        assert_eq!(client.call("WAIT 2 10000"), 2);
        let wait = |owner: &str| primary.waiter(format!("RLOCK.ACQUIRE kept-{round} {owner} BLOCK 0"));
        Left { kept_token, expires_at, blocked: ["b", "c"].map(wait).into() }
    }

    #[track_caller]
    fn assert_cut_off(self, since_death: &Stopwatch) {
        for mut waiter in self.blocked {
            assert_eq!(waiter.reply_within(SOON).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        }
        since_death.assert_took_ms(0..NO_LONGER_THAN_MS, "the end of a connection");
    }
}

/// Checks a promoted replica: it keeps the holds, and expires and grants.
#[track_caller]
fn assert_takes_over(primary: &Server, round: u32, kept_token: i64, expires_at: Instant) {
    let mut client = primary.client();
    let kept = format!("kept-{round}");
    assert_eq!(client.holder(&kept).expect("it is held").identity(), ("a", 1, kept_token));
    assert_eq!(client.call(format!("RLOCK.ACQUIRE {kept} b")), Reply::Nil);
    let mut waiter = primary.waiter(format!("RLOCK.ACQUIRE {kept} b PX 60000 BLOCK 0"));
    assert_eq!(client.call(format!("RLOCK.RELEASE {kept} a")), 0);
    assert!(waiter.reply().int() > kept_token);

    let left = expires_at.saturating_duration_since(Instant::now());
    let watch = Stopwatch::start();
    assert!(client.acquire(&format!("expiring-{round} b PX 60000 BLOCK 0")) > kept_token);
    watch.assert_took_ms(0..left.as_millis() as u64 + 1000, "what was left of the lease");
}

fn failovers() -> u32 {
    env::var(FAILOVERS).map_or(FAILOVERS_BY_DEFAULT, |count| count.parse().expect("a number"))
}

#[test]
fn replica_of_a_primary_killed_under_load_is_promoted_and_grants_at_once() {
    let primary = Server::with(&[]);
    let upstream = format!("replicaof 127.0.0.1 {}", primary.port());
    let replicas = [Server::with(&[&upstream]), Server::with(&[&upstream])];
    for replica in &replicas {
        replica.catch_up_with(&primary);
    }
    let sentinels = Sentinels::of(primary.port(), 2);
    let mut servers: Vec<_> = [primary].into_iter().chain(replicas).collect();
    let load = Load::default();
    thread::scope(|scope| {
        let _end = EndOnDrop(&load);
        for worker in 0..WORKERS {
            let (load, sentinels) = (&load, &sentinels);
            scope.spawn(move || {
                let _end = EndOnDrop(load);
                load.work(worker, sentinels);
            });
        }
        for round in 0..failovers() {
            load.wait_for_grants();
            let old = sentinels.primary().expect("a primary");
            let at = servers.iter().position(|server| server.port() == old).expect("one of the servers");
            let left = Left::on(&servers[at], round);
            let (kept_token, expires_at) = (left.kept_token, left.expires_at);

            servers[at].kill();
            let since_death = Stopwatch::start();
            load.era.fetch_add(1, Ordering::SeqCst);
            left.assert_cut_off(&since_death);
            eventually(SOON, || sentinels.primary().is_some_and(|port| port != old));
            let new = sentinels.primary().expect("a primary");
            let next = servers.iter().position(|server| server.port() == new).expect("one of the servers");
            eventually(SOON, || servers[next].has_role("master"));
            eprintln!("round {round}: a new primary after {:?}", since_death.elapsed());

            assert_takes_over(&servers[next], round, kept_token, expires_at);
            load.wait_for_grants();
            servers[at].restart_in_place(&["--replicaof", &format!("127.0.0.1 {new}")]);
            servers[at].catch_up_with(&servers[next]);
            sentinels.wait_until_ready(new, 2);
        }
    });
    assert!(load.cut_off.load(Ordering::SeqCst) > 0, "no worker was cut off: the kills hit no load");
    eprintln!("{} tokens", lock(&load.tokens).len());
}

const PAUSE: Duration = Duration::from_millis(1000);

/// Two locks whose leases expire within a pause. `b` waits for one; the wait of `late` for the
/// other times out within the pause.
struct InThePause {
    b: Client,
    late: Client,
    start: Instant,
}

impl InThePause {
    #[track_caller]
    fn begin(server: &Server, key: &str) -> InThePause {
        let mut client = server.client();
        client.acquire(&format!("{key} a PX 500"));
        client.acquire(&format!("{key}-late a PX 500"));
        let start = Instant::now();
        let b = server.waiter(format!("RLOCK.ACQUIRE {key} b PX 60000 BLOCK 0"));
        let late = server.waiter(format!("RLOCK.ACQUIRE {key}-late late PX 60000 BLOCK 500"));
        InThePause { b, late, start }
    }

    /// Reads both answers, each as soon as it arrives. No grant may arrive before the pause ends.
    #[track_caller]
    fn answers(self) -> [Reply; 2] {
        let mut waiters = [(self.b, None), (self.late, None)];
        eventually(SOON, || {
            for (waiter, answer) in waiters.iter_mut().filter(|(_, answer)| answer.is_none()) {
                *answer = look(waiter);
                let after = self.start.elapsed();
                let is_grant = matches!(answer, Some(Reply::Int(_)));
                assert!(!is_grant || after >= PAUSE, "{answer:?} in the pause, after {after:?}");
            }
            waiters.iter().all(|(_, answer)| answer.is_some())
        });
        waiters.map(|(_, answer)| answer.expect("it is there"))
    }
}

/// Returns the answer, if it has arrived.
#[track_caller]
fn look(waiter: &mut Client) -> Option<Reply> {
    match waiter.reply_within(Duration::from_millis(20)) {
        Ok(reply) => Some(reply),
        Err(error) if error.kind() == ErrorKind::TimedOut => None,
        Err(error) => panic!("{error}"),
    }
}

#[track_caller]
fn primary_and_replica() -> [Server; 2] {
    let primary = Server::with_aof(&[]);
    let replica = Server::replica_of(&primary, &["appendonly yes"]);
    [primary, replica]
}

#[test]
fn client_pause_grants_nothing_and_timed_out_waiters_get_nil() {
    let [primary, replica] = primary_and_replica();
    for mode in ["WRITE", "ALL"] {
        let scene = InThePause::begin(&primary, mode);
        // Begins after the scene, so answers come a full PAUSE after the beginning of the scene at
        // the earliest.
        assert_eq!(primary.client().call(format!("CLIENT PAUSE {} {mode}", PAUSE.as_millis())), "OK");
        let [b, late] = scene.answers();
        let token = b.int();
        assert_eq!(late, Reply::Nil, "{mode}");
        replica.catch_up_with(&primary);
        for server in [&primary, &replica] {
            let mut client = server.client();
            assert_eq!(client.holder(mode).expect("it is held").identity(), ("b", 1, token));
            eventually(SOON, || client.call(format!("EXISTS {mode}-late")) == 0);
        }
    }
}

/// The replica is stopped, so the failover times out, and the primary continues.
#[test]
fn aborted_failover_grants_nothing_before_it_is_aborted() {
    let [primary, replica] = primary_and_replica();
    let mut client = primary.client();
    let scene = InThePause::begin(&primary, "job");
    let mut answers = None;
    replica.while_stopped(|| {
        client.call("SET unseen by-the-replica");
        assert_eq!(client.call(format!("FAILOVER TIMEOUT {}", PAUSE.as_millis())), "OK");
        answers = Some(scene.answers());
    });
    let [b, late] = answers.expect("they were read");
    assert_eq!(late, Reply::Nil);
    assert_eq!(client.info("role"), "master");
    assert_eq!(client.holder("job").expect("it is held").identity(), ("b", 1, b.int()));
    replica.catch_up_with(&primary);
    assert_eq!(replica.client().holder("job").expect("it is held").identity(), ("b", 1, b.int()));
}

/// The replica catches up and is promoted. The wait that is left ends, and the new primary expires
/// the leases that passed their deadlines in the pause.
#[test]
fn planned_failover_ends_waits_and_the_new_primary_grants_at_once() {
    let [primary, replica] = primary_and_replica();
    let mut client = primary.client();
    let kept_token = client.acquire("kept a PX 60000");
    replica.catch_up_with(&primary);
    let InThePause { mut b, mut late, start } = InThePause::begin(&primary, "job");
    replica.while_stopped(|| {
        client.call("SET unseen by-the-replica");
        assert_eq!(client.call("FAILOVER"), "OK");
        // The replica is stopped for all of this loop, so the server must grant no waiter, even on
        // a slow machine.
        let mut is_over = false;
        while !is_over {
            is_over = start.elapsed() >= PAUSE;
            assert_eq!(look(&mut b), None);
        }
        assert_eq!(late.reply(), Reply::Nil);
    });
    let since_resumed = Stopwatch::start();
    eventually(SOON, || replica.client().info("role") == "master");
    let answer = b.reply();
    assert!(!matches!(answer, Reply::Int(_)), "granted by a server that had stepped down: {answer:?}");
    since_resumed.assert_took_ms(0..NO_LONGER_THAN_MS, "an answer");
    let mut on_new = replica.client();
    assert_eq!(on_new.holder("kept").expect("it is held").identity(), ("a", 1, kept_token));
    assert!(on_new.acquire("job b PX 60000") > kept_token);
    assert!(on_new.acquire("job-late late PX 60000") > kept_token);
    primary.catch_up_with(&replica);
    assert_eq!(client.holder("job").map(|holder| holder.token), on_new.holder("job").map(|holder| holder.token));
}
