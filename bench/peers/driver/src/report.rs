//! The page: plots for a quick look, tables for details.

use std::fmt::{self, Write};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::Failure;
use crate::aims::{self, CONTENDED_64, UNCONTENDED_16};
use crate::cell::{self, Cell, Work};
use crate::crash;
use crate::machine::Machine;
use crate::peer::{Absent, Contestant, Peer};
use crate::plot::{self, Bar};
use crate::samples::{Samples, Summary};
use crate::server::Servers;

/// All results of a run.
pub struct Report<'a> {
    pub machine: &'a Machine,
    pub servers: &'a Servers,
    pub contestants: &'a [Contestant],
    pub absent: &'a [Absent],
    pub samples: &'a Samples,
    pub failures: &'a [Failure],
    pub rounds: usize,
    pub seconds: f64,
    pub full: bool,
    pub works: &'a [Work],
}

/// A plot at the top of the page, and its sentence.
struct Picture {
    file: &'static str,
    title: &'static str,
    question: &'static str,
    /// The row of the headline table.
    row: &'static str,
    work: Work,
    cell: &'static str,
    figure: &'static str,
    unit: &'static str,
    /// Whether more is better.
    is_rate: bool,
}

const PICTURES: [Picture; 5] = [
    Picture {
        file: "contended.svg",
        title: "Hand-overs per second, 64 clients on one lock (more is better)",
        question: "How often does a lock that 64 clients compete for go to another client?",
        row: "hand-overs to another client per second",
        work: Work::Contended,
        cell: CONTENDED_64,
        figure: "hand_overs_per_s",
        unit: "hand-overs per second",
        is_rate: true,
    },
    Picture {
        file: "wait.svg",
        title: "Wait p99.9 in ms, 64 clients on one lock (less is better)",
        question: "How long do the unluckiest clients wait (99.9th percentile)?",
        row: "wait for the lock, p99.9",
        work: Work::Contended,
        cell: CONTENDED_64,
        figure: "wait_p999_ms",
        unit: "ms",
        is_rate: false,
    },
    Picture {
        file: "hand-over.svg",
        title: "Hand-over p99 in ms, 64 clients on one lock (less is better)",
        question: "How long is the lock idle between two holders (99th percentile)?",
        row: "hand-over to the next holder, p99",
        work: Work::Contended,
        cell: CONTENDED_64,
        figure: "hand_over_p99_ms",
        unit: "ms",
        is_rate: false,
    },
    Picture {
        file: "server-cpu.svg",
        title: "Server CPU per pair in µs, 16 clients, each with its own lock (less is better)",
        question: "What does an acquisition and release of a free lock cost the server?",
        row: "server CPU per pair of a free lock, µs",
        work: Work::Uncontended,
        cell: UNCONTENDED_16,
        figure: "server_us_per_pair",
        unit: "µs of CPU per pair",
        is_rate: false,
    },
    Picture {
        file: "crash.svg",
        title: "From the death of a holder to the next holder in ms (less is better)",
        question: "How long do clients wait when a holder crashes?",
        row: "next holder after a crash",
        work: Work::Crash,
        cell: crash::HOLDER,
        figure: "next_holder_ms",
        unit: "ms",
        is_rate: false,
    },
];

/// Why contention is measured in hand-overs.
const PAIRS_AND_HAND_OVERS: &str = "\
A hand-over is a grant to another client than the one before. A pair, an acquisition with its release, is
not always one: a client that polls and sleeps between attempts often reacquires the lock that it has just
released, before another client looks. So such a client can have many pairs while others wait all the time.
*Wait* is the time from the request to the grant; a wait that is not over at the end of the measurement
counts with the time it has lasted. *Least share* is 1 if all clients get the lock equally often, and 0
if one of them never gets it.";

/// A column: heading, figure, and whether the smallest and largest round are shown.
type Column = (&'static str, &'static str, bool);

impl Report<'_> {
    /// The contestant that others are compared with.
    pub fn baseline(&self) -> Option<&Contestant> {
        let ours = || self.contestants.iter().filter(|contestant| contestant.is_rlock());
        ours().find(|contestant| contestant.peer.id == "rlock-java").or_else(|| ours().next())
    }

    /// Writes the page, and the folder with plots and figures beside it.
    pub fn write(&self, page: &Path) -> Result<()> {
        let stem = page.file_stem().context("the report needs a name")?;
        let folder = page.with_file_name(stem);
        fs::create_dir_all(&folder)?;
        self.samples.write(&folder)?;
        for picture in &PICTURES {
            let bars = self.bars(picture);
            if !bars.is_empty() {
                plot::bars(&folder.join(picture.file), picture.title, &bars)?;
            }
        }
        let mut text = String::new();
        self.page(&mut text, &stem.to_string_lossy())?;
        Ok(fs::write(page, text)?)
    }

    fn page(&self, out: &mut String, folder: &str) -> fmt::Result {
        writeln!(out, "# Benchmarks\n")?;
        writeln!(out, "rlock compared with other locks: the same work on the same machine, each with its own client.")?;
        writeln!(
            out,
            "`bench-peers` wrote this page. [benchmarks-module.md](benchmarks-module.md) has the costs of the module's parts.\n\
             Figures are medians of the rounds. Ratios (*times ours*) are medians of the ratios of the single rounds, \
             so they can\ndiffer from the ratio of two figures.\n"
        )?;
        for picture in &PICTURES {
            if !self.bars(picture).is_empty() {
                writeln!(out, "**{}** {}\n", picture.question, self.sentence(picture))?;
                writeln!(out, "![{}]({folder}/{})\n", picture.title, picture.file)?;
            }
        }
        self.aims(out)?;
        self.peers(out)?;
        for work in self.works {
            self.work(out, *work)?;
        }
        self.failed(out)?;
        self.method(out, folder)
    }

    /// The figures of the plots, for the page that shows the module to a new reader.
    pub fn headline(&self) -> String {
        let ours = self.baseline().map_or(String::new(), Contestant::id);
        let mut text = String::from("| | rlock | Redisson |\n|---|---:|---:|\n");
        for picture in &PICTURES {
            let of = |id: &str| {
                let unit = if picture.unit == "ms" { " ms" } else { "" };
                let summary = self.samples.summary(picture.work, picture.cell, id, picture.figure);
                summary.map_or("not measured".to_owned(), |summary| number(summary.median) + unit)
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "| {} | {} | {} |", picture.row, of(&ours), of("redisson"));
        }
        text
    }

    /// The bars of a plot, best first.
    fn bars(&self, picture: &Picture) -> Vec<Bar> {
        let mut bars: Vec<Bar> = self
            .contestants
            .iter()
            .filter_map(|contestant| {
                let summary = self.samples.summary(picture.work, picture.cell, &contestant.id(), picture.figure)?;
                Some(Bar { label: contestant.label(), summary, is_ours: contestant.is_rlock() })
            })
            .collect();
        bars.sort_by(|a, b| a.summary.median.total_cmp(&b.summary.median));
        if picture.is_rate {
            bars.reverse();
        }
        bars
    }

    fn sentence(&self, picture: &Picture) -> String {
        let of = |id: &str| self.samples.summary(picture.work, picture.cell, id, picture.figure);
        let Some((ours, value)) = self.baseline().and_then(|ours| Some((ours, of(&ours.id())?))) else {
            return String::new();
        };
        let mut sentence = format!("{}: {} {}", ours.label(), number(value.median), picture.unit);
        if let Some(other) = of("redisson") {
            let _ = write!(sentence, "; Redisson: {}", number(other.median));
            let ratio = self.samples.ratio(picture.work, picture.cell, (&ours.id(), "redisson"), picture.figure);
            if let Some(ratio) = ratio {
                let _ = write!(sentence, " ({} times ours)", number(1.0 / ratio.median));
            }
        }
        sentence + "."
    }

    fn aims(&self, out: &mut String) -> fmt::Result {
        let aims = aims::of(self);
        if aims.iter().all(|aim| aim.result.is_none()) {
            return Ok(());
        }
        writeln!(
            out,
            "## Aims\n\nRatios of figures of the same round: the median of the rounds, with the smallest and the largest.\n"
        )?;
        writeln!(out, "| figure | aim | result | met |\n|---|---|---|---|")?;
        for aim in aims {
            let result = aim.result.map_or("not measured".to_owned(), with_ends);
            let met = match aim.is_met {
                Some(true) => "yes",
                Some(false) => "**no**",
                None => "",
            };
            writeln!(out, "| {} | {} | {result} | {met} |", aim.text, aim.bound)?;
        }
        writeln!(out, "\n{PAIRS_AND_HAND_OVERS}\n")
    }

    fn peers(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "## Peers\n\n| peer | version | language | server | |\n|---|---|---|---|---|")?;
        let mut seen = Vec::new();
        for contestant in self.contestants {
            let peer = &contestant.peer;
            if !seen.contains(&&peer.id) {
                seen.push(&peer.id);
                writeln!(
                    out,
                    "| {} | {} | {} | {} | {} |",
                    peer.name,
                    peer.version,
                    peer.language,
                    self.server(peer),
                    peer.note
                )?;
            }
        }
        for absent in self.absent {
            let peer = &absent.peer;
            let row = format!("{} | {} | {} | {}", peer.name, peer.version, peer.language, peer.server);
            writeln!(out, "| {row} | **could not be installed:** {} |", absent.reason)?;
        }
        writeln!(out)
    }

    /// The server of a peer, with its version if it is not that of the command line.
    fn server(&self, peer: &Peer) -> String {
        match self.servers.others.get(&peer.on) {
            Some(other) if peer.server == "rlock" => format!("rlock on {}", other.version),
            Some(other) => other.version.clone(),
            None => peer.server.clone(),
        }
    }

    fn work(&self, out: &mut String, work: Work) -> fmt::Result {
        let (title, text) = heading(work);
        writeln!(out, "## {title}\n\n{text}\n")?;
        if work == Work::Crash {
            self.table(out, work, crash::HOLDER, &[("ms to the next holder", "next_holder_ms", true)])?;
            let columns = [
                ("ms until work goes on", "next_holder_ms", true),
                ("ms until Redis answers", "server_back_ms", false),
                ("holds lost (overlaps)", "overlaps", false),
                ("errors", "errors", false),
            ];
            return self.table(out, work, crash::RESTART, &columns);
        }
        for cell in cell::cells(work, self.full) {
            self.table(out, work, &cell.name, &columns(&cell))?;
        }
        Ok(())
    }

    fn table(&self, out: &mut String, work: Work, cell: &str, columns: &[Column]) -> fmt::Result {
        let measured =
            |contestant: &&Contestant, column: &Column| self.samples.summary(work, cell, &contestant.id(), column.1);
        let has_any = |contestant: &&Contestant| columns.iter().any(|column| measured(contestant, column).is_some());
        let rows: Vec<&Contestant> = self.contestants.iter().filter(has_any).collect();
        if rows.is_empty() {
            return Ok(());
        }
        // The first column is the one by which peers are compared.
        let lead = columns.first().map_or("", |column| column.1);
        writeln!(out, "### {cell}\n")?;
        let heads: Vec<&str> = columns.iter().map(|column| column.0).collect();
        writeln!(out, "| | {} | against rlock |", heads.join(" | "))?;
        writeln!(out, "|---|{}---:|", "---:|".repeat(columns.len()))?;
        for contestant in rows {
            let figures: Vec<String> = columns
                .iter()
                .map(|column| match measured(&contestant, column) {
                    Some(summary) if column.2 => with_ends(summary),
                    Some(summary) => number(summary.median),
                    None => String::new(),
                })
                .collect();
            let ratio = self.baseline().and_then(|ours| {
                self.samples.ratio(work, cell, (&contestant.id(), &ours.id()), lead).map(|ratio| number(ratio.median))
            });
            let name = if contestant.is_rlock() { format!("**{}**", contestant.label()) } else { contestant.label() };
            writeln!(out, "| {name} | {} | {} |", figures.join(" | "), ratio.unwrap_or_default())?;
        }
        writeln!(out)
    }

    fn failed(&self, out: &mut String) -> fmt::Result {
        if self.failures.is_empty() {
            return Ok(());
        }
        writeln!(out, "## Failures\n\n| work | cell | peer | rounds | first reason |\n|---|---|---|---:|---|")?;
        let mut seen: Vec<(Work, &str, &str)> = Vec::new();
        for failure in self.failures {
            let place = (failure.work, failure.cell.as_str(), failure.peer.as_str());
            if seen.contains(&place) {
                continue;
            }
            seen.push(place);
            let count = self.failures.iter().filter(|f| (f.work, f.cell.as_str(), f.peer.as_str()) == place).count();
            let reason = failure.reason.replace('|', "/");
            writeln!(out, "| {} | {} | {} | {count} | {reason} |", place.0.name(), place.1, place.2)?;
        }
        writeln!(out)
    }

    fn method(&self, out: &mut String, folder: &str) -> fmt::Result {
        writeln!(out, "## How it was measured\n")?;
        for (name, value) in self.machine {
            writeln!(out, "- {name}: {value}")?;
        }
        writeln!(out, "- {} rounds of all peers, in turns, about {} s per cell", self.rounds, self.seconds)?;
        writeln!(
            out,
            "\nClients and servers share the machine, so both together limit a rate. The server's CPU time does not include that of the clients. \
             *Jain* is 1 if all clients have the same share, and 1/n if one of n has everything. An *overlap* is a \
             grant before the last holder has begun to release."
        )?;
        writeln!(
            out,
            "[bench/peers/README.md](../bench/peers/README.md) explains the figures and how to run the benchmark. All rounds are in {}.",
            self.files(folder)
        )
    }

    fn files(&self, folder: &str) -> String {
        let files = self.samples.works().into_iter().map(|work| format!("[{0}.csv]({folder}/{0}.csv)", work.name()));
        files.collect::<Vec<_>>().join(", ")
    }
}

fn heading(work: Work) -> (&'static str, &'static str) {
    match work {
        Work::Uncontended => (
            "Uncontended",
            "Each client acquires and releases its own lock. Times are those of the pair; CPU, commands and bytes are the server's.",
        ),
        Work::Contended => (
            "Contended",
            "All clients compete for one lock, in one or eight processes, and hold it for the time in the title. \
             A client's share is the number of its pairs, divided by the mean of all clients.",
        ),
        Work::Fair => (
            "Fair lock",
            "The same on a lock that serves requests in order. *Overtaken* counts grants to a client \
             that asked at least 10 ms after another one that still waited.",
        ),
        Work::ReadWrite => ("Read-write lock", "Readers and writers of one lock, in one process for each kind."),
        Work::Semaphore => ("Semaphore", "All clients compete for the permits."),
        Work::Many => (
            "Four keys in one step",
            "A client holds all four keys or none: `RLOCK.MACQUIRE` beside `MSETEX … NX`, on the same Redis.",
        ),
        Work::Crash => (
            "Crash",
            "A holder is killed while other clients wait. The lease or the session's timeout is 30 s; a peer may \
             have a way to free the lock earlier, and the module uses `SESSION`. Then Redis is killed under load \
             and restarted with its append-only file. For the restart the leases are 5 s: if a client gets no \
             answer to a release and does not repeat it, the lock may stay held for that long.",
        ),
        Work::Growth => (
            "Growth",
            "The cost of a pair with more clients waiting for one lock, and with more other locks held. Memory is \
             Redis's `used_memory` per waiter or lock.",
        ),
        Work::Latency => (
            "Slow network",
            "A proxy between client and server delays every round trip by the time in the title. One client: the \
             round trips until it has the lock. Several clients: the round trips from the start of a release \
             until the next client has the lock. One round trip is the least in both cases.",
        ),
        Work::Replicated => (
            "With a replica",
            "A failover loses what no replica has. Redisson waits for the replica after each acquisition, and so do \
             the raw commands of rlock with `WAIT`. With the settings for failovers, rlock needs no such wait: a new \
             master grants nothing until the holds that it may not know are over. Each is measured beside the same \
             without a replica.",
        ),
    }
}

fn columns(cell: &Cell) -> Vec<Column> {
    let rate = ("pairs/s", "pairs_per_s", true);
    let costs = [
        ("server CPU µs/pair", "server_us_per_pair", true),
        ("main thread", "main_thread_us_per_pair", false),
        ("client CPU", "client_us_per_pair", false),
    ];
    let traffic = [("commands", "commands_per_pair", false), ("bytes", "bytes_per_pair", false)];
    let hand_over = [("idle p50 ms", "hand_over_p50_ms", false), ("p99", "hand_over_p99_ms", true)];
    let waits = [("wait p50 ms", "wait_p50_ms", false), ("p99", "wait_p99_ms", true), ("p99.9", "wait_p999_ms", false)];
    let shares = [("least share", "min_share", false), ("most", "max_share", false), ("Jain", "jain", false)];
    let failures = [("overlaps", "overlaps", false), ("errors", "errors", false)];
    let mut columns = match cell.hands_over() {
        true => vec![("hand-overs/s", "hand_overs_per_s", true)],
        false => vec![rate],
    };
    match cell.work {
        Work::Uncontended | Work::Many | Work::Replicated if cell.own_locks => {
            columns.extend([("p50 ms", "pair_p50_ms", false), ("p99", "pair_p99_ms", false)]);
            columns.extend(costs);
            columns.extend(traffic);
        }
        Work::Latency => {
            columns.extend([("round trips", "round_trips", true)]);
            columns.extend(hand_over);
        }
        Work::Growth => {
            columns = vec![("main thread µs/pair", "main_thread_us_per_pair", true), rate];
            columns.push(if cell.held > 0 {
                ("bytes per lock", "bytes_per_lock", false)
            } else {
                ("bytes per waiter", "bytes_per_waiter", false)
            });
        }
        _ => {
            if cell.hands_over() {
                columns.extend(waits);
            }
            columns.extend(shares);
            if cell.hands_over() {
                columns.extend(hand_over);
                columns.push(rate);
            }
            if cell.work == Work::Fair {
                columns.push(("overtaken %", "overtaken_percent", false));
            }
            columns.extend(costs);
            columns.extend(traffic);
        }
    }
    columns.extend(failures);
    columns
}

fn with_ends(summary: Summary) -> String {
    format!("{} ({}–{})", number(summary.median), number(summary.min), number(summary.max))
}

/// Formats a figure with its significant digits.
pub fn number(figure: f64) -> String {
    let magnitude = figure.abs();
    if magnitude >= 1000.0 {
        let digits = format!("{figure:.0}");
        let mut grouped = String::new();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index) % 3 == 0 && !grouped.ends_with('-') {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        return grouped;
    }
    match magnitude {
        0.0 => "0".to_owned(),
        _ if figure.fract() == 0.0 || magnitude >= 100.0 => format!("{figure:.0}"),
        _ if magnitude >= 10.0 => format!("{figure:.1}"),
        _ if magnitude >= 1.0 => format!("{figure:.2}"),
        _ if magnitude >= 0.01 => format!("{figure:.3}"),
        _ => format!("{figure:.5}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_say_something() {
        let shown = [1_234_567.8, 1000.0, 123.4, 12.34, 1.234, 0.1234, 0.001234, 0.0, 16.0].map(number);
        assert_eq!(shown, ["1,234,568", "1,000", "123", "12.3", "1.23", "0.123", "0.00123", "0", "16"]);
    }
}
