//! The table that `make test-failover` writes: the total results of all runs, by fault and server.
//!
//! A run adds to the table, and ends when each row has enough faults. So an interrupted run
//! continues when it is started again.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::LONG;
use super::faults::Fault;
use super::fleet::Settings;
use crate::support::{Server, version_of};

/// The page with the table.
const PAGE: &str = "RLOCK_FAILOVER_RECORD";
/// The number of faults that each row needs.
const FAULTS: &str = "RLOCK_FAILOVER_FAULTS";
/// The number of faults that each row needs without the settings.
const FAULTS_WITHOUT: usize = 4;

const BEGIN: &str = "<!-- written by `make test-failover`: begin -->";
const END: &str = "<!-- written by `make test-failover`: end -->";
const HEAD: &str = "| fault | server | faults | acquisitions | overlaps | without a grant, s: median | longest | from following to granting, s: median | longest | allowed | holds kept over a fault | faults without the settings | overlaps |\n\
     |---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
/// The beginning of a line below the table with the times of a row, from which medians come.
const TIMES_BEGIN: &str = "times: ";

/// The results of a number of faults.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub faults: usize,
    pub acquisitions: usize,
    pub overlaps: usize,
    /// For each fault the longest time without a grant.
    pub gaps: Vec<Duration>,
    /// For each fault the longest time from when a master was followed until it granted.
    pub waits: Vec<Duration>,
    /// The number of holds that were renewed over a fault, for longer than the longest lease after
    /// it began.
    pub kept: usize,
}

/// A line of the table.
#[derive(Clone, Default)]
struct Line {
    fault: String,
    server: String,
    /// How long a master may take to grant once it is followed, by the documents.
    allowed: String,
    safe: Outcome,
    default: Outcome,
}

pub struct Record {
    page: PathBuf,
    wanted: usize,
    server: String,
    /// The line above the table that names the server and its module.
    head: String,
}

/// The page of the record, with its table in the middle.
struct Page {
    before: String,
    heads: BTreeSet<String>,
    lines: Vec<Line>,
    after: String,
}

/// The beginning of a line above the table.
const HEAD_BEGINS: &str = "- ";

/// Serializes writes: the tests of the rows run at the same time.
static LOCK: Mutex<()> = Mutex::new(());

impl Record {
    /// Returns the record if this run writes one.
    pub fn asked_for() -> Option<Self> {
        static NAMES: LazyLock<[String; 2]> = LazyLock::new(|| {
            let server = Server::start();
            let (is_valkey, version) = version_of(&mut server.client());
            let version: Vec<String> = version.iter().map(u32::to_string).collect();
            let log = server.log();
            let commit =
                log.lines().find_map(|line| line.rsplit_once(", commit ")).expect("the module says its commit").1;
            [format!("{} {}", if is_valkey { "Valkey" } else { "Redis" }, version.join(".")), commit.to_owned()]
        });
        let page = PathBuf::from(env::var_os(PAGE)?);
        let wanted = env::var(FAULTS).map_or(10, |count| count.parse().expect("a number"));
        let [server, commit] = NAMES.clone();
        let head = format!("{HEAD_BEGINS}{server}: module of commit {commit}");
        Some(Self { page, wanted, server, head })
    }

    /// Returns how many faults a row still needs.
    pub fn lacks(&self, fault: Fault, settings: Settings) -> usize {
        let lines = self.read(&lock()).lines;
        let line = lines.into_iter().find(|line| self.is_about(line, fault)).unwrap_or_default();
        match settings {
            Settings::Safe => self.wanted.saturating_sub(line.safe.faults),
            Settings::Default if fault.exists_by_default() => FAULTS_WITHOUT.saturating_sub(line.default.faults),
            Settings::Default => 0,
        }
    }

    pub fn add(&self, fault: Fault, settings: Settings, outcome: &Outcome) {
        let guard = lock();
        let Page { before, mut heads, mut lines, after } = self.read(&guard);
        heads.insert(self.head.clone());
        let at = lines.iter().position(|line| self.is_about(line, fault)).unwrap_or_else(|| {
            let allowed = format!("{:.1}", fault.allowed(LONG.lease).as_secs_f64());
            let (fault, server) = (fault.name().to_owned(), self.server.clone());
            lines.push(Line { fault, server, allowed, ..Line::default() });
            lines.len() - 1
        });
        let row = match settings {
            Settings::Safe => &mut lines[at].safe,
            Settings::Default => &mut lines[at].default,
        };
        row.add(outcome);
        lines.sort_by(|one, other| (&one.server, &one.fault).cmp(&(&other.server, &other.fault)));
        let heads: Vec<String> = heads.into_iter().collect();
        let times: String = lines.iter().map(Line::times).collect();
        let (heads, table) = (heads.join("\n"), table(&lines));
        let text = format!("{before}{BEGIN}\n\n{heads}\n\n{HEAD}{table}\n<!--\n{times}-->\n\n{END}{after}");
        let unfinished = self.page.with_extension("unfinished");
        fs::write(&unfinished, text).expect("a writable folder");
        fs::rename(&unfinished, &self.page).expect("a writable folder");
    }

    fn is_about(&self, line: &Line, fault: Fault) -> bool {
        line.fault == fault.name() && line.server == self.server
    }

    fn read(&self, _: &MutexGuard<'_, ()>) -> Page {
        let page = fs::read_to_string(&self.page).expect("a page for the record");
        let (before, rest) = page.split_once(BEGIN).expect("a place for the table");
        let (table, after) = rest.split_once(END).expect("an end of the table");
        let heads = table.lines().filter(|line| line.starts_with(HEAD_BEGINS)).map(str::to_owned).collect();
        let mut lines: Vec<Line> = table.lines().filter_map(Line::read).collect();
        for text in table.lines() {
            lines.iter_mut().for_each(|line| line.read_times(text));
        }
        Page { before: before.to_owned(), heads, lines, after: after.to_owned() }
    }
}

fn lock() -> MutexGuard<'static, ()> {
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first cell of a line with the sums for a server.
const ALL: &str = "all";

impl Outcome {
    fn add(&mut self, other: &Self) {
        self.faults += other.faults;
        self.acquisitions += other.acquisitions;
        self.overlaps += other.overlaps;
        self.kept += other.kept;
        self.gaps.extend(&other.gaps);
        self.waits.extend(&other.waits);
    }
}

/// Returns the median and the longest of some times, in seconds.
fn median_and_longest(times: &[Duration]) -> [f64; 2] {
    let mut sorted = times.to_vec();
    sorted.sort();
    let at = |at: Option<usize>| at.and_then(|at| sorted.get(at)).copied().unwrap_or_default().as_secs_f64();
    [at(Some(sorted.len() / 2)), at(sorted.len().checked_sub(1))]
}

impl Line {
    /// `None` if the line is not about one fault.
    fn read(line: &str) -> Option<Self> {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [
            "",
            fault,
            server,
            faults,
            acquisitions,
            overlaps,
            _,
            _,
            _,
            _,
            allowed,
            kept,
            faults_without,
            overlaps_without,
            "",
        ] = cells.as_slice()
        else {
            return None;
        };
        let number = |text: &str| text.parse().ok();
        let safe = Outcome {
            faults: number(faults)?,
            acquisitions: number(acquisitions)?,
            overlaps: number(overlaps)?,
            kept: number(kept)?,
            ..Outcome::default()
        };
        let default =
            Outcome { faults: number(faults_without)?, overlaps: number(overlaps_without)?, ..Outcome::default() };
        let [fault, server, allowed] = [fault, server, allowed].map(|text| (*text).to_owned());
        (fault != ALL).then_some(Self { fault, server, allowed, safe, default })
    }

    /// Reads the times of this line, if a line below the table has them.
    fn read_times(&mut self, line: &str) {
        let cells: Vec<&str> = line.strip_prefix(TIMES_BEGIN).into_iter().flat_map(|rest| rest.split('|')).collect();
        if let [fault, server, gaps, waits] = cells[..]
            && (fault.trim(), server.trim()) == (self.fault.as_str(), self.server.as_str())
        {
            let read = |text: &str| -> Vec<Duration> {
                text.split_whitespace().map(|time| Duration::from_secs_f64(time.parse().expect("a time"))).collect()
            };
            (self.safe.gaps, self.safe.waits) = (read(gaps), read(waits));
        }
    }

    fn times(&self) -> String {
        let write =
            |times: &[Duration]| times.iter().map(|time| format!(" {:.1}", time.as_secs_f64())).collect::<String>();
        let Self { fault, server, safe, .. } = self;
        format!("{TIMES_BEGIN}{fault} | {server} |{} |{}\n", write(&safe.gaps), write(&safe.waits))
    }

    fn write(&self, out: &mut String) {
        let Self { fault, server, allowed, safe, default } = self;
        let Outcome { faults, acquisitions, overlaps, gaps, waits, kept } = safe;
        let [gap, longest_gap] = median_and_longest(gaps);
        let [wait, longest_wait] = median_and_longest(waits);
        let _ = writeln!(
            out,
            "| {fault} | {server} | {faults} | {acquisitions} | {overlaps} | {gap:.1} | {longest_gap:.1} | {wait:.1} \
             | {longest_wait:.1} | {allowed} | {kept} | {} | {} |",
            default.faults, default.overlaps
        );
    }
}

/// Writes all lines, which are sorted by server, and the sums for each server.
fn table(lines: &[Line]) -> String {
    let mut servers: Vec<&str> = lines.iter().map(|line| line.server.as_str()).collect();
    servers.dedup();
    let mut text = String::new();
    for server in servers {
        let mut sum = Line { fault: ALL.to_owned(), server: server.to_owned(), ..Line::default() };
        for line in lines.iter().filter(|line| line.server == server) {
            line.write(&mut text);
            sum.safe.add(&line.safe);
            sum.default.add(&line.default);
        }
        sum.write(&mut text);
    }
    text
}

#[test]
fn table_that_was_written_is_read_again() {
    let times = [1.5, 30.0, 2.0].map(Duration::from_secs_f64).to_vec();
    let safe =
        Outcome { faults: 3, acquisitions: 90, kept: 1, gaps: times.clone(), waits: times, ..Outcome::default() };
    let default = Outcome { faults: 2, overlaps: 7, ..Outcome::default() };
    let line = Line { fault: "a".to_owned(), server: "b".to_owned(), allowed: "14.0".to_owned(), safe, default };
    let text = table(std::slice::from_ref(&line));
    assert!(
        text.starts_with("| a | b | 3 | 90 | 0 | 2.0 | 30.0 | 2.0 | 30.0 | 14.0 | 1 | 2 | 7 |\n| all | b |"),
        "{text}"
    );
    let mut lines: Vec<Line> = text.lines().filter_map(Line::read).collect();
    assert_eq!(lines.len(), 1);
    lines[0].read_times(&line.times());
    assert_eq!((table(&lines), lines[0].times()), (text, line.times()));
}
