//! Results: a line for each scenario, a JSON file for each client, a table of several clients.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::broken::Broken;
use crate::scenarios::{self, Scenario};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Green,
    Red,
    /// The program or its library lacks what the scenario needs.
    Lacking,
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Outcome::Green => "green",
            Outcome::Red => "red",
            Outcome::Lacking => "lacking",
        }
    }
}

pub struct Finding {
    pub name: &'static str,
    pub outcome: Outcome,
    /// The broken rules.
    broken: String,
    pub reason: String,
    took: Duration,
    /// Whether the first try failed, and this is the second.
    repeated: bool,
    /// The rule or ability of the scenario, if the program does not list it.
    undeclared: Option<&'static str>,
}

impl Finding {
    pub fn new(
        scenario: &Scenario,
        undeclared: Option<&'static str>,
        outcome: Result<(), Broken>,
        took: Duration,
    ) -> Finding {
        let (outcome, broken, reason) = match outcome {
            Ok(()) => (Outcome::Green, String::new(), String::new()),
            Err(Broken { rules, text }) if rules == "none" => (Outcome::Lacking, String::new(), text),
            Err(Broken { text, .. }) if undeclared.is_some() => (Outcome::Lacking, String::new(), text),
            Err(Broken { rules, text }) => {
                (Outcome::Red, if rules.is_empty() { scenario.rules.to_owned() } else { rules }, text)
            }
        };
        Finding { name: scenario.name, outcome, broken, reason, took, repeated: false, undeclared }
    }

    pub fn may_be_repeated(&self) -> bool {
        !["two held", "it entered"].iter().any(|start| self.reason.starts_with(start))
    }

    /// Marks the second try.
    pub fn after(mut self, first: &Finding) -> Finding {
        self.repeated = true;
        if self.outcome == Outcome::Green {
            self.reason = format!("at first: {}", first.reason);
        }
        self
    }

    pub fn print(&self) {
        let again = if self.repeated { " (again, alone)" } else { "" };
        let seconds = self.took.as_secs_f32();
        let unlisted = self.undeclared.map_or_else(String::new, |rule| format!("  not listed: {rule}"));
        match self.outcome {
            Outcome::Green => println!("green    {:32} {seconds:5.1} s{again}{unlisted}", self.name),
            Outcome::Lacking => println!("lacking  {:32} {seconds:5.1} s  {}", self.name, self.reason),
            Outcome::Red => {
                println!("red      {:32} {seconds:5.1} s{again}  broken: {}: {}", self.name, self.broken, self.reason);
            }
        }
    }
}

pub struct Report {
    name: String,
    hello: Value,
    driver: Option<String>,
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn new(name: &str, hello: &Value, driver: Option<&str>) -> Report {
        let driver = driver.map(str::to_owned);
        Report { name: name.to_owned(), hello: hello.clone(), driver, findings: Vec::new() }
    }

    pub fn is_green(&self) -> bool {
        self.count(Outcome::Red) == 0
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.findings.iter().filter(|finding| finding.outcome == outcome).count()
    }

    /// The rules and abilities that the program does not list, although all their scenarios are green.
    fn kept(&self) -> BTreeSet<&'static str> {
        let unlisted =
            self.findings.iter().filter_map(|finding| finding.undeclared.map(|rule| (rule, finding.outcome)));
        let (green, others): (Vec<_>, Vec<_>) = unlisted.partition(|(_, outcome)| *outcome == Outcome::Green);
        let rules = green.into_iter().map(|(rule, _)| rule);
        rules.filter(|rule| !others.iter().any(|(other, _)| other == rule)).collect()
    }

    pub fn print_summary(&self) {
        let [green, red, lacking] = [Outcome::Green, Outcome::Red, Outcome::Lacking].map(|outcome| self.count(outcome));
        println!("\n{}: {green} green, {red} red, {lacking} lacking", self.name);
        for finding in self.findings.iter().filter(|finding| finding.outcome == Outcome::Green && finding.repeated) {
            println!("  {:32} green at the second try; {}", finding.name, finding.reason);
        }
        for rule in self.kept() {
            println!("  {rule} is green and not listed: declare it");
        }
        for finding in self.findings.iter().filter(|finding| finding.outcome == Outcome::Red) {
            println!("  {:32} {}: {}", finding.name, finding.broken, finding.reason);
        }
    }

    pub fn write(&self, folder: &Path) {
        let scenarios: Vec<_> = self.findings.iter().map(|finding| {
            json!({
                "name": finding.name, "outcome": finding.outcome.word(), "broken": finding.broken, "reason": finding.reason,
                "ms": finding.took.as_millis() as u64, "repeated": finding.repeated,
                "undeclared": finding.undeclared,
            })
        }).collect();
        let report = json!({
            "client": self.name, "language": self.hello["language"], "package": self.hello["package"],
            "driver": self.driver, "scenarios": scenarios, "declare": self.kept(),
        });
        std::fs::create_dir_all(folder).expect("a folder for the results");
        let text = serde_json::to_string_pretty(&report).expect("it is JSON");
        std::fs::write(folder.join(format!("{}.json", self.name)), text + "\n").expect("a file for the results");
    }
}

/// A column for each client, a row for each scenario.
pub fn write_table(path: &Path, files: &[String]) {
    let read = |file: &String| -> Value {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
    };
    let reports: Vec<_> = files.iter().map(read).collect();
    let find = |report: &Value, name: &str| -> Option<Value> {
        report["scenarios"].as_array()?.iter().find(|scenario| scenario["name"] == name).cloned()
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names: Vec<_> = reports.iter().map(|report| text(&report["client"])).collect();
    let mut page = format!(
        "# Conformance of the clients\n\nWritten by `scripts/clients`. A cell names the broken rules of \
         [BEHAVIOUR.md](../BEHAVIOUR.md).\n`✓` is green, `–` marks an ability that the library lacks, `lacking` a rule that \
         the package\ndoes not keep yet.\n\n| scenario | {} |\n|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    for scenario in scenarios::all() {
        let cells = reports.iter().map(|report| {
            let Some(found) = find(report, scenario.name) else { return " ".to_owned() };
            match text(&found["outcome"]).as_str() {
                "green" => "✓".to_owned(),
                "lacking" if found["undeclared"].is_string() => "lacking".to_owned(),
                "lacking" => "–".to_owned(),
                _ => text(&found["broken"]),
            }
        });
        let cells: Vec<_> = cells.collect();
        if cells.iter().any(|cell| cell != " ") {
            page += &format!("| {} | {} |\n", scenario.name, cells.join(" | "));
        }
    }
    page += "\n";
    for report in &reports {
        for scenario in
            report["scenarios"].as_array().into_iter().flatten().filter(|scenario| scenario["outcome"] == "red")
        {
            let [name, broken, reason] = ["name", "broken", "reason"].map(|field| text(&scenario[field]));
            page += &format!("- {}, {name}: {broken}: {reason}\n", text(&report["client"]));
        }
        for rule in report["declare"].as_array().into_iter().flatten() {
            page += &format!("- {}: {} is green and not listed: declare it\n", text(&report["client"]), text(rule));
        }
    }
    std::fs::write(path, page).expect("a file for the table");
}
