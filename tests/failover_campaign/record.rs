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
const HEAD: &str = "| fault | server | faults | acquisitions | overlaps | longest time without a grant, s | holds kept over a fault | faults without the settings | overlaps |\n\
     |---|---|---:|---:|---:|---:|---:|---:|---:|\n";

/// The results of a number of faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub faults: usize,
    pub acquisitions: usize,
    pub overlaps: usize,
    pub longest_gap: Duration,
    /// The number of holds that were renewed over a fault, for longer than the longest lease after
    /// it began.
    pub kept: usize,
}

/// A line of the table.
struct Line {
    fault: String,
    server: String,
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
        let line = lines.iter().find(|line| self.is_about(line, fault));
        let had = |of: fn(&Line) -> Outcome| line.map(of).unwrap_or_default().faults;
        match settings {
            Settings::Safe => self.wanted.saturating_sub(had(|line| line.safe)),
            Settings::Default => FAULTS_WITHOUT.saturating_sub(had(|line| line.default)),
        }
    }

    pub fn add(&self, fault: Fault, settings: Settings, outcome: Outcome) {
        let guard = lock();
        let Page { before, mut heads, mut lines, after } = self.read(&guard);
        heads.insert(self.head.clone());
        let at = lines.iter().position(|line| self.is_about(line, fault)).unwrap_or_else(|| {
            let (fault, server) = (fault.name().to_owned(), self.server.clone());
            lines.push(Line { fault, server, safe: Outcome::default(), default: Outcome::default() });
            lines.len() - 1
        });
        let row = match settings {
            Settings::Safe => &mut lines[at].safe,
            Settings::Default => &mut lines[at].default,
        };
        row.faults += outcome.faults;
        row.acquisitions += outcome.acquisitions;
        row.overlaps += outcome.overlaps;
        row.kept += outcome.kept;
        row.longest_gap = row.longest_gap.max(outcome.longest_gap);
        lines.sort_by(|one, other| (&one.server, &one.fault).cmp(&(&other.server, &other.fault)));
        let heads: Vec<String> = heads.into_iter().collect();
        let text = format!("{before}{BEGIN}\n\n{}\n\n{HEAD}{}\n{END}{after}", heads.join("\n"), table(&lines));
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
        let lines = table.lines().filter_map(Line::read).collect();
        Page { before: before.to_owned(), heads, lines, after: after.to_owned() }
    }
}

fn lock() -> MutexGuard<'static, ()> {
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first cell of a line with the sums for a server.
const ALL: &str = "all";

impl Line {
    /// `None` if the line is not about one fault.
    fn read(line: &str) -> Option<Self> {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", fault, server, faults, acquisitions, overlaps, gap, kept, faults_without, overlaps_without, ""] =
            cells.as_slice()
        else {
            return None;
        };
        let number = |text: &str| text.parse().ok();
        let safe = Outcome {
            faults: number(faults)?,
            acquisitions: number(acquisitions)?,
            overlaps: number(overlaps)?,
            longest_gap: Duration::from_secs_f64(gap.parse().ok()?),
            kept: number(kept)?,
        };
        let default =
            Outcome { faults: number(faults_without)?, overlaps: number(overlaps_without)?, ..Outcome::default() };
        let (fault, server) = ((*fault).to_owned(), (*server).to_owned());
        (fault != ALL).then_some(Self { fault, server, safe, default })
    }

    fn write(&self, out: &mut String) {
        let Self { fault, server, safe, default } = self;
        let Outcome { faults, acquisitions, overlaps, longest_gap, kept } = safe;
        let (gap, without) = (longest_gap.as_secs_f64(), default);
        let _ = writeln!(
            out,
            "| {fault} | {server} | {faults} | {acquisitions} | {overlaps} | {gap:.1} | {kept} | {} | {} |",
            without.faults, without.overlaps
        );
    }
}

/// Writes all lines, which are sorted by server, and the sums for each server.
fn table(lines: &[Line]) -> String {
    let mut servers: Vec<&str> = lines.iter().map(|line| line.server.as_str()).collect();
    servers.dedup();
    let mut text = String::new();
    for server in servers {
        let of_server = || lines.iter().filter(|line| line.server == server);
        let sum = |of: fn(&Line) -> Outcome| {
            of_server().map(of).fold(Outcome::default(), |sum, one| Outcome {
                faults: sum.faults + one.faults,
                acquisitions: sum.acquisitions + one.acquisitions,
                overlaps: sum.overlaps + one.overlaps,
                longest_gap: sum.longest_gap.max(one.longest_gap),
                kept: sum.kept + one.kept,
            })
        };
        of_server().for_each(|line| line.write(&mut text));
        let (safe, default) = (sum(|line| line.safe), sum(|line| line.default));
        Line { fault: ALL.to_owned(), server: server.to_owned(), safe, default }.write(&mut text);
    }
    text
}
