//! `bench-peers`: rlock compared with other locks.
//!
//! Peers are measured in turns, round by round. The program of each uses its library as documented
//! (`bench/peers/README.md` has the protocol). This driver calculates the figures from the
//! programs' records, in the same way for all, and writes `docs/benchmarks.md`.

mod aims;
mod cell;
mod clock;
mod crash;
mod fill;
mod machine;
mod measure;
mod peer;
mod plot;
mod process;
mod program;
mod proxy;
mod records;
mod report;
mod samples;
mod server;
mod sizing;
mod usage;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};

use cell::Work;
use measure::Stage;
use peer::Contestant;
use report::Report;
use samples::{Sample, Samples};
use server::Servers;

/// Compares rlock with other distributed locks
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Path of the module, librlock.so
    #[arg(long, value_name = "PATH")]
    module: PathBuf,

    /// Program of Redis, for the module and for its peers
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    server: PathBuf,

    /// Folder with folders of programs; may be repeated
    #[arg(long, value_name = "FOLDER", default_value = "bench/peers")]
    programs: Vec<PathBuf>,

    /// Ids of the peers; all if none is given
    #[arg(long, value_name = "ID", num_args = 0..)]
    peers: Vec<String>,

    /// Kinds of work; all but `replicated` if none is given
    #[arg(long, value_name = "WORK", num_args = 0..)]
    work: Vec<Work>,

    /// How often each peer is measured
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,

    /// How long each cell takes, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,

    /// Measure every peer in every cell, and more cells
    #[arg(long)]
    full: bool,

    /// File of the report; plots and figures go into a folder of the same name beside it
    #[arg(long, value_name = "FILE", default_value = "docs/benchmarks.md")]
    report: PathBuf,

    /// Page with marks for the table of the headline figures
    #[arg(long, value_name = "FILE")]
    headline: Option<PathBuf>,

    /// Page with marks for the table of what one server can carry
    #[arg(long, value_name = "FILE")]
    sizing: Option<PathBuf>,
}

/// A measurement that failed.
#[derive(Debug)]
struct Failure {
    work: Work,
    cell: String,
    peer: String,
    reason: String,
}

/// The results so far.
#[derive(Default)]
struct Findings {
    samples: Samples,
    failures: Vec<Failure>,
}

impl Findings {
    fn note(
        &mut self,
        work: Work,
        cell: &str,
        peer: &Contestant,
        round: usize,
        outcome: Result<Vec<(&'static str, f64)>>,
    ) {
        let (cell, peer) = (cell.to_owned(), peer.id());
        match outcome {
            Ok(figures) => {
                let shown: Vec<String> =
                    figures.iter().take(8).map(|(name, value)| format!("{name} {value:.3}")).collect();
                eprintln!("    {peer}: {}", shown.join(", "));
                self.samples.push(Sample { work, cell, peer, round, figures });
            }
            Err(error) => {
                eprintln!("    {peer}: failed: {error:#}");
                self.failures.push(Failure { work, cell, peer, reason: format!("{error:#}") });
            }
        }
    }
}

fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    ensure!(arguments.rounds > 0 && arguments.seconds > 0.0, "--rounds and --seconds must be greater than 0");
    if arguments.work.is_empty() {
        // Few peers know replicas, so that work has its own page.
        arguments.work = Work::value_variants().iter().copied().filter(|work| *work != Work::Replicated).collect();
    }
    let peers = peer::choose(peer::discover(&arguments.programs)?, &arguments.peers)?;
    let (contestants, absent) = peer::prepare(peers)?;
    ensure!(!contestants.is_empty(), "no peer can run here");
    let servers = Servers {
        redis: arguments.server.clone(),
        others: server::find_others(&contestants)?,
        module: arguments.module.clone(),
        programs: arguments.programs.clone(),
    };
    let machine = machine::describe(&servers)?;
    let mut findings = Findings::default();
    for round in 1..=arguments.rounds {
        eprintln!("round {round} of {} ({})", arguments.rounds, clock::utc_date());
        measure_round(&arguments, &servers, &contestants, round, &mut findings)?;
        // Written after each round, so that an aborted run leaves its results.
        let report = Report {
            machine: &machine,
            servers: &servers,
            contestants: &contestants,
            absent: &absent,
            samples: &findings.samples,
            failures: &findings.failures,
            rounds: round,
            seconds: arguments.seconds,
            full: arguments.full,
            works: &arguments.work,
        };
        write(&report, &arguments)?;
    }
    Ok(())
}

fn write(report: &Report<'_>, arguments: &Arguments) -> Result<()> {
    let page = &arguments.report;
    report.write(page).with_context(|| format!("cannot write {}", page.display()))?;
    eprintln!("wrote {}", page.display());
    if let Some(page) = &arguments.headline {
        rlock_bench_peers::fill_in(page, "bench-peers", &report.headline())?;
    }
    if let Some(page) = &arguments.sizing {
        rlock_bench_peers::fill_in(page, "bench-peers", &sizing::table(report))?;
    }
    Ok(())
}

fn measure_round(
    arguments: &Arguments,
    servers: &Servers,
    contestants: &[Contestant],
    round: usize,
    findings: &mut Findings,
) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut stage = Stage::new(servers, folder.path(), arguments.seconds);
    for work in &arguments.work {
        for cell in cell::cells(*work, arguments.full) {
            eprintln!("  {}, {}", work.name(), cell.name);
            for contestant in contestants.iter().filter(|contestant| cell.is_for(contestant, arguments.full)) {
                let outcome = stage.measure(contestant, &cell);
                if outcome.is_err() {
                    // The next peer must not suffer from a broken server.
                    stage.clear();
                }
                findings.note(*work, &cell.name, contestant, round, outcome);
            }
        }
        if *work == Work::Crash {
            stage.clear();
            measure_crashes(servers, contestants, round, folder.path(), findings);
        }
    }
    Ok(())
}

fn measure_crashes(
    servers: &Servers,
    contestants: &[Contestant],
    round: usize,
    folder: &std::path::Path,
    findings: &mut Findings,
) {
    let takes_part = |contestant: &&Contestant| contestant.has("mutex") && !contestant.peer.replica;
    let with_mutex: Vec<&Contestant> = contestants.iter().filter(takes_part).collect();
    eprintln!("  crash, {}", crash::HOLDER);
    for (contestant, outcome) in crash::kill_holders(servers, &with_mutex, folder) {
        findings.note(Work::Crash, crash::HOLDER, contestant, round, outcome);
    }
    eprintln!("  crash, {}", crash::RESTART);
    for (contestant, outcome) in crash::restart_redis(servers, &with_mutex, folder) {
        findings.note(Work::Crash, crash::RESTART, contestant, round, outcome);
    }
}
