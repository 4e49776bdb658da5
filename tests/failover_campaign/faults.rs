//! The faults of a master that grants locks: one for each row of the record.

use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;

use super::fleet::{Fleet, SOON};
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
            Self::SplitBrain => "REPLICAOF NO ONE, the old master lives",
            Self::Stop => "SIGSTOP during a failover, SIGCONT",
            Self::Force => "CLUSTER FAILOVER FORCE",
            Self::Takeover => "CLUSTER FAILOVER TAKEOVER",
            Self::LateReplica => "kill -9, a replica promoted that was cut off",
            Self::Twice => "two failovers within a quarantine",
            Self::ClockSteps => "split brain, the old clock steps by ±1 h",
            Self::ClocksDiffer => "kill -9 and split brain, clocks that differ by 500 ms",
            Self::Chained => "split brain with a chained replica",
        }
    }

    pub fn is_of_one_server(self) -> bool {
        matches!(self, Self::Restart | Self::RestartWithFile)
    }

    pub fn is_of_a_cluster(self) -> bool {
        matches!(self, Self::Force | Self::Takeover)
    }

    pub fn bends_clocks(self) -> bool {
        matches!(self, Self::ClockSteps | Self::ClocksDiffer)
    }
}

impl Fleet {
    /// Causes a fault for the n-th time, and puts the new master first. `cut_off` is how long a
    /// late replica is cut off.
    pub fn suffer(&mut self, fault: Fault, n: usize, cut_off: Duration, random: &mut StdRng) {
        let is_odd = !n.is_multiple_of(2);
        let mut pause = |range: std::ops::Range<u64>| thread::sleep(Duration::from_millis(random.random_range(range)));
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
            Fault::SplitBrain => self.split(&mut pause),
            Fault::Stop => {
                self.while_master_is_stopped(|others| {
                    others.promote(0);
                    others.follow(1, 0);
                    pause(500..6000);
                });
                pause(0..1000);
                self.follow(0, 1);
                self.servers.swap(0, 1);
            }
            Fault::Force | Fault::Takeover => {
                let how = if fault == Fault::Force { "FORCE" } else { "TAKEOVER" };
                if is_odd {
                    self.while_master_is_stopped(|others| {
                        others.take_over(0, how);
                        pause(500..6000);
                    });
                } else {
                    self.take_over(1, how);
                }
                self.servers.rotate_left(1);
            }
            Fault::LateReplica => {
                // No server listens on that port.
                self.tell(1, "REPLICAOF 127.0.0.1 1");
                thread::sleep(cut_off);
                self.replace_killed();
            }
            Fault::Twice => {
                self.promote(1);
                pause(0..500);
                self.follow(2, 1);
                pause(500..6000);
                self.promote(2);
                pause(0..500);
                self.follow(1, 2);
                pause(0..1000);
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
                self.split(&mut pause);
                clock.step_forward(Duration::ZERO);
                self.clocks.insert(port, clock);
            }
            Fault::ClocksDiffer => {
                let clocks: Vec<_> = self.clocks.values().collect();
                clocks[0].step_back(Duration::from_millis(500));
                clocks[2].step_forward(Duration::from_millis(500));
                if is_odd { self.replace_killed() } else { self.split(&mut pause) }
            }
            Fault::Chained => {
                if is_odd {
                    self.promote(2);
                    pause(0..2000);
                    self.follow(1, 2);
                    pause(0..4000);
                    self.follow(0, 1);
                    self.servers.swap(0, 2);
                } else {
                    self.promote(1);
                    pause(0..4000);
                    self.follow(0, 2);
                    self.servers.rotate_left(1);
                }
            }
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

    /// Promotes the first replica while the master stays alive, for a while with the other replica,
    /// then alone.
    fn split(&mut self, pause: &mut impl FnMut(std::ops::Range<u64>)) {
        self.promote(1);
        pause(0..2000);
        self.follow(2, 1);
        pause(0..4000);
        self.follow(0, 1);
        self.servers.swap(0, 1);
    }

    fn be_replaced_by_sentinels(&mut self, comes_back_as_master: bool) {
        self.kill(0);
        let sentinels = self.sentinels.as_ref().expect("there are Sentinels");
        let mut next = 0;
        eventually(SOON, || {
            let chosen = sentinels.primary();
            next = self.servers.iter().position(|server| Some(server.port()) == chosen).expect("one of the servers");
            next != 0 && self.servers[next].has_role("master")
        });
        self.restart(0);
        if !comes_back_as_master {
            self.follow(0, next);
        }
        self.servers.swap(0, next);
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
