//! Workers take locks while masters die, are stopped, cut off and superseded. With the settings for it no two of them believe at the
//! same time that they hold one; without them some do, so the check is known to see it.
//!
//! A worker believes as docs/guarantees.md says: from the answer to an ACQUIRE without a wait, or after a wait from the answer to a
//! RENEW, until its own clock before it sent the last answered one plus the lease, or until it sends RELEASE.
//!
//! `RLOCK_FAILOVERS=100` makes it longer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::support::{Client, Reply, Server, eventually, seed};

const SOON: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_millis(500);
const WORKERS: u64 = 6;
const KEYS: u64 = 3;

/// The settings of docs/operations.md, with a short lease.
const SAFE: [&str; 5] = [
    "rlock.max-lease-ms 500",
    "rlock.quarantine-after failover",
    "rlock.quarantine-ms 4500",
    "rlock.min-replicas 1",
    "repl-ping-replica-period 1",
];

/// What befalls the master of three servers.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// It is killed, and comes back as a replica.
    Kill,
    /// A replica is promoted while it lives on with the other one for a second.
    SplitBrain,
    /// It is stopped for longer than a failover takes, and goes on with the requests queued in its sockets.
    Stop,
    /// The replica that is promoted was cut off before, and lacks the latest holds.
    LateReplica,
}

const FAULTS: [Fault; 4] = [Fault::Kill, Fault::SplitBrain, Fault::Stop, Fault::LateReplica];

/// A time in which a worker believed that it held a lock.
struct Belief {
    key: u64,
    worker: u64,
    from: Instant,
    until: Instant,
}

struct Campaign {
    servers: RwLock<Vec<Server>>,
    ports: Mutex<Vec<u16>>,
    beliefs: Mutex<Vec<Belief>>,
    acquired: AtomicU64,
    over: AtomicBool,
}

impl Campaign {
    fn begin(settings: &[&str]) -> Self {
        let master = Server::with(settings);
        let replicas = [Server::replica_of(&master, settings), Server::replica_of(&master, settings)];
        let servers: Vec<Server> = [master].into_iter().chain(replicas).collect();
        let ports = servers.iter().map(Server::port).collect();
        Self {
            servers: RwLock::new(servers),
            ports: Mutex::new(ports),
            beliefs: Mutex::new(Vec::new()),
            acquired: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// Takes locks again and again, from any server that grants them.
    fn work(&self, worker: u64) {
        let mut random = StdRng::seed_from_u64(seed().wrapping_add(worker));
        while !self.over.load(Ordering::Relaxed) {
            let port = {
                let ports = self.ports.lock().unwrap();
                ports[random.random_range(0..ports.len())]
            };
            let Ok(mut client) = Client::connect_within(port, LEASE) else { continue };
            // It stays with a server for a while, as a client does that has not heard of a failover.
            let stays = Instant::now() + Duration::from_millis(random.random_range(200..2000));
            while Instant::now() < stays && !self.over.load(Ordering::Relaxed) {
                if self.take_and_release(&mut client, worker, &mut random).is_none() {
                    break;
                }
            }
        }
    }

    /// One acquisition. `None` if the server is gone, or has no use.
    fn take_and_release(&self, client: &mut Client, worker: u64, random: &mut StdRng) -> Option<()> {
        let key = random.random_range(0..KEYS);
        let waits = random.random_bool(0.7);
        let wait = if waits { "BLOCK 300" } else { "" };
        let lease_ms = LEASE.as_millis();
        let mut sent = Instant::now();
        let token = match ask(client, &format!("RLOCK.ACQUIRE job-{key} worker-{worker} PX {lease_ms} {wait}"))? {
            Reply::Int(token) => token,
            Reply::Nil => return Some(()),
            _ => {
                // Only a pause between attempts at a server that grants nothing.
                thread::sleep(Duration::from_millis(10));
                return None;
            }
        };
        let renew = format!("RLOCK.RENEW job-{key} worker-{worker} TOKEN {token}");
        if waits {
            sent = Instant::now();
            if !matches!(ask(client, &renew)?, Reply::Int(_)) {
                return Some(());
            }
        }
        let (from, mut until) = (Instant::now(), sent + LEASE);
        if from >= until {
            return Some(());
        }
        self.acquired.fetch_add(1, Ordering::Relaxed);
        let mut is_there = true;
        for _ in 0..random.random_range(0..4) {
            // The work.
            thread::sleep(Duration::from_millis(random.random_range(0..100)));
            sent = Instant::now();
            if sent >= until || !is_there {
                break;
            }
            match ask(client, &renew) {
                Some(Reply::Int(_)) if Instant::now() < until => until = sent + LEASE,
                Some(_) => {}
                None => is_there = false,
            }
        }
        if is_there && random.random_bool(0.7) {
            until = until.min(Instant::now());
            self.believe(Belief { key, worker, from, until });
            ask(client, &format!("RLOCK.RELEASE job-{key} worker-{worker} TOKEN {token}")).map(|_| ())
        } else {
            self.believe(Belief { key, worker, from, until });
            None
        }
    }

    fn believe(&self, belief: Belief) {
        self.beliefs.lock().unwrap().push(belief);
    }

    /// Lets a fault happen, and waits until locks are granted again.
    fn suffer(&self, fault: Fault) {
        let mut servers = self.servers.write().unwrap();
        let tell = |server: &Server, command: String| {
            server.client().call(command);
        };
        let follow = |follower: &Server, master: &Server| {
            tell(follower, format!("REPLICAOF 127.0.0.1 {}", master.port()));
        };
        let promote = |server: &Server| tell(server, "REPLICAOF NO ONE".to_owned());
        match fault {
            Fault::Kill => {
                servers[0].kill();
                promote(&servers[1]);
                follow(&servers[2], &servers[1]);
                servers[0].restart();
                *self.ports.lock().unwrap() = servers.iter().map(Server::port).collect();
                follow(&servers[0], &servers[1]);
            }
            Fault::SplitBrain => {
                promote(&servers[1]);
                thread::sleep(Duration::from_secs(1));
                follow(&servers[2], &servers[1]);
                thread::sleep(Duration::from_secs(1));
                follow(&servers[0], &servers[1]);
            }
            Fault::Stop => {
                servers[0].while_stopped(|| {
                    promote(&servers[1]);
                    follow(&servers[2], &servers[1]);
                    thread::sleep(Duration::from_secs(5));
                });
                thread::sleep(Duration::from_millis(500));
                follow(&servers[0], &servers[1]);
            }
            Fault::LateReplica => {
                servers[1].while_stopped(|| thread::sleep(Duration::from_secs(2)));
                servers[0].kill();
                promote(&servers[1]);
                follow(&servers[2], &servers[1]);
                servers[0].restart();
                *self.ports.lock().unwrap() = servers.iter().map(Server::port).collect();
                follow(&servers[0], &servers[1]);
            }
        }
        servers.swap(0, 1);
        let mut master = servers[0].client();
        eventually(SOON, || master.info_number("rlock_may_grant") == 1 && master.info("connected_slaves") == "2");
        // Time itself: the work between two faults.
        thread::sleep(Duration::from_millis(1500));
        // Some more work before the next one.
        thread::sleep(Duration::from_secs(1));
    }

    /// How often two workers believed to hold the same lock at the same time.
    fn overlaps(&self) -> usize {
        let mut beliefs = self.beliefs.lock().unwrap();
        beliefs.sort_by_key(|belief| (belief.key, belief.from));
        let mut overlaps = 0;
        for (index, belief) in beliefs.iter().enumerate() {
            let later = beliefs[index + 1..].iter();
            let meets = |other: &&Belief| other.key == belief.key && other.from < belief.until;
            overlaps += later.take_while(meets).filter(|other| other.worker != belief.worker).count();
        }
        overlaps
    }
}

/// Asks within the lease: what is not answered by then is of no use.
fn ask(client: &mut Client, command: &str) -> Option<Reply> {
    client.try_send(&[command.into()]).ok()?;
    client.reply_within(LEASE * 2).ok()
}

fn run(settings: &[&str], faults: impl Iterator<Item = Fault>) -> Campaign {
    let campaign = Campaign::begin(settings);
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let campaign = &campaign;
            scope.spawn(move || campaign.work(worker));
        }
        let happenings = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for (number, fault) in faults.enumerate() {
                campaign.suffer(fault);
                println!("{number}: {fault:?}, {} acquired", campaign.acquired.load(Ordering::Relaxed));
            }
        }));
        campaign.over.store(true, Ordering::Relaxed);
        if let Err(panic) = happenings {
            std::panic::resume_unwind(panic);
        }
    });
    campaign
}

#[test]
fn no_two_workers_believe_at_the_same_time_through_failovers() {
    let count = std::env::var("RLOCK_FAILOVERS").ok().and_then(|count| count.parse().ok()).unwrap_or(FAULTS.len());
    let campaign = run(&SAFE, FAULTS.into_iter().cycle().take(count));
    println!("{} acquired, {} overlaps", campaign.acquired.load(Ordering::Relaxed), campaign.overlaps());
    assert!(campaign.acquired.load(Ordering::Relaxed) > 20 * count as u64, "locks were acquired in between");
    assert_eq!(campaign.overlaps(), 0);
}

#[test]
fn without_the_settings_two_workers_believe_at_the_same_time() {
    let campaign = run(&["rlock.max-lease-ms 500"], [Fault::SplitBrain].into_iter());
    assert!(campaign.overlaps() > 0, "the check sees it");
}
