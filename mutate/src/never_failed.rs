//! A test that was never seen to fail proves nothing. Most are named by a change that they were the first to notice. For each of the others this seeks
//! a change of those that other tests have noticed, until there is one that it notices too.
//!
//! A change is not looked for among those that no test notices: most of them change nothing that anybody could see.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use rlock_check::document;

use crate::changes::Change;
use crate::known::Known;
use crate::package::Package;
use crate::report::{NOTICED, noticing};
use crate::trial::{Reach, Test, Trial};

const NOTICES: &str = "notices ";

/// What came of the tests, by their names.
pub type Seen = BTreeMap<String, Outcome>;

/// What came of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was the first to notice a change.
    First,
    /// It notices this one, which another test had noticed first.
    Notices(String),
    /// It passes with so many changes, of those that it reaches and others notice.
    Passed { shown: usize, of: usize },
    /// It fails without any change.
    LeftOut,
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

/// The changes that a run has seen noticed, by its report.
pub fn noticed(file: &Path, all: &[Change]) -> Result<BTreeSet<usize>> {
    let text = fs::read_to_string(file).with_context(|| {
        format!("there is no earlier run in {}: `make mutants` says which changes tests notice", file.display())
    })?;
    let lines = text.lines().filter_map(|line| line.rsplit_once(": "));
    let names: BTreeSet<_> = lines.filter(|(_, said)| said.starts_with(NOTICED)).map(|(name, _)| name).collect();
    Ok(all.iter().filter(|change| names.contains(change.name.as_str())).map(|change| change.id).collect())
}

/// What an earlier run of this has found, as far as its changes are there still.
pub fn found_before(file: &Path, all: &[Change]) -> Seen {
    let text = fs::read_to_string(file).unwrap_or_default();
    let names: BTreeSet<_> = all.iter().map(|change| change.name.as_str()).collect();
    let mut found = Seen::new();
    for line in text.lines() {
        let Some((test, change)) =
            line.split_once(": ").and_then(|(test, said)| Some((test, said.strip_prefix(NOTICES)?)))
        else {
            continue;
        };
        if names.contains(change) {
            found.insert(test.to_owned(), Outcome::Notices(change.to_owned()));
        }
    }
    found
}

/// The changes to show to a test, in this order: the fewer tests reach one, the earlier; but first one of each function.
fn in_order<'c>(changes: impl Iterator<Item = &'c Change>, reached_by: impl Fn(usize) -> usize) -> Vec<&'c Change> {
    let mut changes: Vec<_> = changes.collect();
    changes.sort_by_key(|change| reached_by(change.id));
    let mut of_functions: BTreeMap<String, usize> = BTreeMap::new();
    let mut numbered: Vec<_> = changes
        .into_iter()
        .map(|change| {
            let number = of_functions.entry(change.place()).or_default();
            *number += 1;
            (*number, change)
        })
        .collect();
    numbered.sort_by_key(|(number, _)| *number);
    numbered.into_iter().map(|(_, change)| change).collect()
}

/// The changes among which one is sought.
#[derive(Debug)]
pub struct Among<'a> {
    pub all: &'a [Change],
    pub reach: &'a Reach<'a>,
    /// Those that some test notices.
    pub noticed: &'a BTreeSet<usize>,
}

impl Among<'_> {
    /// The changes to show to a test, in this order.
    fn of(&self, test: usize) -> Vec<&Change> {
        let reach = &self.reach.of_changes;
        let is_meant =
            |id: &usize| self.noticed.contains(id) && reach.get(id).is_some_and(|tests| tests.contains(&test));
        in_order(self.all.iter().filter(|change| is_meant(&change.id)), |id| reach.get(&id).map_or(0, Vec::len))
    }
}

impl Trial<'_> {
    /// Seeks a change for each test that `seen` has nothing of, so many at the same time.
    pub fn seek(&self, among: &Among<'_>, jobs: usize, seen: &mut Seen) -> Result<()> {
        let tests = among.reach.tests.iter().enumerate();
        let wanted: Vec<_> = tests.filter(|(_, test)| !seen.contains_key(&test.name)).collect();
        eprintln!("{} of them have noticed no change yet", wanted.len());
        let found = self.at_the_same_time(&wanted, jobs, |&(at, test)| self.seek_for(test, &among.of(at)));
        for ((_, test), outcome) in wanted.into_iter().zip(found) {
            seen.insert(test.name.clone(), outcome?);
        }
        seen.extend(among.reach.left_out.iter().map(|test| (test.clone(), Outcome::LeftOut)));
        Ok(())
    }

    fn seek_for(&self, test: &Test<'_>, changes: &[&Change]) -> Result<Outcome> {
        let begin = Instant::now();
        let mut shown = 0;
        for change in changes {
            if shown > 0 && begin.elapsed() > self.lasts {
                break;
            }
            if self.is_noticed_by(test, change.id)? {
                return Ok(Outcome::Notices(change.name.clone()));
            }
            shown += 1;
        }
        eprintln!("{} passes with {shown} changes of {}", test.name, changes.len());
        Ok(Outcome::Passed { shown, of: changes.len() })
    }
}

/// A line for each test, for people and for the next run.
pub fn lines(seen: &Seen) -> String {
    let mut text = String::new();
    for (test, outcome) in seen {
        let _ = match outcome {
            Outcome::First => writeln!(text, "{test}: was the first to notice a change"),
            Outcome::Notices(change) => writeln!(text, "{test}: {NOTICES}{change}"),
            Outcome::Passed { shown, of } => writeln!(text, "{test}: passes with {shown} of {of} changes"),
            Outcome::LeftOut => writeln!(text, "{test}: fails without any change"),
        };
    }
    text
}

/// How many tests there are of each sort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    tests: usize,
    first: usize,
    notice_too: usize,
    /// They fail by something else, as is known.
    of_other_sort: usize,
    /// Nobody has seen them fail.
    unknown: Vec<String>,
}

impl Counts {
    /// Compares with what is known.
    pub fn new(seen: &Seen, known: &Known) -> Self {
        let known: BTreeSet<_> = known.tests.iter().flat_map(|some| &some.tests).map(String::as_str).collect();
        let mut counts = Self { tests: seen.len(), first: 0, notice_too: 0, of_other_sort: 0, unknown: Vec::new() };
        for (test, outcome) in seen {
            match outcome {
                Outcome::First => counts.first += 1,
                Outcome::Notices(_) => counts.notice_too += 1,
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
        let Self { tests, first, notice_too, of_other_sort, unknown } = self;
        let mut text = format!(
            "{tests} tests: {first} were the first to notice a change, {notice_too} notice one too, {of_other_sort} fail by something else, {} new\n",
            unknown.len()
        );
        for test in unknown {
            let _ = writeln!(text, "never seen to fail: {test}");
        }
        text
    }

    /// Writes the counts into a document.
    pub fn write(&self, document: &Path, package: Package) -> Result<()> {
        let Self { tests, first, notice_too, of_other_sort, unknown } = self;
        let table = format!(
            "| tests | the first to notice a change | notice one too | fail by something else | never seen to fail |\n\
             |---:|---:|---:|---:|---:|\n| {tests} | {first} | {notice_too} | {of_other_sort} | {} |\n",
            unknown.len()
        );
        document::write(document, &format!("tests-can-fail PACKAGE={}", package.name()), &table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::{Genre, Place};

    fn changes() -> [Change; 4] {
        let change = |id, function: &str| Change {
            id,
            file: "a.rs".into(),
            function: Some(function.into()),
            genre: Genre::FnValue,
            span: [Place { line: 1, column: 1 }; 2],
            replacement: String::new(),
            name: format!("a.rs:{id}:1: replace {function} with ()"),
        };
        [change(1, "f"), change(2, "f"), change(3, "g"), change(4, "g")]
    }

    #[test]
    fn one_change_of_each_function_comes_first_and_those_that_few_tests_reach() {
        let all = changes();
        let order = |reached_by: [usize; 4]| {
            in_order(all.iter(), |id| reached_by[id - 1]).iter().map(|change| change.id).collect::<Vec<_>>()
        };
        assert_eq!(order([1, 1, 1, 1]), [1, 3, 2, 4]);
        assert_eq!(order([9, 8, 7, 6]), [4, 2, 3, 1]);
    }

    #[test]
    fn what_runs_have_found_is_read_from_their_reports() {
        let folder = tempfile::tempdir().unwrap();
        let verdicts = "a.rs:1:1: replace f with (): noticed by m::t\na.rs:2:1: replace f with (): not noticed by 1 of 2 tests that reach it\n\
                        a.rs:3:1: replace g with (): noticed by a hang of one of m::u, m::v\n";
        fs::create_dir(folder.path().join("module")).unwrap();
        let file = folder.path().join("module/verdicts.txt");
        fs::write(&file, verdicts).unwrap();
        assert_eq!(first(folder.path()).unwrap(), ["m::t".to_owned()].into());
        assert_eq!(noticed(&file, &changes()).unwrap(), [1, 3].into());

        let notices = |change: &str| Outcome::Notices(change.to_owned());
        let seen: Seen = [
            ("m::t".to_owned(), Outcome::First),
            ("m::u".to_owned(), notices("a.rs:1:1: replace f with ()")),
            ("m::v".to_owned(), notices("a.rs:9:1: replace h with ()")),
            ("m::w".to_owned(), Outcome::Passed { shown: 1, of: 2 }),
        ]
        .into();
        fs::write(&file, lines(&seen)).unwrap();
        assert_eq!(
            found_before(&file, &changes()),
            [("m::u".to_owned(), notices("a.rs:1:1: replace f with ()"))].into(),
            "h is not there any more"
        );
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
            "2 tests: 1 were the first to notice a change, 0 notice one too, 1 fail by something else, 0 new\n"
        );
        assert!(counts.is_as_known());
        seen.insert("m::flaky".to_owned(), Outcome::LeftOut);
        let counts = Counts::new(&seen, &known);
        assert!(!counts.is_as_known());
        assert!(counts.text().ends_with("never seen to fail: m::flaky\n"));
    }
}
