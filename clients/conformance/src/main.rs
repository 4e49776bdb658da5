//! Checks the client package of a language against clients/BEHAVIOUR.md, on real servers.

#![allow(missing_docs, reason = "a program")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times of a test")]

mod broken;
mod clock;
mod crowd;
mod program;
mod proxy;
mod results;
mod scenarios;
mod servers;
mod soak;
mod world;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::broken::Broken;
use crate::program::Program;
use crate::results::{Finding, Outcome, Report};
use crate::scenarios::Scenario;
use crate::servers::Programs;
use crate::world::World;

/// A scenario that takes longer hangs.
const SCENARIO_DEADLINE: Duration = Duration::from_secs(180);

/// Checks a client of rlock in any language against clients/BEHAVIOUR.md.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    #[command(subcommand)]
    subcommand: Option<Subcommand>,
    /// The command that starts the program under test, which speaks PROTOCOL.md.
    #[arg(long, required_unless_present_any = ["list", "table"])]
    program: Option<String>,
    /// The module to load into servers.
    #[arg(long, global = true, env = "RLOCK_MODULE", default_value_os_t = built_module())]
    module: PathBuf,
    /// The server program.
    #[arg(long, global = true, env = "SERVER", default_value = "redis-server")]
    server: String,
    /// The server's command line tool, which makes clusters.
    #[arg(long, global = true, default_value = "redis-cli")]
    cli: String,
    /// The name of the results. Default: the language that the program reports.
    #[arg(long)]
    name: Option<String>,
    /// Sent with each `connect`, for packages with several drivers.
    #[arg(long)]
    driver: Option<String>,
    /// Only the short form.
    #[arg(long)]
    short: bool,
    /// Do not repeat failed scenarios.
    #[arg(long)]
    once: bool,
    /// How many scenarios run at the same time.
    #[arg(long, default_value_t = 6)]
    jobs: usize,
    /// Writes the results as JSON into this folder.
    #[arg(long)]
    results: Option<PathBuf>,
    /// Lists the scenarios.
    #[arg(long)]
    list: bool,
    /// Writes a table of results in Markdown. The other arguments are the files of the results.
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Names of scenarios, or beginnings of names. None: all.
    scenarios: Vec<String>,
}

#[derive(clap::Subcommand)]
enum Subcommand {
    BenchCluster(crowd::Options),
    Soak(soak::Options),
}

/// The module that `make build` built.
fn built_module() -> PathBuf {
    Path::new(&std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())).join("release/librlock.so")
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        for scenario in scenarios::all() {
            let form = if scenario.is_short { "short" } else { "long " };
            println!("{form}  {:32} {:24} {}", scenario.name, scenario.rules, scenario.needs.join(" "));
        }
        return ExitCode::SUCCESS;
    }
    if let Some(table) = &arguments.table {
        results::write_table(table, &arguments.scenarios);
        return ExitCode::SUCCESS;
    }
    clock::watch_lateness();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let report = runtime.block_on(async {
        let terminate = signal(SignalKind::terminate()).and_then(|one| Ok((one, signal(SignalKind::interrupt())?)));
        let (mut terminate, mut interrupt) = terminate.expect("signals can be handled");
        // Dropping what runs ends its servers and programs.
        tokio::select! {
            report = perform(&arguments) => report,
            _ = terminate.recv() => Err(Broken::new("driver", "terminated")),
            _ = interrupt.recv() => Err(Broken::new("driver", "interrupted")),
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    match report {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(report)) => {
            if let Some(folder) = &arguments.results {
                report.write(folder);
            }
            report.print_summary();
            if report.is_green() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(broken) => {
            eprintln!("conformance: {}", broken.text);
            ExitCode::from(2)
        }
    }
}

struct Judge {
    programs: Arc<Programs>,
    command: String,
    driver: Option<String>,
    /// The features that the program lists.
    declared: HashSet<String>,
    /// Programs that wait for their next scenario.
    idle: Mutex<Vec<Arc<Program>>>,
}

async fn perform(arguments: &Arguments) -> Result<Option<Report>, Broken> {
    let module = std::fs::canonicalize(&arguments.module);
    let module =
        module.map_err(|error| Broken::new("driver", format!("--module {}: {error}", arguments.module.display())))?;
    let programs = Arc::new(Programs { server: arguments.server.clone(), cli: arguments.cli.clone(), module });
    match &arguments.subcommand {
        Some(Subcommand::BenchCluster(options)) => crowd::run(&programs, options).await.map(|()| None),
        Some(Subcommand::Soak(options)) => soak::run(&programs, options).await.map(|()| None),
        None => judge(arguments, programs).await.map(Some),
    }
}

async fn judge(arguments: &Arguments, programs: Arc<Programs>) -> Result<Report, Broken> {
    let asked = |scenario: &&Scenario| {
        let is_named = arguments.scenarios.iter().any(|name| scenario.name.starts_with(name.as_str()));
        is_named || arguments.scenarios.is_empty() && (scenario.is_short || !arguments.short)
    };
    let chosen: Vec<_> = scenarios::all().filter(asked).collect();
    if chosen.is_empty() {
        return Err(Broken::new("driver", "no scenario has such a name; --list shows them"));
    }
    let command = arguments.program.clone().unwrap_or_default();
    let first = Program::start(&command).await?;
    let (driver, declared) = (arguments.driver.clone(), first.features());
    let judge = Arc::new(Judge { programs, command, driver, declared, idle: Mutex::default() });
    let language = first.language().to_owned();
    let name = arguments.name.clone().unwrap_or_else(|| match &arguments.driver {
        Some(driver) => format!("{language}-{driver}"),
        None => language.clone(),
    });
    let mut report = Report::new(&name, &first.hello, arguments.driver.as_deref());
    // If the program cannot connect at all, one message says more than a list of failures.
    let world =
        World::new("probe", judge.programs.clone(), &judge.command, judge.driver.clone(), first.clone()).await?;
    world.client(&world.server.url()).await?;
    world.close_clients().await?;
    judge.idle.lock().unwrap().push(first);

    let places = Arc::new(tokio::sync::Semaphore::new(arguments.jobs.max(1)));
    let running: Vec<_> = chosen
        .iter()
        .map(|&scenario| {
            let (judge, places) = (judge.clone(), places.clone());
            tokio::spawn(async move {
                let _place = places.acquire_owned().await;
                let finding = judge.examine(scenario).await;
                finding.print();
                finding
            })
        })
        .collect();
    for (task, scenario) in running.into_iter().zip(&chosen) {
        report.findings.push(task.await.map_err(|error| Broken::new("driver", format!("{}: {error}", scenario.name)))?);
    }
    // A busy machine may be the cause, so failed scenarios run again, alone. Two holders of one lock always count.
    for (finding, scenario) in report.findings.iter_mut().zip(&chosen) {
        if finding.outcome == Outcome::Red && finding.may_be_repeated() && !arguments.once {
            *finding = judge.examine(scenario).await.after(finding);
            finding.print();
        }
    }
    Ok(report)
}

impl Judge {
    async fn examine(&self, scenario: &'static Scenario) -> Finding {
        let started = std::time::Instant::now();
        let undeclared = scenario.gate().filter(|rule| !self.declared.contains(*rule));
        let outcome = self.run(scenario).await;
        Finding::new(scenario, undeclared, outcome, started.elapsed())
    }

    async fn run(&self, scenario: &Scenario) -> Result<(), Broken> {
        let idle = self.idle.lock().unwrap().pop();
        let program = match idle {
            Some(program) => program,
            None => Program::start(&self.command).await?,
        };
        if let Some(need) = scenario.abilities().find(|need| !program.has(need)) {
            self.idle.lock().unwrap().push(program);
            return Err(Broken::lacking(format!("the program does not list {need}")));
        }
        let (programs, driver) = (self.programs.clone(), self.driver.clone());
        let world = World::new(scenario.name, programs, &self.command, driver, program).await?;
        let ran = tokio::time::timeout(SCENARIO_DEADLINE, (scenario.run)(&world)).await;
        let ran = ran.unwrap_or_else(|_| Err(Broken::new("", format!("it hangs for {SCENARIO_DEADLINE:?}"))));
        // Overlapping holds count, however the scenario ended.
        world.check_exclusion()?;
        match &ran {
            Err(broken) if broken.rules != "none" => return ran,
            _ => {}
        }
        world.close_clients().await?;
        world.check_exclusion()?;
        self.idle.lock().unwrap().push(world.program.clone());
        ran
    }
}
