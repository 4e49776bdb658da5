//! A test that was never seen to fail proves nothing. What is known of each: it was the first to notice a change, or it notices one that it was shown, or
//! it passed with all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use rlock_check::document;

use crate::changes::Change;
use crate::known::Known;
use crate::package::Package;
use crate::report::noticing;

const NOTICES: &str = "notices ";
const PASSES: &str = "passes with ";

/// What came of the tests, by their names.
pub type Seen = BTreeMap<String, Outcome>;

/// What came of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was the first to notice a change.
    First,
    /// It notices this one.
    Notices(String),
    /// It passes with so many changes, of those that it reaches and that are worth showing.
    Passed { shown: usize, of: usize },
    /// It fails without any change.
    LeftOut,
}

impl Outcome {
    /// Reads what an earlier run says of a test, if it says anything of the changes that there are.
    fn read(said: &str, changes: &BTreeSet<&str>) -> Option<Self> {
        if let Some(change) = said.strip_prefix(NOTICES) {
            return changes.contains(change).then(|| Self::Notices(change.to_owned()));
        }
        let (shown, of) = said.strip_prefix(PASSES)?.strip_suffix(" changes")?.split_once(" of ")?;
        Some(Self::Passed { shown: shown.parse().ok()?, of: of.parse().ok()? })
    }
}

/// The tests that were the first to notice a change, by what came of the changes of all packages.
pub fn first(folder: &Path) -> Result<BTreeSet<String>> {
    let mut first = BTreeSet::new();
    for package in Package::ALL {
        let file = folder.join(package.name()).join("verdicts.txt");
        let Ok(text) = fs::read_to_string(&file) else { continue };
        first.extend(text.lines().filter_map(noticing).map(str::to_owned));
    }
    Ok(first)
}

/// What came of tests so far, in a file that has a line more as soon as something came of one more: a run that is broken off goes on where it was.
#[derive(Debug)]
pub struct Kept {
    before: Seen,
    file: Mutex<File>,
}

impl Kept {
    /// What earlier runs have found, as far as its changes are there still, beside the tests that were the first to notice a change.
    pub fn read(file: &Path, all: &[Change], first: BTreeSet<String>) -> Result<Self> {
        let text = fs::read_to_string(file).unwrap_or_default();
        let names: BTreeSet<_> = all.iter().map(|change| change.name.as_str()).collect();
        let lines = text.lines().filter_map(|line| line.split_once(": "));
        let mut before: Seen =
            lines.filter_map(|(test, said)| Some((test.to_owned(), Outcome::read(said, &names)?))).collect();
        before.extend(first.into_iter().map(|test| (test, Outcome::First)));
        let file = OpenOptions::new().append(true).create(true).open(file);
        Ok(Self { before, file: Mutex::new(file.context("cannot write down what comes of tests")?) })
    }

    /// What came of a test before this run.
    pub fn of(&self, test: &str) -> Option<&Outcome> {
        self.before.get(test)
    }

    /// Whether a test was seen to fail before this run.
    pub fn is_settled(&self, test: &str) -> bool {
        matches!(self.of(test), Some(Outcome::First | Outcome::Notices(_)))
    }

    /// Adds what came of a test.
    pub fn add(&self, test: &str, outcome: &Outcome) -> Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(file.write_all(line(test, outcome).as_bytes())?)
    }
}

/// A line for each test, for people and for the next run.
pub fn lines(seen: &Seen) -> String {
    seen.iter().map(|(test, outcome)| line(test, outcome)).collect()
}

fn line(test: &str, outcome: &Outcome) -> String {
    match outcome {
        Outcome::First => format!("{test}: was the first to notice a change\n"),
        Outcome::Notices(change) => format!("{test}: {NOTICES}{change}\n"),
        Outcome::Passed { shown, of } => format!("{test}: {PASSES}{shown} of {of} changes\n"),
        Outcome::LeftOut => format!("{test}: fails without any change\n"),
    }
}

/// How many tests there are of each sort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    tests: usize,
    first: usize,
    notice: usize,
    /// They fail by something else, as is known.
    of_other_sort: usize,
    /// Nobody has seen them fail.
    unknown: Vec<String>,
}

impl Counts {
    /// Compares with what is known.
    pub fn new(seen: &Seen, known: &Known) -> Self {
        let known: BTreeSet<_> = known.tests.iter().flat_map(|some| &some.tests).map(String::as_str).collect();
        let mut counts = Self { tests: seen.len(), first: 0, notice: 0, of_other_sort: 0, unknown: Vec::new() };
        for (test, outcome) in seen {
            match outcome {
                Outcome::First => counts.first += 1,
                Outcome::Notices(_) => counts.notice += 1,
                Outcome::Passed { .. } | Outcome::LeftOut if known.contains(test.as_str()) => counts.of_other_sort += 1,
                Outcome::Passed { .. } | Outcome::LeftOut => counts.unknown.push(test.clone()),
            }
        }
        counts
    }

    /// Whether nobody is surprised.
    pub fn is_as_known(&self) -> bool {
        self.unknown.is_empty()
    }

    /// What a person wants to know.
    pub fn text(&self) -> String {
        let Self { tests, first, notice, of_other_sort, unknown } = self;
        let mut text = format!(
            "{tests} tests: {first} were the first to notice a change, {notice} notice one, {of_other_sort} fail by something else, {} new\n",
            unknown.len()
        );
        for test in unknown {
            let _ = writeln!(text, "never seen to fail: {test}");
        }
        text
    }

    /// Writes the counts into a document.
    pub fn write(&self, document: &Path, package: Package) -> Result<()> {
        let Self { tests, first, notice, of_other_sort, unknown } = self;
        let table = format!(
            "| tests | the first to notice a change | notice one | fail by something else | never seen to fail |\n\
             |---:|---:|---:|---:|---:|\n| {tests} | {first} | {notice} | {of_other_sort} | {} |\n",
            unknown.len()
        );
        document::write(document, &format!("tests-can-fail PACKAGE={}", package.name()), &table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_have_found_is_read_from_their_reports() {
        let folder = tempfile::tempdir().unwrap();
        let verdicts = "a.rs:1:1: replace f with (): noticed by m::t\na.rs:2:1: replace f with (): not noticed by 1 of 2 tests that reach it\n\
                        a.rs:3:1: replace g with (): noticed by a hang of one of m::u, m::v\n";
        fs::create_dir(folder.path().join("module")).unwrap();
        let file = folder.path().join("module/verdicts.txt");
        fs::write(&file, verdicts).unwrap();
        assert_eq!(first(folder.path()).unwrap(), ["m::t".to_owned()].into());

        let notices = |change: &str| Outcome::Notices(change.to_owned());
        let seen: Seen = [
            ("m::t".to_owned(), Outcome::First),
            ("m::u".to_owned(), notices("a.rs:1:1: replace f with ()")),
            ("m::v".to_owned(), notices("a.rs:9:1: replace h with ()")),
            ("m::w".to_owned(), Outcome::Passed { shown: 1, of: 2 }),
        ]
        .into();
        let file = folder.path().join("tests.txt");
        fs::write(&file, lines(&seen)).unwrap();
        let kept = || Kept::read(&file, &[Change::called(1, "a.rs:1:1: replace f with ()")], ["m::t".into()].into());
        let of = |test| kept().unwrap().of(test).cloned();
        assert_eq!(of("m::t"), Some(Outcome::First));
        assert_eq!(of("m::u"), Some(notices("a.rs:1:1: replace f with ()")));
        assert_eq!(of("m::v"), None, "h is not there any more");
        assert_eq!(of("m::w"), Some(Outcome::Passed { shown: 1, of: 2 }));
        let is_settled = ["m::t", "m::u", "m::v", "m::w"].map(|test| kept().unwrap().is_settled(test));
        assert_eq!(is_settled, [true, true, false, false]);
        kept().unwrap().add("m::w", &notices("a.rs:1:1: replace f with ()")).unwrap();
        assert_eq!(of("m::w"), of("m::u"), "what comes later counts");
    }

    #[test]
    fn who_passes_with_every_change_surprises_unless_it_is_known() {
        let known: Known =
            toml::from_str("[[tests]]\nbecause = \"It compares documents.\"\ntests = [\"m::documents\", \"m::t\"]")
                .unwrap();
        let passed = Outcome::Passed { shown: 0, of: 0 };
        let mut seen: Seen = [("m::documents".to_owned(), passed), ("m::t".to_owned(), Outcome::First)].into();
        let counts = Counts::new(&seen, &known);
        assert_eq!(
            counts.text(),
            "2 tests: 1 were the first to notice a change, 0 notice one, 1 fail by something else, 0 new\n"
        );
        assert!(counts.is_as_known());
        seen.insert("m::flaky".to_owned(), Outcome::LeftOut);
        let counts = Counts::new(&seen, &known);
        assert!(!counts.is_as_known());
        assert!(counts.text().ends_with("never seen to fail: m::flaky\n"));
    }
}
