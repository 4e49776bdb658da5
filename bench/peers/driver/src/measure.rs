//! One peer in one cell: servers, programs, the window, and the resulting figures.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cell::{Cell, Work};
use crate::clock;
use crate::fill;
use crate::peer::{Contestant, Kind};
use crate::program::{Assignment, Program};
use crate::proxy::Proxy;
use crate::records::{self, Record};
use crate::server::{Counters, Server, Servers};

/// A lease or session timeout that no run reaches.
pub const LEASE_MS: u64 = 30_000;
/// The window, as shares of the time of a run: its begin and its end.
const WINDOW: (f64, f64) = (1.0 / 6.0, 0.95);
/// The begin of the window if many clients wait, because they first ask one after the other.
const WINDOW_OF_MANY: f64 = 0.5;

/// Only this many locks take more memory than the server's own buffers vary.
const ENOUGH_LOCKS: usize = 10_000;

/// The running servers, by kind. They stay for a round.
pub struct Stage<'a> {
    servers: &'a Servers,
    running: HashMap<Kind, Server>,
    folder: &'a Path,
    seconds: f64,
}

/// The results of a run of a cell.
struct Run {
    records: Vec<Record>,
    errors: u64,
    before: Counters,
    window: (Counters, Counters),
    start_ns: u64,
    /// The CPU time of the programs within the window.
    client_cpu_ns: u64,
}

impl<'a> Stage<'a> {
    /// Creates a stage. `folder` is for the programs' files; a cell takes `seconds`.
    pub fn new(servers: &'a Servers, folder: &'a Path, seconds: f64) -> Self {
        Self { servers, running: HashMap::new(), folder, seconds }
    }

    /// Measures a contestant in a cell, and returns named figures.
    pub fn measure(&mut self, contestant: &Contestant, cell: &Cell) -> Result<Vec<(&'static str, f64)>> {
        let kind = contestant.kind();
        if !self.running.contains_key(&kind) {
            self.running.insert(kind.clone(), self.servers.start(&kind, false)?);
        }
        let server = self.running.get_mut(&kind).context("the server is not running")?;
        server.empty()?;
        let outcome = Self::run(server, contestant, cell, self.folder, self.seconds * cell.longer);
        server.empty()?;
        let run = outcome?;
        Ok(figures(contestant, cell, &run))
    }

    /// Ends the servers.
    pub fn clear(&mut self) {
        self.running.clear();
    }

    fn run(server: &mut Server, contestant: &Contestant, cell: &Cell, folder: &Path, seconds: f64) -> Result<Run> {
        let before = server.counters()?;
        fill::hold_locks(server, contestant, cell.held)?;
        let filled = server.counters()?;
        let round_trip = Duration::from_millis(cell.round_trip_ms);
        let address = match cell.round_trip_ms {
            0 => server.address(),
            _ => Proxy::start(server.address(), round_trip)?.address(),
        };
        let mut programs = Vec::new();
        let mut first = 0;
        for part in &cell.parts {
            for process in 0..part.processes {
                let clients = part.clients / part.processes;
                let assignment = Assignment {
                    server: address,
                    lock: part.lock.to_owned(),
                    clients,
                    first,
                    locks: if cell.own_locks { cell.clients() } else { 1 },
                    key: format!("peers-{}", cell.work.name()),
                    seconds,
                    section_us: cell.section_us,
                    lease_ms: LEASE_MS,
                    permits: cell.permits,
                    hold: false,
                    stream: false,
                };
                let name = format!("{}-{process}", part.lock);
                programs.push((Program::start(contestant, &assignment, folder, &name)?, part.lock));
                first += clients;
            }
        }
        for (program, _) in &mut programs {
            program.wait_until_ready()?;
        }
        let start_ns = clock::monotonic_ns();
        for (program, _) in &mut programs {
            program.go()?;
        }
        let begin_share = if cell.work == Work::Growth { WINDOW_OF_MANY } else { WINDOW.0 };
        let at = |share: f64| start_ns + (seconds * share * 1e9) as u64;
        let client_cpu_ns = || programs.iter().map(|(program, _)| program.cpu_ns()).sum::<u64>();
        clock::sleep_until_ns(at(begin_share));
        let (begin, client_begin_ns) = (server.counters()?, client_cpu_ns());
        clock::sleep_until_ns(at(WINDOW.1));
        let (end, client_end_ns) = (server.counters()?, client_cpu_ns());
        let client_cpu_ns = client_end_ns.saturating_sub(client_begin_ns);
        let mut run = Run { records: Vec::new(), errors: 0, before, window: (begin, end), start_ns, client_cpu_ns };
        if cell.held > 0 {
            // The memory of the held locks only, without what the clients add.
            run.window.0.used_memory = filled.used_memory;
        }
        for (program, lock) in programs {
            let outcome = program.finish()?;
            let weight = cell.weight(lock);
            run.records.extend(outcome.records.into_iter().map(|record| Record { weight, ..record }));
            run.errors += outcome.errors;
        }
        Ok(run)
    }
}

fn figures(contestant: &Contestant, cell: &Cell, run: &Run) -> Vec<(&'static str, f64)> {
    let (begin, end) = run.window;
    let in_window = |record: &&Record| (begin.at_ns..end.at_ns).contains(&record.free_ns);
    let records: Vec<Record> = run.records.iter().filter(in_window).copied().collect();
    let pairs = records.len() as f64;
    let seconds = (end.at_ns - begin.at_ns) as f64 / 1e9;
    let mut figures = vec![
        ("pairs_per_s", pairs / seconds),
        ("errors", run.errors as f64),
        ("overlaps", records::overlaps(&run.records, cell.capacity()) as f64),
    ];
    let per_pair = |amount: u64| amount as f64 / pairs;
    if pairs > 0.0 {
        figures.push(("server_us_per_pair", per_pair(end.cpu.all - begin.cpu.all) / 1e3));
        figures.push(("client_us_per_pair", per_pair(run.client_cpu_ns) / 1e3));
    }
    if pairs > 0.0 && contestant.is_on_redis() {
        figures.push(("main_thread_us_per_pair", per_pair(end.cpu.main_thread - begin.cpu.main_thread) / 1e3));
        figures.push(("commands_per_pair", per_pair(end.commands - begin.commands)));
        figures.push(("bytes_per_pair", per_pair(end.bytes - begin.bytes)));
    }
    if cell.hands_over() {
        figures.push(("hand_overs_per_s", records::hand_overs(&records) as f64 / seconds));
        let ended = records.iter().map(Record::waited_ms);
        let open = records::open_waits_ms(&run.records, cell.clients(), run.start_ns, end.at_ns);
        let waits: Vec<f64> = ended.chain(open).collect();
        let names = [("wait_p50_ms", 0.5), ("wait_p99_ms", 0.99), ("wait_p999_ms", 0.999)];
        figures.extend(names.iter().filter_map(|(name, share)| Some((*name, records::quantile(&waits, *share)?))));
    }
    figures.extend(times(cell, &records));
    if !cell.own_locks {
        figures.extend(fairness(cell, run, &records));
    }
    if cell.work == Work::Growth && contestant.is_on_redis() {
        let memory = begin.used_memory as f64 - run.before.used_memory as f64;
        match cell.held {
            0 => figures.push(("bytes_per_waiter", memory / cell.clients() as f64)),
            held if held >= ENOUGH_LOCKS => figures.push(("bytes_per_lock", memory / held as f64)),
            // The server's own buffers vary by more than these locks take.
            _ => {}
        }
    }
    figures
}

fn times(cell: &Cell, records: &[Record]) -> Vec<(&'static str, f64)> {
    let quantiles = |name: (&'static str, &'static str), figures: &[f64]| {
        let of = |share| records::quantile(figures, share);
        [of(0.5).map(|p50| (name.0, p50)), of(0.99).map(|p99| (name.1, p99))].into_iter().flatten().collect::<Vec<_>>()
    };
    let pairs: Vec<f64> = records.iter().map(Record::pair_ms).collect();
    let waits: Vec<f64> = records.iter().map(Record::waited_ms).collect();
    let mut figures = quantiles(("pair_p50_ms", "pair_p99_ms"), &pairs);
    if cell.capacity() == 1 && !cell.own_locks {
        let hand_overs = records::hand_overs_ms(records);
        figures.extend(quantiles(("hand_over_p50_ms", "hand_over_p99_ms"), &hand_overs));
        if cell.round_trip_ms > 0 {
            figures.extend(round_trips(cell, &waits, &hand_overs));
        }
    }
    figures
}

/// The time to get the lock (one client) or to hand it over (several), in round trips of the
/// network.
fn round_trips(cell: &Cell, waits: &[f64], hand_overs: &[f64]) -> Option<(&'static str, f64)> {
    let waited = if cell.clients() == 1 { waits } else { hand_overs };
    Some(("round_trips", records::quantile(waited, 0.5)? / cell.round_trip_ms as f64))
}

fn fairness(cell: &Cell, run: &Run, records: &[Record]) -> Vec<(&'static str, f64)> {
    let mut figures = Vec::new();
    if let Some(shares) = records::shares(records, cell.clients()) {
        figures.extend([("jain", shares.jain), ("min_share", shares.min), ("max_share", shares.max)]);
    }
    if cell.capacity() == 1 && !run.records.is_empty() {
        let overtaken = records::overtakings(&run.records) as f64;
        figures.push(("overtaken_percent", 100.0 * overtaken / run.records.len() as f64));
    }
    figures
}
