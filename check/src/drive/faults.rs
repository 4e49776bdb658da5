//! Each fault on each server, checked, and the table of what came of it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::campaign::Campaign;
use super::harm::Faults;
use super::server::Program;
use crate::history::Violation;

/// All of it.
#[derive(Clone, Debug)]
pub struct Faulty {
    /// The module.
    pub module: PathBuf,
    /// The servers, each as it is called and its program.
    pub servers: Vec<(String, PathBuf)>,
    /// How long each fault goes on on each server.
    pub lasts: Duration,
    /// What the clients' choices are drawn from.
    pub seed: u64,
    /// How many clients.
    pub workers: u64,
    /// Faults whose name contains one of these; all if there is none.
    pub names: Vec<String>,
    /// A folder for the records in which a rule was broken.
    pub records: PathBuf,
}

/// What came of one fault on one server.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which fault.
    pub fault: Faults,
    /// Which server.
    pub server: String,
    /// How many operations were recorded.
    pub operations: usize,
    /// How often a lock was acquired.
    pub grants: usize,
    /// What must not have happened.
    pub violations: Vec<Violation>,
    /// Where all that was recorded is, if something of that happened.
    pub record: Option<PathBuf>,
}

impl Faulty {
    /// Tries everything, and shows each row as soon as it is there. A campaign that cannot be led to its end is an error.
    ///
    /// # Errors
    ///
    /// If a server cannot be started, or a client fails in a way that no rule is about.
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
                let (operations, grants) = (report.history.operations.len(), report.grants);
                let record = report.keep(&self.records, &format!("{} {server} {seed}", fault.name()))?;
                let (server, violations) = (server.clone(), report.violations);
                let row = Row { fault, server, operations, grants, violations, record };
                show(&row);
                rows.push(row);
            }
        }
        Ok(rows)
    }
}

/// What stands in the place of the fault in a line that sums up others.
const SUM: &str = "all";

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    fault: String,
    server: String,
    operations: usize,
    grants: usize,
    violations: usize,
}

impl Line {
    /// What a line of a table says; `None` if it is not about one fault on one server.
    fn read(line: &str) -> Option<Self> {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", fault, server, operations, grants, violations, ""] = cells.as_slice() else { return None };
        let number = |text: &&str| text.parse().ok();
        let (operations, grants, violations) = (number(operations)?, number(grants)?, number(violations)?);
        let (fault, server) = ((*fault).to_owned(), (*server).to_owned());
        let is_sum = fault == SUM;
        (!server.is_empty() && !is_sum).then_some(Self { fault, server, operations, grants, violations })
    }
}

impl From<&Row> for Line {
    fn from(row: &Row) -> Self {
        let Row { fault, server, operations, grants, violations, .. } = row;
        let (fault, violations) = (fault.name().to_owned(), violations.len());
        Self { fault, server: server.clone(), operations: *operations, grants: *grants, violations }
    }
}

/// The lines of a table as it was, in which those of the same fault on the same server are the new ones.
#[must_use]
pub fn renewed(before: &str, rows: &[Row]) -> Vec<Line> {
    let mut lines: Vec<Line> = before.lines().filter_map(Line::read).collect();
    for new in rows.iter().map(Line::from) {
        match lines.iter_mut().find(|line| (&line.fault, &line.server) == (&new.fault, &new.server)) {
            Some(line) => *line = new,
            None => lines.push(new),
        }
    }
    lines
}

/// A table of Markdown, with the sums of each server and of all.
#[must_use]
pub fn table(lines: &[Line]) -> String {
    let mut text =
        String::from("| fault | server | operations | acquisitions | violations |\n|---|---|---:|---:|---:|\n");
    for Line { fault, server, operations, grants, violations } in lines {
        text.push_str(&format!("| {fault} | {server} | {operations} | {grants} | {violations} |\n"));
    }
    let mut servers: Vec<&str> = Vec::new();
    for Line { server, .. } in lines {
        if !servers.contains(&server.as_str()) {
            servers.push(server);
        }
    }
    for server in servers {
        text.push_str(&sum(&format!(" {server}"), lines.iter().filter(|line| line.server == server)));
    }
    text.push_str(&sum("", lines.iter()));
    text
}

fn sum<'l>(server: &str, lines: impl Iterator<Item = &'l Line>) -> String {
    let add = |[operations, grants, violations]: [usize; 3], line: &Line| {
        [operations + line.operations, grants + line.grants, violations + line.violations]
    };
    let [operations, grants, violations] = lines.fold([0; 3], add);
    format!("| {SUM} |{server} | {operations} | {grants} | {violations} |\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_takes_the_place_of_the_one_before() {
        let row = |fault, server: &str, grants| Row {
            fault,
            server: server.into(),
            operations: 2 * grants,
            grants,
            violations: Vec::new(),
            record: None,
        };
        let before = table(&renewed("", &[row(Faults::Kill, "one", 10), row(Faults::Stop, "one", 20)]));
        assert!(before.ends_with("| all | | 60 | 30 | 0 |\n"), "{before}");
        let after = table(&renewed(&before, &[row(Faults::Stop, "one", 7), row(Faults::Stop, "two", 1)]));
        let new = ["| SIGSTOP and SIGCONT | one | 14 | 7 | 0 |", "| SIGSTOP and SIGCONT | two | 2 | 1 | 0 |"];
        let sums = ["| all | one | 34 | 17 | 0 |", "| all | two | 2 | 1 | 0 |", "| all | | 36 | 18 | 0 |"];
        assert_eq!(after.lines().nth(2), before.lines().nth(2));
        assert_eq!(after.lines().skip(3).collect::<Vec<_>>(), [new[0], new[1], sums[0], sums[1], sums[2]]);
    }
}
