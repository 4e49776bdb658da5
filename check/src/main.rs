//! The command line of the checker.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Parser, Subcommand};
use rlock_check::drive::campaign::{Campaign, Faults};
use rlock_check::drive::server::Program;
use rlock_check::history::Violation;
use rlock_check::invented;
use rlock_check::mutants::{self, Trial};
use rlock_check::rules;

/// Records what clients of the rlock module see, and proves from it what the module promises.
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lets clients work on servers of their own, and checks what they saw.
    Run {
        /// The module.
        #[arg(long)]
        module: PathBuf,
        /// The server's program.
        #[arg(long, default_value = "redis-server")]
        server: PathBuf,
        /// For how long clients work.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// What the clients' choices are drawn from.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many clients.
        #[arg(long, default_value_t = 16)]
        clients: u64,
        /// Kills the server, stops it, and cuts connections, in place of steps of its wall clock.
        #[arg(long)]
        crashes: bool,
    },
    /// Builds the module with each fault of `check/mutants`, and shows which rule notices it.
    Mutants {
        /// The server's program.
        #[arg(long, default_value = "redis-server")]
        server: PathBuf,
        /// For how long clients work on each.
        #[arg(long, default_value_t = 6)]
        seconds: u64,
        /// What the clients' choices are drawn from.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Those whose names contain one of these; all if there is none.
        names: Vec<String>,
    },
    /// Checks an invented history, to see how long that takes.
    Speed {
        /// How long the history is.
        #[arg(long, default_value_t = 10_000_000)]
        operations: usize,
    },
}

/// How many violations of each rule are shown.
const SHOWN: usize = 3;

fn main() -> Result<ExitCode> {
    match Options::parse().command {
        Command::Run { module, server, seconds, seed, clients, crashes } => {
            let program = Program { server, module, is_durable: crashes };
            let faults = if crashes { Faults::Crashes } else { Faults::Clock };
            let lasts = Duration::from_secs(seconds);
            let report = Campaign { program, lasts, seed, workers: clients, faults }.run()?;
            println!("{} operations, {} grants, seed {seed}", report.history.operations.len(), report.grants);
            Ok(tell(&report.violations))
        }
        Command::Mutants { server, seconds, seed, names } => {
            let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
            let target = root.join("target/mutants");
            show_mutants(&Trial { root, target, server, lasts: Duration::from_secs(seconds), seed }, &names)
        }
        Command::Speed { operations } => {
            let mut history = invented::history(operations, 1);
            let began = Instant::now();
            let violations = rules::check(&mut history);
            println!("{} operations checked in {:.1} s", history.operations.len(), began.elapsed().as_secs_f64());
            Ok(tell(&violations))
        }
    }
}

/// The table of the mutants. Fails if one of them is not caught.
fn show_mutants(trial: &Trial, names: &[String]) -> Result<ExitCode> {
    let (mut tried, mut caught) = (0, 0);
    for mutant in mutants::all(&trial.root)? {
        if !names.is_empty() && !names.iter().any(|name| mutant.name.contains(name)) {
            continue;
        }
        tried += 1;
        let verdict = match trial.of(&mutant) {
            Ok(verdict) => verdict,
            Err(error) => {
                println!("{:24} NOT TRIED  {error:#}", mutant.name);
                continue;
            }
        };
        caught += usize::from(verdict.is_caught());
        let said = if verdict.is_caught() { "caught" } else { "NOT CAUGHT" };
        println!("{:24} {said:10} {}", mutant.name, mutant.what);
        let rules = if verdict.rules.is_empty() { "nothing".into() } else { verdict.rules.join("; ") };
        println!("{:24} histories: {rules}", "");
        if let Some(worlds) = verdict.worlds {
            println!("{:24} worlds: {}", "", if worlds.is_empty() { "nothing" } else { &worlds });
        }
    }
    println!("{caught} of {tried} caught");
    Ok(if caught == tried { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell(violations: &[Violation]) -> ExitCode {
    let mut by_rule: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for Violation { rule, story } in violations {
        by_rule.entry(*rule).or_default().push(story);
    }
    for (rule, stories) in &by_rule {
        println!("violated: {}, {} times", rule.name(), stories.len());
        for story in stories.iter().take(SHOWN) {
            println!("  {story}");
        }
    }
    if by_rule.is_empty() {
        println!("no rule was violated");
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
