//! A campaign: clients, faults, and the checks at the end.

use std::collections::{HashMap, HashSet};
use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::afterwards::{check_leftovers, check_life, has_ended, look_afterwards};
use super::cluster;
use super::fault::Faults;
use super::half_open::Network;
use super::harm::{Harm, Interruptions};
use super::monitor::{Monitor, Orders};
use super::processes::{Order, Process};
use super::proof::why_it_proves_nothing;
use super::sentinel::Sentinels;
use super::server::{Disk, Program, Server, WallClock};
use super::wire::{Connection, now_us};
use super::worker::{LONG_WAIT_MS, Worker};
use crate::history::{Call, History, Key, Kind, Operation, Rule, Violation};
use crate::record::Record;
use crate::timeline::SLACK_US;
use crate::{beliefs, rules, takeovers};

/// The parameters of a campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The server and module to start.
    pub program: Program,
    /// How long clients work.
    pub lasts: Duration,
    /// The seed of the clients' random choices.
    pub seed: u64,
    /// The number of clients.
    pub workers: u64,
    /// The fault that happens meanwhile.
    pub faults: Faults,
}

/// The result of a campaign.
pub struct Report {
    /// Everything that was recorded.
    pub record: Record,
    /// The part of it that the rules checked.
    pub history: History,
    /// How many requests were granted. An owner that already holds a lock may be granted it again.
    pub acquisitions: usize,
    /// How many different tokens there were. Each stands for one lock granted to one owner.
    pub locks: usize,
    /// The broken rules.
    pub violations: Vec<Violation>,
    /// How the campaign made the fault, if there is more than one way.
    pub way: Option<&'static str>,
}

/// The longest lease and wait of clients whose holds may be lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The longest lease.
    pub(super) lease_ms: u64,
    /// The longest wait.
    pub(super) wait_ms: u64,
}

/// The lease is longer than any wait. A client counts its lease from the sending of the request, so
/// after a wait some of it is left. But requests that wait for the lock of a lost client time out
/// before its lease expires.
pub(super) const LONG_LEASES: Limits = Limits { lease_ms: 5_000, wait_ms: 3_000 };

/// Where a release may be lost with the server that received it, the lock becomes free only when
/// its lease expires. That has to happen within the slack.
const SHORT_LEASES: Limits = Limits { lease_ms: 1_500, wait_ms: LONG_WAIT_MS };

/// One lock of each kind for this many clients. Fewer clients rarely collide; more only wait.
const CLIENTS_PER_SET: u64 = 6;

/// A request for many keys takes at most three mutexes.
const LEAST_SETS: u64 = 3;

/// The number of client processes. One of them is stopped at a time, while the others continue.
const PROCESSES: u64 = 3;

/// All keys and channels of a campaign end with this tag, so in a cluster they share one slot.
pub(super) const SLOT: &str = "{slot}";

impl Report {
    /// If a rule was broken, writes the record into a folder, under a name made of `words`. Returns
    /// its path. Writes the beliefs, too, if the environment names a folder for them.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn keep(&self, folder: &Path, words: &str) -> Result<Option<PathBuf>> {
        let is_kept = |letter: char| letter.is_ascii_alphanumeric() || letter == '.';
        let words: Vec<&str> = words.split(|letter| !is_kept(letter)).filter(|word| !word.is_empty()).collect();
        let name = words.join("-");
        if let Some(histories) = env::var_os(beliefs::HISTORIES) {
            let path = Path::new(&histories).join(format!("check-{name}.jsonl"));
            beliefs::write(&path, self.history.clone(), &self.violations)?;
        }
        if self.violations.is_empty() {
            return Ok(None);
        }
        let path = folder.join(name);
        self.record.write(&path)?;
        Ok(Some(path))
    }
}

impl Campaign {
    /// Runs the campaign, and checks what it recorded.
    ///
    /// # Errors
    ///
    /// If a server cannot be started, or a client fails in a way that no rule covers.
    pub fn run(&self) -> Result<Report> {
        let clocks = [WallClock::new()?, WallClock::new()?];
        let program = Program {
            disk: self.faults.disk(),
            loses_clients: self.faults != Faults::Clock,
            is_cluster: self.faults.is_in_cluster(),
            ..self.program.clone()
        };
        let mut master = Server::start(&program, Some(&clocks[0]))?;
        let is_cluster = program.is_cluster;
        let disk = if is_cluster { program.disk } else { Disk::None };
        let mut replica = Server::start(&Program { disk, ..program }, Some(&clocks[1]))?;
        if is_cluster {
            cluster::join(&master, &replica)?;
            if self.faults.replica_takes_over() {
                cluster::replicate(&master, &replica)?;
            }
        }
        let mut control = Connection::insist(master.address())?;
        let keys = self.make_keys(&mut control)?;
        let mut violations = Vec::new();
        let (mut operations, interruptions) =
            self.record(&mut master, &mut replica, &clocks, &keys, &mut violations)?;
        let record = Record { keys: keys.to_vec(), operations: operations.clone(), spans: interruptions.spans() };
        let grants_of_forgotten = takeovers::forget(&mut operations, &interruptions.takeovers_us);
        let ended = if is_cluster {
            Connection::insist(master.address())
                .and_then(|mut there| check_leftovers(&mut there, &keys, &mut violations))
        } else {
            look_afterwards(&master, &replica, &keys, &mut violations)
        };
        for (name, server) in [("master", &mut master), ("replica", &mut replica)] {
            check_life(name, server.is_alive(), &server.log(), &mut violations);
        }
        let (keys, Interruptions { pauses, demotions, violations: seen, takeovers_us, .. }) =
            (keys.to_vec(), interruptions);
        violations.extend(seen);
        let mut history = History {
            keys,
            operations,
            grants_of_forgotten,
            pauses,
            demotions,
            is_of_several_servers: self.faults.moves_slots(),
            is_undisturbed: self.faults == Faults::Clock,
            accepts_releases: self.faults.server_accepts_releases(),
            refuses_acquisitions: self.faults.refuses_acquisitions(),
            waits_end_in_pauses: self.faults.ends_waits_in_pauses(),
            clocks_differ_us: self.faults.replica_is_behind_us(),
            takeovers: takeovers::spans(&takeovers_us).collect(),
            leases_outlast_us: if self.faults.clock_falls_behind() { SLACK_US } else { 0 },
        };
        violations.extend(rules::check(&mut history));
        if violations.is_empty() {
            // Otherwise the violations explain the failure.
            ended?;
        }
        if let Some(why) = why_it_proves_nothing(self.faults, self.lasts, &history) {
            violations.push(Violation { rule: Rule::ServerLives, story: why.into() });
        }
        let tokens = || history.operations.iter().filter_map(|one| one.token());
        let (acquisitions, locks) = (tokens().count(), tokens().collect::<HashSet<_>>().len());
        let way = (self.faults == Faults::FullDisk).then(|| master.error_of_full_disk());
        Ok(Report { record, history, acquisitions, locks, violations, way })
    }

    /// Whether clients reach the server through a network that can route them elsewhere.
    fn has_network(&self) -> bool {
        self.faults.loses_connections() || self.faults.is_moving() || self.faults.is_in_cluster()
    }

    /// The locks to compete for. Creates the semaphores.
    pub(super) fn make_keys(&self, control: &mut Connection) -> Result<Arc<[Key]>> {
        let keys = self.keys();
        for key in keys.iter().filter(|key| key.kind == Kind::Semaphore) {
            control.ask(&format!("RSEMAPHORE.INIT {} {}", key.name, key.permits))?;
        }
        Ok(keys)
    }

    /// Some locks of each kind to compete for, and two for each client alone. The seed is in each
    /// name, so the rounds of a soak never reuse one.
    fn keys(&self) -> Arc<[Key]> {
        let mut keys = Vec::new();
        let sets = self.workers.div_ceil(CLIENTS_PER_SET).max(LEAST_SETS);
        for (name, kind, permits) in [
            ("mutex", Kind::Mutex, 1),
            ("fair", Kind::Fair, 1),
            ("rwlock", Kind::RwLock, 1),
            ("semaphore", Kind::Semaphore, 4),
        ] {
            let name_of = |number| format!("{name}-{number}-{}{SLOT}", self.seed);
            keys.extend((0..sets).map(|number| Key { name: name_of(number), kind, permits }));
        }
        for name in ["own-kept", "own"] {
            let name_of = |number| format!("{name}-{number}-{}{SLOT}", self.seed);
            keys.extend((0..self.workers).map(|number| Key { name: name_of(number), kind: Kind::Mutex, permits: 1 }));
        }
        keys.into()
    }

    /// Starts clients in processes of their own if the fault stops processes.
    fn start_processes(&self, address: SocketAddr, until_us: u64, keys: &[Key]) -> Result<Vec<Process>> {
        let numbers = if self.faults == Faults::ClientStop { 0..PROCESSES } else { 0..0 };
        let program = self.program.clients.clone().map_or_else(env::current_exe, Ok)?;
        let order = |number| Order::of(address, until_us, number, self.seed, keys);
        numbers.map(|number| Process::start(&program, &order(number))).collect()
    }

    /// Lets the clients work, and gives their requests the server's order.
    pub(super) fn record(
        &self,
        master: &mut Server,
        replica: &mut Server,
        [clock, clock_of_replica]: &[WallClock; 2],
        keys: &Arc<[Key]>,
        violations: &mut Vec<Violation>,
    ) -> Result<(Vec<Operation>, Interruptions)> {
        let address = master.address();
        let network = if self.has_network() { Some(Network::before(address)?) } else { None };
        let reached_at = network.as_ref().map_or(address, Network::address);
        let is_moving = self.faults.is_moving();
        // Two nodes have no common order.
        let monitor = (!self.faults.is_in_cluster())
            .then(|| Monitor::start(if is_moving { reached_at } else { address }))
            .transpose()?;
        if is_moving {
            replica.follow(address)?;
        }
        let has_sentinels = self.faults.has_sentinels();
        let sentinels = has_sentinels.then(|| Sentinels::of(&self.program.server, address)).transpose()?;
        let until_us = now_us() + u64::try_from(self.lasts.max(self.faults.lasts_at_least()).as_micros())?;
        let limits = if self.faults.forgets_releases() { SHORT_LEASES } else { LONG_LEASES };
        let (survives, is_cluster) = (self.faults != Faults::Clock, self.faults.is_in_cluster());
        let stays = self.faults.server_accepts_releases();
        let (mut operations, interruptions) = thread::scope(|scope| {
            let mut workers = Vec::new();
            for number in 0..self.workers {
                let last = u64::try_from(keys.len())? - self.workers + number;
                let own_keys = [usize::try_from(last)?, usize::try_from(last - self.workers)?];
                let keys = Arc::clone(keys);
                workers.push(scope.spawn(move || -> Result<_> {
                    let mut worker = Worker::new(reached_at, keys, own_keys, number + 1, self.seed)?;
                    if survives {
                        worker = worker.among_crashes(limits);
                    }
                    if is_cluster {
                        worker = worker.in_cluster();
                    }
                    if stays {
                        worker = worker.with_steady_server();
                    }
                    let worked = worker.work(until_us);
                    Ok((worker.operations, worked))
                }));
            }
            let processes = self.start_processes(reached_at, until_us, keys)?;
            // All clients connect before the first fault.
            thread::sleep(Duration::from_millis(500));
            let (faults, seed, network, sentinels) = (self.faults, self.seed, network.as_ref(), sentinels.as_ref());
            let interruptions = Interruptions::default();
            let harm = Harm {
                faults,
                master,
                replica,
                clock,
                clock_of_replica,
                network,
                sentinels,
                processes: &processes,
                interruptions,
                behind_ms: 0,
                has_rested: false,
                seed,
            };
            let interruptions = match harm.run_until(until_us) {
                Ok(interruptions) => interruptions,
                // The server was not meant to end. Later records do not count.
                Err(error) if has_ended(master) || has_ended(replica) => {
                    let story = format!("a server ended by itself: {error:#}");
                    violations.push(Violation { rule: Rule::ServerLives, story });
                    Interruptions::default()
                }
                Err(error) => return Err(error),
            };
            let mut operations = Vec::new();
            for process in processes {
                operations.extend(process.finish()?);
            }
            for worker in workers {
                let (recorded, worked) = worker.join().map_err(|_| anyhow!("a client panicked"))??;
                operations.extend(recorded);
                if let Err(error) = worked {
                    violations
                        .push(Violation { rule: Rule::ServerLives, story: format!("a client failed: {error:#}") });
                }
            }
            Ok::<_, anyhow::Error>((operations, interruptions))
        })?;
        let orders = monitor.map_or_else(|| Ok(Orders::default()), Monitor::finish).unwrap_or_else(|error| {
            violations.push(Violation {
                rule: Rule::ServerLives,
                story: format!("the order of requests is unknown: {error:#}"),
            });
            Orders::default()
        });
        set_orders(&mut operations, &orders);
        if let Some(network) = network {
            network.close();
        }
        Ok((operations, interruptions))
    }
}

/// Gives each request that acquires its position in the server's order. If MONITOR missed some
/// requests of an owner, the positions of that owner stay unknown.
fn set_orders(operations: &mut [Operation], orders: &Orders) {
    let mut asked: HashMap<u64, u64> = HashMap::new();
    for one in operations.iter().filter(|one| matches!(one.call, Call::Acquire { .. })) {
        let most = asked.entry(one.owner).or_default();
        *most = (*most).max(one.order);
    }
    for one in operations.iter_mut().filter(|one| matches!(one.call, Call::Acquire { .. })) {
        let all = usize::try_from(asked.get(&one.owner).copied().unwrap_or(0)).unwrap_or(0);
        let nth = usize::try_from(one.order).ok().and_then(|nth| nth.checked_sub(1));
        let places = orders.get(&one.owner).filter(|places| places.len() == all);
        one.order = places.zip(nth).and_then(|(places, nth)| places.get(nth)).copied().unwrap_or(0);
    }
}
