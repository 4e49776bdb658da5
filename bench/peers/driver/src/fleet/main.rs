//! `bench-fleet`: the load of a thousand nodes with a million clients on one server.
//!
//! It simulates the fleet and runs the module's real engine under it, with a clock that jumps.
//! Queues, hand-overs, memory and replication are those of that load, and the engine's CPU time is
//! measured. The server's other costs, mostly its sockets, are in docs/benchmarks.md. The result is
//! written into a page, between two marks.

mod fleet;
mod load;
mod world;

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

use fleet::{Findings, Fleet};

/// Simulates a fleet of clients on the engine of the module
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Page whose marks enclose the table; without it the table is only printed
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,

    /// Number of clients
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    clients: usize,

    /// Simulated time, in seconds
    #[arg(long, value_name = "S", default_value_t = 60)]
    seconds: u64,

    /// Seed of the clients' random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

fn fleets(arguments: &Arguments) -> Vec<Fleet> {
    let calm = Fleet {
        name: "calm",
        nodes: 1000,
        clients: arguments.clients,
        locks: 100_000,
        think_us: 100e6,
        least_hold_us: 1000.0,
        most_hold_us: 20e6,
        between_crashes_us: 0,
        stuck_in_a_million: 0.0,
        span_us: arguments.seconds * 1_000_000,
        is_herd: false,
    };
    let crashing = Fleet {
        name: "a node crashes each second",
        between_crashes_us: 1_000_000,
        stuck_in_a_million: 10.0,
        ..calm.clone()
    };
    let busy = Fleet { name: "twice as busy, and crashing", think_us: 50e6, ..crashing.clone() };
    let herd = Fleet {
        name: "all want one lock at once",
        locks: 1,
        least_hold_us: 20.0,
        most_hold_us: 20.0,
        is_herd: true,
        ..calm.clone()
    };
    vec![calm, crashing, busy, herd]
}

fn table(runs: &[(Fleet, Findings)]) -> Result<String> {
    let mut text = String::new();
    let heads: Vec<&str> = runs.iter().map(|(fleet, _)| fleet.name).collect();
    writeln!(text, "| | {} |\n|---|{}", heads.join(" | "), "---:|".repeat(runs.len()))?;
    let mut row = |name: &str, figure: &dyn Fn(&Findings) -> String| {
        let figures: Vec<String> = runs.iter().map(|(_, found)| figure(found)).collect();
        writeln!(text, "| {name} | {} |", figures.join(" | "))
    };
    let per_second = |count: u64, found: &Findings| format!("{:.0}", count as f64 / found.seconds);
    row("seconds measured", &|f| format!("{:.1}", f.seconds))?;
    row("grants per second", &|f| per_second(f.granted, f))?;
    row("of these, hand-overs", &|f| per_second(f.handed_over, f))?;
    row("waiting, on average", &|f| format!("{:.0}", f.waiting_mean))?;
    row("waiting, at most", &|f| f.waiting_most.to_string())?;
    row("wait p50, ms", &|f| format!("{:.1}", f.wait_p50_us as f64 / 1e3))?;
    row("wait p99, ms", &|f| format!("{:.0}", f.wait_p99_us as f64 / 1e3))?;
    row("held, at most", &|f| f.held_most.to_string())?;
    row("waits timed out, per second", &|f| per_second(f.timed_out, f))?;
    row("holds that ended with their lease or session", &|f| f.expired.to_string())?;
    row("waiters lost with their nodes", &|f| f.disconnected.to_string())?;
    row("engine: µs of CPU per ACQUIRE or RELEASE", &|f| format!("{:.2}", f.engine_s * 1e6 / f.operations as f64))?;
    row("engine: share of a core", &|f| format!("{:.1} %", 100.0 * f.engine_s / f.seconds))?;
    row("engine: longest call, µs", &|f| format!("{:.0}", f.longest_us))?;
    row("engine: bytes per waiter", &|f| format!("{:.0}", f.waiters_bytes as f64 / f.waiting_most.max(1) as f64))?;
    row("value: bytes per held lock", &|f| format!("{:.0}", f.value_bytes as f64 / f.held_most.max(1) as f64))?;
    row("replication: bytes per grant", &|f| format!("{:.0}", f.replicated_bytes as f64 / f.granted.max(1) as f64))?;
    row("replication: MB per second", &|f| format!("{:.2}", f.replicated_bytes as f64 / 1e6 / f.seconds))?;
    Ok(text)
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut runs = Vec::new();
    for fleet in fleets(&arguments) {
        eprintln!("{} …", fleet.name);
        let found = fleet.simulate(arguments.seed);
        runs.push((fleet, found));
    }
    let table = table(&runs)?;
    println!("{table}");
    if let Some(page) = &arguments.page {
        rlock_bench_peers::fill_in(page, "bench-fleet", &table)?;
    }
    Ok(())
}
