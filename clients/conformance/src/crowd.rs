//! A cluster with failover settings under a crowd of waiters of several packages, while slots move and a master dies.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::process::Command;

use crate::broken::{Broken, Under, ensure};
use crate::clock::{now_us, us};
use crate::program::Program;
use crate::servers::{Programs, Server, cluster};
use crate::world::{PATIENCE, pause};

/// The settings of docs/operations/failover.md, "Failover without two holders".
const SETTINGS: [&str; 6] = [
    "rlock.max-lease-ms 5000",
    "rlock.replicas 1",
    "rlock.exclusion failover",
    "repl-ping-replica-period 1",
    "cluster-allow-replica-migration no",
    "cluster-node-timeout 5000",
];
const LEASE_MS: u64 = 5000;
const KEY: &str = "crowd:";
const SLOTS: u64 = 16_384;
/// Waiters arrive, before, after the slots moved, after the master died.
const QUIET_PARTS: f64 = 4.0;
/// The time that the two disturbances may take together, besides the length of a quiet part.
const DISTURBED_MS: u64 = 60_000;
/// The time for the waiters to leave, each after one more hold that it releases at once.
const LEAVE_DEADLINE: Duration = Duration::from_secs(600);
/// The time for a step of the servers, such as a promotion.
const STEP_DEADLINE: Duration = Duration::from_secs(180);
/// The part of the rate that has to return after a disturbance. Less than all of it, because the programs share a machine.
const LEAST_RATE: f64 = 0.5;

/// Measures a cluster under waiters of several packages, while slots move and a master dies.
#[derive(clap::Args)]
pub struct Options {
    /// A program that speaks PROTOCOL.md, with its name: `go=target/clients/go`. Give one for each package.
    #[arg(long = "program", value_name = "NAME=COMMAND", required = true)]
    programs: Vec<String>,
    /// Mutexes, spread over the slots.
    #[arg(long, default_value_t = 10_000)]
    locks: u64,
    /// Waiters in all programs together.
    #[arg(long, default_value_t = 100_000)]
    waiters: u64,
    /// The length of the parts without a disturbance together. A minute and a quarter of it are added for the disturbances.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// How many hand-overs per second the holders allow. Each holds a lock for LOCKS / RATE seconds.
    #[arg(long, default_value_t = 1000)]
    rate: u64,
    /// Writes each hold into this file, as comma-separated values.
    #[arg(long, value_name = "FILE")]
    spans: Option<PathBuf>,
}

/// A span in which a program believed that it holds the lock.
struct Span {
    program: usize,
    lock: u64,
    token: i64,
    asked_us: i64,
    from_us: i64,
    to_us: i64,
}

/// A part of the run, until the next one.
struct Phase {
    name: &'static str,
    from_us: i64,
}

/// Runs it, prints the tables, and fails if two programs believed in one lock, a token did not rise, or the rate did not return.
pub async fn run(servers: &Arc<Programs>, options: &Options) -> Result<(), Broken> {
    let Options { locks, waiters, minutes, rate, .. } = *options;
    ensure!(
        locks > 0 && waiters >= locks && rate > 0 && minutes > 0.0,
        "driver",
        "--locks {locks} --waiters {waiters} --rate {rate} --minutes {minutes}: expected numbers above 0, and at least as many waiters as locks"
    );
    let nodes = cluster(servers, 1, &SETTINGS).await?;
    until_masters_grant(&nodes).await?;
    let programs = start(options, &nodes).await?;
    let quiet_ms = (minutes * 60_000.0 / QUIET_PARTS) as u64;
    let lasts_ms = (minutes * 60_000.0) as u64 + quiet_ms + DISTURBED_MS;
    let begun_us = now_us();
    let mut calls = Vec::new();
    for (program, waiters) in &programs {
        let work = json!({
            "client": "crowd", "keys": [KEY], "tasks": waiters, "spread": locks, "over_ms": quiet_ms, "for_ms": lasts_ms,
            "hold_ms": locks * 1000 / rate, "lease_ms": LEASE_MS,
        });
        calls.push(program.call("work", work));
    }
    let spans = Arc::new(Mutex::new(Vec::new()));
    let collects = tokio::spawn(collect(programs.iter().map(|(program, _)| program.clone()).collect(), spans.clone()));

    let mut phases = vec![Phase { name: "waiters arrive", from_us: begun_us }];
    let mut begin = |name: &'static str| {
        eprintln!("{:6.1} s  {name}", (now_us() - begun_us) as f64 / 1e6);
        phases.push(Phase { name, from_us: now_us() });
    };
    pause(quiet_ms).await;
    begin("before");
    pause(quiet_ms).await;
    let at_rest = memory(&nodes).await?;
    begin("slots move");
    move_slots(servers, &nodes).await?;
    begin("after that");
    pause(quiet_ms).await;
    begin("a master dies");
    lose_master(&nodes).await?;
    begin("after that");
    let left_us = begun_us + us(lasts_ms as i64) - now_us();
    ensure!(
        left_us > us(quiet_ms as i64) / 2,
        "driver",
        "the disturbances took too long: {} ms are left to measure",
        left_us / 1000
    );
    pause(left_us as u64 / 1000).await;
    let at_end = memory(&nodes).await?;
    begin("waiters leave");

    let (mut done, mut ended) = (Vec::new(), Ok(()));
    for (call, named) in calls.into_iter().zip(&options.programs) {
        eprintln!("{:6.1} s  {named}", (now_us() - begun_us) as f64 / 1e6);
        let left = call.ok(Duration::from_millis(quiet_ms) + LEAVE_DEADLINE).await;
        ended = ended.and(left.as_ref().map(|_| ()).map_err(Clone::clone));
        done.push(left.unwrap_or_default());
    }
    for node in &nodes {
        ended = if ended.is_ok() { node.is_clean(PATIENCE).await } else { ended };
    }
    pause(1000).await;
    collects.abort();
    let mut spans = std::mem::take(&mut *spans.lock().unwrap());

    println!("{locks} locks, {waiters} waiters, each lock held for {} ms:\n", locks * 1000 / rate);
    let verdict = judge(&mut spans, &phases);
    println!(
        "\n| node | role before the disturbances | waiting then | used memory then, MiB \
         | used memory at the end, MiB |\n|---|---|---:|---:|---:|"
    );
    for (number, (before, end)) in at_rest.iter().zip(&at_end).enumerate() {
        println!("| {} | {} | {} | {:.1} | {:.1} |", number + 1, before.0, before.1, before.2, end.2);
    }
    println!(
        "\n| package | waiters | holds | holds lost | errors | wait p99, s | longest, s |\n|---|---:|---:|---:|---|---:|---:|"
    );
    for (number, ((_, waiters), counts)) in programs.iter().zip(&done).enumerate() {
        let own = spans.iter().filter(|span| span.program == number);
        let mut waits: Vec<_> = own.map(|span| span.from_us - span.asked_us).collect();
        let [w99, longest] = [99, 100].map(|percent| percentile(&mut waits, percent) as f64 / 1e6);
        let (name, _) = options.programs[number].split_once('=').unwrap_or_default();
        let [held, lost, errors] = ["done", "lost", "errors"].map(|field| &counts[field]);
        println!("| {name} | {waiters} | {held} | {lost} | {errors} | {w99:.1} | {longest:.1} |");
    }
    if let Some(file) = &options.spans {
        let mut text = "program,lock,token,asked_us,from_us,to_us\n".to_owned();
        for Span { program, lock, token, asked_us, from_us, to_us } in &spans {
            text += &format!("{program},{lock},{token},{asked_us},{from_us},{to_us}\n");
        }
        std::fs::write(file, text)
            .map_err(|error| Broken::new("driver", format!("--spans {}: {error}", file.display())))?;
    }
    verdict.and(ended)
}

/// The programs with their numbers of waiters. Python gets a third of the others' share, because it takes more of the processor.
async fn start(options: &Options, nodes: &[Server]) -> Result<Vec<(Arc<Program>, u64)>, Broken> {
    let weight = |command: &str| if command.starts_with("python") { 1 } else { 3 };
    let sum: u64 = options.programs.iter().map(|program| weight(program)).sum();
    let mut programs = Vec::new();
    for named in &options.programs {
        let Some((_, command)) = named.split_once('=') else {
            return Err(Broken::new("driver", format!("--program {named}: expected NAME=COMMAND")));
        };
        let program = Program::start(command).await?;
        let connect = json!({"client": "crowd", "url": nodes[0].url(), "cluster": true});
        program.call("connect", connect).ok(PATIENCE).await.during(named)?;
        programs.push((program, options.waiters * weight(named) / sum));
    }
    Ok(programs)
}

async fn collect(programs: Vec<Arc<Program>>, spans: Arc<Mutex<Vec<Span>>>) {
    loop {
        for (number, program) in programs.iter().enumerate() {
            for event in program.take_events().into_iter().filter(|event| event["event"] == "interval") {
                let lock =
                    event["key"].as_str().and_then(|key| key.strip_prefix(KEY)?.parse().ok()).unwrap_or_default();
                let fields = ["token", "asked_us", "from_us", "to_us"];
                let [token, asked_us, from_us, to_us] = fields.map(|field| event[field].as_i64().unwrap_or_default());
                spans.lock().unwrap().push(Span { program: number, lock, token, asked_us, from_us, to_us });
            }
        }
        pause(500).await;
    }
}

/// Prints a row for each phase.
fn judge(spans: &mut [Span], phases: &[Phase]) -> Result<(), Broken> {
    spans.sort_by_key(|span| (span.lock, span.from_us));
    let (mut overlaps, mut fallen, mut first) = (0, 0, String::new());
    // For each phase: the waits, and the times from the end of a hold to the next one.
    let mut figures: Vec<(Vec<i64>, Vec<i64>)> = phases.iter().map(|_| Default::default()).collect();
    let mut latest: Option<&Span> = None;
    for span in &*spans {
        let (waits, gaps) = &mut figures[phases.partition_point(|phase| phase.from_us <= span.from_us).max(1) - 1];
        waits.push(span.from_us - span.asked_us);
        let earlier = latest.filter(|earlier| earlier.lock == span.lock);
        if let Some(earlier) = earlier {
            gaps.push(span.from_us - earlier.to_us);
            overlaps += i64::from(earlier.to_us > span.from_us);
            fallen += i64::from(earlier.token >= span.token);
            if first.is_empty() && overlaps + fallen > 0 {
                let both_us = earlier.to_us - span.from_us;
                first = format!("; {KEY}{}: token {} for {both_us} us with {}", span.lock, earlier.token, span.token);
            }
        }
        latest = earlier.filter(|earlier| earlier.to_us > span.to_us).or(Some(span));
    }
    println!(
        "| phase | seconds | hand-overs per second | wait p50, s | p99, s | free between two holds p50, ms | p99, ms | longest, s |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|"
    );
    let mut rates = Vec::new();
    for ((phase, next), (waits, gaps)) in phases.iter().zip(&phases[1..]).zip(&mut figures) {
        let seconds = (next.from_us - phase.from_us) as f64 / 1e6;
        rates.push(gaps.len() as f64 / seconds);
        let [w50, w99] = [50, 99].map(|percent| percentile(waits, percent) as f64 / 1e6);
        let [g50, g99] = [50, 99].map(|percent| percentile(gaps, percent) as f64 / 1e3);
        let (name, rate, longest) = (phase.name, gaps.len() as f64 / seconds, percentile(gaps, 100) as f64 / 1e6);
        println!("| {name} | {seconds:.1} | {rate:.0} | {w50:.2} | {w99:.2} | {g50:.1} | {g99:.1} | {longest:.2} |");
    }
    println!("\n{} holds: {overlaps} overlaps, {fallen} tokens that did not rise.", spans.len());
    ensure!(overlaps + fallen == 0, "B13 B15 B26", "{overlaps} overlaps, {fallen} tokens that did not rise{first}");
    for (after, what) in [(3, "slots moved"), (5, "a master died")] {
        let [before, rate] = [rates[1], rates[after]];
        let has_returned = rate > before * LEAST_RATE;
        ensure!(has_returned, "B7 B8 B12", "{rate:.0} hand-overs per second after {what}, {before:.0} before");
    }
    Ok(())
}

fn percentile(values: &mut [i64], percent: usize) -> i64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) * percent / 100).copied().unwrap_or_default()
}

async fn is_master(node: &Server) -> bool {
    node.text("INFO replication").await.is_ok_and(|said| said.contains("role:master"))
}

/// Waits until three nodes are masters that grant locks.
async fn until_masters_grant(nodes: &[Server]) -> Result<(), Broken> {
    let deadline = now_us() + STEP_DEADLINE.as_micros() as i64;
    loop {
        let mut granting = 0;
        for node in nodes {
            granting +=
                usize::from(is_master(node).await && node.gauge("rlock_may_grant").await.is_ok_and(|may| may == 1));
        }
        if granting == nodes.len() / 2 {
            return Ok(());
        }
        ensure!(now_us() < deadline, "driver", "{granting} of {} masters grant locks", nodes.len() / 2);
        pause(50).await;
    }
}

/// Each master gives a tenth of its slots to the next one.
async fn move_slots(servers: &Programs, nodes: &[Server]) -> Result<(), Broken> {
    let mut masters = Vec::new();
    for node in nodes {
        if is_master(node).await {
            masters.push((node.port, node.text("CLUSTER MYID").await?));
        }
    }
    let deadline = now_us() + STEP_DEADLINE.as_micros() as i64;
    for (from, to) in (0..masters.len()).map(|number| (number, (number + 1) % masters.len())) {
        let slots = (SLOTS / masters.len() as u64 / 10).to_string();
        loop {
            let mut moves = Command::new(&servers.cli);
            moves.args(["--cluster", "reshard", &format!("127.0.0.1:{}", masters[from].0), "--cluster-yes"]);
            moves.args(["--cluster-from", &masters[from].1, "--cluster-to", &masters[to].1, "--cluster-slots", &slots]);
            let moved = moves.output().await.map_err(|error| Broken::new("driver", error.to_string()))?;
            if moved.status.success() {
                break;
            }
            // The nodes may not yet agree about the slots that moved before.
            let said = String::from_utf8_lossy(&moved.stdout).into_owned();
            ensure!(now_us() < deadline, "driver", "no slots moved: {}", said.lines().last().unwrap_or_default());
            pause(500).await;
        }
    }
    Ok(())
}

/// Kills a master, and starts it again as a replica of the node that took over.
async fn lose_master(nodes: &[Server]) -> Result<(), Broken> {
    let mut master = &nodes[0];
    for node in nodes {
        if is_master(node).await {
            master = node;
            break;
        }
    }
    master.kill().await;
    let deadline = now_us() + STEP_DEADLINE.as_micros() as i64;
    loop {
        let mut masters = 0;
        for node in nodes.iter().filter(|node| node.port != master.port) {
            masters += usize::from(is_master(node).await);
        }
        if masters == nodes.len() / 2 {
            break;
        }
        ensure!(now_us() < deadline, "driver", "no failover");
        pause(50).await;
    }
    master.start_again().await?;
    until_masters_grant(nodes).await
}

/// For each node its role, the requests that wait there, and its memory in MiB.
async fn memory(nodes: &[Server]) -> Result<Vec<(&'static str, i64, f64)>, Broken> {
    let mut all = Vec::new();
    for node in nodes {
        let info = node.text("INFO memory").await?;
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse::<f64>().ok());
        let role = if is_master(node).await { "master" } else { "replica" };
        all.push((role, node.gauge("rlock_waiting").await?, used.unwrap_or_default() / 1_048_576.0));
    }
    Ok(all)
}
