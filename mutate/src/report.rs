//! What came of all changes, beside what is known.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use rlock_check::document;

use crate::changes::Change;
use crate::known::Known;
use crate::package::Package;
use crate::trial::{HANG, Verdict};

/// What is said of a change, with the test behind it.
pub const NOTICED: &str = "noticed by ";

/// The test that has noticed a change, by the line about that. Of tests that ran together, and of which one hung, it is not known which.
pub fn noticing(line: &str) -> Option<&str> {
    let by = line.rsplit_once(": ")?.1.strip_prefix(NOTICED)?;
    let test = by.strip_prefix(HANG).unwrap_or(by);
    (!test.contains(", ")).then_some(test)
}

/// What was noticed in an earlier run, of the changes and by the tests that there are still.
pub fn noticed_before(file: &Path, all: &[Change], tests: &BTreeSet<&str>) -> Result<BTreeMap<usize, Verdict>> {
    let text = fs::read_to_string(file).with_context(|| format!("there is no earlier run in {}", file.display()))?;
    let numbers: BTreeMap<_, _> = all.iter().map(|change| (change.name.as_str(), change.id)).collect();
    let mut noticed = BTreeMap::new();
    for line in text.lines() {
        // The name of a change has colons, and that of a test has no space after one.
        let Some((name, said)) = line.rsplit_once(": ") else { continue };
        let (Some(&change), Some(by)) = (numbers.get(name), said.strip_prefix(NOTICED)) else { continue };
        if by.strip_prefix(HANG).unwrap_or(by).split(", ").all(|test| tests.contains(test)) {
            noticed.insert(change, Verdict::Noticed(by.to_owned()));
        }
    }
    Ok(noticed)
}

/// What came of all changes.
#[derive(Debug)]
pub struct Report {
    counts: Counts,
    /// Changes that nobody notices, and of which that is not known.
    unknown: Vec<String>,
    /// Changes that are noticed, though it is said of them that they are not.
    noticed: Vec<String>,
    /// Tests that fail without any change.
    left_out: Vec<String>,
    verdicts: String,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    listed: usize,
    tried: usize,
    noticed: usize,
    harmless: usize,
    untested: usize,
    unknown: usize,
}

impl Report {
    /// Compares. If only some changes were tried, nothing is said of the others.
    pub fn new(
        all: &[Change],
        verdicts: &BTreeMap<usize, Verdict>,
        known: &Known,
        left_out: Vec<String>,
        only_some: bool,
    ) -> Self {
        let mut report = Self {
            counts: Counts::default(),
            unknown: Vec::new(),
            noticed: Vec::new(),
            left_out,
            verdicts: String::new(),
        };
        let mut left = known.changes();
        let counts = &mut report.counts;
        counts.listed = all.len();
        counts.tried = verdicts.len();
        for change in all {
            let said = match verdicts.get(&change.id) {
                None if only_some => continue,
                None => "not in the build".to_owned(),
                Some(Verdict::Noticed(test)) => format!("{NOTICED}{test}"),
                Some(Verdict::Unreached) => "reached by no test".to_owned(),
                Some(Verdict::Survived { shown, of }) => {
                    format!("not noticed by {} of {of} tests that reach it", shown.len())
                }
            };
            let _ = writeln!(report.verdicts, "{}: {said}", change.name);
            match verdicts.get(&change.id) {
                None => {}
                Some(Verdict::Noticed(_)) => counts.noticed += 1,
                Some(Verdict::Unreached | Verdict::Survived { .. }) => match left.remove(change.description.as_str()) {
                    Some(true) => counts.harmless += 1,
                    Some(false) => counts.untested += 1,
                    None => {
                        counts.unknown += 1;
                        report.unknown.push(format!("{}: {said}", change.name));
                    }
                },
            }
        }
        if !only_some {
            report.noticed = left.into_keys().map(str::to_owned).collect();
        }
        report
    }

    /// Whether nobody is surprised.
    pub fn is_as_known(&self) -> bool {
        self.unknown.is_empty()
    }

    /// What came of each change, a line each.
    pub fn verdicts(&self) -> &str {
        &self.verdicts
    }

    /// What a person wants to know.
    pub fn text(&self) -> String {
        let Counts { listed, tried, noticed, harmless, untested, unknown } = self.counts;
        let mut text = format!(
            "{listed} changes, {tried} tried: {noticed} noticed, {harmless} harmless, {untested} without a test, {unknown} new\n"
        );
        for change in &self.unknown {
            let _ = writeln!(text, "new: {change}");
        }
        for test in &self.left_out {
            let _ = writeln!(text, "left out, since it fails without any change: {test}");
        }
        for change in &self.noticed {
            let _ = writeln!(text, "noticed now, or not there any more: {change}");
        }
        text
    }

    /// Writes the counts into a document.
    pub fn write(&self, document: &Path, package: Package) -> Result<()> {
        let Counts { listed, tried, noticed, harmless, untested, unknown } = self.counts;
        let table = format!(
            "| listed | tried | noticed | harmless | a test is missing | new |\n|---:|---:|---:|---:|---:|---:|\n\
             | {listed} | {tried} | {noticed} | {harmless} | {untested} | {unknown} |\n"
        );
        document::write(document, &format!("mutants PACKAGE={}", package.name()), &table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes() -> Vec<Change> {
        let names = [
            ("a.rs:1:1: replace + with - in f", "a.rs: replace + with - in f #1 of 2"),
            ("a.rs:2:1: replace + with - in f", "a.rs: replace + with - in f #2 of 2"),
            ("a.rs:3:1: replace g with ()", "a.rs: replace g with ()"),
            ("a.rs:4:1: h", "a.rs: h"),
            ("a.rs:5:1: i", "a.rs: i"),
        ];
        let change = |((name, description), id): ((&str, &str), usize)| Change {
            description: description.into(),
            ..Change::called(id, name)
        };
        names.into_iter().zip(1..).map(change).collect()
    }

    fn known() -> Known {
        toml::from_str(
            r#"
            [[kind]]
            because = "It is so."
            harmless = true
            changes = ["a.rs: replace + with - in f #2 of 2", "a.rs: replace g with ()"]
            "#,
        )
        .unwrap()
    }

    fn survived() -> Verdict {
        Verdict::Survived { shown: ["m::t".into()].into(), of: 2 }
    }

    #[test]
    fn a_namesake_of_what_is_known_surprises() {
        let verdicts = [(1, survived()), (2, survived()), (3, Verdict::Noticed("t".into()))].into();
        let report = Report::new(&changes(), &verdicts, &known(), vec!["m::flaky".into()], false);
        assert_eq!(
            report.text(),
            "5 changes, 3 tried: 1 noticed, 1 harmless, 0 without a test, 1 new\n\
             new: a.rs:1:1: replace + with - in f: not noticed by 1 of 2 tests that reach it\n\
             left out, since it fails without any change: m::flaky\n\
             noticed now, or not there any more: a.rs: replace g with ()\n"
        );
        assert!(!report.is_as_known());
    }

    #[test]
    fn of_what_was_not_tried_nothing_is_said() {
        let report = Report::new(&changes(), &[(3, Verdict::Unreached)].into(), &known(), Vec::new(), true);
        assert_eq!(report.text(), "5 changes, 1 tried: 0 noticed, 1 harmless, 0 without a test, 0 new\n");
        assert!(report.is_as_known());
        assert_eq!(report.verdicts(), "a.rs:3:1: replace g with (): reached by no test\n");
    }

    #[test]
    fn who_has_noticed_a_change_is_read_from_its_line() {
        assert_eq!(noticing("a.rs:1:1: replace + with - in f: noticed by m::t"), Some("m::t"));
        assert_eq!(noticing(&format!("a.rs:1:1: replace f with (): noticed by {HANG}m::t")), Some("m::t"));
        assert_eq!(noticing(&format!("a.rs:1:1: replace f with (): noticed by {HANG}m::t, m::u")), None);
        assert_eq!(noticing("a.rs:1:1: replace f with (): reached by no test"), None);
    }

    #[test]
    fn what_a_run_has_noticed_is_read_from_its_report() {
        let noticed = |by: &str| Verdict::Noticed(by.to_owned());
        let hang = format!("{HANG}m::t, m::u");
        let verdicts = [(1, noticed(&hang)), (2, survived()), (3, noticed("m::gone")), (4, noticed("m::u"))];
        let verdicts = verdicts.into_iter().collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        let report = Report::new(&changes(), &verdicts, &known(), Vec::new(), false);
        fs::write(file.path(), report.verdicts()).unwrap();
        let before = noticed_before(file.path(), &changes(), &["m::t", "m::u"].into()).unwrap();
        assert_eq!(before, [(1, noticed(&hang)), (4, noticed("m::u"))].into());
    }
}
