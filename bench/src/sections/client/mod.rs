//! The costs that the client crate adds to its commands, and the costs of idle guards and waiting
//! tasks.
//!
//! The other side is redis-rs alone with the same commands, in turns on the same server.

mod contended;
mod crowd;
mod guards;
mod latency;
mod many;

use std::time::Duration;

use anyhow::{Result, ensure};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use rlock_bench::server::Server;
use rlock_client::kinds::Mutex;
use rlock_client::{Client, Lock};
use tokio::runtime::{Builder, Runtime};

use crate::names;
use crate::report::Line;

/// The crate's default lease.
const LEASE_MS: u64 = 30_000;

const RAW_PATIENCE: Duration = Duration::from_secs(60);

/// A runtime with `threads` worker threads.
fn runtime(threads: usize) -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(threads).enable_all().build()?)
}

fn url(server: &Server) -> String {
    format!("redis://{}/", server.address())
}

/// Both sides of a comparison, connected to one server.
#[derive(Clone)]
struct Sides {
    raw: MultiplexedConnection,
    client: Client,
}

impl Sides {
    async fn connect(url: &str) -> Result<Self> {
        // The default timeout of half a second is too short on a busy machine.
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(RAW_PATIENCE));
        let raw = redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Self { raw, client: Client::connect(url).await? })
    }
}

/// Acquires and releases one lock in turns, with two commands.
async fn run_raw(mut connection: MultiplexedConnection, key: String, owner: String, pairs: usize) -> Result<()> {
    let mut last_token = 0;
    for _ in 0..pairs {
        let mut acquire = redis::cmd("RLOCK.ACQUIRE");
        let token: u64 = acquire.arg(&key).arg(&owner).arg("PX").arg(LEASE_MS).query_async(&mut connection).await?;
        ensure!(token > last_token, "token {token} after {last_token}");
        last_token = token;
        let left: u64 = redis::cmd("RLOCK.RELEASE").arg(&key).arg(&owner).query_async(&mut connection).await?;
        ensure!(left == 0, "{left} holds are left");
    }
    Ok(())
}

/// Acquires and releases one lock in turns, with the crate.
async fn run_client(lock: Lock<Mutex>, pairs: usize) -> Result<()> {
    let mut last_token = 0;
    for _ in 0..pairs {
        let guard = lock.acquire().await?;
        ensure!(guard.token() > last_token, "token {} after {last_token}", guard.token());
        last_token = guard.token();
        guard.release().await?;
    }
    Ok(())
}

/// Returns how often the server has executed a command.
fn calls(server: &mut Server, command: &str) -> Result<u64> {
    // INFO lists only commands that the server has executed.
    let stats = server.info_field(&format!("cmdstat_{command}")).unwrap_or_default();
    let calls = stats.split(',').find_map(|field| field.strip_prefix("calls="));
    Ok(calls.unwrap_or("0").parse()?)
}

/// Acquires `count` locks for other owners, over a connection that is closed afterwards.
fn hold_all(server: &mut Server, count: usize) -> Result<()> {
    const LONGER_THAN_ANY_ROUND_MS: u64 = 24 * 3_600_000;
    super::fill::fill(server, super::fill::Taking::Acquire, count, |_| LONGER_THAN_ANY_ROUND_MS)
}

/// A lock that [`hold_all`] acquires.
fn lock(client: &Client, index: usize) -> Lock<Mutex> {
    client.lock(names::lock_key(index))
}

/// Measures all. A round of guards or crowds takes seconds, so they have fewer rounds:
/// `crowd_rounds`.
pub fn measure(server: &mut Server, rounds: usize, crowd_rounds: usize) -> Result<Vec<Line>> {
    let mut lines = vec![latency::measure(server, rounds)?];
    lines.extend(many::measure(server, rounds)?);
    lines.push(contended::measure(server, rounds)?);
    lines.extend(guards::measure(server, crowd_rounds)?);
    lines.extend(crowd::measure(server, crowd_rounds)?);
    Ok(lines)
}
