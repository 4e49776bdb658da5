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
                let row = Row { fault, server: server.clone(), operations, grants, violations: report.violations };
                show(&row);
                rows.push(row);
            }
        }
        Ok(rows)
    }
}

/// A table of Markdown, with the sums.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text =
        String::from("| fault | server | operations | acquisitions | violations |\n|---|---|---:|---:|---:|\n");
    for Row { fault, server, operations, grants, violations } in rows {
        let line = format!("| {} | {server} | {operations} | {grants} | {} |\n", fault.name(), violations.len());
        text.push_str(&line);
    }
    let operations: usize = rows.iter().map(|row| row.operations).sum();
    let grants: usize = rows.iter().map(|row| row.grants).sum();
    let violations: usize = rows.iter().map(|row| row.violations.len()).sum();
    text.push_str(&format!("| all | | {operations} | {grants} | {violations} |\n"));
    text
}
