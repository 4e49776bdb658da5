//! `rlock-bench`: the costs of the rlock module, always compared with the alternative without it.
//!
//! Each section starts its own server and measures both sides of a comparison in turns on it (A B A
//! B …), so that other load of the machine affects both. A result is the median of the ratios of
//! the rounds. Costs are CPU time of the server's main thread wherever the client's own speed would
//! blur the result. `stalls` differs: it looks for the longest pause that other clients experience.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use rlock_bench::clock;
use rlock_bench::server::{Server, ServerConfig};

mod names;
mod page;
mod report;
mod sections;

use report::{Header, Line, Report, SectionReport};

/// Measures the rlock module against its peers; each section starts its own redis-server
#[derive(Clone, Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The module to measure, librlock.so
    #[arg(long, value_name = "PATH")]
    module: PathBuf,

    /// The module with the smallest lock, librlock_bare.so, for `floor` and `current-servers`;
    /// without it `floor` is skipped
    #[arg(long, value_name = "PATH")]
    bare: Option<PathBuf>,

    /// Program of a current server, for `current-servers`, which is skipped without one; may be
    /// repeated
    #[arg(long, value_name = "PATH")]
    current: Vec<PathBuf>,

    /// Another module to measure in turns; prints the ratio of each result of --module to that of
    /// this module
    #[arg(long, value_name = "PATH", conflicts_with_all = ["page", "bare"])]
    against: Option<PathBuf>,

    /// Program of the server
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    server: PathBuf,

    /// How often each side of a comparison is measured
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = at_least_one)]
    rounds: usize,

    /// How often each case of `stalls`, `notify`, the crowds of `client` and each death of
    /// `failover` is repeated
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    stall_rounds: usize,

    /// Run only the cases of `stalls` whose names begin with CASE
    #[arg(long, value_name = "CASE", default_value = "")]
    stall: String,

    /// Number of locks that `memory` and `mass-expiry` hold
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = at_least_one)]
    locks: usize,

    /// Number of waiting requests in `notify`
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = at_least_one)]
    requests: usize,

    /// Also write all results, round by round, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Also write a page in Markdown to this file; other sections of that page are kept
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,

    /// Sections to measure; all if none is given
    #[arg(value_name = "SECTION")]
    sections: Vec<Section>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Section {
    /// Acquire and release a free lock, against SET NX PX
    Uncontended,
    /// `uncontended` on current servers, against SET NX PX and their own compare-and-delete
    /// commands
    CurrentServers,
    /// The server's own share of the costs: steps from an empty command to scripts
    Floor,
    /// Pass one lock around 64 connections, against BLPOP
    Handover,
    /// `handover` with 10 and with 5000 waiters
    QueueLength,
    /// Memory of a held lock, against SET NX PX
    Memory,
    /// A million requests that wait over 100 connections: their memory, and what other clients
    /// experience when they end
    Notify,
    /// A million leases that expire within one second
    MassExpiry,
    /// The time from the end of a lease to the reply of the next owner
    Punctuality,
    /// A fair lock's queue with 10, 1000 and 100,000 places
    Fair,
    /// The client crate: what it adds to redis-rs alone, and what idle guards and waiting tasks
    /// cost
    Client,
    /// Waiting next to 10 and next to 10,000 waiters that form no cycle
    Deadlock,
    /// From the death of a master to the next grant, and the cost of the settings while nothing
    /// fails
    Failover,
    /// What other clients experience while one client does something expensive
    Stalls,
}

impl Section {
    fn measure(self, arguments: &Arguments) -> Result<Vec<Line>> {
        let mut modules = vec![arguments.module.clone()];
        if self == Self::Floor {
            modules.push(arguments.bare.clone().context("floor needs --bare librlock_bare.so")?);
        } else if self == Self::CurrentServers {
            modules.extend(arguments.bare.clone());
        }
        let config = ServerConfig { program: arguments.server.clone(), modules };
        let mut server = Server::start(&config)?;
        let rounds = arguments.rounds;
        match self {
            Self::Uncontended => sections::uncontended::measure(&mut server, rounds),
            Self::CurrentServers => {
                drop(server);
                let of = |program: &PathBuf| ServerConfig { program: program.clone(), ..config.clone() };
                let servers: Vec<_> = arguments.current.iter().map(of).collect();
                sections::current_servers::measure(&servers, arguments.bare.is_some(), rounds)
            }
            Self::Floor => sections::floor::measure(&mut server, rounds),
            Self::Handover => sections::handover::measure(&mut server, rounds),
            Self::QueueLength => sections::queue_length::measure(&mut server, rounds),
            Self::Memory => sections::memory::measure(&mut server, rounds, arguments.locks),
            Self::Notify => sections::notify::measure(&mut server, arguments.stall_rounds, arguments.requests),
            Self::MassExpiry => sections::mass_expiry::measure(&mut server, rounds, arguments.locks),
            Self::Punctuality => sections::punctuality::measure(&mut server),
            Self::Fair => sections::fair::measure(&mut server, rounds),
            Self::Client => sections::client::measure(&mut server, rounds, arguments.stall_rounds),
            Self::Deadlock => sections::deadlock::measure(&mut server, rounds),
            Self::Failover => {
                drop(server);
                sections::failover::measure(&config, rounds, arguments.stall_rounds)
            }
            Self::Stalls => {
                // Each case starts its own server.
                drop(server);
                sections::stalls::measure(&config, arguments.stall_rounds, &arguments.stall)
            }
        }
    }

    /// The servers on which it runs.
    fn programs(self, arguments: &Arguments) -> &[PathBuf] {
        if self == Self::CurrentServers { &arguments.current } else { std::slice::from_ref(&arguments.server) }
    }

    fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .expect("no section is hidden from the command line")
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

/// The names of servers.
fn names_of(programs: &[PathBuf]) -> Result<String> {
    let name =
        |program: &PathBuf| Server::start(&ServerConfig { program: program.clone(), modules: Vec::new() })?.name();
    Ok(programs.iter().map(name).collect::<Result<Vec<_>>>()?.join(" and "))
}

fn header(arguments: &Arguments) -> Result<Header> {
    Ok(Header {
        cpu_count: std::thread::available_parallelism()?.get(),
        date: clock::utc_date(),
        rounds: arguments.rounds,
    })
}

fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.sections.is_empty() {
        arguments.sections = Section::value_variants().to_vec();
        arguments.sections.retain(|section| *section != Section::Floor || arguments.bare.is_some());
        arguments.sections.retain(|section| *section != Section::CurrentServers || !arguments.current.is_empty());
    }
    let mut report = Report { header: header(&arguments)?, sections: Vec::new() };
    let outcome = measure_all(&arguments, &mut report.sections);
    // Results from before a failure are still printed.
    if !report.sections.is_empty() {
        println!("{report}");
    }
    if let Some(path) = &arguments.json {
        let json = serde_json::to_string_pretty(&report)?;
        fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = arguments.page.as_ref().filter(|_| outcome.is_ok()) {
        let before = fs::read_to_string(path).unwrap_or_default();
        let page = page::write(&report, &page::machine(), &before);
        fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
        if let (Some(section), Some(folder)) =
            (report.sections.iter().find(|section| section.name == "failover"), path.parent())
        {
            page::write_prices(section, &folder.join("operations/failover.md"))?;
        }
    }
    outcome
}

/// Measures a section with this module and with another one, one round at a time in turns.
fn compare(section: Section, arguments: &Arguments, other: &Path) -> Result<Vec<Line>> {
    let of = |module: &Path| Arguments { module: module.to_owned(), rounds: 1, ..arguments.clone() };
    let (these, others) = (of(&arguments.module), of(other));
    let mut compared: Vec<Line> = Vec::new();
    for round in 0..arguments.rounds {
        eprintln!("round {} of {} …", round + 1, arguments.rounds);
        let (lines, other_lines) = (section.measure(&these)?, section.measure(&others)?);
        let quotients = lines.iter().zip(&other_lines).map(|(line, other)| line.against(other));
        if compared.is_empty() {
            compared = quotients.collect();
        } else {
            compared.iter_mut().zip(quotients).for_each(|(known, quotient)| known.add_round(&quotient));
        }
    }
    Ok(compared)
}

fn measure_all(arguments: &Arguments, sections: &mut Vec<SectionReport>) -> Result<()> {
    for &section in &arguments.sections {
        let name = section.name();
        eprintln!("measuring {name} …");
        let lines = match &arguments.against {
            None => section.measure(arguments),
            Some(other) => compare(section, arguments, other),
        };
        let lines = lines.with_context(|| format!("section {name}"))?;
        sections.push(SectionReport { name, servers: names_of(section.programs(arguments))?, lines });
    }
    Ok(())
}
