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

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::beliefs::Belief;
use crate::support::{Client, Reply, seed};

const WORKERS: usize = 12;
/// The number of workers that hold for seconds.
const KEEPERS: usize = 3;

/// The lease of most workers. Long enough for a busy machine, and short enough for hundreds of
/// holds between two failovers.
const SHORT_LEASE: Duration = Duration::from_millis(500);
/// A lease that ends while a former master may still grant.
const MIDDLE_LEASE: Duration = Duration::from_millis(1500);
/// The longest lease that the servers allow: it outlives a failover.
pub const LONG_LEASE: Duration = Duration::from_millis(8000);
const GRACE: Duration = Duration::from_millis(400);

const SHORT_KEYS: usize = 8;
const LONG_KEYS: usize = KEEPERS;

/// How long a worker waits for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
const CONNECTS_WITHIN: Duration = Duration::from_millis(300);
/// How long a worker repeats a request without an answer.
const REPEATED_FOR: Duration = Duration::from_secs(3);
/// The pause after a refusal, between attempts at servers that grant nothing.
const AFTER_REFUSAL: Duration = Duration::from_millis(100);

/// The state that all workers share.
pub struct Load {
    /// The ports of the servers.
    ports: Vec<u16>,
    beliefs: Mutex<Vec<Belief>>,
    is_over: AtomicBool,
}

impl Load {
    pub fn new(ports: Vec<u16>) -> Self {
        Self { ports, beliefs: Mutex::default(), is_over: AtomicBool::new(false) }
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

    fn is_over(&self) -> bool {
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
pub struct End<'l>(&'l Load);

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
}

impl Want {
    fn choose(number: usize, random: &mut StdRng) -> Self {
        let keeps = number < KEEPERS;
        // The other workers sometimes request the locks with long holds too, so a wrong grant of
        // one shows.
        let is_long = keeps || random.random_bool(0.1);
        let key =
            if is_long { random.random_range(0..LONG_KEYS) } else { LONG_KEYS + random.random_range(0..SHORT_KEYS) };
        let lease = match keeps {
            true => {
                if random.random_bool(0.5) {
                    LONG_LEASE
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
        }
    }

    /// Returns the beginning of a command: its name, the key and the owner. In a cluster all keys
    /// are in one slot.
    fn command(&self, verb: &str, worker: usize) -> String {
        format!("{}.{verb} {{load}}-{} worker-{worker}", self.family, self.key)
    }

    fn renew(&self, worker: usize, token: i64) -> String {
        format!("{} PX {} TOKEN {token}", self.command("RENEW", worker), self.lease.as_millis())
    }

    /// Returns when the belief ends if the last answered request was sent at `sent`.
    fn end(&self, sent: Instant) -> Instant {
        sent + self.lease
    }

    /// Returns when the belief ends after the connection is lost.
    fn end_without_connection(&self, sent: Instant) -> Instant {
        sent + self.grace.map_or(self.lease, |grace| grace.min(self.lease))
    }
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
            let want = Want::choose(self.number, &mut self.random);
            if let Some((token, sent)) = self.acquire(&want) {
                self.hold(&want, token, sent);
            }
            // It switches to another server now and then.
            if self.random.random_bool(0.02) {
                self.move_on();
            }
        }
    }

    /// Chooses the server to ask from now on.
    fn move_on(&mut self) {
        self.port = *self.load.ports.choose(&mut self.random).expect("there are servers");
    }

    fn ask(&mut self, port: u16, command: &str) -> Answer {
        let client = match self.connections.remove(&port) {
            Some(client) => Ok(client),
            None => Client::connect_within(port, CONNECTS_WITHIN),
        };
        let asked = client.and_then(|mut client| {
            client.try_send(&[command.into()])?;
            let reply = client.reply_within(PATIENCE)?;
            Ok((client, reply))
        });
        let Ok((client, reply)) = asked else { return Answer::None };
        self.connections.insert(port, client);
        Answer::Is(reply)
    }

    /// Returns the token, and when the last answered request was sent.
    fn acquire(&mut self, want: &Want) -> Option<(i64, Instant)> {
        self.requests += 1;
        let wait = if want.waits { "BLOCK 300" } else { "" };
        let session = want.grace.map(|grace| format!("SESSION {}", grace.as_millis())).unwrap_or_default();
        let (acquire, lease_ms) = (want.command("ACQUIRE", self.number), want.lease.as_millis());
        let acquire = format!("{acquire} PX {lease_ms} REQ {} {wait} {session}", self.requests);
        let gives_up = Instant::now() + REPEATED_FOR;
        while Instant::now() < gives_up && !self.load.is_over() {
            let sent = Instant::now();
            match self.ask(self.port, &acquire) {
                Answer::Is(Reply::Int(token)) if want.waits => return self.confirm(want, token),
                Answer::Is(Reply::Int(token)) => return Some((token, sent)),
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
    fn confirm(&mut self, want: &Want, token: i64) -> Option<(i64, Instant)> {
        let sent = Instant::now();
        let renew = want.renew(self.number, token);
        matches!(self.ask(self.port, &renew), Answer::Is(Reply::Int(_))).then_some((token, sent))
    }

    fn hold(&mut self, want: &Want, token: i64, sent: Instant) {
        let (from, mut until) = (Instant::now(), want.end(sent));
        if from >= until {
            return;
        }
        let mut last = sent;
        for _ in 0..want.renewals {
            // Stands for the work under the lock.
            thread::sleep(Duration::from_millis(self.random.random_range(0..=want.pause_ms)));
            if Instant::now() >= until || self.load.is_over() {
                break;
            }
            self.renew(want, token, &mut last, &mut until);
        }
        // Some workers let the lease expire.
        let releases = self.random.random_bool(0.97);
        if releases {
            until = until.min(Instant::now());
        }
        if from < until {
            let belief = Belief { key: want.key, worker: self.number, token, from, until };
            self.load.beliefs.lock().unwrap_or_else(PoisonError::into_inner).push(belief);
        }
        if releases {
            let release = format!("{} TOKEN {token}", want.command("RELEASE", self.number));
            if matches!(self.ask(self.port, &release), Answer::None) {
                self.move_on();
            }
        }
    }

    /// Sends RENEW to one server or another. `last` is when the last answered request was sent,
    /// `until` the end of the belief.
    fn renew(&mut self, want: &Want, token: i64, last: &mut Instant, until: &mut Instant) {
        let renew = want.renew(self.number, token);
        if want.roams && self.random.random_bool(0.1) {
            self.move_on();
        }
        let sent = Instant::now();
        match self.ask(self.port, &renew) {
            Answer::Is(Reply::Int(_)) if Instant::now() < *until => {
                *last = sent;
                *until = want.end(sent);
            }
            Answer::Is(_) if want.roams => self.move_on(),
            Answer::Is(_) => {}
            Answer::None => {
                *until = (*until).min(want.end_without_connection(*last).max(Instant::now()));
                self.move_on();
            }
        }
    }
}
