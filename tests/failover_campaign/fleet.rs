//! The servers of a fault: a master with the replicas that may take its place.

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;

use super::Length;
use super::faults::{Fault, Network};
use crate::support::{Command, Namespaces, Relay, Reply, Sentinels, Server, WallClock, eventually, free_port};

/// Enough for a quarantine, which lasts for seconds, and for Sentinels, which need tens of seconds.
pub const SOON: Duration = Duration::from_secs(120);

/// For how long the acknowledgement of a replica counts.
pub const LAG: Duration = Duration::from_millis(3000);

/// The settings of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// The settings in docs/operations/failover.md.
    Safe,
    /// The defaults, with the same longest lease: `rlock.exclusion off`.
    Default,
}

pub struct Fleet {
    /// All servers, the master first.
    pub servers: Vec<Server>,
    /// The lines of their configuration.
    lines: Vec<String>,
    /// The masters of other slots in a cluster, which vote.
    voters: Vec<Server>,
    /// The clocks of servers with their own clock, by port.
    pub clocks: BTreeMap<u16, WallClock>,
    pub sentinels: Option<Sentinels>,
    /// The relays between a replica and a master, or in front of a server, by the ports of both.
    relays: BTreeMap<(u16, u16), Relay>,
    pub network: Network,
    /// The namespaces of the servers, which have the ports of `homes`.
    namespaces: Option<Namespaces>,
    homes: Vec<u16>,
    pub length: Length,
    pub random: StdRng,
    /// The faults and commands so far, for the report of an overlap.
    pub diary: Vec<(Instant, String)>,
}

/// In [`Fleet::relays`]: the relay is in front of the server, for all.
const ALL: u16 = 0;

impl Fleet {
    /// A fleet without servers.
    pub fn empty(length: Length, random: StdRng) -> Self {
        Self {
            servers: Vec::new(),
            lines: Vec::new(),
            voters: Vec::new(),
            clocks: BTreeMap::new(),
            sentinels: None,
            relays: BTreeMap::new(),
            network: Network::Direct,
            namespaces: None,
            homes: Vec::new(),
            length,
            random,
            diary: Vec::new(),
        }
    }

    /// Starts the servers for a fault, and waits until they grant. `None` if this machine cannot
    /// show the fault.
    pub fn of(fault: Fault, settings: Settings, length: Length, random: StdRng) -> Option<Self> {
        let mut fleet = Self::empty(length, random);
        (fleet.lines, fleet.network) = (lines(fault, settings, length.lease), fault.network());
        let count = if fault.is_of_one_server() { 1 } else { 3 };
        if fleet.network == Network::Namespaces {
            fleet.namespaces = Some(Namespaces::new(count)?);
        }
        for _ in 0..count {
            fleet.add_server(fault);
        }
        if fault.is_of_a_cluster() {
            fleet.voters = (0..2).map(|_| cluster_node(fault, &fleet.lines)).collect();
            fleet.join();
        } else {
            for number in 1..count {
                let upstream = if fault.is_chained() { number - 1 } else { 0 };
                fleet.follow(number, upstream);
            }
        }
        fleet.settle();
        if fault.has_sentinels() {
            fleet.sentinels = Some(Sentinels::of(fleet.address(0).1, count - 1));
        }
        Some(fleet)
    }

    pub fn add_server(&mut self, fault: Fault) {
        let lines: Vec<&str> = self.lines.iter().map(String::as_str).collect();
        let server = if fault.bends_clocks() {
            let clock = WallClock::new();
            let server = Server::with_wall_clock(&clock, &lines);
            self.clocks.insert(server.port(), clock);
            server
        } else if fault.is_of_a_cluster() {
            cluster_node(fault, &self.lines)
        } else if let Some(namespaces) = &mut self.namespaces {
            namespaces.start(self.servers.len(), &lines)
        } else {
            Server::with(&lines)
        };
        let port = server.port();
        self.homes.push(port);
        if self.network == Network::Fronts {
            let relay = Relay::to(port);
            let announced = format!("CONFIG SET replica-announce-ip 127.0.0.1 replica-announce-port {}", relay.port());
            // So that it still holds after a restart.
            for command in [announced.as_str(), "CONFIG REWRITE"] {
                assert_eq!(server.client().call(command), "OK");
            }
            self.relays.insert((ALL, port), relay);
        }
        self.servers.push(server);
    }

    pub fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(Server::port).collect()
    }

    /// Returns where all others find a server.
    fn address(&self, number: usize) -> (String, u16) {
        let port = self.servers[number].port();
        let front = self.relays.get(&(ALL, port)).map(Relay::port);
        match &self.namespaces {
            Some(namespaces) => (namespaces.address(self.home(port)), port),
            None => ("127.0.0.1".to_owned(), front.unwrap_or(port)),
        }
    }

    /// Returns the number of the namespace of the server with this port.
    fn home(&self, port: u16) -> usize {
        self.homes.iter().position(|home| *home == port).expect("a server of this fleet")
    }

    /// Returns where a replica finds a master, for REPLICAOF.
    pub fn upstream(&mut self, number: usize, master: usize) -> String {
        let (host, port) = self.address(master);
        let between = (self.servers[number].port(), port);
        let port = match self.network {
            Network::Relays => self.relays.entry(between).or_insert_with(|| Relay::to(port)).port(),
            _ => port,
        };
        format!("{host} {port}")
    }

    /// Cuts the network between two servers, or connects them again.
    pub fn cut(&mut self, one: usize, other: usize, is_cut: bool) {
        let verb = if is_cut { "cut" } else { "connect" };
        let [one, other] = [one, other].map(|number| self.servers[number].port());
        self.diary.push((Instant::now(), format!("{verb} ports {one} and {other}")));
        match &self.namespaces {
            Some(namespaces) => namespaces.cut(self.home(one), self.home(other), is_cut),
            None => {
                for between in [(one, other), (other, one)] {
                    self.relays.entry(between).or_insert_with(|| Relay::to(between.1)).cut(is_cut);
                }
            }
        }
    }

    /// Cuts a server off from the replicas and the Sentinels, or connects it again.
    pub fn cut_front(&mut self, number: usize, is_cut: bool) {
        let port = self.servers[number].port();
        let verb = if is_cut { "cut" } else { "connect" };
        self.diary.push((Instant::now(), format!("{verb} port {port}")));
        self.relays[&(ALL, port)].cut(is_cut);
    }

    /// Sends a command to one server. Returns whether it agreed.
    pub fn try_tell(&mut self, number: usize, command: impl Into<String>) -> bool {
        let (port, command) = (self.servers[number].port(), command.into());
        let answer = self.servers[number].client().call(Command::from(command.as_str()));
        let error = if let Reply::Error(text) = &answer { format!(": {text}") } else { String::new() };
        self.diary.push((Instant::now(), format!("{command} at port {port}{error}")));
        error.is_empty()
    }

    pub fn tell(&mut self, number: usize, command: impl Into<String>) {
        let command = command.into();
        assert!(self.try_tell(number, command.as_str()), "{command}: {:?}", self.diary.last());
    }

    pub fn follow(&mut self, number: usize, master: usize) {
        let upstream = self.upstream(number, master);
        self.tell(number, format!("REPLICAOF {upstream}"));
    }

    pub fn promote(&mut self, number: usize) {
        self.tell(number, "REPLICAOF NO ONE");
    }

    pub fn kill(&mut self, number: usize) {
        self.diary.push((Instant::now(), format!("kill -9 of port {}", self.servers[number].port())));
        self.servers[number].kill();
    }

    pub fn restart(&mut self, number: usize) {
        self.restart_with(number, "");
    }

    /// Restarts a killed server, with more settings: pairs of a name and a value, which may have a
    /// space, separated by `--`.
    pub fn restart_with(&mut self, number: usize, settings: &str) {
        self.diary.push((Instant::now(), format!("start of port {} {settings}", self.servers[number].port())));
        let mut words = Vec::new();
        for setting in settings.split("--").map(str::trim).filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once(' ').expect("a name and a value");
            words.extend([format!("--{name}"), value.to_owned()]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.servers[number].restart_in_place(&words);
    }

    /// Runs something while the master is stopped.
    pub fn while_master_is_stopped(&mut self, happenings: impl FnOnce(&mut Self)) {
        let master = self.servers.remove(0);
        self.diary.push((Instant::now(), format!("SIGSTOP of port {}", master.port())));
        master.while_stopped(|| happenings(self));
        self.diary.push((Instant::now(), format!("SIGCONT of port {}", master.port())));
        self.servers.insert(0, master);
    }

    /// Lets some milliseconds pass, in proportion to the longest lease: the range is for a lease of
    /// 10 s.
    pub fn pause(&mut self, range: Range<u64>) {
        let ms = self.random.random_range(range);
        thread::sleep(Duration::from_millis(ms).mul_f64(self.length.lease.as_secs_f64() / 10.0));
    }

    /// Puts the only master first.
    pub fn put_master_first(&mut self) {
        eventually(SOON, || {
            let masters: Vec<usize> =
                (0..self.servers.len()).filter(|number| self.servers[*number].has_role("master")).collect();
            let [master] = masters[..] else { return false };
            self.servers.swap(0, master);
            true
        });
    }

    /// Waits until the first server grants, and all others follow it or each other. Sentinels may
    /// have promoted yet another master.
    pub fn settle(&mut self) {
        eventually(SOON, || {
            if let Some(at) = self.chosen() {
                self.servers.swap(0, at);
            }
            let follows = |server: &Server| says(server, &["role:slave", "master_link_status:up"]);
            self.servers[1..].iter().all(follows) && says(&self.servers[0], &["role:master", "rlock_may_grant:1"])
        });
        let (_, port) = self.address(0);
        if let Some(sentinels) = &self.sentinels {
            sentinels.wait_until_ready(port, self.servers.len() - 1);
        }
    }

    /// Returns the number of the master that the Sentinels name.
    pub fn chosen(&self) -> Option<usize> {
        let chosen = self.sentinels.as_ref()?.primary()?;
        (0..self.servers.len()).find(|number| self.address(*number).1 == chosen)
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
pub fn says(server: &Server, lines: &[&str]) -> bool {
    let asked = server.try_client().and_then(|mut client| client.try_call("INFO everything"));
    let text = asked.map(|reply| reply.text()).unwrap_or_default();
    let is_said = lines.iter().all(|line| text.lines().any(|there| there == *line));
    if !is_said {
        // Only a pause between two attempts. A quarantine is long, and the machine has other load.
        thread::sleep(Duration::from_millis(50));
    }
    is_said
}

fn cluster_node(fault: Fault, lines: &[String]) -> Server {
    // The default is 10000 above the server's port, which may be above the highest port.
    let bus = format!("cluster-port {}", free_port());
    // In most faults only the test replaces a master, and not the nodes.
    let automatic = format!("cluster-replica-no-failover {}", if fault.is_automatic() { "no" } else { "yes" });
    // With a long timeout Redis 7.0 counts the votes of a replica's previous election again.
    let cluster = ["cluster-enabled yes", "cluster-node-timeout 1000", "cluster-allow-replica-migration no"];
    let lines = lines.iter().map(String::as_str);
    Server::with(&cluster.into_iter().chain([bus.as_str(), &automatic]).chain(lines).collect::<Vec<_>>())
}

/// Returns the lines of a server's configuration.
pub fn lines(fault: Fault, settings: Settings, lease: Duration) -> Vec<String> {
    let mut lines = vec![format!("rlock.max-lease-ms {}", fault.first_lease(lease).as_millis())];
    lines.extend(match (settings, fault.is_of_one_server()) {
        (Settings::Default, _) => Vec::new(),
        (Settings::Safe, true) => vec!["rlock.exclusion restart".to_owned()],
        (Settings::Safe, false) => vec![
            "rlock.exclusion failover".to_owned(),
            "rlock.replicas 2".to_owned(),
            format!("rlock.max-replica-lag-ms {}", LAG.as_millis()),
            "repl-ping-replica-period 1".to_owned(),
        ],
    });
    if fault.has_files() {
        lines.extend(["appendonly yes", "appendfsync everysec"].map(str::to_owned));
    }
    lines
}
