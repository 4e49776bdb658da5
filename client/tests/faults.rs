//! Clients behind bad networks compete for a few locks of every kind.
//!
//! Whatever the network does, a guard that is held has its hold at the server, no two guards that
//! exclude each other are held at once, and tokens rise. When the network is good again, the
//! server's counts agree with the guards, and the server has no holds when there are no guards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rlock_client::{Client, Guard, Kind};

use crate::beliefs::{Belief, Register, Share};
use crate::proxy::{Fate, Proxy};
use crate::support::{Server, at_length, seed};
use crate::visitors::{self, KEYS, PERMITS, Patience, Place, Stay, Terms, shown};
use crate::{connect, connections, eventually};

/// The number of acquisitions of a campaign. `make client-faults` runs the long form.
fn rounds() -> usize {
    at_length(240, 10_000)
}

/// The campaign continues until this many acquisitions were granted, since the rate depends on the
/// machine. If ten times as many acquisitions are not enough, the client rarely succeeds, and the
/// test fails.
fn wanted_holds() -> usize {
    rounds() / 3
}

/// The number of acquisitions in progress at once.
const AT_ONCE: usize = 40;

/// The faults of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// It loses, cuts and delays, and goes silent in one direction.
    Lossy,
    /// The same, and data may arrive long after its connection was given up.
    Late,
}

/// Most pieces pass. A connection carries a handful of them before something happens to it.
fn fate(random: &mut StdRng, weather: Weather, length: usize) -> Fate {
    match random.random_range(0..100) {
        0..6 => Fate::Delay(Duration::from_millis(random.random_range(0..30))),
        6..9 => Fate::CutAfter(random.random_range(0..=length)),
        9..11 => Fate::Swallow,
        11..13 if weather == Weather::Late => Fate::Stall,
        _ => Fate::Pass,
    }
}

/// A hold that is kept until the network is good again.
struct Kept {
    key: &'static str,
    /// The hold's count.
    holds: i64,
    guards: Box<dyn Belief>,
}

impl Kept {
    fn new(key: &'static str, holds: i64, guards: impl Belief + 'static) -> Kept {
        Kept { key, holds, guards: Box::new(guards) }
    }
}

/// A hold and its re-entry. Renewing one renews both.
impl<K: Kind> Belief for (Guard<K>, Guard<K>) {
    fn believes(&self) -> bool {
        self.0.is_held() || self.1.is_held()
    }

    fn token(&self) -> u64 {
        self.0.token()
    }
}

/// The locks of each kind that one client acquires in a short time, mutexes twice.
async fn keep_some(client: Client, terms: Terms) -> Vec<Kept> {
    let patience = Patience::Timeout(Duration::from_millis(20));
    let mut kept = Vec::new();
    for key in ["m0", "m1"] {
        let Some(outer) = patience.acquire(&terms.apply(client.lock(key)), terms).await else { continue };
        match terms.expect_done(outer.reenter()) {
            Some(inner) => kept.push(Kept::new(key, 1, (outer, inner))),
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

/// A server, and clients that reach it through bad networks. The last client has a direct
/// connection.
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
                .command_timeout(Duration::from_millis(150))
                .ping_after(Duration::from_millis(250));
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

    /// Many visitors at once, over a bad network.
    async fn rush(&mut self) {
        let visits: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let client = self.clients[self.random.random_range(0..self.clients.len())].clone();
                let terms = Terms::random(&mut self.random, self.weather == Weather::Late);
                let (key, lock) = visitors::any_lock(&mut self.random, &client, terms);
                let (patience, stay) = (Patience::random(&mut self.random), Stay::random(&mut self.random));
                tokio::spawn(visitors::visit(self.place(key, visitors::share(&lock), terms), lock, patience, stay))
            })
            .collect();
        for visit in visits {
            visit.await.expect("the visitor found no error");
        }
    }

    /// Each client acquires what it can over a bad network, and keeps it. When the network is good
    /// again, the server's counts are exactly those of the guards.
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
        // Dropping a guard releases it.
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
        let mut rushes = 0;
        while rushes < rounds() / AT_ONCE || self.register.believed() <= wanted_holds() {
            assert!(rushes < 10 * rounds() / AT_ONCE, "{} holds in {rushes} rushes", self.register.believed());
            rushes += 1;
            self.storm();
            self.rush().await;
            self.keep().await;
            self.calm();
            for (key, _) in KEYS {
                self.expect_shown(key, BTreeMap::new).await;
            }
            eventually(|| self.server.client().info_number("rlock_waiting") == 0).await;
            // The semaphore's key stays.
            eventually(|| self.server.client().call("DBSIZE") == 1).await;
        }
        eprintln!("{:?}: {} holds, {rushes} rushes, {:?}", self.weather, self.register.believed(), started.elapsed());
        eventually(|| connections(&self.server) <= 2 * (3 + 1)).await;
        drop(self.clients);
        eventually(|| connections(&self.server) == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lossy_network_causes_no_wrong_count_or_conflicting_guards() {
    Campaign::new(Weather::Lossy).await.run().await;
}

/// A request that arrives after it was given up may be granted for the length of its lease, but no
/// guard reports that hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_delivery_causes_no_conflicting_guards() {
    Campaign::new(Weather::Late).await.run().await;
}
