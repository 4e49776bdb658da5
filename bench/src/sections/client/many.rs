//! Many tasks that acquire and release over one connection, each its own lock.

use std::time::Duration;

use anyhow::Result;
use rlock_bench::clock;
use rlock_bench::server::Server;
use tokio::task::JoinSet;

use super::{Sides, run_client, run_raw, runtime, url};
use crate::names;
use crate::report::{Aim, Figure, Line, Series, Unit};

const TASKS: usize = 1000;
const PAIRS_OF_EACH: usize = 60;
/// As many as a program's runtime has on a small machine.
const THREADS: usize = 2;
const RATE_AIM: Aim = Aim::AtLeast(0.9);
const CPU_AIM: Aim = Aim::AtMost(1.3);

#[derive(Default)]
struct Side {
    per_second: Series,
    cpu_us: Series,
}

impl Side {
    fn push(&mut self, wall: Duration, cpu: Duration) {
        let pairs = (TASKS * PAIRS_OF_EACH) as f64;
        self.per_second.push(pairs / wall.as_secs_f64());
        self.cpu_us.push(cpu.as_secs_f64() * 1e6 / pairs);
    }

    /// Runs all tasks to their end. Each task has a warm-up before the measured part.
    async fn push_round<T: Future<Output = Result<()>> + Send + 'static>(
        &mut self,
        task: impl Fn(usize, usize) -> T,
    ) -> Result<()> {
        run_all((0..TASKS).map(|index| task(index, 1))).await?;
        let (started, cpu_before) = (clock::now(), clock::process_cpu());
        run_all((0..TASKS).map(|index| task(index, PAIRS_OF_EACH))).await?;
        self.push(started.elapsed(), clock::process_cpu() - cpu_before);
        Ok(())
    }
}

async fn run_all<T: Future<Output = Result<()>> + Send + 'static>(tasks: impl Iterator<Item = T>) -> Result<()> {
    let mut running: JoinSet<_> = tasks.collect();
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

/// Measures pairs per second, and this process's CPU time per pair.
pub fn measure(server: &mut Server, rounds: usize) -> Result<[Line; 2]> {
    let runtime = runtime(THREADS)?;
    let url = url(server);
    let measured = runtime.spawn(async move {
        let Sides { raw, client } = Sides::connect(&url).await?;
        let (mut by_raw, mut by_client) = (Side::default(), Side::default());
        for _ in 0..rounds {
            let task = |index, pairs| run_raw(raw.clone(), names::lock_key(index), names::owner_id(index), pairs);
            by_raw.push_round(task).await?;
            by_client.push_round(|index, pairs| run_client(super::lock(&client, index), pairs)).await?;
        }
        anyhow::Ok((by_raw, by_client))
    });
    let (raw, client) = runtime.block_on(measured)??;
    server.ensure_no_keys()?;
    let rate = |name, side: &Side| Figure::new(name, Unit::PerSecond, &side.per_second);
    let cpu = |name, side: &Side| Figure::new(name, Unit::Us, &side.cpu_us);
    let among = format!("{TASKS} tasks with a lock each");
    Ok([
        Line::ratio(
            format!("acquire and release per second, {among}"),
            rate("rlock-client", &client),
            rate("redis-rs", &raw),
        )
        .aim(RATE_AIM),
        Line::ratio(format!("client CPU per pair, {among}"), cpu("rlock-client", &client), cpu("redis-rs", &raw))
            .aim(CPU_AIM),
    ])
}
