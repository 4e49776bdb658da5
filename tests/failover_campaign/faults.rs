//! The faults of a master that grants locks: one for each row of the record.

mod changes;
mod chaos;
mod restarts;

use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rand::Rng;

use super::fleet::{Fleet, LAG, SOON};
use super::workers::Load;
use crate::support::{Reply, eventually};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A single server without a file is killed and restarted.
    Restart,
    /// A single server with an append-only file is killed and restarted. Every second time the last
    /// second of the file is lost, as in a power failure.
    RestartWithFile,
    /// The master is killed, a replica is promoted with REPLICAOF, and the old master restarts as a
    /// replica.
    Kill,
    /// The master is killed, and Sentinels promote a replica. Every second time the old master
    /// restarts as a master, until the Sentinels demote it.
    Sentinel,
    /// The master is cut off from the Sentinels and its replicas, but not from the workers.
    SentinelPartition,
    /// A replica is promoted while the master stays alive with the other one.
    SplitBrain,
    /// The master is stopped for a failover or longer, and then executes the requests in its
    /// sockets.
    Stop,
    /// A replica of a cluster takes over with the votes of other masters. Every second time the old
    /// master is stopped meanwhile.
    Force,
    /// A replica of a cluster takes over without votes.
    Takeover,
    /// The master of a cluster is killed or stopped, and the nodes replace it themselves.
    Automatic,
    /// The master hands over to a replica with FAILOVER.
    Planned,
    /// The promoted replica was cut off for a minute.
    LateReplica,
    /// Two replicas are promoted, one after the other within one quarantine, while the master stays
    /// alive.
    Twice,
    /// A split brain in which the wall clock of the old master steps by an hour.
    ClockSteps,
    /// Kills and split brains of servers whose clocks differ by 500 ms and 1 s.
    ClocksDiffer,
    /// One replica follows the other, and either is promoted while the master stays alive.
    Chained,
    /// The same, and the one in the middle or the promoted one restarts meanwhile.
    ChainedRestarts,
    /// A relay loses everything between the master and its replicas, or the promoted one only.
    Partition,
    /// The same with servers in network namespaces, and blackhole routes between them.
    Blackhole,
    /// The promoted replica is killed at any stage, and restarts as a master or as a replica of the
    /// old master.
    PromotedRestarts,
    /// Any server is killed at any stage.
    AnyRestarts,
    /// A replica of the new master restarts as one of the old master, with its file or an old one.
    ReplicaReturns,
    /// Replicas, and the promoted one, restart without data.
    EmptyRestarts,
    /// The longest lease, the lag and the number of replicas are raised and lowered, and a failover
    /// follows when that has settled.
    Changes,
    /// The longest lease is lowered while requests wait, and one of them is granted the lock just
    /// before a failover.
    LoweredWhileWaiting,
    /// A random sequence of all of these.
    Chaos,
    /// A split brain, or a kill of the master. The workers are processes of the five packages, of
    /// which some are stopped at any time.
    Packages,
}

/// The way in which replicas and Sentinels reach a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    Direct,
    /// Over a relay for each pair of servers.
    Relays,
    /// Over a relay in front of each server, whose address the server announces.
    Fronts,
    /// From one network namespace to another.
    Namespaces,
}

const HOUR: Duration = Duration::from_secs(3600);

impl Fault {
    /// The name in the record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Restart => "kill -9 and restart, no file",
            Self::RestartWithFile => "kill -9 and restart, everysec, half of the time without the last second",
            Self::Kill => "kill -9, a replica promoted",
            Self::Sentinel => "kill -9, failover by Sentinel",
            Self::SentinelPartition => "the master cut off, failover by Sentinel",
            Self::SplitBrain => "REPLICAOF NO ONE, the old master lives",
            Self::Stop => "SIGSTOP during a failover, SIGCONT",
            Self::Force => "CLUSTER FAILOVER FORCE",
            Self::Takeover => "CLUSTER FAILOVER TAKEOVER",
            Self::Automatic => "kill -9 or SIGSTOP, failover by a cluster",
            Self::Planned => "FAILOVER",
            Self::LateReplica => "kill -9, a replica promoted that was cut off",
            Self::Twice => "two failovers within a quarantine",
            Self::ClockSteps => "split brain, the old clock steps by ±1 h",
            Self::ClocksDiffer => "kill -9 and split brain, clocks that differ by 500 ms",
            Self::Chained => "split brain with a chained replica",
            Self::ChainedRestarts => "split brain with a chained replica, kill -9 and restart",
            Self::Partition => "the master cut off by a relay, split brain",
            Self::Blackhole => "the master cut off by blackhole routes, split brain",
            Self::PromotedRestarts => {
                "the promoted replica killed at any stage, as a master or with its old `replicaof`"
            }
            Self::AnyRestarts => "any server killed at any stage of a failover",
            Self::ReplicaReturns => "a replica restarts with its old `replicaof`, half of the time with an old file",
            Self::EmptyRestarts => "replicas and the promoted one restart without data",
            Self::Changes => "settings raised and lowered, then split brain",
            Self::LoweredWhileWaiting => "the longest lease lowered while requests wait, then split brain",
            Self::Chaos => "chaos",
            Self::Packages => "split brain or kill -9, the workers are the five packages, some stopped (SIGSTOP)",
        }
    }

    pub fn is_of_one_server(self) -> bool {
        matches!(self, Self::Restart | Self::RestartWithFile)
    }

    pub fn is_of_a_cluster(self) -> bool {
        matches!(self, Self::Force | Self::Takeover | Self::Automatic)
    }

    /// Whether the nodes of the cluster replace their master without a command.
    pub fn is_automatic(self) -> bool {
        self == Self::Automatic
    }

    pub fn has_sentinels(self) -> bool {
        matches!(self, Self::Sentinel | Self::SentinelPartition)
    }

    pub fn bends_clocks(self) -> bool {
        matches!(self, Self::ClockSteps | Self::ClocksDiffer | Self::Chaos)
    }

    pub fn is_chained(self) -> bool {
        matches!(self, Self::Chained | Self::ChainedRestarts)
    }

    pub fn has_files(self) -> bool {
        let restarts = [Self::RestartWithFile, Self::PromotedRestarts, Self::AnyRestarts, Self::ChainedRestarts];
        restarts.contains(&self) || self == Self::Chaos
    }

    pub fn network(self) -> Network {
        match self {
            Self::Partition | Self::Chaos => Network::Relays,
            Self::SentinelPartition => Network::Fronts,
            Self::Blackhole => Network::Namespaces,
            _ => Network::Direct,
        }
    }

    /// Returns the longest lease with which the servers start.
    pub fn first_lease(self, lease: Duration) -> Duration {
        if self == Self::LoweredWhileWaiting { 2 * lease } else { lease }
    }

    /// Returns how long a master may take to grant once it is up, or enough replicas follow it: a
    /// quarantine, and before that the time until the votes of the replicas count.
    pub fn allowed(self, lease: Duration) -> Duration {
        let quarantine = lease + Duration::from_secs(1);
        match self {
            _ if self.is_of_one_server() => quarantine,
            // With the raised settings.
            Self::Changes => quarantine + lease.mul_f64(0.4) + LAG + Duration::from_secs(1),
            _ => quarantine + LAG,
        }
    }

    /// Whether the fault exists without the settings for exclusion.
    pub fn exists_by_default(self) -> bool {
        !matches!(self, Self::Changes | Self::LoweredWhileWaiting)
    }
}

impl Fleet {
    /// Causes a fault for the n-th time, and puts the new master first.
    pub fn suffer(&mut self, fault: Fault, n: usize, load: &Load) {
        let is_odd = !n.is_multiple_of(2);
        match fault {
            Fault::Restart => {
                self.kill(0);
                self.restart(0);
            }
            Fault::RestartWithFile => {
                let file = self.append_only_file();
                let length = fs::metadata(&file).expect("an append-only file").len();
                thread::sleep(Duration::from_secs(1));
                self.kill(0);
                if is_odd {
                    let file = File::options().write(true).open(&file).expect("an append-only file");
                    file.set_len(length).expect("a shorter file");
                }
                self.restart(0);
            }
            Fault::Kill => self.replace_killed(),
            Fault::Sentinel => self.be_replaced_by_sentinels(is_odd),
            Fault::SentinelPartition => self.be_cut_off_from_sentinels(),
            Fault::SplitBrain => self.split(),
            Fault::Stop => {
                self.while_master_is_stopped(|others| {
                    others.promote(0);
                    others.follow(1, 0);
                    others.pause(500..7000);
                });
                self.pause(0..1000);
                self.follow(0, 1);
                self.servers.swap(0, 1);
            }
            Fault::Force | Fault::Takeover => {
                let how = if fault == Fault::Force { "FORCE" } else { "TAKEOVER" };
                if is_odd {
                    self.while_master_is_stopped(|others| {
                        others.take_over(0, how);
                        others.pause(500..7000);
                    });
                } else {
                    self.take_over(1, how);
                }
                self.servers.rotate_left(1);
            }
            Fault::Automatic => {
                if is_odd {
                    self.while_master_is_stopped(|others| {
                        others.put_master_first();
                        others.pause(0..7000);
                    });
                } else {
                    self.kill(0);
                    let killed = self.servers.remove(0);
                    self.put_master_first();
                    self.servers.insert(0, killed);
                    self.restart(0);
                }
                // The old master may not have noticed yet that it is one no longer.
                self.servers.swap(0, 1);
            }
            Fault::Planned => {
                let port = self.servers[1].port();
                let how = if is_odd { " FORCE TIMEOUT 100" } else { "" };
                self.tell(0, format!("FAILOVER TO 127.0.0.1 {port}{how}"));
                eventually(SOON, || self.servers[1].has_role("master") && self.servers[0].has_role("slave"));
                self.pause(0..2000);
                self.follow(2, 1);
                self.servers.swap(0, 1);
            }
            Fault::LateReplica => {
                // No server listens on that port.
                self.tell(1, "REPLICAOF 127.0.0.1 1");
                thread::sleep(self.length.cut_off);
                self.replace_killed();
            }
            Fault::Twice => {
                self.promote(1);
                self.pause(0..600);
                self.follow(2, 1);
                self.pause(600..7000);
                self.promote(2);
                self.pause(0..600);
                self.follow(1, 2);
                self.pause(0..1000);
                self.follow(0, 2);
                self.servers.swap(0, 2);
            }
            Fault::ClockSteps => {
                let port = self.servers[0].port();
                let clock = self.clocks.remove(&port).expect("it has a clock");
                if is_odd {
                    clock.step_forward(HOUR)
                } else {
                    clock.step_back(HOUR)
                }
                self.split();
                clock.step_forward(Duration::ZERO);
                self.clocks.insert(port, clock);
            }
            Fault::ClocksDiffer => {
                let clocks: Vec<_> = self.clocks.values().collect();
                clocks[0].step_back(Duration::from_millis(500));
                clocks[2].step_forward(Duration::from_millis(500));
                if is_odd { self.replace_killed() } else { self.split() }
            }
            Fault::Chained => self.split_a_chain(is_odd),
            Fault::ChainedRestarts => self.restart_in_a_chain(is_odd),
            Fault::Partition | Fault::Blackhole => self.part(is_odd),
            Fault::PromotedRestarts => self.restart_at_any_stage(1),
            Fault::AnyRestarts => {
                let number = self.random.random_range(0..3);
                self.restart_at_any_stage(number);
            }
            Fault::ReplicaReturns => self.return_to_the_old_master(is_odd),
            Fault::EmptyRestarts => self.restart_without_data(is_odd),
            Fault::Changes => self.change_settings(is_odd, load),
            Fault::LoweredWhileWaiting => self.lower_the_lease_while_requests_wait(n, load),
            Fault::Chaos => self.go_mad(),
            Fault::Packages if is_odd => self.replace_killed(),
            Fault::Packages => self.split(),
        }
    }

    /// Kills the master, promotes the first replica, and lets all others follow it.
    fn replace_killed(&mut self) {
        self.kill(0);
        self.promote(1);
        self.follow(2, 1);
        self.restart(0);
        self.follow(0, 1);
        self.servers.swap(0, 1);
    }

    /// Promotes the first replica while the master stays alive, for a while with the other replicas,
    /// then alone.
    fn split(&mut self) {
        self.promote(1);
        for other in 2..self.servers.len() {
            self.pause(0..2500);
            self.follow(other, 1);
        }
        self.pause(0..5000);
        self.follow(0, 1);
        self.servers.swap(0, 1);
    }

    fn split_a_chain(&mut self, is_its_end: bool) {
        if is_its_end {
            self.promote(2);
            self.pause(0..2500);
            self.follow(1, 2);
            self.pause(0..5000);
            self.follow(0, 1);
            self.servers.swap(0, 2);
        } else {
            self.promote(1);
            self.pause(0..5000);
            self.follow(0, 2);
            self.servers.rotate_left(1);
        }
    }

    /// Cuts the master off from the promoted replica, and every second time from the other one too.
    /// It comes back before or after it is told to follow.
    fn part(&mut self, is_partial: bool) {
        let cut_off = if is_partial { 1..2 } else { 1..3 };
        cut_off.clone().for_each(|other| self.cut(0, other, true));
        self.pause(0..5000);
        self.promote(1);
        self.pause(0..2500);
        self.follow(2, 1);
        self.pause(0..8000);
        cut_off.for_each(|other| self.cut(0, other, false));
        self.pause(0..2500);
        self.follow(0, 1);
        self.servers.swap(0, 1);
    }

    fn be_replaced_by_sentinels(&mut self, comes_back_as_master: bool) {
        self.kill(0);
        let next = self.await_choice_of_sentinels();
        self.restart(0);
        if !comes_back_as_master {
            self.follow(0, next);
        }
        self.servers.swap(0, next);
    }

    fn be_cut_off_from_sentinels(&mut self) {
        self.cut_front(0, true);
        let next = self.await_choice_of_sentinels();
        self.pause(0..8000);
        self.cut_front(0, false);
        self.servers.swap(0, next);
    }

    /// Waits until the Sentinels have promoted another server, and returns its number.
    fn await_choice_of_sentinels(&self) -> usize {
        let mut next = 0;
        eventually(SOON, || {
            next = self.chosen().unwrap_or(0);
            next != 0 && self.servers[next].has_role("master")
        });
        next
    }

    /// Makes a replica of a cluster the master. A vote may be lost, so the command is repeated.
    fn take_over(&mut self, number: usize, how: &str) {
        let mut is_told = 0;
        self.tell(number, format!("CLUSTER FAILOVER {how}"));
        eventually(SOON, || {
            is_told += 1;
            if is_told % 3000 == 0 {
                let again = self.servers[number].client().call(format!("CLUSTER FAILOVER {how}"));
                assert!(again == "OK" || matches!(again, Reply::Error(_)), "{again:?}");
            }
            self.servers[number].has_role("master")
        });
    }

    /// Returns the incremental part of the append-only file.
    fn append_only_file(&self) -> PathBuf {
        let folder = self.servers[0].folder().join("appendonlydir");
        let files = fs::read_dir(folder).expect("a folder of the append-only file");
        let paths = files.map(|file| file.expect("a file").path());
        paths.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).max().expect("a file that grows")
    }
}
