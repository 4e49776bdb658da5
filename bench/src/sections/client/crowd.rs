//! 10,000 tasks, each waiting for its own lock that another owner holds; and 1000 readers that wait
//! for one writer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rlock_bench::clock;
use rlock_bench::server::Server;
use rlock_client::Client;
use tokio::task::JoinSet;

use super::{calls, hold_all, lock, runtime, url};
use crate::names;
use crate::report::{Aim, Figure, Line, Series, Statistic, Unit};

const TASKS: usize = 10_000;
const READERS: usize = 1000;
/// The pause between two releases, so that each hand-over is measured alone.
const BETWEEN_RELEASES: Duration = Duration::from_micros(500);
/// How long commands are counted while nothing happens.
const SILENCE: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);
/// The client's probe of a quiet connection.
const CANCEL: &str = "RLOCK.CANCEL";
const CONNECTIONS_AIM: Aim = Aim::AtMost(2.0);
const LATENCY_AIM: Aim = Aim::AtMost(5.0);
/// No waiter polls. Probes of the connection are not counted.
const POLLS_AIM: Aim = Aim::AtMost(0.0);

#[derive(Default)]
struct Rounds {
    connections: Series,
    polls: Series,
    p50_ms: Series,
    p99_ms: Series,
    readers_ms: Series,
}

/// When each task was granted its lock.
type Granted = Arc<Mutex<BTreeMap<usize, Instant>>>;

async fn wait_and_release(client: Client, index: usize, granted: Granted) -> Result<()> {
    let guard = lock(&client, index).acquire().await?;
    granted.lock().unwrap_or_else(PoisonError::into_inner).insert(index, clock::now());
    Ok(guard.release().await?)
}

async fn read_and_release(client: Client) -> Result<Instant> {
    let guard = client.rw_lock("readers").read().acquire().await?;
    let granted = clock::now();
    guard.release().await?;
    Ok(granted)
}

fn command_calls(server: &mut Server) -> Result<u64> {
    server.info_number("total_commands_processed")
}

impl Rounds {
    fn push_crowd(&mut self, server: &mut Server) -> Result<()> {
        hold_all(server, TASKS)?;
        let runtime = runtime(1)?;
        let client = runtime.block_on(Client::connect(&url(server)))?;
        let granted = Granted::default();
        let mut waiting = JoinSet::new();
        for index in 0..TASKS {
            waiting.spawn_on(wait_and_release(client.clone(), index, granted.clone()), runtime.handle());
        }
        server.wait_for_info("rlock_waiting", TASKS as u64, PATIENCE)?;
        self.connections.push((server.info_number("connected_clients")? - 1) as f64);
        let (before, cancels_before) = (command_calls(server)?, calls(server, CANCEL)?);
        clock::sleep_until(clock::now() + SILENCE);
        // The second count includes the two INFOs before it.
        let own = 2;
        let (after, cancels_after) = (command_calls(server)?, calls(server, CANCEL)?);
        self.polls.push((after - before - own - (cancels_after - cancels_before)) as f64);

        let released = release_one_by_one(server)?;
        runtime.block_on(all_ended(waiting))?;
        let granted = granted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut times_ms = Series::default();
        for (index, released) in released.into_iter().enumerate() {
            let granted = granted.get(&index).with_context(|| format!("task {index} was not granted its lock"))?;
            times_ms.push(clock::as_ms(granted.saturating_duration_since(released)));
        }
        self.p50_ms.push(times_ms.median());
        self.p99_ms.push(times_ms.quantile(0.99));
        drop((client, runtime));
        server.wait_for_info("connected_clients", 1, PATIENCE)?;
        server.ensure_no_keys()
    }

    fn push_readers(&mut self, server: &mut Server) -> Result<()> {
        let runtime = runtime(1)?;
        let client = runtime.block_on(Client::connect(&url(server)))?;
        server.control().call(&[b"RRWLOCK.ACQUIRE", b"readers", b"writer", b"WRITE", b"PX", b"600000"])?.integer()?;
        let mut reading = JoinSet::new();
        for _ in 0..READERS {
            reading.spawn_on(read_and_release(client.clone()), runtime.handle());
        }
        server.wait_for_info("rlock_waiting", READERS as u64, PATIENCE)?;
        let released = clock::now();
        let left = server.control().call(&[b"RRWLOCK.RELEASE", b"readers", b"writer", b"WRITE"])?.integer()?;
        ensure!(left == 0, "the writer still has {left} holds");
        let granted = runtime.block_on(all_ended(reading))?;
        let last = granted.into_iter().max().context("no reader was granted the lock")?;
        self.readers_ms.push(clock::as_ms(last.saturating_duration_since(released)));
        drop((client, runtime));
        server.wait_for_info("connected_clients", 1, PATIENCE)?;
        server.ensure_no_keys()
    }
}

async fn all_ended<T: Send + 'static>(mut tasks: JoinSet<Result<T>>) -> Result<Vec<T>> {
    let mut ended = Vec::new();
    while let Some(task) = tasks.join_next().await {
        ended.push(task??);
    }
    Ok(ended)
}

/// Returns when each release was sent.
fn release_one_by_one(server: &mut Server) -> Result<Vec<Instant>> {
    let mut next = clock::now();
    let mut sent = Vec::with_capacity(TASKS);
    for index in 0..TASKS {
        next = (next + BETWEEN_RELEASES).max(clock::now());
        clock::sleep_until(next);
        let (key, owner) = (names::lock_key(index), names::owner_id(index));
        sent.push(clock::now());
        let left = server.control().call(&[b"RLOCK.RELEASE", key.as_bytes(), owner.as_bytes()])?.integer()?;
        ensure!(left == 0, "{left} holds are left");
    }
    Ok(sent)
}

/// Measures the connections, the commands while nothing happens, and the time from a release to the
/// waiter's grant.
pub fn measure(server: &mut Server, rounds: usize) -> Result<[Line; 4]> {
    let mut measured = Rounds::default();
    for _ in 0..rounds {
        measured.push_crowd(server)?;
        measured.push_readers(server)?;
    }
    let Rounds { connections, polls, p50_ms, p99_ms, readers_ms } = measured;
    let waiting = format!("{TASKS} tasks that wait for a lock each");
    Ok([
        Line::value(format!("connections of {waiting}"), Statistic::Max, Unit::Count, connections).aim(CONNECTIONS_AIM),
        Line::value(format!("commands in {SILENCE:?} besides CANCEL of {waiting}"), Statistic::Max, Unit::Count, polls)
            .aim(POLLS_AIM),
        Line::value(format!("p99 from a release to its waiter among {waiting}"), Statistic::Median, Unit::Ms, p99_ms)
            .aim(LATENCY_AIM)
            .figure(Figure::new("p50", Unit::Ms, &p50_ms)),
        Line::value(
            format!("from the writer's release to the last of {READERS} readers"),
            Statistic::Median,
            Unit::Ms,
            readers_ms,
        ),
    ])
}
