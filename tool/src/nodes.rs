//! The servers to look at: the one of the address, the master that Sentinel names, or each master of a cluster.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Pipeline, Value};

use crate::address::Address;
use crate::answers::{items, text};
use crate::exit::{FAILED, Failure, UNREACHABLE};

/// Long for an answer of a server that is alive.
const PATIENCE: Duration = Duration::from_secs(5);

/// A server, and the connection to it.
pub(crate) struct Node {
    connection: MultiplexedConnection,
    /// Its address, for messages.
    name: String,
    /// The database of the connection.
    pub(crate) database: i64,
    /// In a cluster, the first and the last of each range of slots that it serves.
    slots: Vec<(i64, i64)>,
}

impl Node {
    async fn connect(info: ConnectionInfo) -> Result<Self, Failure> {
        let (name, database) = (info.addr().to_string(), info.redis_settings().db());
        let failed = |error: redis::RedisError| Failure::of_server(&name, &error);
        let client = Client::open(info).map_err(failed)?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(2)))
            .set_response_timeout(Some(PATIENCE));
        let connection = client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)?;
        Ok(Self { connection, name, database, slots: Vec::new() })
    }

    /// Sends a command.
    pub(crate) async fn ask(&mut self, command: &Cmd) -> Result<Value, Failure> {
        let answer = self.connection.send_packed_command(command).await.and_then(Value::extract_error);
        answer.map_err(|error| Failure::of_server(&self.name, &error))
    }

    /// Sends several commands in one write. An answer may be an error.
    pub(crate) async fn ask_all(&mut self, commands: &Pipeline, count: usize) -> Result<Vec<Value>, Failure> {
        let answers = self.connection.send_packed_commands(commands, 0, count).await;
        answers.map_err(|error| Failure::of_server(&self.name, &error))
    }

    pub(crate) fn serves(&self, slot: i64) -> bool {
        self.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }
}

/// Connects to all servers that the locks of an address are on: one, or the masters of a cluster.
pub(crate) async fn connect(address: &Address) -> Result<Vec<Node>, Failure> {
    match address {
        Address::Server(url) => Ok(vec![Node::connect(info(url)?).await?]),
        Address::Sentinel { sentinels, master, settings } => {
            let mut failure = Failure::new(UNREACHABLE, format!("no sentinel knows a master named {master}"));
            for url in sentinels {
                match master_by(url, master, settings).await {
                    Ok(Some(found)) => return Ok(vec![Node::connect(found).await?]),
                    Ok(None) => {}
                    Err(of_this_one) => failure = of_this_one,
                }
            }
            Err(failure)
        }
        Address::Cluster(urls) => {
            let mut failure = Failure::new(UNREACHABLE, "no node of the cluster answers");
            for url in urls {
                match masters_by(url).await {
                    Ok(nodes) if !nodes.is_empty() => return Ok(nodes),
                    Ok(_) => {}
                    Err(of_this_one) => failure = of_this_one,
                }
            }
            Err(failure)
        }
    }
}

/// Where the master is by the word of a sentinel.
async fn master_by(url: &str, master: &str, settings: &str) -> Result<Option<ConnectionInfo>, Failure> {
    let mut sentinel = Node::connect(info(url)?).await?;
    let answer = sentinel.ask(redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master)).await?;
    let [host, port] = items(&answer) else { return Ok(None) };
    let Ok(port) = text(port).parse() else { return Ok(None) };
    Ok(Some(at(info(settings)?, text(host), port)))
}

/// The masters of a cluster by the word of one of its nodes.
async fn masters_by(url: &str) -> Result<Vec<Node>, Failure> {
    let seed = info(url)?;
    let mut node = Node::connect(seed.clone()).await?;
    let answer = node.ask(redis::cmd("CLUSTER").arg("SLOTS")).await?;
    let mut masters: Vec<Node> = Vec::new();
    for range in items(&answer) {
        let [Value::Int(first), Value::Int(last), master, ..] = items(range) else { continue };
        let [host, Value::Int(port), ..] = items(master) else { continue };
        let Ok(port) = u16::try_from(*port) else { continue };
        // A node that does not know its own name is where it was found.
        let host = Some(text(host)).filter(|host| !host.is_empty()).unwrap_or_else(|| host_of(&seed));
        let place = at(seed.clone(), host, port);
        let name = place.addr().to_string();
        match masters.iter_mut().find(|known| known.name == name) {
            Some(known) => known.slots.push((*first, *last)),
            None => {
                let mut found = Node::connect(place).await?;
                found.slots.push((*first, *last));
                masters.push(found);
            }
        }
    }
    Ok(masters)
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

/// The same way to talk, at another place.
fn at(info: ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let addr = match info.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.set_addr(addr)
}
