//! What the client crate adds to the two round trips that an uncontended lock takes.
//!
//! One task acquires and releases in turns, so each side is a chain of round trips and the wall clock is the measure. The other
//! side is redis-rs with the same two commands and nothing around them.

use std::time::Instant;

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;
use rlock_bench::server::Server;
use rlock_client::{Client, Lock, Mutex};

use crate::report::{Aim, Figure, Line, Series, Unit};

const PAIRS: u32 = 5000;
/// Pairs that a side runs unmeasured at the beginning of its round.
const WARM_UP_PAIRS: u32 = 500;
const KEY: &str = "bench:client";
const OWNER: &str = "0123456789abcdef0123456789abcdef";
const LEASE_MS: u64 = 30_000;

async fn run_raw(connection: &mut MultiplexedConnection, pairs: u32) -> Result<()> {
    let mut last_token = 0;
    for _ in 0..pairs {
        let mut acquire = redis::cmd("RLOCK.ACQUIRE");
        let token: u64 = acquire.arg(KEY).arg(OWNER).arg("PX").arg(LEASE_MS).query_async(connection).await?;
        ensure!(token > last_token, "token {token} after {last_token}");
        last_token = token;
        let left: u64 = redis::cmd("RLOCK.RELEASE").arg(KEY).arg(OWNER).query_async(connection).await?;
        ensure!(left == 0, "{left} holds are left");
    }
    Ok(())
}

async fn run_client(lock: &Lock<Mutex>, pairs: u32) -> Result<()> {
    let mut last_token = 0;
    for _ in 0..pairs {
        let guard = lock.acquire().await?;
        ensure!(guard.token() > last_token, "token {} after {last_token}", guard.token());
        last_token = guard.token();
        guard.release().await?;
    }
    Ok(())
}

fn us_per_pair(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e6 / f64::from(PAIRS)
}

/// Measures wall time per pair.
pub fn measure(server: &mut Server, rounds: usize) -> Result<Vec<Line>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let url = format!("redis://{}/", server.address());
    let (mut raw_us, mut client_us) = (Series::default(), Series::default());
    // As a program does: its work is a task of the runtime.
    let measured = runtime.spawn(async move {
        let mut connection = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
        let client = Client::connect(&url).await?;
        let lock = client.lock(KEY);
        for _ in 0..rounds {
            run_raw(&mut connection, WARM_UP_PAIRS).await?;
            let started = Instant::now();
            run_raw(&mut connection, PAIRS).await?;
            raw_us.push(us_per_pair(started));
            run_client(&lock, WARM_UP_PAIRS).await?;
            let started = Instant::now();
            run_client(&lock, PAIRS).await?;
            client_us.push(us_per_pair(started));
        }
        anyhow::Ok((raw_us, client_us))
    });
    let (raw_us, client_us) = runtime.block_on(measured)??;
    server.ensure_no_keys()?;
    let client = Figure::new("rlock-client", Unit::Us, &client_us);
    let raw = Figure::new("redis-rs", Unit::Us, &raw_us);
    Ok(vec![Line::ratio("wall time per acquire and release, against two commands", client, raw).aim(Aim::AtMost(1.1))])
}
