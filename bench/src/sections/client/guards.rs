//! The costs of idle guards: the client renews each of them every third of its lease.

use std::time::Duration;

use anyhow::{Result, ensure};
use rlock_bench::clock;
use rlock_bench::memory;
use rlock_bench::server::Server;
use rlock_client::kinds::Mutex;
use rlock_client::{Client, Guard};
use tokio::task::JoinSet;

use super::{calls, lock, runtime, url};
use crate::report::{Aim, Figure, Line, Series, Statistic, Unit};

const COUNTS: [usize; 2] = [10_000, 100_000];
/// A third of the crate's default lease: in this time each guard is renewed once.
const RENEWAL_CYCLE: Duration = Duration::from_secs(10);
/// Enough time for the work of the last acquisitions to end.
const SETTLING: Duration = Duration::from_secs(2);
const RENEW: &str = "RLOCK.RENEW";
const ACQUIRING_AT_ONCE: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(60);
/// Of one CPU, for 10,000 guards.
const CLIENT_AIM: Aim = Aim::AtMost(1.1);
const SERVER_AIM: Aim = Aim::AtMost(9.0);
const MEMORY_AIM: Aim = Aim::AtMost(3000.0);

#[derive(Default)]
struct Rounds {
    client_percent: Series,
    server_percent: Series,
    bytes: Series,
    renewals: Series,
}

async fn acquire_all(client: Client, count: usize) -> Result<Vec<Guard<Mutex>>> {
    let mut acquiring = JoinSet::new();
    for part in 0..ACQUIRING_AT_ONCE {
        let client = client.clone();
        acquiring.spawn(async move {
            let mut guards = Vec::new();
            for index in (part..count).step_by(ACQUIRING_AT_ONCE) {
                guards.push(lock(&client, index).acquire().await?);
            }
            anyhow::Ok(guards)
        });
    }
    let mut guards = Vec::with_capacity(count);
    while let Some(acquired) = acquiring.join_next().await {
        guards.extend(acquired??);
    }
    Ok(guards)
}

async fn release_all(guards: Vec<Guard<Mutex>>) -> Result<()> {
    for guard in guards {
        drop(guard);
    }
    Ok(())
}

impl Rounds {
    fn push_round(&mut self, server: &mut Server, count: usize) -> Result<()> {
        let runtime = runtime(1)?;
        let client = runtime.block_on(Client::connect(&url(server)))?;
        let bytes_before = memory::allocated_bytes();
        let guards = runtime.block_on(runtime.spawn(acquire_all(client.clone(), count)))??;
        if let (Some(before), Some(after)) = (bytes_before, memory::allocated_bytes()) {
            self.bytes.push((after as f64 - before as f64) / count as f64);
        }
        clock::sleep_until(clock::now() + SETTLING);
        let (began, client_before) = (clock::now(), clock::process_cpu());
        let server_before = server.main_thread_times();
        let renewals_before = calls(server, RENEW)?;
        clock::sleep_until(began + RENEWAL_CYCLE);
        let client_cpu = clock::process_cpu() - client_before;
        let server_after = server.main_thread_times();
        let lasted = began.elapsed();
        let for_10_000 = |cpu: Duration| 1e6 * cpu.as_secs_f64() / lasted.as_secs_f64() / count as f64;
        self.client_percent.push(for_10_000(client_cpu));
        if let (Some(before), Some(after)) = (server_before, server_after) {
            self.server_percent.push(for_10_000(Duration::from_nanos(after.cpu_ns - before.cpu_ns)));
        }
        self.renewals.push((calls(server, RENEW)? - renewals_before) as f64 / count as f64);
        ensure!(guards.iter().all(Guard::is_held), "a guard was lost");
        runtime.block_on(runtime.spawn(release_all(guards)))??;
        runtime.block_on(client.close())?;
        drop((client, runtime));
        server.wait_for_info("connected_clients", 1, PATIENCE)?;
        server.ensure_no_keys()
    }
}

/// Measures CPU and memory.
pub fn measure(server: &mut Server, rounds: usize) -> Result<Vec<Line>> {
    let mut counted = COUNTS.map(|count| (count, Rounds::default()));
    for _ in 0..rounds {
        for (count, measured) in &mut counted {
            measured.push_round(server, *count)?;
        }
    }
    let lines = counted.into_iter().flat_map(|(count, measured)| {
        let Rounds { client_percent, server_percent, bytes, renewals } = measured;
        let value = |what: &str, unit, series| {
            Line::value(format!("{what}, {count} idle guards"), Statistic::Median, unit, series)
        };
        [
            value("client CPU for each 10,000", Unit::PercentParts, client_percent)
                .aim(CLIENT_AIM)
                .figure(Figure::new("renewals per guard", Unit::Count, &renewals)),
            value("server CPU for each 10,000", Unit::PercentParts, server_percent).aim(SERVER_AIM),
            value("client memory per guard", Unit::Bytes, bytes).aim(MEMORY_AIM),
        ]
    });
    Ok(lines.collect())
}
