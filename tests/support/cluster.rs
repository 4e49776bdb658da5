//! A cluster of three primaries with a replica each, and a client that follows redirections.

use std::io;
use std::process::Command as Process;
use std::time::Duration;

use super::client::{Client, Command};
use super::server::{Server, free_port};
use super::{Reply, eventually, program};

const DEADLINE: Duration = Duration::from_secs(30);

const NODES: usize = 6;

/// How long a node may be silent before the others take it for dead.
const NODE_TIMEOUT_LINE: &str = "cluster-node-timeout 1000";

/// Two nodes that know each other. All slots are on the first.
#[track_caller]
pub fn two_nodes() -> [Server; 2] {
    let start_node = || {
        // By default it would be 10000 above the server's port, which may be no port at all.
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
    /// Six nodes, made a cluster by the command line client as its manual says.
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
        assert!(output.status.success(), "no cluster: {}", String::from_utf8_lossy(&output.stdout));
        let cluster = Cluster { nodes };
        cluster.wait_until_whole();
        cluster
    }

    /// Waits until every node knows of three primaries with a replica each that is up to date.
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

    /// A primary that does not serve a key.
    #[track_caller]
    pub fn other_primary(&self, key: &str) -> &Server {
        let primary = self.primary_of(key).port();
        let is_other = |node: &&Server| node.port() != primary && node.client().info("role") == "master";
        self.nodes.iter().find(is_other).expect("three primaries")
    }

    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The node at a port, for what changes it.
    pub fn node_mut(&mut self, port: u16) -> &mut Server {
        self.nodes.iter_mut().find(|node| node.port() == port).expect("a node of this cluster")
    }

    /// A client that asks the first node first.
    pub fn client(&self) -> ClusterClient {
        self.client_of(self.nodes[0].port())
    }

    /// A client that asks the node at that port first.
    pub fn client_of(&self, port: u16) -> ClusterClient {
        let ports = self.nodes.iter().map(Server::port).collect();
        let connection = Client::connect(port).expect("the node takes connections");
        ClusterClient { ports, connection }
    }
}

fn flags(line: &str) -> Vec<&str> {
    line.split(' ').nth(2).unwrap_or_default().split(',').collect()
}

/// A client that goes where it is sent, and asks any node when its own is gone.
pub struct ClusterClient {
    ports: Vec<u16>,
    connection: Client,
}

impl ClusterClient {
    /// Sends a command to the node that serves it, and waits for the answer. Fails if there is none before the deadline.
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

/// An answer that says where, or that it should be asked again.
fn is_redirection(line: &str) -> bool {
    ["MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN", "UNBLOCKED"].iter().any(|code| line.starts_with(code))
}
