//! The command line of the checker.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Parser, Subcommand};
use rlock_check::drive::campaign::Campaign;
use rlock_check::drive::server::Program;
use rlock_check::history::Violation;
use rlock_check::invented;
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
        Command::Run { module, server, seconds, seed, clients } => {
            let program = Program { server, module };
            let report = Campaign { program, lasts: Duration::from_secs(seconds), seed, workers: clients }.run()?;
            println!("{} operations, {} grants, seed {seed}", report.history.operations.len(), report.grants);
            Ok(tell(&report.violations))
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
