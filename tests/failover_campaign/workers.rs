//! Workers that acquire locks from any server that grants them, and record their beliefs.
//!
//! docs/guarantees.md defines a belief. It begins with the answer to an ACQUIRE without a wait, or,
//! after a wait, with the answer to a RENEW. It ends one lease after the last answered request was
//! sent, by the worker's own clock, or when the worker sends RELEASE. If the worker loses its
//! connection, a hold with SESSION lasts for its grace only. A RENEW whose answer arrives after the
//! end does not extend the belief.
//!
//! Most workers hold for milliseconds, with a short lease. Some hold for seconds, and switch to
//! another server now and then. So they keep a hold over a failover, or let it expire at the old
//! master. A request without an answer is sent again with its `REQ`, to another server.
//!
//! Now and then a worker stops, often for longer than its lease, as with SIGSTOP: while it holds, or
//! before it reads an answer. Afterwards it looks at its clock before it believes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::beliefs::Belief;
use crate::support::{Client, Reply, seed};

pub const WORKERS: usize = 12;
/// The number of workers that hold for seconds.
const KEEPERS: usize = 3;

/// The lease of most workers. Long enough for a busy machine, and short enough for hundreds of
/// holds between two failovers.
const SHORT_LEASE: Duration = Duration::from_millis(500);
/// A lease that ends while a former master may still grant.
const MIDDLE_LEASE: Duration = Duration::from_millis(1500);
const GRACE: Duration = Duration::from_millis(400);

const SHORT_KEYS: usize = 8;
const LONG_KEYS: usize = KEEPERS;
/// A key that only faults use.
pub const KEY_OF_FAULTS: usize = LONG_KEYS + SHORT_KEYS;

/// How long a worker waits for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
const CONNECTS_WITHIN: Duration = Duration::from_millis(300);
/// How long a worker repeats a request without an answer.
const REPEATED_FOR: Duration = Duration::from_secs(3);
const LONGEST_STOP: Duration = Duration::from_secs(12);
/// The pause after a refusal, between attempts at servers that grant nothing.
const AFTER_REFUSAL: Duration = Duration::from_millis(100);

/// The state that all workers share.
pub struct Load {
    /// The ports of the servers.
    ports: Mutex<Vec<u16>>,
    /// The longest lease that workers ask for, in milliseconds. It outlives a failover.
    lease_ms: AtomicU64,
    beliefs: Mutex<Vec<Belief>>,
    is_over: AtomicBool,
}

impl Load {
    pub fn new(ports: Vec<u16>, lease: Duration) -> Self {
        let load = Self {
            ports: Mutex::new(ports),
            lease_ms: AtomicU64::new(0),
            beliefs: Mutex::default(),
            is_over: AtomicBool::new(false),
        };
        load.ask_for(lease);
        load
    }

    /// Changes the servers that workers ask.
    pub fn move_to(&self, ports: Vec<u16>) {
        *self.ports.lock().unwrap_or_else(PoisonError::into_inner) = ports;
    }

    pub fn ports(&self) -> Vec<u16> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the longest lease that workers ask for.
    pub fn ask_for(&self, lease: Duration) {
        self.lease_ms.store(u64::try_from(lease.as_millis()).expect("a lease"), Ordering::Relaxed);
    }

    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms.load(Ordering::Relaxed))
    }

    pub fn note(&self, belief: Belief) {
        self.beliefs.lock().unwrap_or_else(PoisonError::into_inner).push(belief);
    }

    /// Runs all workers until the returned value is dropped, even if the test fails.
    #[must_use]
    pub fn begin<'s>(&'s self, scope: &'s thread::Scope<'s, '_>) -> End<'s> {
        let seed = seed();
        for number in 0..WORKERS {
            let random = StdRng::seed_from_u64(seed.wrapping_add(number as u64));
            let mut worker = Worker { load: self, number, random, port: 0, connections: BTreeMap::new(), requests: 0 };
            scope.spawn(move || worker.work());
        }
        End(self)
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub fn acquired(&self) -> usize {
        self.beliefs.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub fn beliefs(self) -> Vec<Belief> {
        self.beliefs.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the work when it is dropped.
pub struct End<'l>(pub(super) &'l Load);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

struct Worker<'l> {
    load: &'l Load,
    number: usize,
    random: StdRng,
    /// The server that it asks first. It stays with a server that grants, like a client that does
    /// not know of a failover.
    port: u16,
    connections: BTreeMap<u16, Client>,
    /// The id of its last request.
    requests: u64,
}

/// A hold that a worker wants.
struct Want {
    key: usize,
    /// The first part of the command's name, before the dot.
    family: &'static str,
    lease: Duration,
    /// The grace of a hold with SESSION.
    grace: Option<Duration>,
    waits: bool,
    /// The number of RENEWs, and the longest pause before each, in milliseconds.
    renewals: u32,
    pause_ms: u64,
    /// Whether it renews at any server, and not only at the one that granted.
    roams: bool,
    /// Whether its RENEW names no lease. The answer says what is left.
    renews_plainly: bool,
    /// Where it stops once.
    stops: Option<Stop>,
}

/// A moment at which a worker stops.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    Holding,
    BeforeAnswer,
}

/// What a worker knows of its hold.
struct Hold {
    token: i64,
    /// When it sent the request that gave the hold, or began to wait.
    asked: Instant,
    /// When it sent the last answered request.
    last: Instant,
    until: Instant,
}

impl Want {
    fn choose(number: usize, longest: Duration, random: &mut StdRng) -> Self {
        let keeps = number < KEEPERS;
        // The other workers sometimes request the locks with long holds too, so a wrong grant of
        // one shows.
        let is_long = keeps || random.random_bool(0.1);
        let key =
            if is_long { random.random_range(0..LONG_KEYS) } else { LONG_KEYS + random.random_range(0..SHORT_KEYS) };
        let lease = match keeps {
            true => {
                if random.random_bool(0.5) {
                    longest
                } else {
                    MIDDLE_LEASE
                }
            }
            false => SHORT_LEASE,
        };
        let renewals = if keeps { random.random_range(20..80) } else { random.random_range(0..3) };
        let pause_ms = if keeps || random.random_bool(0.1) { 400 } else { 12 };
        Self {
            key,
            family: if key.is_multiple_of(3) { "RFAIRLOCK" } else { "RLOCK" },
            lease,
            grace: random.random_bool(0.2).then_some(GRACE),
            waits: random.random_bool(0.7),
            renewals,
            pause_ms,
            roams: keeps,
            renews_plainly: random.random_bool(0.3),
            stops: random
                .random_bool(0.03)
                .then(|| if random.random_bool(0.5) { Stop::Holding } else { Stop::BeforeAnswer }),
        }
    }

    /// Returns the beginning of a command: its name, the key and the owner. In a cluster all keys
    /// are in one slot.
    fn command(&self, verb: &str, worker: usize) -> String {
        format!("{}.{verb} {} worker-{worker}", self.family, name_of(self.key))
    }

    fn renew(&self, worker: usize, token: i64) -> String {
        let lease = if self.renews_plainly { String::new() } else { format!("PX {}", self.lease.as_millis()) };
        format!("{} {lease} TOKEN {token}", self.command("RENEW", worker))
    }

    /// Returns when the belief ends if the last RENEW was sent at `sent`, and the server reported
    /// what is left of the lease.
    fn end(&self, sent: Instant, left_ms: i64) -> Instant {
        if self.renews_plainly { end_of_rest(sent, left_ms) } else { sent + self.lease }
    }

    /// Returns when the belief ends after the connection is lost.
    fn end_without_connection(&self, sent: Instant) -> Instant {
        sent + self.grace.map_or(self.lease, |grace| grace.min(self.lease))
    }
}

/// Returns the name of a lock. In a cluster all are in one slot.
pub fn name_of(key: usize) -> String {
    format!("{{load}}-{key}")
}

/// Returns when a belief ends if the server reported what is left of the lease, in whole
/// milliseconds: with the margin of docs/guarantees.md.
pub fn end_of_rest(sent: Instant, left_ms: i64) -> Instant {
    let left = Duration::from_millis(left_ms.try_into().unwrap_or(0));
    sent + (left * 99 / 100).saturating_sub(Duration::from_millis(2))
}

/// The answer of one server.
enum Answer {
    Is(Reply),
    /// The server is down or does not answer: the connection is lost.
    None,
}

impl Worker<'_> {
    fn work(&mut self) {
        self.move_on();
        while !self.load.is_over() {
            let want = Want::choose(self.number, self.load.lease(), &mut self.random);
            if let Some(hold) = self.acquire(&want) {
                self.hold(&want, hold);
            }
            // It switches to another server now and then.
            if self.random.random_bool(0.02) {
                self.move_on();
            }
        }
    }

    /// Chooses the server to ask from now on.
    fn move_on(&mut self) {
        self.port = *self.load.ports().choose(&mut self.random).expect("there are servers");
    }

    /// Does not run for up to twice a lease.
    fn stop(&mut self, lease: Duration) {
        thread::sleep(lease.mul_f64(self.random.random_range(0.5..2.0)).min(LONGEST_STOP));
    }

    /// `stops` is the lease of a worker that stops before it reads the answer.
    fn ask(&mut self, port: u16, command: &str, stops: Option<Duration>) -> Answer {
        let client = match self.connections.remove(&port) {
            Some(client) => Ok(client),
            None => Client::connect_within(port, CONNECTS_WITHIN),
        };
        let asked = client.and_then(|mut client| {
            client.try_send(&[command.into()])?;
            if let Some(lease) = stops {
                self.stop(lease);
            }
            let reply = client.reply_within(PATIENCE)?;
            Ok((client, reply))
        });
        let Ok((client, reply)) = asked else { return Answer::None };
        self.connections.insert(port, client);
        Answer::Is(reply)
    }

    fn acquire(&mut self, want: &Want) -> Option<Hold> {
        self.requests += 1;
        let wait = if want.waits { "BLOCK 300" } else { "" };
        let session = want.grace.map(|grace| format!("SESSION {}", grace.as_millis())).unwrap_or_default();
        let (acquire, lease_ms) = (want.command("ACQUIRE", self.number), want.lease.as_millis());
        let acquire = format!("{acquire} PX {lease_ms} REQ {} {wait} {session}", self.requests);
        let asked = Instant::now();
        while asked.elapsed() < REPEATED_FOR && !self.load.is_over() {
            let sent = Instant::now();
            match self.ask(
                self.port,
                &acquire,
                want.stops.filter(|stop| *stop == Stop::BeforeAnswer).map(|_| want.lease),
            ) {
                Answer::Is(Reply::Int(token)) if want.waits => return self.confirm(want, token, asked),
                Answer::Is(Reply::Int(token)) => {
                    return Some(Hold { token, asked, last: sent, until: sent + want.lease });
                }
                Answer::Is(Reply::Nil) => return None,
                Answer::Is(_) => {
                    thread::sleep(AFTER_REFUSAL);
                    self.move_on();
                    return None;
                }
                Answer::None => {
                    thread::sleep(AFTER_REFUSAL);
                    self.move_on();
                }
            }
        }
        None
    }

    /// After a wait, the belief begins with the answer to a RENEW.
    fn confirm(&mut self, want: &Want, token: i64, asked: Instant) -> Option<Hold> {
        let last = Instant::now();
        let renew = want.renew(self.number, token);
        match self.ask(self.port, &renew, None) {
            Answer::Is(Reply::Int(left_ms)) => Some(Hold { token, asked, last, until: want.end(last, left_ms) }),
            _ => None,
        }
    }

    fn hold(&mut self, want: &Want, mut hold: Hold) {
        let from = Instant::now();
        if from >= hold.until {
            return;
        }
        let stops_before = self.random.random_range(0..=want.renewals);
        for renewal in 0..want.renewals {
            // Stands for the work under the lock.
            thread::sleep(Duration::from_millis(self.random.random_range(0..=want.pause_ms)));
            let stops = want.stops.filter(|_| renewal == stops_before);
            if stops == Some(Stop::Holding) {
                self.stop(want.lease);
            }
            if Instant::now() >= hold.until || self.load.is_over() {
                break;
            }
            self.renew(want, &mut hold, stops.filter(|stop| *stop == Stop::BeforeAnswer).map(|_| want.lease));
        }
        // Some workers let the lease expire.
        let releases = self.random.random_bool(0.97);
        let Hold { token, asked: sent, mut until, .. } = hold;
        if releases {
            until = until.min(Instant::now());
        }
        if from < until {
            self.load.note(Belief { key: want.key, worker: self.number, token, sent, from, until });
        }
        if releases {
            let release = format!("{} TOKEN {token}", want.command("RELEASE", self.number));
            if matches!(self.ask(self.port, &release, None), Answer::None) {
                self.move_on();
            }
        }
    }

    /// Sends RENEW to one server or another.
    fn renew(&mut self, want: &Want, hold: &mut Hold, stops: Option<Duration>) {
        let renew = want.renew(self.number, hold.token);
        if want.roams && self.random.random_bool(0.1) {
            self.move_on();
        }
        let sent = Instant::now();
        match self.ask(self.port, &renew, stops) {
            Answer::Is(Reply::Int(left_ms)) if Instant::now() < hold.until => {
                (hold.last, hold.until) = (sent, want.end(sent, left_ms));
            }
            Answer::Is(_) if want.roams => self.move_on(),
            Answer::Is(_) => {}
            Answer::None => {
                hold.until = hold.until.min(want.end_without_connection(hold.last).max(Instant::now()));
                self.move_on();
            }
        }
    }
}
