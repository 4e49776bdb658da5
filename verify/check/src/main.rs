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

/// Records what clients of the rlock module observe, and checks it against the guarantees
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run clients on new servers, and check what they observed
    Run {
        #[command(flatten)]
        load: Load,
        /// Server program
        #[arg(long, default_value = "redis-server")]
        server: PathBuf,
        /// How long clients work, in seconds
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Kill and suspend the server and cut connections, instead of stepping its wall clock
        #[arg(long)]
        crashes: bool,
    },
    /// Run clients on each server under each fault, and print a table of the results
    Faults {
        #[command(flatten)]
        load: Load,
        /// Server as NAME=PROGRAM; may be repeated
        #[arg(long = "server", value_parser = named, default_value = "redis-server=redis-server")]
        servers: Vec<(String, PathBuf)>,
        /// How long each fault lasts, in seconds
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Document to write the table into
        #[arg(long)]
        write: Option<PathBuf>,
        /// Only faults whose name contains one of these; all if none is given
        names: Vec<String>,
    },
    /// Run a long load on locks of all kinds, with disconnects; check that memory and latency stay
    /// the same and that nothing is left over
    Soak {
        #[command(flatten)]
        load: Load,
        /// Server program
        #[arg(long, default_value = "redis-server")]
        server: PathBuf,
        /// How long to run, in minutes
        #[arg(long, default_value_t = 60.0)]
        minutes: f64,
    },
    /// Build the module with each patch of `verify/check/mutants`, and print the checks that notice
    /// it
    Mutants {
        /// Server program
        #[arg(long, default_value = "redis-server")]
        server: PathBuf,
        /// How long clients work on each mutant, in seconds
        #[arg(long, default_value_t = 6)]
        seconds: u64,
        /// Seed of the clients' random choices
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Document to write the lines of these mutants into
        #[arg(long)]
        write: Option<PathBuf>,
        /// Only mutants whose name contains one of these; all if none is given
        names: Vec<String>,
    },
    /// Run as a process of clients; the checker starts it
    #[command(hide = true, name = processes::COMMAND)]
    Clients(Order),
    /// Check an invented history, to measure the speed of the rules
    Speed {
        /// Number of operations in the history
        #[arg(long, default_value_t = 10_000_000)]
        operations: usize,
    },
}

/// The options of a load.
#[derive(Debug, clap::Args)]
struct Load {
    /// Path of the module
    #[arg(long)]
    module: PathBuf,
    /// Seed of the clients' random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of clients
    #[arg(long, default_value_t = 16)]
    clients: u64,
    /// Folder for the records of runs that broke a rule
    #[arg(long, default_value_os_t = below_target("records"))]
    records: PathBuf,
}

/// How many violations of each rule are printed.
const SHOWN: usize = 3;

fn main() -> Result<ExitCode> {
    match Options::parse().command {
        Command::Run { load: Load { module, seed, clients, records }, server, seconds, crashes } => {
            let program = Program::alone(server, module);
            let faults = if crashes { Faults::Crashes } else { Faults::Clock };
            let lasts = Duration::from_secs(seconds);
            let report = Campaign { program, lasts, seed, workers: clients, faults }.run()?;
            println!("{} operations, {} locks granted, seed {seed}", report.history.operations.len(), report.locks);
            let outcome = print_violations(&report.violations);
            print_record(report.keep(&records, &format!("run {seed}"))?.as_deref());
            Ok(outcome)
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
            // Adding 0 turns -0 into 0.
            let by_hour =
                |value: fn(&Sample) -> f64| (soak::slope_by_hour(&soaked.samples, value) / 1024.0).round() + 0.0;
            println!("used_memory grows by {} KiB an hour", by_hour(|sample| sample.used));
            println!("resident memory grows by {} KiB an hour", by_hour(|sample| sample.resident));
            if let Some(slowdown) = soak::slowdown(&soaked.samples) {
                println!("in PINGs, a pair at the end takes {slowdown:.2} of what it took at the start");
            }
            if !soak::is_long_enough(&soaked.samples) {
                println!("too few rounds to check whether memory grows or the server slows down");
            }
            Ok(print_violations(&soaked.violations))
        }
        Command::Mutants { server, seconds, seed, write, names } => {
            let root = root()?;
            let target = root.join(below_target("mutants"));
            let trial = Trial { root, target, server, lasts: Duration::from_secs(seconds), seed };
            show_mutants(&trial, &names, write.as_deref())
        }
        Command::Clients(order) => processes::work(&order).map(|()| ExitCode::SUCCESS),
        Command::Speed { operations } => {
            let mut history = invented::history(operations, 1);
            let began = Instant::now();
            let violations = rules::check(&mut history);
            println!("{} operations checked in {:.1} s", history.operations.len(), began.elapsed().as_secs_f64());
            Ok(print_violations(&violations))
        }
    }
}

/// A folder in that of cargo's builds.
fn below_target(name: &str) -> PathBuf {
    Path::new(&std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())).join(name)
}

/// The root of the source tree of this program.
fn root() -> Result<PathBuf> {
    Ok(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?)
}

/// Parses the name of a server and its program.
fn named(text: &str) -> Result<(String, PathBuf), String> {
    let (name, program) = text.split_once('=').ok_or("expected NAME=PROGRAM")?;
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
        print_violations(&row.violations);
        print_record(row.record.as_deref());
    }
}

/// Prints the result of each mutant as soon as it exists, and writes their lines of the table.
/// Fails if one of them is not caught.
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
            println!("{:24} {}: {}", "", tried.fault.name(), tried.summary());
        }
        for tested in &verdict.tests {
            println!("{:24} test: {}", "", tested.summary());
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

fn print_record(record: Option<&Path>) {
    if let Some(record) = record {
        println!("record: {}", record.display());
    }
}

fn print_violations(violations: &[Violation]) -> ExitCode {
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
