//! A cluster of three primaries with one replica each, and a client that follows redirections.

use std::io;
use std::process::Command as Process;
use std::time::Duration;

use super::client::{Client, Command};
use super::server::{Server, free_port};
use super::{Reply, eventually, program};

const DEADLINE: Duration = Duration::from_secs(30);

const NODES: usize = 6;

/// How long a node may be silent before the other nodes consider it dead.
const NODE_TIMEOUT_LINE: &str = "cluster-node-timeout 1000";

/// Starts two nodes that know each other. The first one serves all slots.
#[track_caller]
pub fn two_nodes() -> [Server; 2] {
    let start_node = || {
        // The default is the server's port plus 10,000, which may be above 65,535.
        let bus = format!("cluster-port {}", free_port());
        Server::with(&["cluster-enabled yes", &bus])
    };
    let nodes = [start_node(), start_node()];
    let mut clients = nodes.each_ref().map(Server::client);
    assert_eq!(clients[0].call("CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
    let bus = clients[1].call("CONFIG GET cluster-port").field("cluster-port").text();
    let meet = format!("CLUSTER MEET 127.0.0.1 {} {bus}", nodes[1].port());
    assert_eq!(clients[0].call(meet), "OK");
    for client in &mut clients {
        eventually(DEADLINE, || {
            let info = client.call("CLUSTER INFO").text();
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
        });
    }
    nodes
}

pub struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Starts six nodes and joins them with `redis-cli --cluster create`.
    #[track_caller]
    pub fn start() -> Cluster {
        let start_node = |_| {
            let bus = format!("cluster-port {}", free_port());
            Server::with(&["cluster-enabled yes", "cluster-replica-validity-factor 0", NODE_TIMEOUT_LINE, &bus])
        };
        let nodes: Vec<_> = (0..NODES).map(start_node).collect();
        let output = Process::new(program::cli())
            .args(["--cluster", "create"])
            .args(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())))
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .expect("the command line client runs");
        assert!(output.status.success(), "no cluster was created: {}", String::from_utf8_lossy(&output.stdout));
        let cluster = Cluster { nodes };
        cluster.wait_until_whole();
        cluster
    }

    /// Waits until every node knows three primaries, each with one up-to-date replica.
    #[track_caller]
    pub fn wait_until_whole(&self) {
        for node in &self.nodes {
            let mut client = node.client();
            eventually(DEADLINE, || {
                let nodes = client.call("CLUSTER NODES").text();
                let count = |role: &str| nodes.lines().filter(|line| flags(line).contains(&role)).count();
                client.call("CLUSTER INFO").text().contains("cluster_state:ok")
                    && (count("master"), count("slave"), count("fail"), count("fail?")) == (3, 3, 0, 0)
            });
            eventually(DEADLINE, || {
                client.info("role") == "master" && client.info("connected_slaves") == "1"
                    || client.info("role") == "slave" && client.info("master_link_status") == "up"
            });
        }
    }

    /// The node that serves a key.
    #[track_caller]
    pub fn primary_of(&self, key: &str) -> &Server {
        let serves = |node: &&Server| {
            let mut client = node.client();
            client.info("role") == "master" && !matches!(client.call(format!("EXISTS {key}")), Reply::Error(_))
        };
        self.nodes.iter().find(serves).expect("a primary of the key")
    }

    /// The replica of the node that serves a key.
    #[track_caller]
    pub fn replica_of(&self, key: &str) -> &Server {
        let upstream = self.primary_of(key).port().to_string();
        let follows = |node: &&Server| {
            let mut client = node.client();
            client.info("role") == "slave" && client.info("master_port") == upstream
        };
        self.nodes.iter().find(follows).expect("a replica of the primary")
    }

    /// A primary that does not serve the key.
    #[track_caller]
    pub fn other_primary(&self, key: &str) -> &Server {
        let primary = self.primary_of(key).port();
        let is_other = |node: &&Server| node.port() != primary && node.client().info("role") == "master";
        self.nodes.iter().find(is_other).expect("three primaries")
    }

    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The node on this port, for tests that change it.
    pub fn node_mut(&mut self, port: u16) -> &mut Server {
        self.nodes.iter_mut().find(|node| node.port() == port).expect("a node of this cluster")
    }

    /// Returns a client that starts at the first node.
    pub fn client(&self) -> ClusterClient {
        self.client_of(self.nodes[0].port())
    }

    /// Returns a client that starts at the node on this port.
    pub fn client_of(&self, port: u16) -> ClusterClient {
        let ports = self.nodes.iter().map(Server::port).collect();
        let connection = Client::connect(port).expect("the node accepts connections");
        ClusterClient { ports, connection }
    }
}

fn flags(line: &str) -> Vec<&str> {
    line.split(' ').nth(2).unwrap_or_default().split(',').collect()
}

/// A client that follows redirections, and connects to another node when its own node is down.
pub struct ClusterClient {
    ports: Vec<u16>,
    connection: Client,
}

impl ClusterClient {
    /// Sends a command to the node that serves it, and waits for the reply. Fails if none arrives
    /// within [`DEADLINE`].
    #[track_caller]
    pub fn call(&mut self, command: impl Into<Command>) -> Reply {
        let command = command.into();
        let mut answer = Reply::Nil;
        let mut is_asking = false;
        eventually(DEADLINE, || match self.attempt(&command, is_asking) {
            Ok(Reply::Error(line)) if is_redirection(&line) => {
                is_asking = line.starts_with("ASK ");
                let address = line.rsplit(':').next().and_then(|port| port.parse().ok());
                if let Some(connection) = address.and_then(|port| Client::connect(port).ok()) {
                    self.connection = connection;
                }
                false
            }
            Ok(reply) => {
                answer = reply;
                true
            }
            Err(_) => {
                is_asking = false;
                if let Some(connection) = self.ports.iter().find_map(|port| Client::connect(*port).ok()) {
                    self.connection = connection;
                }
                false
            }
        });
        answer
    }

    fn attempt(&mut self, command: &Command, is_asking: bool) -> io::Result<Reply> {
        if is_asking {
            self.connection.try_send(&[Command::from("ASKING")])?;
            self.connection.reply_within(DEADLINE)?;
        }
        self.connection.try_send(std::slice::from_ref(command))?;
        self.connection.reply_within(DEADLINE)
    }
}

/// Whether the reply names another node, or asks to try again.
fn is_redirection(line: &str) -> bool {
    ["MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN", "UNBLOCKED"].iter().any(|code| line.starts_with(code))
}
