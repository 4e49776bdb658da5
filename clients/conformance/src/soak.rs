//! Processes that work for long while their connections are cut, stalled and slow. Memory, handles and tasks stay flat.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::broken::{Broken, Under, ensure};
use crate::program::Program;
use crate::scenarios::bad_weather;
use crate::servers::Programs;
use crate::world::{PATIENCE, World, pause};

const ROUND_MS: u64 = 15_000;
/// The growth that is allowed from the second quarter of the time to the last. Runtimes return memory late.
const MORE_MEMORY: i64 = 16 << 20;
const MORE_HANDLES: i64 = 10;
const MORE_TASKS: i64 = 10;

/// Lets programs work for long, all at the same time, and fails if their memory, handles or tasks grow.
#[derive(clap::Args)]
pub struct Options {
    /// A program that speaks PROTOCOL.md, with its name: `go=target/clients/go`. Give one for each package.
    #[arg(long = "program", value_name = "NAME=COMMAND", required = true)]
    programs: Vec<String>,
    /// How long they work.
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Also writes the table into this file.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// The memory, handles and tasks of a process without holds and requests.
#[derive(Clone, Copy, Default)]
struct Usage {
    memory_bytes: i64,
    handles: i64,
    tasks: i64,
}

/// Runs it, prints a row for each program, and fails if one had two holders of a lock or uses more and more.
pub async fn run(servers: &Arc<Programs>, options: &Options) -> Result<(), Broken> {
    let soaks: Vec<_> = options
        .programs
        .iter()
        .map(|named| tokio::spawn(soak(servers.clone(), named.clone(), options.minutes)))
        .collect();
    let mut table = format!(
        "{} minutes. The two figures for memory, handles and tasks are the median of the second quarter of the time, and that \
         of the last one.\n\n\
         | program | holds | holds lost | memory, MiB | at the end | handles | at the end | tasks | at the end |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        options.minutes
    );
    let mut outcome = Ok(());
    for soak in soaks {
        match soak.await.map_err(|error| Broken::new("driver", error.to_string())).and_then(|ended| ended) {
            Ok((row, is_flat)) => {
                table += &row;
                outcome = outcome.and(is_flat);
            }
            Err(broken) => outcome = outcome.and(Err(broken)),
        }
    }
    print!("{table}");
    if let Some(file) = &options.write {
        std::fs::write(file, format!("# Soak\n\nWritten by `make soak-clients WRITE=1`.\n\n{table}"))
            .map_err(|error| Broken::new("driver", format!("--write {}: {error}", file.display())))?;
    }
    outcome
}

/// One program: its row of the table, and whether it stayed flat.
async fn soak(servers: Arc<Programs>, named: String, minutes: f64) -> Result<(String, Result<(), Broken>), Broken> {
    let Some((name, command)) = named.split_once('=') else {
        return Err(Broken::new("driver", format!("--program {named}: expected NAME=COMMAND")));
    };
    let world = World::new("soak", servers, command, None, Program::start(command).await?).await?;
    let proxies = [world.proxy().await, world.proxy().await, world.proxy().await];
    let mut clients = Vec::new();
    for proxy in &proxies {
        clients.push(world.client(&proxy.url()).await?);
    }
    let (mut usages, mut done, mut lost) = (Vec::new(), 0, 0);
    let end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    while Instant::now() < end {
        let (held, ended) = bad_weather(&world, &proxies, &clients, 20, ROUND_MS).await.during(name)?;
        (done, lost) = (done + held, lost + ended);
        world.check_exclusion().during(name)?;
        world.program.forget();
        for proxy in &proxies {
            proxy.forget();
        }
        // A client that lives for one round.
        let url = proxies[0].url();
        let visitor = json!({"client": format!("visitor-{}", usages.len()), "url": url});
        world.program.call("connect", visitor.clone()).ok(PATIENCE).await.during(name)?;
        let work = json!({"client": visitor["client"], "kind": "mutex", "keys": ["v"], "tasks": 2, "times": 5});
        world.program.call("work", work).ok(PATIENCE).await.during(name)?;
        world.program.call("close", json!({"client": visitor["client"]})).ok(PATIENCE).await.during(name)?;
        world.server.is_clean(PATIENCE).await.during(name)?;
        pause(1000).await;
        let said = world.program.call("stats", json!({})).ok(PATIENCE).await.during(name)?;
        let [memory_bytes, handles, tasks] = ["memory_bytes", "handles", "tasks"].map(|field| said[field].as_i64());
        let (Some(memory_bytes), Some(handles), Some(tasks)) = (memory_bytes, handles, tasks) else {
            return Err(Broken::new("driver", format!("{name}: stats answered {said}; expected three numbers")));
        };
        usages.push(Usage { memory_bytes, handles, tasks });
    }
    world.close_clients().await.during(name)?;
    world.server.is_clean(PATIENCE).await.during(name)?;
    let count = usages.len();
    ensure!(count >= 4, "driver", "{name}: {count} rounds in {minutes} minutes are too few; expected at least 4");
    let (before, after) = (median(&usages[count / 4..count.div_ceil(2)]), median(&usages[count * 3 / 4..]));
    let mib = |usage: Usage| usage.memory_bytes as f64 / f64::from(1 << 20);
    let row = format!(
        "| {name} | {done} | {lost} | {:.1} | {:.1} | {} | {} | {} | {} |\n",
        mib(before),
        mib(after),
        before.handles,
        after.handles,
        before.tasks,
        after.tasks
    );
    Ok((row, is_flat(name, before, after)))
}

fn is_flat(name: &str, before: Usage, after: Usage) -> Result<(), Broken> {
    let grown = [
        ("bytes of memory", after.memory_bytes - before.memory_bytes, MORE_MEMORY),
        ("handles", after.handles - before.handles, MORE_HANDLES),
        ("tasks", after.tasks - before.tasks, MORE_TASKS),
    ];
    for (what, more, most) in grown {
        ensure!(more <= most, "B24", "{name}: {more} {what} more at the end than before; expected at most {most}");
    }
    Ok(())
}

fn median(usages: &[Usage]) -> Usage {
    let of = |field: fn(&Usage) -> i64| {
        let mut values: Vec<_> = usages.iter().map(field).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    Usage {
        memory_bytes: of(|usage| usage.memory_bytes),
        handles: of(|usage| usage.handles),
        tasks: of(|usage| usage.tasks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_found_and_noise_is_not() {
        let usage = |memory_bytes, handles, tasks| Usage { memory_bytes, handles, tasks };
        let before = usage(100 << 20, 20, 8);
        assert!(is_flat("p", before, usage(110 << 20, 25, 9)).is_ok());
        for after in [usage(120 << 20, 20, 8), usage(100 << 20, 31, 8), usage(100 << 20, 20, 19)] {
            assert!(is_flat("p", before, after).is_err());
        }
        assert_eq!(median(&[usage(1, 9, 0), usage(3, 7, 0), usage(2, 8, 0)]).handles, 8);
    }
}
