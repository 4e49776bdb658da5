//! The crate against real servers with the module, one file per concern.

mod beliefs;
mod cancelling;
mod child;
mod cluster;
mod counter;
mod crowd;
mod cut_connections;
mod examples;
mod failovers;
mod faults;
mod holding;
mod kinds;
mod losing;
mod lost_replies;
mod memory;
mod outages;
mod partitions;
mod processes;
mod proxy;
mod quorum;
mod restarts;
// The servers and plain connections of the module's own tests. Not all of it is used here.
#[allow(dead_code, unused_imports)]
#[path = "../../tests/support/mod.rs"]
mod support;
mod visitors;
mod waiting;

use std::time::Duration;

use rlock_client::Client;
use support::Server;

/// Far above anything that a healthy server needs.
const PATIENCE: Duration = Duration::from_secs(20);

fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}/", server.port())
}

async fn connect(server: &Server) -> Client {
    Client::connect(&url(server)).await.expect("the server takes connections")
}

/// How many clients are connected to a server, besides the one that asks.
fn connections(server: &Server) -> usize {
    server.client().call("CLIENT LIST TYPE normal").text().lines().count() - 1
}

/// Waits for a condition without holding up the runtime.
async fn eventually(mut condition: impl FnMut() -> bool) {
    let holds = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, holds).await.expect("it comes true in time");
}
