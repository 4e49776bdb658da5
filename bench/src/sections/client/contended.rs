//! The number of commands of an acquisition that has to wait, as the server counts them.

use std::time::Duration;

use anyhow::Result;
use rlock_bench::server::Server;
use rlock_client::Client;
use tokio::task::JoinSet;

use super::{calls, lock, run_client, runtime, url};
use crate::report::{Aim, Line, Series, Statistic, Unit};

/// All of them pass one lock around.
const TASKS: usize = 8;
const PAIRS_OF_EACH: usize = 250;
const PATIENCE: Duration = Duration::from_secs(5);
/// The commands that the crate may send. The server also counts the module's own messages as
/// commands, so the total would be too high.
const COMMANDS: [&str; 4] = ["RLOCK.ACQUIRE", "RLOCK.RELEASE", "RLOCK.RENEW", "RLOCK.CANCEL"];
/// One ACQUIRE, one RENEW that confirms the grant, and one RELEASE.
const AIM: Aim = Aim::AtMost(3.0);

fn all_calls(server: &mut Server) -> Result<u64> {
    COMMANDS.iter().map(|command| calls(server, command)).sum()
}

/// Measures commands per acquire and release.
pub fn measure(server: &mut Server, rounds: usize) -> Result<Line> {
    let runtime = runtime(1)?;
    let client = runtime.block_on(Client::connect(&url(server)))?;
    let mut commands = Series::default();
    for _ in 0..rounds {
        let before = all_calls(server)?;
        runtime.block_on(pass_around(client.clone(), PAIRS_OF_EACH))?;
        let sent = all_calls(server)? - before;
        commands.push(sent as f64 / (TASKS * PAIRS_OF_EACH) as f64);
    }
    drop(client);
    drop(runtime);
    server.wait_for_info("connected_clients", 1, PATIENCE)?;
    server.ensure_no_keys()?;
    let measure = format!("commands per contended acquire and release, {TASKS} tasks");
    Ok(Line::value(measure, Statistic::Median, Unit::Count, commands).aim(AIM))
}

async fn pass_around(client: Client, pairs: usize) -> Result<()> {
    let mut running: JoinSet<_> = (0..TASKS).map(|_| run_client(lock(&client, 0), pairs)).collect();
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}
