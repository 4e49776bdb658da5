//! The command line of the checker.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Parser, Subcommand};
use rlock_check::document;
use rlock_check::drive::campaign::Campaign;
use rlock_check::drive::fault::Faults;
use rlock_check::drive::faults::{self, Faulty, Row};
use rlock_check::drive::processes::{self, Order};
use rlock_check::drive::server::Program;
use rlock_check::drive::soak::{self, Sample};
use rlock_check::history::Violation;
use rlock_check::invented;
use rlock_check::mutants::{self, Mutant, Trial};
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
        #[command(flatten)]
        load: Load,
        /// The server's program.
        #[arg(long, default_value = "redis-server")]
        server: PathBuf,
        /// For how long clients work.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Kills the server, stops it, and cuts connections, in place of steps of its wall clock.
        #[arg(long)]
        crashes: bool,
    },
    /// Lets each fault happen on each server while clients work, and shows a table of what they saw.
    Faults {
        #[command(flatten)]
        load: Load,
        /// A server as `name=program`; may be given several times.
        #[arg(long = "server", value_parser = named, default_value = "redis-server=redis-server")]
        servers: Vec<(String, PathBuf)>,
        /// For how long each fault goes on.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// The document to write the table into.
        #[arg(long)]
        write: Option<PathBuf>,
        /// Those whose names contain one of these; all if there is none.
        names: Vec<String>,
    },
    /// A long load of all kinds with disconnects: whether memory and latency stay as they are, and nothing is left over.
    Soak {
        #[command(flatten)]
        load: Load,
        /// The server's program.
        #[arg(long, default_value = "redis-server")]
        server: PathBuf,
        /// For how long.
        #[arg(long, default_value_t = 60.0)]
        minutes: f64,
    },
    /// Builds the module with each fault of `verify/check/mutants`, and shows which rule notices it.
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
        /// The document to write their lines of the table into.
        #[arg(long)]
        write: Option<PathBuf>,
        /// Those whose names contain one of these; all if there is none.
        names: Vec<String>,
    },
    /// Is a process of clients, which the checker starts.
    #[command(hide = true, name = processes::COMMAND)]
    Clients(Order),
    /// Checks an invented history, to see how long that takes.
    Speed {
        /// How long the history is.
        #[arg(long, default_value_t = 10_000_000)]
        operations: usize,
    },
}

/// What is loaded, and by whom.
#[derive(Debug, clap::Args)]
struct Load {
    /// The module.
    #[arg(long)]
    module: PathBuf,
    /// What the clients' choices are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many clients.
    #[arg(long, default_value_t = 16)]
    clients: u64,
    /// A folder for all that was recorded where a rule was broken.
    #[arg(long, default_value = "target/records")]
    records: PathBuf,
}

/// How many violations of each rule are shown.
const SHOWN: usize = 3;

fn main() -> Result<ExitCode> {
    match Options::parse().command {
        Command::Run { load: Load { module, seed, clients, records }, server, seconds, crashes } => {
            let program = Program::alone(server, module);
            let faults = if crashes { Faults::Crashes } else { Faults::Clock };
            let lasts = Duration::from_secs(seconds);
            let report = Campaign { program, lasts, seed, workers: clients, faults }.run()?;
            println!("{} operations, {} locks granted, seed {seed}", report.history.operations.len(), report.locks);
            let came_of_it = tell(&report.violations);
            tell_where(report.keep(&records, &format!("run {seed}"))?.as_deref());
            Ok(came_of_it)
        }
        Command::Faults { load: Load { module, seed, clients, records }, servers, seconds, write, names } => {
            let lasts = Duration::from_secs(seconds);
            let faulty = Faulty { module, servers, lasts, seed, workers: clients, names, records };
            let head = faulty.head(&root()?)?;
            let rows = faulty.run(show_row)?;
            println!("{}", faults::renewed("", &head, &rows).text());
            if let Some(document) = write {
                let before = document::read(&document, "test-faults")?;
                document::write(&document, "test-faults", &faults::renewed(&before, &head, &rows).text())?;
            }
            let is_safe = rows.iter().all(|row| row.violations.is_empty());
            Ok(if is_safe { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Soak { load: Load { module, seed, clients, .. }, server, minutes } => {
            let program = Program::alone(server, module);
            let soaked = soak::soak(&program, Duration::from_secs_f64(60.0 * minutes), seed, clients, show_sample)?;
            // What is added makes of -0 a 0.
            let by_hour =
                |value: fn(&Sample) -> f64| (soak::slope_by_hour(&soaked.samples, value) / 1024.0).round() + 0.0;
            println!("used_memory grows by {} KiB an hour", by_hour(|sample| sample.used));
            println!("resident memory grows by {} KiB an hour", by_hour(|sample| sample.resident));
            if let Some(slowdown) = soak::slowdown(&soaked.samples) {
                println!("in PINGs, a pair at the end takes {slowdown:.2} of what it took at the start");
            }
            if !soak::is_long_enough(&soaked.samples) {
                println!("too few rounds to say whether memory grows or the server slows down: that was not checked");
            }
            Ok(tell(&soaked.violations))
        }
        Command::Mutants { server, seconds, seed, write, names } => {
            let root = root()?;
            let target = root.join("target/mutants");
            let trial = Trial { root, target, server, lasts: Duration::from_secs(seconds), seed };
            show_mutants(&trial, &names, write.as_deref())
        }
        Command::Clients(order) => processes::work(&order).map(|()| ExitCode::SUCCESS),
        Command::Speed { operations } => {
            let mut history = invented::history(operations, 1);
            let began = Instant::now();
            let violations = rules::check(&mut history);
            println!("{} operations checked in {:.1} s", history.operations.len(), began.elapsed().as_secs_f64());
            Ok(tell(&violations))
        }
    }
}

/// The root of the tree that this program is of.
fn root() -> Result<PathBuf> {
    Ok(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?)
}

/// A server's name and its program.
fn named(text: &str) -> Result<(String, PathBuf), String> {
    let (name, program) = text.split_once('=').ok_or("it is NAME=PROGRAM")?;
    Ok((name.into(), program.into()))
}

fn show_sample(sample: &Sample) {
    println!(
        "{:6.0} s  {:9} operations  used {:8.0} KiB  resident {:8.0} KiB  a pair: half {:6.0} us, 99 % {:6.0} us; of PINGs: half {:6.0} us",
        sample.at_s,
        sample.operations,
        sample.used / 1024.0,
        sample.resident / 1024.0,
        sample.median_us,
        sample.slow_us,
        sample.pings_us
    );
}

fn show_row(row: &Row) {
    eprintln!(
        "{:32} {:26} {:8} operations {:8} acquisitions {:8} locks {:4} violations",
        row.fault.name(),
        row.server,
        row.operations,
        row.acquisitions,
        row.locks,
        row.violations.len()
    );
    if !row.violations.is_empty() {
        tell(&row.violations);
        tell_where(row.record.as_deref());
    }
}

/// Shows each mutant as soon as it was tried, and writes their lines of the table. Fails if one of them is not caught.
fn show_mutants(trial: &Trial, names: &[String], document: Option<&Path>) -> Result<ExitCode> {
    let is_wanted = |mutant: &Mutant| names.is_empty() || names.iter().any(|name| mutant.name.contains(name));
    let there = mutants::all(&trial.root)?;
    let names_there: Vec<String> = there.iter().map(|mutant| mutant.name.clone()).collect();
    let wanted: Vec<Mutant> = there.into_iter().filter(is_wanted).collect();
    let all = wanted.len();
    let mut verdicts = Vec::new();
    for mutant in wanted {
        let verdict = match trial.of(&mutant) {
            Ok(verdict) => verdict,
            Err(error) => {
                println!("{:24} NOT TRIED  {error:#}", mutant.name);
                continue;
            }
        };
        let said = if verdict.is_caught() { "caught" } else { "NOT CAUGHT" };
        println!("{:24} {said:10} {}", mutant.name, mutant.what);
        for tried in &verdict.histories {
            println!("{:24} {}: {}", "", tried.fault.name(), tried.told());
        }
        for tested in &verdict.tests {
            println!("{:24} test: {}", "", tested.told());
        }
        if let Some(worlds) = &verdict.worlds {
            println!("{:24} worlds: {}", "", if worlds.is_empty() { "nothing" } else { worlds });
        }
        verdicts.push((mutant, verdict));
    }
    let caught = verdicts.iter().filter(|(_, verdict)| verdict.is_caught()).count();
    println!("{caught} of {all} caught");
    if let Some(document) = document {
        let before = document::read(document, "check-mutants")?;
        let is_there = |name: &str| names_there.iter().any(|there| there == name);
        document::write(document, "check-mutants", &mutants::renewed(&before, &verdicts, is_there))?;
    }
    Ok(if caught == all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell_where(record: Option<&Path>) {
    if let Some(record) = record {
        println!("all that was recorded: {}", record.display());
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
