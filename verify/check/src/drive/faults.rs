//! A campaign for each fault on each server, and the table of the results.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::campaign::Campaign;
use super::fault::Faults;
use super::server::Program;
use crate::history::Violation;
use crate::tree::git;

/// The faults and servers to try, and how.
#[derive(Clone, Debug)]
pub struct Faulty {
    /// The module.
    pub module: PathBuf,
    /// The servers, each with a name for the table and its program.
    pub servers: Vec<(String, PathBuf)>,
    /// How long each fault lasts on each server.
    pub lasts: Duration,
    /// The seed of the clients' random choices.
    pub seed: u64,
    /// The number of clients.
    pub workers: u64,
    /// Only faults whose name contains one of these; all if empty.
    pub names: Vec<String>,
    /// A folder for the records of campaigns that broke a rule.
    pub records: PathBuf,
}

/// The result of one fault on one server.
#[derive(Clone, Debug)]
pub struct Row {
    /// The fault.
    pub fault: Faults,
    /// How the campaign made the fault, if there is more than one way.
    pub way: Option<&'static str>,
    /// The server.
    pub server: String,
    /// How many operations were recorded.
    pub operations: usize,
    /// How many requests were granted.
    pub acquisitions: usize,
    /// How many locks were granted, each with a token of its own.
    pub locks: usize,
    /// The broken rules.
    pub violations: Vec<Violation>,
    /// The path of the record, if a rule was broken.
    pub record: Option<PathBuf>,
}

impl Faulty {
    /// Runs each campaign, and calls `show` with each row as soon as it exists. Stops at the first
    /// campaign that cannot be completed.
    ///
    /// # Errors
    ///
    /// If a server cannot be started, or a client fails in a way that no rule covers.
    pub fn run(&self, mut show: impl FnMut(&Row)) -> Result<Vec<Row>> {
        let is_wanted = |fault: &Faults| {
            self.names.is_empty()
                || self.names.iter().any(|name| fault.name().to_lowercase().contains(&name.to_lowercase()))
        };
        let mut rows = Vec::new();
        for (server, path) in &self.servers {
            for fault in Faults::EACH.into_iter().filter(is_wanted) {
                let program = Program::alone(path.clone(), self.module.clone());
                let (lasts, seed, workers) = (self.lasts, self.seed, self.workers);
                let report = Campaign { program, lasts, seed, workers, faults: fault }
                    .run()
                    .with_context(|| format!("{} on {server}", fault.name()))?;
                let (operations, acquisitions, locks) =
                    (report.history.operations.len(), report.acquisitions, report.locks);
                let record = report.keep(&self.records, &format!("{} {server} {seed}", fault.name()))?;
                let (server, violations, way) = (server.clone(), report.violations, report.way);
                let row = Row { fault, way, server, operations, acquisitions, locks, violations, record };
                show(&row);
                rows.push(row);
            }
        }
        Ok(rows)
    }

    /// The line above the table of this run: the rows and servers, the parameters, the commit and
    /// the date.
    ///
    /// # Errors
    ///
    /// If git does not know the tree, or `date` fails.
    pub fn head(&self, root: &Path) -> Result<String> {
        let commit = said(git(root).args(["rev-parse", "--short=12", "HEAD"]))?;
        let changed = if is_changed(root)? { " and changes" } else { "" };
        let date = said(Command::new("date").args(["-u", "+%F"]))?;
        let servers: Vec<&str> = self.servers.iter().map(|(name, _)| name.as_str()).collect();
        let rows = if self.names.is_empty() { ALL_ROWS.into() } else { format!("rows with {}", self.names.join(", ")) };
        let (seconds, Self { workers, seed, .. }) = (self.lasts.as_secs(), self);
        let servers = servers.join(", ");
        Ok(format!(
            "{HEAD}{rows} of {servers}: {seconds} s for each, {workers} clients, seed {seed}, commit {commit}{changed}, {date}"
        ))
    }
}

/// Whether a tree differs from its commit. Documents do not count, because a run writes into one of
/// them and the next run is still of the same program.
fn is_changed(root: &Path) -> Result<bool> {
    let mut status = git(root);
    status.args(["status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)docs"]);
    Ok(!said(&mut status)?.is_empty())
}

/// The output of a command.
fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The beginning of the lines above a table. There is one line for each run that made some of its
/// rows.
const HEAD: &str = "- ";

/// How a head names the rows of a run without a filter.
const ALL_ROWS: &str = "all rows";

/// The fault cell of a line that sums up others.
const SUM: &str = "all";

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    fault: String,
    server: String,
    counts: [usize; COUNTS],
}

/// Operations, acquisitions, locks and violations.
const COUNTS: usize = 4;

/// The lines of a table, and the heads of the runs that made them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    heads: Vec<String>,
    lines: Vec<Line>,
}

impl Line {
    /// Parses a line of a table; `None` if it is not about one fault on one server.
    fn read(line: &str) -> Option<Self> {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", fault, server, counts @ .., ""] = cells.as_slice() else { return None };
        let counts: Vec<usize> = counts.iter().map(|text| text.parse().ok()).collect::<Option<_>>()?;
        let (fault, server) = ((*fault).to_owned(), (*server).to_owned());
        let is_sum = fault == SUM;
        (!server.is_empty() && !is_sum).then_some(Self { fault, server, counts: counts.try_into().ok()? })
    }
}

impl From<&Row> for Line {
    fn from(row: &Row) -> Self {
        let Row { fault, way, server, operations, acquisitions, locks, violations, .. } = row;
        let counts = [*operations, *acquisitions, *locks, violations.len()];
        let way = way.map(|way| format!("{BEFORE_WAY}{way})")).unwrap_or_default();
        Self { fault: format!("{}{way}", fault.name()), server: server.clone(), counts }
    }
}

/// The text between a fault and the way in which it was made.
const BEFORE_WAY: &str = " (";

impl Line {
    /// The fault, without the way in which it was made.
    fn fault_name(&self) -> &str {
        self.fault.split(BEFORE_WAY).next().unwrap_or_default()
    }

    /// Whether this fault still exists.
    fn is_of_a_fault(&self) -> bool {
        Faults::EACH.iter().any(|fault| fault.name() == self.fault_name())
    }

    /// Whether both lines are about the same fault on the same server.
    fn is_about_the_same(&self, other: &Self) -> bool {
        self.fault_name() == other.fault_name() && self.server == other.server
    }
}

/// The rows and the servers of the run of a head.
fn made(head: &str) -> Option<(&str, Vec<&str>)> {
    let (rows, servers) = head.strip_prefix(HEAD)?.split_once(": ")?.0.rsplit_once(" of ")?;
    Some((rows, servers.split(", ").collect()))
}

/// Whether later runs have repeated everything that the run of a head made: on each of its servers
/// the same rows, or all rows.
fn was_made_again(head: &str, later: &[&str]) -> bool {
    let Some((rows, servers)) = made(head) else { return false };
    let is_in = |later: &&str, server: &&str| {
        made(later).is_some_and(|(again, on)| [rows, ALL_ROWS].contains(&again) && on.contains(server))
    };
    servers.iter().all(|server| later.iter().any(|later| is_in(later, server)))
}

/// Updates a table: new rows replace the lines of the same fault and server. The head of the new
/// run is added, and heads without remaining rows are dropped, as are lines of faults that no
/// longer exist.
#[must_use]
pub fn renewed(before: &str, head: &str, rows: &[Row]) -> Table {
    let heads: Vec<&str> = before.lines().filter(|line| line.starts_with(HEAD)).chain([head]).collect();
    let is_left = |(at, one): &(usize, &&str)| !was_made_again(one, heads.get(at + 1..).unwrap_or_default());
    let heads = heads.iter().enumerate().filter(is_left).map(|(_, head)| (*head).to_owned()).collect();
    let mut lines: Vec<Line> = before.lines().filter_map(Line::read).filter(Line::is_of_a_fault).collect();
    for new in rows.iter().map(Line::from) {
        match lines.iter_mut().find(|line| line.is_about_the_same(&new)) {
            Some(line) => *line = new,
            None => lines.push(new),
        }
    }
    Table { heads, lines }
}

impl Table {
    /// The table in Markdown, with the sums of each server and of all.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { heads, lines } = self;
        let mut text = format!("{}\n\n", heads.join("\n"));
        text.push_str("| fault | server | operations | acquisitions | locks granted | violations |\n");
        text.push_str("|---|---|---:|---:|---:|---:|\n");
        for Line { fault, server, counts } in lines {
            text.push_str(&row(fault, server, counts));
        }
        let mut servers: Vec<&str> = Vec::new();
        for Line { server, .. } in lines {
            if !servers.contains(&server.as_str()) {
                servers.push(server);
            }
        }
        for server in servers {
            text.push_str(&row(SUM, server, &sum(lines.iter().filter(|line| line.server == server))));
        }
        text.push_str(&row(SUM, "", &sum(lines.iter())));
        text
    }
}

fn row(fault: &str, server: &str, counts: &[usize; COUNTS]) -> String {
    let cells = counts.map(|count| format!(" {count} |")).concat();
    let server = if server.is_empty() { String::new() } else { format!(" {server}") };
    format!("| {fault} |{server} |{cells}\n")
}

fn sum<'l>(lines: impl Iterator<Item = &'l Line>) -> [usize; COUNTS] {
    lines.fold([0; COUNTS], |mut all, line| {
        all.iter_mut().zip(line.counts).for_each(|(sum, count)| *sum += count);
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_dropped_once_all_its_rows_were_made_again() {
        let before =
            "- rows with of clients of one: 1 s\n- rows with of clients of one, two: 2 s\n- all rows of one: 3 s";
        assert_eq!(renewed(before, "- rows with of clients of three, one: 4 s", &[]).heads.len(), 3);
        assert_eq!(renewed(before, "- rows with of clients of two, one: 4 s", &[]).heads.len(), 2);
        assert_eq!(renewed(before, "- all rows of one: 4 s", &[]).heads.len(), 2);
        assert_eq!(renewed(before, "- all rows of two, one: 4 s", &[]).heads.len(), 1);
        let one_by_one = renewed(&renewed(before, "- all rows of two: 4 s", &[]).text(), "- all rows of one: 5 s", &[]);
        assert_eq!(one_by_one.heads, ["- all rows of two: 4 s", "- all rows of one: 5 s"]);
    }

    #[test]
    fn written_documents_do_not_count_as_changes() {
        let tree = tempfile::tempdir().unwrap();
        let run = |words: &[&str]| {
            let who = ["-c", "user.name=a", "-c", "user.email=a@b.c"];
            assert!(git(tree.path()).args(who).args(words).status().unwrap().success());
        };
        let write = |name: &str, text: &str| std::fs::write(tree.path().join(name), text).unwrap();
        run(&["init", "--quiet"]);
        std::fs::create_dir(tree.path().join("docs")).unwrap();
        write("docs/record.md", "1");
        write("code.rs", "1");
        run(&["add", "."]);
        run(&["commit", "--quiet", "--message=one"]);
        write("docs/record.md", "2");
        assert!(!is_changed(tree.path()).unwrap());
        write("code.rs", "2");
        assert!(is_changed(tree.path()).unwrap());
    }

    #[test]
    fn new_row_replaces_the_old_one() {
        let row = |fault, server: &str, locks| Row {
            fault,
            way: None,
            server: server.into(),
            operations: 3 * locks,
            acquisitions: 2 * locks,
            locks,
            violations: Vec::new(),
            record: None,
        };
        let before = renewed("", "- first", &[row(Faults::Kill, "one", 10), row(Faults::Stop, "one", 20)]).text();
        assert!(before.starts_with("- first\n\n| fault |"), "{before}");
        assert!(before.ends_with("| all | | 90 | 60 | 30 | 0 |\n"), "{before}");
        let rows = [row(Faults::Stop, "one", 7), row(Faults::Stop, "two", 1)];
        let after = renewed(&before, "- second", &rows).text();
        assert!(after.starts_with("- first\n- second\n\n| fault |"), "{after}");
        let new = ["| SIGSTOP and SIGCONT | one | 21 | 14 | 7 | 0 |", "| SIGSTOP and SIGCONT | two | 3 | 2 | 1 | 0 |"];
        let sums =
            ["| all | one | 51 | 34 | 17 | 0 |", "| all | two | 3 | 2 | 1 | 0 |", "| all | | 54 | 36 | 18 | 0 |"];
        let kept = before.lines().find(|line| line.starts_with("| kill")).expect("a row");
        assert_eq!(after.lines().skip(5).collect::<Vec<_>>(), [kept, new[0], new[1], sums[0], sums[1], sums[2]]);
        let of_no_fault = after.replace("| SIGSTOP and SIGCONT | two |", "| a fault of old | two |");
        assert!(!renewed(&of_no_fault, "- third", &[]).text().contains("two"), "{of_no_fault}");
        let another_way = [Row { way: Some("EFBIG"), ..row(Faults::Stop, "one", 8) }];
        let changed = renewed(&after, "- third", &another_way).text();
        let new = "| SIGSTOP and SIGCONT (EFBIG) | one | 24 | 16 | 8 | 0 |";
        assert_eq!(
            changed.lines().filter(|line| line.contains("SIGCONT") && line.contains("one")).collect::<Vec<_>>(),
            [new]
        );
    }
}
