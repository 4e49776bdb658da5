//! What came of all changes, beside what is known.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use rlock_check::document;

use crate::changes::Change;
use crate::known::Known;
use crate::package::Package;
use crate::trial::Verdict;

/// What came of all changes.
#[derive(Debug)]
pub struct Report {
    counts: Counts,
    /// Changes that nobody notices, and of which that is not known.
    unknown: Vec<String>,
    /// Changes that are noticed, though it is said of them that they are not.
    noticed: Vec<String>,
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
    pub fn new(all: &[Change], verdicts: &BTreeMap<usize, Verdict>, known: &Known, only_some: bool) -> Self {
        let mut report =
            Self { counts: Counts::default(), unknown: Vec::new(), noticed: Vec::new(), verdicts: String::new() };
        let mut left = known.counts();
        let counts = &mut report.counts;
        counts.listed = all.len();
        counts.tried = verdicts.len();
        for change in all {
            let said = match verdicts.get(&change.id) {
                None if only_some => continue,
                None => "does not compile".to_owned(),
                Some(Verdict::Noticed(test)) => format!("noticed by {test}"),
                Some(Verdict::Unreached) => "reached by no test".to_owned(),
                Some(Verdict::Survived { tried, of }) => format!("not noticed by {tried} of {of} tests that reach it"),
            };
            let _ = writeln!(report.verdicts, "{}: {said}", change.name);
            match verdicts.get(&change.id) {
                None => {}
                Some(Verdict::Noticed(_)) => counts.noticed += 1,
                Some(Verdict::Unreached | Verdict::Survived { .. }) => {
                    match left.get_mut(change.description().as_str()) {
                        Some((count @ 1.., is_harmless)) => {
                            *count -= 1;
                            *(if *is_harmless { &mut counts.harmless } else { &mut counts.untested }) += 1;
                        }
                        _ => {
                            counts.unknown += 1;
                            report.unknown.push(format!("{}: {said}", change.name));
                        }
                    }
                }
            }
        }
        if !only_some {
            let named_too_often = left.into_iter().filter(|(_, (count, _))| *count > 0);
            report.noticed = named_too_often.map(|(change, (count, _))| format!("{change} ({count})")).collect();
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
