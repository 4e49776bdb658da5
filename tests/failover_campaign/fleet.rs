//! The servers of a fault: a master with the replicas that may take its place.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use super::faults::Fault;
use super::workers::LONG_LEASE;
use crate::support::{Command, Sentinels, Server, WallClock, eventually, free_port};

/// Enough for a quarantine, which lasts for seconds, and for Sentinels, which need tens of seconds.
pub const SOON: Duration = Duration::from_secs(120);

/// The settings of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// The settings in docs/operations/failover.md, with a longest lease of [`LONG_LEASE`].
    Safe,
    /// The defaults, with the same longest lease: `rlock.exclusion off`
    /// needed.
    Default,
}

#[derive(Default)]
pub struct Fleet {
    /// All servers, the master first.
    pub servers: Vec<Server>,
    /// The masters of other slots in a cluster, which vote.
    voters: Vec<Server>,
    /// The clocks of servers with their own clock, by port.
    pub clocks: BTreeMap<u16, WallClock>,
    pub sentinels: Option<Sentinels>,
    /// The faults and commands so far, for the report of an overlap.
    pub diary: Vec<(Instant, String)>,
}

impl Fleet {
    /// Starts the servers for a fault, and waits until they grant.
    pub fn of(fault: Fault, settings: Settings) -> Self {
        let lines = lines(fault, settings);
        let mut fleet = Self::default();
        let count = if fault.is_of_one_server() { 1 } else { 3 };
        for _ in 0..count {
            fleet.add_server(fault, &lines);
        }
        if fault.is_of_a_cluster() {
            fleet.voters = (0..2).map(|_| cluster_node(&lines)).collect();
            fleet.join();
        } else {
            for number in 1..count {
                let upstream = if fault == Fault::Chained { number - 1 } else { 0 };
                fleet.follow(number, upstream);
            }
        }
        fleet.settle();
        if fault == Fault::Sentinel {
            fleet.sentinels = Some(Sentinels::of(fleet.servers[0].port(), count - 1));
        }
        fleet
    }

    fn add_server(&mut self, fault: Fault, lines: &[&str]) {
        let server = if fault.bends_clocks() {
            let clock = WallClock::new();
            let server = Server::with_wall_clock(&clock, lines);
            self.clocks.insert(server.port(), clock);
            server
        } else if fault.is_of_a_cluster() {
            cluster_node(lines)
        } else {
            Server::with(lines)
        };
        self.servers.push(server);
    }

    pub fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(Server::port).collect()
    }

    /// Sends a command to one server.
    pub fn tell(&mut self, number: usize, command: impl Into<String>) {
        let (server, command) = (&self.servers[number], command.into());
        self.diary.push((Instant::now(), format!("{command} at port {}", server.port())));
        assert_eq!(server.client().call(Command::from(command)), "OK");
    }

    pub fn follow(&mut self, number: usize, master: usize) {
        let port = self.servers[master].port();
        self.tell(number, format!("REPLICAOF 127.0.0.1 {port}"));
    }

    pub fn promote(&mut self, number: usize) {
        self.tell(number, "REPLICAOF NO ONE");
    }

    pub fn kill(&mut self, number: usize) {
        self.diary.push((Instant::now(), format!("kill -9 of port {}", self.servers[number].port())));
        self.servers[number].kill();
    }

    pub fn restart(&mut self, number: usize) {
        self.diary.push((Instant::now(), format!("start of port {}", self.servers[number].port())));
        self.servers[number].restart_in_place(&[]);
    }

    /// Runs something while the master is stopped.
    pub fn while_master_is_stopped(&mut self, happenings: impl FnOnce(&mut Self)) {
        let master = self.servers.remove(0);
        self.diary.push((Instant::now(), format!("SIGSTOP of port {}", master.port())));
        master.while_stopped(|| happenings(self));
        self.diary.push((Instant::now(), format!("SIGCONT of port {}", master.port())));
        self.servers.insert(0, master);
    }

    /// Waits until the first server grants, and all others follow it or each other. Sentinels may
    /// have promoted yet another master.
    pub fn settle(&mut self) {
        eventually(SOON, || {
            let chosen = self.sentinels.as_ref().and_then(Sentinels::primary);
            if let Some(at) = self.servers.iter().position(|server| Some(server.port()) == chosen) {
                self.servers.swap(0, at);
            }
            let follows = |server: &Server| says(server, &["role:slave", "master_link_status:up"]);
            self.servers[1..].iter().all(follows) && says(&self.servers[0], &["role:master", "rlock_may_grant:1"])
        });
        if let Some(sentinels) = &self.sentinels {
            sentinels.wait_until_ready(self.servers[0].port(), self.servers.len() - 1);
        }
    }

    /// Makes the servers a cluster. The first one has nearly all slots, and each voter has one.
    fn join(&mut self) {
        let nodes: Vec<&Server> = self.servers.iter().chain(&self.voters).collect();
        let masters = [nodes[0], nodes[3], nodes[4]];
        let slots = ["0 16381", "16382 16382", "16383 16383"];
        for (epoch, (master, slots)) in masters.iter().zip(slots).enumerate() {
            let mut client = master.client();
            assert_eq!(client.call(format!("CLUSTER SET-CONFIG-EPOCH {}", epoch + 1)), "OK");
            assert_eq!(client.call(format!("CLUSTER ADDSLOTSRANGE {slots}")), "OK");
        }
        let mut first = nodes[0].client();
        let master = first.call("CLUSTER MYID").text();
        for node in &nodes[1..] {
            let bus = node.client().call("CONFIG GET cluster-port").field("cluster-port").text();
            assert_eq!(first.call(format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port())), "OK");
        }
        let says = |node: &Server, text: &str| node.client().call("CLUSTER INFO").text().contains(text);
        for node in &nodes {
            eventually(SOON, || says(node, "cluster_known_nodes:5") && says(node, "cluster_state:ok"));
        }
        for replica in &nodes[1..3] {
            assert_eq!(replica.client().call(format!("CLUSTER REPLICATE {master}")), "OK");
        }
        for node in &nodes {
            let replicas = || node.client().call("CLUSTER NODES").text().matches("slave").count();
            eventually(SOON, || replicas() == 2);
        }
    }
}

/// Whether INFO has these lines. A server that is being promoted closes its connections, so it may
/// have none.
fn says(server: &Server, lines: &[&str]) -> bool {
    let asked = server.try_client().and_then(|mut client| client.try_call("INFO everything"));
    let text = asked.map(|reply| reply.text()).unwrap_or_default();
    let is_said = lines.iter().all(|line| text.lines().any(|there| there == *line));
    if !is_said {
        // Only a pause between two attempts. A quarantine is long, and the machine has other load.
        thread::sleep(Duration::from_millis(50));
    }
    is_said
}

fn cluster_node(lines: &[&str]) -> Server {
    // The default is 10000 above the server's port, which may be above the highest port.
    let bus = format!("cluster-port {}", free_port());
    // Only the faults replace a master, and not the nodes. With a long timeout Redis 7.0 counts the
    // votes of a replica's previous election again.
    let cluster = [
        "cluster-enabled yes",
        "cluster-replica-no-failover yes",
        "cluster-node-timeout 1000",
        "cluster-allow-replica-migration no",
        &bus,
    ];
    Server::with(&[&cluster[..], lines].concat())
}

/// Returns the lines of a server's configuration.
pub fn lines(fault: Fault, settings: Settings) -> Vec<&'static str> {
    assert_eq!(LONG_LEASE, Duration::from_millis(8000));
    let lease = "rlock.max-lease-ms 8000";
    let mut lines = match (settings, fault.is_of_one_server()) {
        (Settings::Default, _) => vec![lease],
        (Settings::Safe, true) => vec![lease, "rlock.exclusion restart"],
        (Settings::Safe, false) => {
            vec![lease, "rlock.exclusion failover", "rlock.replicas 2", "repl-ping-replica-period 1"]
        }
    };
    if fault == Fault::RestartWithFile {
        lines.extend(["appendonly yes", "appendfsync everysec"]);
    }
    lines
}
