//! Tests of the crate against real servers with the module, one file per topic.

mod beliefs;
mod cancelling;
mod chaos;
mod child;
mod cluster;
mod counter;
mod crowd;
mod cut_connections;
mod dropped_waits;
mod events;
mod examples;
mod failovers;
mod faults;
mod forks;
mod grants;
mod holding;
mod homes;
mod isolation;
mod keeping;
mod kinds;
mod looking;
mod losing;
mod lost_replies;
mod memory;
mod multitude;
mod needless;
mod neglected;
mod outages;
mod owners;
mod partitions;
mod permits;
mod processes;
mod proxy;
mod quorum;
mod restarts;
mod scopes;
mod sentinels;
mod several_locks;
// The servers and plain connections of the module's own tests. Some of it is unused here.
#[allow(dead_code, unused_imports)]
#[path = "../../tests/support/mod.rs"]
mod support;
mod thief;
mod threads;
mod tidying;
#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
mod tls;
mod visitors;
mod waiting;

use std::net::TcpStream;
use std::os::fd::FromRawFd;
use std::time::Duration;

use rlock_client::{Client, Guard, Kind, Lock};
use support::{Reply, Server};

/// Far longer than a healthy server needs for anything.
const PATIENCE: Duration = Duration::from_secs(20);

fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}/", server.port())
}

async fn connect(server: &Server) -> Client {
    Client::connect(&url(server)).await.expect("the server takes connections")
}

/// Sets a lease: one that the client renews, or a fixed one.
fn leased<K: Kind>(lock: Lock<K>, lease: Duration, renews: bool) -> Lock<K> {
    if renews { lock.lease(lease) } else { lock.fixed_lease(lease) }
}

/// Waits until the client has renewed a new hold for the first time.
async fn claimed<K: Kind>(guard: &Guard<K>) {
    eventually(|| guard.lease() > Duration::from_secs(2) || !guard.is_held()).await;
}

/// The number of clients connected to a server, not counting this observer.
fn connections(server: &Server) -> usize {
    let mut observer = server.client();
    let mut of_type = |kind: &str| observer.call(format!("CLIENT LIST TYPE {kind}")).text().lines().count();
    // A connection on which a task has waited is of type `pubsub`.
    of_type("normal") + of_type("pubsub") - 1
}

/// The connections of this process to a port.
fn connections_to(port: u16) -> Vec<TcpStream> {
    let folder = std::fs::read_dir("/proc/self/fd").expect("the folder of descriptors");
    let descriptors = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // SAFETY: `dup` fails for a descriptor that another test has closed meanwhile, and a copy is ours to close.
    let copies = descriptors.map(|descriptor| unsafe { libc::dup(descriptor) }).filter(|copy| *copy >= 0);
    let streams = copies.map(|copy| unsafe { TcpStream::from_raw_fd(copy) });
    streams.filter(|stream| stream.peer_addr().is_ok_and(|peer| peer.port() == port)).collect()
}

/// Closes the connections of all clients.
fn kill_connections(server: &Server) {
    let mut operator = server.client();
    for kind in ["normal", "pubsub"] {
        operator.call(format!("CLIENT KILL TYPE {kind} SKIPME yes"));
    }
}

/// Waits for a condition without holding up the runtime.
async fn eventually(mut condition: impl FnMut() -> bool) {
    let holds = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, holds).await.expect("the condition holds in time");
}

/// One of the counters that the server keeps per command: `calls` or `rejected_calls`.
fn command_stat(server: &Server, command: &str, name: &str) -> i64 {
    let all = server.client().call("INFO commandstats").text();
    let line = all.lines().find_map(|line| line.strip_prefix("cmdstat_")?.strip_prefix(command)?.strip_prefix(':'));
    let number = |line: &str| {
        line.split(',').find_map(|word| word.split_once('=').filter(|(field, _)| *field == name)?.1.parse().ok())
    };
    line.and_then(number).unwrap_or(0)
}

/// Whether ACQUIRE returned a token.
fn is_granted(answer: &Reply) -> bool {
    matches!(answer, Reply::Int(token) if *token > 0)
}
