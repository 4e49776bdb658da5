//! All faults at once, on servers that die, hang and lose connections: named owners shared by
//! several tasks, several locks across databases and across two deployments, and runtimes that end
//! while guards are held. It runs on single servers, under Sentinel, and in a cluster.
//!
//! Whatever happens, no two guards that exclude each other are held at once, and tokens rise. A
//! campaign also needs a minimum number of holds: chaos in which no acquisition succeeds proves
//! nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rlock_client::kinds::Mutex;
use rlock_client::{Client, Error, Guard, Lock, MultiGuard, MultiLock};
use tokio::runtime::{Builder, Handle};
use tokio::task::block_in_place;
use tokio_util::sync::CancellationToken;

use crate::beliefs::{Belief, Register, Share};
use crate::proxy::{Fate, Proxy};
use crate::support::{Cluster, Sentinels, Server, seed};
use crate::{PATIENCE, eventually, url};

/// The number of tasks that acquire and release.
const VISITORS: usize = 24;

/// The number of owner names per client.
const NAMES: u64 = 3;

/// How long each of the three campaigns lasts. `make client-faults MINUTES=30` runs the long form.
fn length() -> Duration {
    let minutes =
        std::env::var("RLOCK_MINUTES").ok().map(|minutes| minutes.parse().expect("RLOCK_MINUTES is a number"));
    minutes.map_or(Duration::from_secs(10), |minutes: f64| Duration::from_secs_f64(minutes * 60.0 / 3.0))
}

/// A deployment that has locks: several clients for it, and keys that exist only there.
#[derive(Clone)]
struct Place {
    clients: Vec<Client>,
    keys: Vec<&'static str>,
}

/// The terms of all acquisitions of a campaign.
#[derive(Clone, Copy)]
struct Terms {
    shortest_lease_ms: u64,
    longest_lease_ms: u64,
    /// The number of replicas that must have a grant before the client relies on it.
    replicas: u32,
}

/// A campaign, as its visitors see it.
struct Campaign {
    places: Vec<Place>,
    terms: Terms,
    register: Arc<Register>,
    is_over: CancellationToken,
}

/// One key of several that are held together.
struct Part {
    whole: Arc<MultiGuard>,
    key: &'static str,
}

impl Belief for Part {
    fn believes(&self) -> bool {
        self.whole.is_held()
    }

    fn token(&self) -> u64 {
        self.whole.token(self.key).expect("it is one of its keys")
    }
}

/// The entries that a visitor has made in the register and must remove.
type Entered = Vec<(&'static str, Arc<dyn Belief>)>;

/// Returns `None` for errors that chaos excuses, and panics on any other.
fn excused<T>(outcome: Result<T, Error>) -> Option<T> {
    match outcome {
        Ok(done) => Some(done),
        Err(
            Error::Timeout
            | Error::Lost
            | Error::Unavailable { .. }
            // Visitors share names, and each may hold one lock while it waits for another.
            | Error::Deadlock(_)
            | Error::Superseded
            | Error::Replicas { .. },
        ) => None,
        Err(Error::Refused { code, .. }) if ["STALE", "UNBLOCKED", "CROSSSLOT"].contains(&code.as_str()) => None,
        Err(error) => panic!("{error}"),
    }
}

impl Campaign {
    fn choose(&self, random: &mut StdRng) -> (usize, Client, &'static str) {
        let place = self.places.choose(random).expect("a place");
        let (client, key) = (random.random_range(0..place.clients.len()), place.keys.choose(random));
        (client, place.clients[client].clone(), key.expect("a key"))
    }

    /// Within a place, each name is used through one client only. Requests of different clients
    /// under one name would end each other.
    fn share(random: &mut StdRng, client: usize) -> (Share, Option<String>) {
        match random.random_range(0..NAMES * 2) {
            name if name < NAMES => {
                let name = client as u64 * NAMES + name;
                (Share::AloneAs(name), Some(format!("worker-{name}")))
            }
            _ => (Share::Alone, None),
        }
    }

    fn lock(&self, random: &mut StdRng, client: &Client, key: &str, name: Option<&str>) -> Lock<Mutex> {
        let lease = self.lease(random);
        let mut lock = crate::leased(client.lock(key), lease, random.random_ratio(3, 4));
        if let Some(name) = name {
            lock = lock.owner(name);
        } else if random.random_ratio(1, 4) {
            // Only holds without a name have a session: a hold that several clients share would end
            // with the connection of the client that asked last.
            lock = lock.session_grace(Duration::from_millis(random.random_range(100..1000)));
        }
        if self.terms.replicas > 0 {
            lock = lock.replicas(self.terms.replicas, Duration::from_millis(500));
        }
        lock
    }

    fn lease(&self, random: &mut StdRng) -> Duration {
        Duration::from_millis(random.random_range(self.terms.shortest_lease_ms..=self.terms.longest_lease_ms))
    }

    /// Two to four locks, in any of the places.
    fn several(&self, random: &mut StdRng) -> (MultiLock, Vec<&'static str>) {
        let mut keys = Vec::new();
        let (_, client, key) = self.choose(random);
        let mut all = client.multi_lock([key]);
        keys.push(key);
        for _ in 0..random.random_range(1..4) {
            let (_, client, key) = self.choose(random);
            if !keys.contains(&key) {
                keys.push(key);
                all = all.and(&client, [key]);
            }
        }
        all = all.lease(self.lease(random));
        if self.terms.replicas > 0 {
            all = all.replicas(self.terms.replicas, Duration::from_millis(500));
        }
        (all, keys)
    }

    fn leave(&self, entered: Entered) {
        for (key, belief) in entered {
            self.register.leave(key, &belief);
        }
    }

    async fn hold_one(&self, random: &mut StdRng) {
        let (number, client, key) = self.choose(random);
        let (share, name) = Self::share(random, number);
        let lock = self.lock(random, &client, key, name.as_deref());
        let patience = Duration::from_millis(random.random_range(10..1500));
        let outcome = match random.random_range(0..3) {
            0 => lock.try_acquire().await,
            1 => lock.acquire_timeout(patience).await.map(Some),
            // The future is dropped while the request is in progress.
            _ => match tokio::time::timeout(patience, lock.acquire()).await {
                Ok(outcome) => outcome.map(Some),
                Err(_) => return,
            },
        };
        let Some(guard) = excused(outcome).flatten() else { return };
        let guard: Arc<Guard<Mutex>> = Arc::new(guard);
        self.register.enter(key, share, guard.clone());
        self.stay(random, guard.lost()).await;
        if random.random_ratio(1, 4) {
            excused(guard.renew().await);
        }
        self.leave(vec![(key, guard.clone() as Arc<dyn Belief>)]);
        let guard = Arc::into_inner(guard).expect("the register has let it go");
        if random.random() {
            excused(guard.release().await);
        }
    }

    async fn hold_several(&self, random: &mut StdRng) {
        let (all, keys) = self.several(random);
        let patience = Duration::from_millis(random.random_range(10..2500));
        let Some(whole) = excused(all.acquire_timeout(patience).await) else { return };
        let whole = Arc::new(whole);
        let part = |key| (key, Arc::new(Part { whole: whole.clone(), key }) as Arc<dyn Belief>);
        let entered: Entered = keys.into_iter().map(part).collect();
        for (key, belief) in &entered {
            self.register.enter(key, Share::Alone, belief.clone());
        }
        self.stay(random, whole.lost()).await;
        self.leave(entered);
        let whole = Arc::into_inner(whole).expect("the register has let it go");
        if random.random() {
            excused(whole.release().await);
        }
    }

    /// Keeps the hold for a moment, or for longer than a lease.
    async fn stay(&self, random: &mut StdRng, lost: impl Future<Output = ()>) {
        let longest_ms = if random.random_ratio(1, 5) { self.terms.longest_lease_ms * 2 } else { 10 };
        tokio::select! {
            () = lost => {}
            () = self.is_over.cancelled() => {}
            () = tokio::time::sleep(Duration::from_millis(random.random_range(0..longest_ms))) => {}
        }
    }

    async fn visit(self: Arc<Self>, mut random: StdRng) {
        while !self.is_over.is_cancelled() {
            match random.random_range(0..4) {
                0 => self.hold_several(&mut random).await,
                _ => self.hold_one(&mut random).await,
            }
        }
    }

    /// Holds a guard whose runtime has ended: it is no longer renewed, and reports the loss in
    /// time.
    fn hold_without_a_runtime(&self, random: &mut StdRng, url: &str, key: &'static str) {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let name = random.random::<u64>();
        let guard = runtime.block_on(async {
            let client = Client::connect(url).await.ok()?;
            let lock = client.lock(key).lease(Duration::from_millis(500)).owner(format!("ghost-{name}"));
            lock.acquire_timeout(Duration::from_millis(500)).await.ok()
        });
        let Some(guard) = guard.map(Arc::new) else { return };
        self.register.enter(key, Share::Alone, guard.clone());
        drop(runtime);
        let deadline = Instant::now() + Duration::from_secs(2);
        while guard.is_held() {
            assert!(Instant::now() < deadline, "the guard still counts as held, although it is not renewed");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.leave(vec![(key, guard as Arc<dyn Belief>)]);
    }

    /// Starts the visitors, injects faults until the time is over, and checks the outcome.
    async fn run(self, random: &mut StdRng, mut happen: impl FnMut(&Campaign, &mut StdRng)) {
        let (campaign, started) = (Arc::new(self), Instant::now());
        let visiting: Vec<_> = (0..VISITORS)
            .map(|_| tokio::spawn(campaign.clone().visit(StdRng::seed_from_u64(random.random()))))
            .collect();
        let mut happened = 0;
        let believed = || campaign.register.believed();
        while started.elapsed() < length() || believed() < VISITORS && started.elapsed() < length() * 10 {
            tokio::time::sleep(Duration::from_millis(random.random_range(50..800))).await;
            block_in_place(|| happen(&campaign, random));
            happened += 1;
            if let Some(ended) = visiting.iter().position(tokio::task::JoinHandle::is_finished) {
                eprintln!("visitor {ended} ended early");
                break;
            }
        }
        campaign.is_over.cancel();
        for visitor in visiting {
            tokio::time::timeout(PATIENCE * 3, visitor)
                .await
                .expect("no task hangs")
                .expect("the visitor found no error");
        }
        let believed = believed();
        eprintln!("{believed} beliefs over {happened} happenings in {:?}", started.elapsed());
        assert!(believed >= VISITORS, "only {believed} of {VISITORS} required holds");
    }
}

fn options() -> rlock_client::Builder {
    Client::builder().connect_timeout(Duration::from_millis(300)).command_timeout(Duration::from_millis(400))
}

/// Closes the connections of all clients of a server that answers, but not those of its replicas.
fn kill_clients(server: &Server) {
    if let Ok(mut operator) = server.try_client() {
        for kind in ["normal", "pubsub"] {
            operator.call(format!("CLIENT KILL TYPE {kind} SKIPME yes"));
        }
    }
}

fn stop_for_a_while(server: &Server, random: &mut StdRng, longest_ms: u64) {
    let pause = Duration::from_millis(random.random_range(10..longest_ms));
    server.while_stopped(|| std::thread::sleep(pause));
}

/// Two servers, the first with two databases, behind networks that cut, delay and lose.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_conflicting_guards_on_single_servers() {
    let mut random = StdRng::seed_from_u64(seed());
    let start = || Server::with(&["appendonly yes", "appendfsync always"]);
    let mut servers = [start(), start()];
    let mut proxies = Vec::new();
    let mut places = Vec::new();
    for (server, database, keys) in [(0, 0, ["a0", "a1"]), (0, 1, ["b0", "b1"]), (1, 0, ["c0", "c1"])] {
        let proxy = Proxy::before(&servers[server]).await;
        let direct = format!("{}{database}", url(&servers[server]));
        let behind = format!("{}{database}", proxy.url());
        let mut clients = Vec::new();
        for address in [&direct, &behind, &behind] {
            // All clients of a place have the same name, so that locks over several places treat
            // them as one place.
            clients.push(options().name(format!("{server}/{database}")).connect(address).await.expect("a server"));
        }
        places.push(Place { clients, keys: keys.to_vec() });
        proxies.push(proxy);
    }
    let direct = url(&servers[0]);
    let terms = Terms { shortest_lease_ms: 200, longest_lease_ms: 1500, replicas: 0 };
    let campaign = Campaign { places, terms, register: Arc::default(), is_over: CancellationToken::new() };
    let mut happen = |campaign: &Campaign, random: &mut StdRng| {
        let server = random.random_range(0..servers.len());
        match random.random_range(0..7) {
            0 => servers[server].kill_and_restart_on_its_port(),
            1 => stop_for_a_while(&servers[server], random, 2000),
            2 => kill_clients(&servers[server]),
            3 => campaign.hold_without_a_runtime(random, &direct, "a0"),
            4 => proxies.iter().for_each(Proxy::clear),
            _ => {
                let mut weather = StdRng::seed_from_u64(random.random());
                proxies[random.random_range(0..proxies.len())].set(move |_, length| {
                    match weather.random_range(0..40) {
                        0 => Fate::CutAfter(weather.random_range(0..=length)),
                        1 => Fate::Swallow,
                        2 => Fate::Delay(Duration::from_millis(weather.random_range(0..50))),
                        _ => Fate::Pass,
                    }
                });
            }
        }
    };
    campaign.run(&mut random, &mut happen).await;
    proxies.iter().for_each(Proxy::clear);
    for server in &servers {
        eventually(|| server.client().info_number("rlock_waiting") == 0).await;
        eventually(|| server.client().call("DBSIZE") == 0).await;
    }
}

/// The master is killed and returns as a replica, or hangs for less time than Sentinel takes to
/// replace it.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_conflicting_guards_under_sentinel() {
    let mut random = StdRng::seed_from_u64(seed());
    let master = Server::with(&[]);
    let upstream = format!("replicaof 127.0.0.1 {}", master.port());
    let mut servers = [master, Server::with(&[&upstream]), Server::with(&[&upstream])];
    for replica in &servers[1..] {
        replica.catch_up_with(&servers[0]);
    }
    let sentinels = Sentinels::of(servers[0].port(), 2);
    let urls: Vec<_> = sentinels.ports().map(|port| format!("redis://127.0.0.1:{port}/")).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(options().connect_sentinel(&urls, "fleet", "redis://any/").await.expect("a master"));
    }
    let keys = vec!["a", "b", "c", "d", "e", "f"];
    let terms = Terms { shortest_lease_ms: 9000, longest_lease_ms: 12_000, replicas: 1 };
    let places = vec![Place { clients, keys }];
    let campaign = Campaign { places, terms, register: Arc::default(), is_over: CancellationToken::new() };
    let mut happen = |_: &Campaign, random: &mut StdRng| {
        let port = sentinels.primary().expect("a Sentinel answers");
        let master = servers.iter_mut().find(|server| server.port() == port).expect("one of the servers");
        match random.random_range(0..8) {
            0 => {
                master.kill();
                let has_changed = || sentinels.primary().is_some_and(|new| new != port);
                Handle::current().block_on(eventually(has_changed));
                let new = sentinels.primary().expect("a master");
                master.restart_in_place(&["--replicaof", &format!("127.0.0.1 {new}")]);
                sentinels.wait_until_ready(new, 2);
            }
            1..3 => stop_for_a_while(master, random, 500),
            _ => kill_clients(master),
        }
    };
    campaign.run(&mut random, &mut happen).await;
}

/// The same in a cluster, with locks of several slots at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_conflicting_guards_in_a_cluster() {
    let mut random = StdRng::seed_from_u64(seed());
    let mut cluster = Cluster::start();
    let seeds: Vec<_> = cluster.nodes().iter().map(url).collect();
    let seeds: Vec<_> = seeds.iter().map(String::as_str).collect();
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(options().connect_cluster(&seeds).await.expect("a cluster"));
    }
    let keys = vec!["a", "b", "c", "{a}d", "{a}e", "f", "g"];
    let terms = Terms { shortest_lease_ms: 9000, longest_lease_ms: 12_000, replicas: 1 };
    let places = vec![Place { clients, keys: keys.clone() }];
    let campaign = Campaign { places, terms, register: Arc::default(), is_over: CancellationToken::new() };
    let mut happen = |_: &Campaign, random: &mut StdRng| {
        let key = keys.choose(random).expect("a key");
        let primary = cluster.primary_of(key).port();
        match random.random_range(0..8) {
            0 => {
                let next = cluster.replica_of(key).port();
                cluster.node_mut(primary).kill();
                let takes_over = || cluster.node_mut(next).client().info("role") == "master";
                Handle::current().block_on(eventually(takes_over));
                cluster.node_mut(primary).restart_in_place(&[]);
                cluster.wait_until_whole();
            }
            1 => {
                let next = cluster.replica_of(key).port();
                assert_eq!(cluster.node_mut(next).client().call("CLUSTER FAILOVER"), "OK");
                let takes_over = || cluster.node_mut(next).client().info("role") == "master";
                Handle::current().block_on(eventually(takes_over));
                cluster.wait_until_whole();
            }
            2..4 => stop_for_a_while(cluster.node_mut(primary), random, 500),
            _ => kill_clients(cluster.node_mut(primary)),
        }
    };
    campaign.run(&mut random, &mut happen).await;
}
