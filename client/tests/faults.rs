//! Clients behind bad networks compete for a few locks of every kind.
//!
//! In any weather: who believes in a hold has it at the server, no two believe that must not, and tokens rise. When the weather is good
//! again, the server counts what the guards say, and nothing when there are none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rlock_client::{Client, Error, Guard, Kind, Lock, Reentrant};

use crate::beliefs::{Belief, Register, Share};
use crate::proxy::{Fate, Proxy};
use crate::support::{Reply, Server, at_length, seed};
use crate::{connect, connections, eventually};

/// How many acquisitions a campaign has in all. The long form: `make client-faults`.
fn rounds() -> usize {
    at_length(240, 10_000)
}

/// How many are under way at once.
const AT_ONCE: usize = 40;

/// The permits of each semaphore.
const PERMITS: u32 = 3;

/// What the network does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// It loses, cuts, delays, and falls silent in one direction.
    Lossy,
    /// Besides, what was sent over a connection may arrive long after that was given up.
    Late,
}

/// Mostly a piece passes. A connection sees a handful of them before something happens to it.
fn fate(random: &mut StdRng, weather: Weather, length: usize) -> Fate {
    match random.random_range(0..100) {
        0..6 => Fate::Delay(Duration::from_millis(random.random_range(0..30))),
        6..9 => Fate::CutAfter(random.random_range(0..=length)),
        9..11 => Fate::Swallow,
        11..13 if weather == Weather::Late => Fate::Stall,
        _ => Fate::Pass,
    }
}

/// One lock, as the client of a visitor sees it.
#[derive(Clone)]
enum Any {
    Mutex(Lock<rlock_client::Mutex>),
    Fair(Lock<rlock_client::Fair>),
    Read(Lock<rlock_client::Read>),
    Write(Lock<rlock_client::Write>),
    Permits(Lock<rlock_client::Permits>, u32),
}

/// The terms of one acquisition.
#[derive(Clone, Copy, Debug)]
struct Terms {
    lease: Option<Duration>,
    renews: bool,
    grace: Option<Duration>,
    /// A number of its own if it is to hold in a name that was chosen.
    name: Option<u64>,
}

impl Terms {
    fn random(random: &mut StdRng, weather: Weather) -> Terms {
        // What arrives late may be granted, and then holds until its lease ends.
        let is_short = weather == Weather::Late || random.random_ratio(1, 4);
        let lease = is_short.then(|| Duration::from_millis(random.random_range(30..700)));
        let grace = random.random_ratio(1, 3).then(|| Duration::from_millis(random.random_range(100..300)));
        Terms { lease, renews: random.random(), grace, name: random.random_ratio(1, 4).then(|| random.random()) }
    }

    fn apply<K: Kind>(self, mut lock: Lock<K>) -> Lock<K> {
        if let Some(lease) = self.lease {
            lock = lock.lease(lease).renewing(self.renews);
        }
        if let Some(grace) = self.grace {
            lock = lock.session_grace(grace);
        }
        match self.name {
            Some(name) => lock.owner(format!("named-{name}")),
            None => lock,
        }
    }

    /// Whether a hold may be lost in bad weather. A lease of 30 s is renewed in time.
    fn may_be_lost(self) -> bool {
        self.lease.is_some() || self.grace.is_some()
    }

    /// An error is right only if the hold may have been lost.
    fn expect_done<T>(self, outcome: Result<T, Error>) -> Option<T> {
        match outcome {
            Ok(done) => Some(done),
            Err(Error::NotHeld) if self.may_be_lost() => None,
            // A renewal is tried only until the hold ends.
            Err(Error::Connection { .. }) if self.may_be_lost() => None,
            Err(error) => panic!("{self:?}: {error}"),
        }
    }
}

/// The keys, with the family whose INFO shows them.
const KEYS: [(&str, &str); 5] =
    [("m0", "RLOCK"), ("m1", "RLOCK"), ("fair", "RFAIRLOCK"), ("rw", "RRWLOCK"), ("s", "RSEMAPHORE")];

fn any_lock(random: &mut StdRng, client: &Client, terms: Terms) -> (&'static str, Any) {
    let key = KEYS[random.random_range(0..KEYS.len())].0;
    (key, lock_under(random, client, key, terms))
}

fn lock_under(random: &mut StdRng, client: &Client, key: &str, terms: Terms) -> Any {
    match key {
        "fair" => Any::Fair(terms.apply(client.fair_lock(key))),
        "rw" if random.random_ratio(2, 3) => Any::Read(terms.apply(client.rw_lock(key).read())),
        "rw" => Any::Write(terms.apply(client.rw_lock(key).write())),
        "s" => {
            let permits = random.random_range(1..=PERMITS);
            Any::Permits(terms.apply(client.semaphore(key).permits(permits)), permits)
        }
        _ => Any::Mutex(terms.apply(client.lock(key))),
    }
}

/// How long somebody is willing to wait, and what happens then.
#[derive(Clone, Copy, Debug)]
enum Patience {
    None,
    Endless,
    Timeout(Duration),
    /// The future is dropped.
    Dropped(Duration),
}

impl Patience {
    fn random(random: &mut StdRng) -> Patience {
        let time = Duration::from_micros(random.random_range(0..100_000));
        match random.random_range(0..4) {
            0 => Patience::None,
            1 => Patience::Endless,
            2 => Patience::Timeout(time),
            _ => Patience::Dropped(time),
        }
    }

    async fn acquire<K: Kind>(self, lock: &Lock<K>, terms: Terms) -> Option<Guard<K>> {
        let outcome = match self {
            Patience::None => lock.try_acquire().await,
            Patience::Endless => lock.acquire().await.map(Some),
            Patience::Timeout(time) => lock.acquire_timeout(time).await.map(Some),
            Patience::Dropped(time) => match tokio::time::timeout(time, lock.acquire()).await {
                Ok(outcome) => outcome.map(Some),
                Err(_) => return None,
            },
        };
        match outcome {
            Ok(guard) => guard,
            Err(Error::Timeout) if matches!(self, Patience::Timeout(_)) => None,
            // With little time a connection may not come about before it is over.
            Err(Error::Connection { .. }) if matches!(self, Patience::Timeout(_)) => None,
            // It was over before the grant was heard of.
            Err(Error::NotHeld) if terms.may_be_lost() => None,
            Err(error) => panic!("{self:?}, {terms:?}: {error}"),
        }
    }
}

/// What a visitor has besides its lock.
struct Place {
    server: Arc<Server>,
    register: Arc<Register>,
    key: &'static str,
    share: Share,
    terms: Terms,
}

/// What the server shows of a lock: the holds of each owner and mode, with their tokens.
fn shown(server: &Server, key: &str) -> BTreeMap<u64, i64> {
    let family = KEYS.iter().find(|(name, _)| *name == key).map_or("RLOCK", |(_, family)| *family);
    let info = server.client().call(format!("{family}.INFO {key}"));
    if info == Reply::Nil {
        return BTreeMap::new();
    }
    let holders = info.field("holders");
    let holder = |holder: &Reply| (holder.field("token").int().cast_unsigned(), holder.field("holds").int());
    holders.array().iter().map(holder).collect()
}

impl Place {
    fn enter<K: Kind>(&self, guard: Guard<K>) -> Arc<Guard<K>> {
        let guard = Arc::new(guard);
        self.register.enter(self.key, self.share, guard.clone());
        guard
    }

    fn leave<K: Kind>(&self, guard: Arc<Guard<K>>) -> Guard<K> {
        self.register.leave(self.key, &(guard.clone() as Arc<dyn Belief>));
        Arc::into_inner(guard).expect("the register has let it go")
    }

    /// Who believes after a look at the server is seen there.
    fn check<K: Kind>(&self, guard: &Guard<K>, holds: i64) {
        let shown = shown(&self.server, self.key);
        if guard.is_held() {
            let expected = if let Share::Permits(some, _) = self.share { i64::from(some) } else { holds };
            assert_eq!(shown.get(&guard.token()), Some(&expected), "{}: {:?} {shown:?}", self.key, self.terms);
        }
    }

    async fn visit<K: Kind>(&self, lock: Lock<K>, patience: Patience, stay: Stay) {
        let Some(guard) = patience.acquire(&lock, self.terms).await else { return };
        let guard = self.enter(guard);
        self.check(&guard, 1);
        tokio::time::sleep(stay.time).await;
        if stay.renews {
            self.terms.expect_done(guard.renew().await);
        }
        self.check(&guard, 1);
        self.give_up(guard, stay).await;
    }

    async fn visit_twice<K: Reentrant>(&self, lock: Lock<K>, patience: Patience, stay: Stay) {
        let Some(guard) = patience.acquire(&lock, self.terms).await else { return };
        let guard = self.enter(guard);
        if let Some(inner) = self.terms.expect_done(guard.reenter().await) {
            self.check(&guard, 2);
            tokio::time::sleep(stay.time).await;
            self.terms.expect_done(inner.release().await);
        }
        self.check(&guard, 1);
        self.give_up(guard, stay).await;
    }

    async fn give_up<K: Kind>(&self, guard: Arc<Guard<K>>, stay: Stay) {
        let guard = self.leave(guard);
        if stay.releases {
            self.terms.expect_done(guard.release().await);
        }
    }
}

/// What a visitor does with its hold.
#[derive(Clone, Copy, Debug)]
struct Stay {
    time: Duration,
    renews: bool,
    reenters: bool,
    /// Or drops the guard.
    releases: bool,
}

impl Stay {
    fn random(random: &mut StdRng) -> Stay {
        // Now and then beyond the end of a lease.
        let longest_us = if random.random_ratio(1, 8) { 500_000 } else { 3000 };
        let time = Duration::from_micros(random.random_range(0..longest_us));
        Stay { time, renews: random.random_ratio(1, 3), reenters: random.random_ratio(1, 3), releases: random.random() }
    }
}

async fn visit(place: Place, lock: Any, patience: Patience, stay: Stay) {
    match (lock, stay.reenters) {
        (Any::Mutex(lock), true) => place.visit_twice(lock, patience, stay).await,
        (Any::Fair(lock), true) => place.visit_twice(lock, patience, stay).await,
        (Any::Read(lock), true) => place.visit_twice(lock, patience, stay).await,
        (Any::Write(lock), true) => place.visit_twice(lock, patience, stay).await,
        (Any::Mutex(lock), false) => place.visit(lock, patience, stay).await,
        (Any::Fair(lock), false) => place.visit(lock, patience, stay).await,
        (Any::Read(lock), false) => place.visit(lock, patience, stay).await,
        (Any::Write(lock), false) => place.visit(lock, patience, stay).await,
        (Any::Permits(lock, _), _) => place.visit(lock, patience, stay).await,
    }
}

fn share(lock: &Any) -> Share {
    match lock {
        Any::Mutex(_) | Any::Fair(_) | Any::Write(_) => Share::Alone,
        Any::Read(_) => Share::Reading,
        Any::Permits(_, some) => Share::Permits(*some, PERMITS),
    }
}

/// What is held on to until the weather is good.
struct Kept {
    key: &'static str,
    /// How often it is held.
    holds: i64,
    guards: Box<dyn Belief>,
}

impl Kept {
    fn new(key: &'static str, holds: i64, guards: impl Belief + 'static) -> Kept {
        Kept { key, holds, guards: Box::new(guards) }
    }
}

/// A hold and its re-entry. Each of them renews what both hold.
impl<K: Kind> Belief for (Guard<K>, Guard<K>) {
    fn believes(&self) -> bool {
        self.0.is_held() || self.1.is_held()
    }

    fn token(&self) -> u64 {
        self.0.token()
    }
}

/// What one client gets in a little time of locks of each kind, mutexes twice.
async fn keep_some(client: Client, terms: Terms) -> Vec<Kept> {
    let patience = Patience::Timeout(Duration::from_millis(20));
    let mut kept = Vec::new();
    for key in ["m0", "m1"] {
        let Some(outer) = patience.acquire(&terms.apply(client.lock(key)), terms).await else { continue };
        match terms.expect_done(outer.reenter().await) {
            Some(inner) => kept.push(Kept::new(key, 2, (outer, inner))),
            None => kept.push(Kept::new(key, 1, outer)),
        }
    }
    if let Some(guard) = patience.acquire(&terms.apply(client.fair_lock("fair")), terms).await {
        kept.push(Kept::new("fair", 1, guard));
    }
    if let Some(guard) = patience.acquire(&terms.apply(client.rw_lock("rw").read()), terms).await {
        kept.push(Kept::new("rw", 1, guard));
    }
    if let Some(guard) = patience.acquire(&terms.apply(client.semaphore("s").permits(1)), terms).await {
        kept.push(Kept::new("s", 1, guard));
    }
    kept
}

/// A server, and clients that reach it through bad networks, but for the last one.
struct Campaign {
    server: Arc<Server>,
    register: Arc<Register>,
    proxies: Vec<Proxy>,
    clients: Vec<Client>,
    weather: Weather,
    random: StdRng,
}

impl Campaign {
    async fn new(weather: Weather) -> Campaign {
        let server = Arc::new(Server::with(&["rlock.fair-grace-ms 300"]));
        server.client().call(format!("RSEMAPHORE.INIT s {PERMITS}"));
        let (mut proxies, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let proxy = Proxy::before(&server).await;
            let options = Client::builder()
                .connect_timeout(Duration::from_millis(200))
                .response_timeout(Duration::from_millis(150))
                .refresh_waits_after(Duration::from_millis(250))
                .waiting_connections(3);
            clients.push(options.connect(&proxy.url()).await.expect("the server takes connections"));
            proxies.push(proxy);
        }
        clients.push(connect(&server).await);
        let random = StdRng::seed_from_u64(seed());
        Campaign { server, register: Arc::default(), proxies, clients, weather, random }
    }

    fn storm(&mut self) {
        for proxy in &self.proxies {
            let (mut random, weather) = (StdRng::seed_from_u64(self.random.random()), self.weather);
            proxy.set(move |_, length| fate(&mut random, weather, length));
        }
    }

    fn calm(&self) {
        self.proxies.iter().for_each(Proxy::clear);
    }

    fn place(&self, key: &'static str, share: Share, terms: Terms) -> Place {
        Place { server: self.server.clone(), register: self.register.clone(), key, share, terms }
    }

    /// Many visitors at once, in bad weather.
    async fn rush(&mut self) {
        let visits: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let client = self.clients[self.random.random_range(0..self.clients.len())].clone();
                let terms = Terms::random(&mut self.random, self.weather);
                let (key, lock) = any_lock(&mut self.random, &client, terms);
                let (patience, stay) = (Patience::random(&mut self.random), Stay::random(&mut self.random));
                tokio::spawn(visit(self.place(key, share(&lock), terms), lock, patience, stay))
            })
            .collect();
        for visit in visits {
            visit.await.expect("what visitors see is right");
        }
    }

    /// Each client acquires in bad weather what it can get and keeps it. When the weather is good again, the server counts just that.
    async fn keep(&mut self) {
        let lease = (self.weather == Weather::Late).then_some(Duration::from_secs(1));
        let terms = Terms { lease, renews: true, grace: None, name: None };
        let keeping: Vec<_> =
            self.clients.iter().map(|client| tokio::spawn(keep_some(client.clone(), terms))).collect();
        let mut kept = Vec::new();
        for keeping in keeping {
            kept.extend(keeping.await.expect("no panic"));
        }
        self.calm();
        for (key, _) in KEYS {
            self.expect_shown(key, || {
                let of_key = kept.iter().filter(|kept| kept.key == key && kept.guards.believes());
                of_key.map(|kept| (kept.guards.token(), kept.holds)).collect()
            })
            .await;
        }
        // Dropping a guard releases.
        self.storm();
        drop(kept);
    }

    async fn expect_shown(&self, key: &str, expected: impl Fn() -> BTreeMap<u64, i64>) {
        let (mut says, mut shows) = (BTreeMap::new(), BTreeMap::new());
        let same = eventually(|| {
            (says, shows) = (expected(), shown(&self.server, key));
            says == shows
        });
        let in_time = tokio::time::timeout(Duration::from_secs(10), same).await;
        assert!(in_time.is_ok(), "{key}: the guards say {says:?}, and the server {shows:?}");
    }

    async fn run(mut self) {
        let started = std::time::Instant::now();
        for _ in 0..rounds() / AT_ONCE {
            self.storm();
            self.rush().await;
            self.keep().await;
            self.calm();
            for (key, _) in KEYS {
                self.expect_shown(key, BTreeMap::new).await;
            }
            eventually(|| self.server.client().info_number("rlock_waiting") == 0).await;
            // The semaphore stays.
            eventually(|| self.server.client().call("DBSIZE") == 1).await;
        }
        eprintln!("{:?}: {} holds in {:?}", self.weather, self.register.believed(), started.elapsed());
        assert!(self.register.believed() > rounds() / 3, "most get what they want");
        // One shared and three to wait on each; the last has eight.
        eventually(|| connections(&self.server) <= 3 * 4 + 9).await;
        drop(self.clients);
        eventually(|| connections(&self.server) == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_lossy_network_holds_are_counted_right_and_nobody_believes_wrongly() {
    Campaign::new(Weather::Lossy).await.run().await;
}

/// A request that arrives after it was given up may be granted, for the length of its lease. It does not make anybody believe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_network_that_delivers_late_nobody_believes_wrongly() {
    Campaign::new(Weather::Late).await.run().await;
}
