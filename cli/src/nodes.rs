//! The servers of an address: one server, the master that Sentinel names, or the masters of a
//! cluster.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Pipeline, Value};

use crate::address::Address;
use crate::answers::{items, text};
use crate::exit::{FAILED, Failure, REFUSED, UNREACHABLE};

/// The longest wait for a reply. A server that is alive replies much sooner.
const PATIENCE: Duration = Duration::from_secs(5);

/// A server and the connection to it.
pub(crate) struct Node {
    info: ConnectionInfo,
    /// `None` until the first request, so that requests to the other masters of a cluster succeed
    /// while this one is down.
    connection: Option<MultiplexedConnection>,
    /// The address, for messages.
    name: String,
    /// The database of the connection.
    pub(crate) database: i64,
    /// In a cluster, the first and last slot of each range that it serves.
    slots: Vec<(i64, i64)>,
}

impl Node {
    /// A server without a connection yet.
    fn new(info: ConnectionInfo) -> Self {
        let (name, database) = (info.addr().to_string(), info.redis_settings().db());
        Self { info, connection: None, name, database, slots: Vec::new() }
    }

    async fn connect(info: ConnectionInfo) -> Result<Self, Failure> {
        let mut node = Self::new(info);
        node.connection().await?;
        Ok(node)
    }

    async fn connection(&mut self) -> Result<&mut MultiplexedConnection, Failure> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let failed = |error: redis::RedisError| Failure::of_server(&self.name, &error);
                let client = Client::open(self.info.clone()).map_err(failed)?;
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(Duration::from_secs(2)))
                    .set_response_timeout(Some(PATIENCE));
                client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)?
            }
        };
        Ok(self.connection.insert(connection))
    }

    /// Sends a command.
    pub(crate) async fn ask(&mut self, command: &Cmd) -> Result<Value, Failure> {
        let answer = self.connection().await?.send_packed_command(command).await.and_then(Value::extract_error);
        answer.map_err(|error| Failure::of_server(&self.name, &error))
    }

    /// Sends several commands in one write. Replies may be errors.
    pub(crate) async fn ask_all(&mut self, commands: &Pipeline, count: usize) -> Result<Vec<Value>, Failure> {
        let answers = self.connection().await?.send_packed_commands(commands, 0, count).await;
        answers.map_err(|error| Failure::of_server(&self.name, &error))
    }

    fn serves(&self, slot: i64) -> bool {
        self.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }
}

/// The servers of an address.
pub(crate) enum Nodes {
    One(Node),
    /// The masters of a cluster, and the node that listed them. That node is connected, and may be
    /// a replica.
    Cluster {
        masters: Vec<Node>,
        guide: Node,
    },
}

impl Nodes {
    /// All servers; at least one.
    pub(crate) fn all(&mut self) -> &mut [Node] {
        match self {
            Self::One(node) => std::slice::from_mut(node),
            Self::Cluster { masters, .. } => masters,
        }
    }

    /// The server of a key.
    pub(crate) async fn of_key(&mut self, key: &[u8]) -> Result<&mut Node, Failure> {
        match self {
            Self::One(node) => Ok(node),
            Self::Cluster { masters, guide } => {
                let answer = guide.ask(redis::cmd("CLUSTER").arg("KEYSLOT").arg(key)).await?;
                let Value::Int(slot) = answer else {
                    return Err(Failure::new(FAILED, "CLUSTER KEYSLOT did not return a slot"));
                };
                let serving = masters.iter_mut().find(|node| node.serves(slot));
                serving.ok_or_else(|| Failure::new(REFUSED, format!("no node serves slot {slot}")))
            }
        }
    }
}

/// Finds the servers of an address. Connects to a single server and to Sentinel's master. Masters
/// of a cluster are connected at their first request.
pub(crate) async fn find(address: &Address) -> Result<Nodes, Failure> {
    match address {
        Address::Server(url) => Ok(Nodes::One(Node::connect(info(url)?).await?)),
        Address::Sentinel { sentinels, master, settings } => {
            let mut failure = Failure::new(UNREACHABLE, format!("no sentinel knows a master named {master}"));
            for url in sentinels {
                match master_by(url, master, settings).await {
                    Ok(Some(found)) => return Ok(Nodes::One(Node::connect(found).await?)),
                    Ok(None) => {}
                    Err(error) => failure = error,
                }
            }
            Err(failure)
        }
        Address::Cluster(urls) => {
            let mut failure = Failure::new(UNREACHABLE, "no node of the cluster answers");
            for url in urls {
                match masters_by(url).await {
                    Ok((masters, guide)) if !masters.is_empty() => return Ok(Nodes::Cluster { masters, guide }),
                    Ok(_) => {}
                    Err(error) => failure = error,
                }
            }
            Err(failure)
        }
    }
}

/// The address of the master according to one sentinel.
async fn master_by(url: &str, master: &str, settings: &str) -> Result<Option<ConnectionInfo>, Failure> {
    let mut sentinel = Node::connect(info(url)?).await?;
    let answer = sentinel.ask(redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master)).await?;
    let [host, port] = items(&answer) else { return Ok(None) };
    let Ok(port) = text(port).parse() else { return Ok(None) };
    Ok(Some(at(info(settings)?, text(host), port)))
}

/// The masters of a cluster according to one of its nodes, and that node.
async fn masters_by(url: &str) -> Result<(Vec<Node>, Node), Failure> {
    let seed = info(url)?;
    let mut guide = Node::connect(seed.clone()).await?;
    let answer = guide.ask(redis::cmd("CLUSTER").arg("SLOTS")).await?;
    let mut masters: Vec<Node> = Vec::new();
    for range in items(&answer) {
        let [Value::Int(first), Value::Int(last), master, ..] = items(range) else { continue };
        let [host, Value::Int(port), ..] = items(master) else { continue };
        let Ok(port) = u16::try_from(*port) else { continue };
        // A node that does not know its own address returns an empty host.
        let host = Some(text(host)).filter(|host| !host.is_empty()).unwrap_or_else(|| host_of(&seed));
        let place = at(seed.clone(), host, port);
        let name = place.addr().to_string();
        match masters.iter_mut().find(|known| known.name == name) {
            Some(known) => known.slots.push((*first, *last)),
            None => {
                let mut found = Node::new(place);
                found.slots.push((*first, *last));
                masters.push(found);
            }
        }
    }
    Ok((masters, guide))
}

fn info(url: &str) -> Result<ConnectionInfo, Failure> {
    url.into_connection_info().map_err(|error| Failure::new(FAILED, format!("--url: {error}")))
}

fn host_of(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => String::new(),
    }
}

/// The same settings with another host and port.
fn at(info: ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let addr = match info.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.set_addr(addr)
}
