//! Seeks a change for each test that it notices.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::changes::{Change, Genre};
use crate::known::Known;
use crate::never_failed::{Kept, Outcome, Seen};
use crate::report::NOTICED;
use crate::trial::{Reach, Test, Trial};

/// After how many tests somebody who waits is told how far it is.
const TOLD_EACH: usize = 20;

/// The changes among which one is sought.
#[derive(Debug)]
pub struct Among<'a> {
    pub all: &'a [Change],
    pub reach: &'a Reach<'a>,
    /// Those that are worth showing.
    pub worth: &'a BTreeSet<usize>,
}

impl Among<'_> {
    /// The changes to show to a test, in this order.
    fn of(&self, test: usize) -> Vec<&Change> {
        let reach = &self.reach.of_changes;
        let is_meant = |id: &usize| self.worth.contains(id) && reach.get(id).is_some_and(|tests| tests.contains(&test));
        let reached_by = |id| reach.get(&id).map_or(0, Vec::len);
        in_order(self.all.iter().filter(|change| is_meant(&change.id)), reached_by, self.reach.tests.len())
    }
}

/// The changes that are worth showing to tests: those that a run has seen noticed, by its report. If there was none, all but those of which it is known
/// that no test notices them.
pub fn worth_showing(report: &Path, all: &[Change], known: &Known) -> Result<BTreeSet<usize>> {
    let ids = |is_worth: &dyn Fn(&Change) -> bool| {
        all.iter().filter(|change| is_worth(change)).map(|change| change.id).collect::<BTreeSet<_>>()
    };
    let text = match fs::read_to_string(report) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let known = known.changes();
            return Ok(ids(&|change| !known.contains_key(change.description.as_str())));
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", report.display())),
    };
    let lines = text.lines().filter_map(|line| line.rsplit_once(": "));
    let names: BTreeSet<_> = lines.filter(|(_, said)| said.starts_with(NOTICED)).map(|(name, _)| name).collect();
    Ok(ids(&|change| names.contains(change.name.as_str())))
}

/// Puts changes in the order in which they are shown. Of each function first that which does nothing of what it should, for whoever relies on it notices
/// that the soonest; and one of each function before a second one. Among these come first those that few tests reach: a test that reaches what hardly
/// any other does is likely to be about it. Last come those that most of all `tests` reach: without what starts a server each of them fails, whatever
/// it is about.
fn in_order<'c>(
    changes: impl Iterator<Item = &'c Change>,
    reached_by: impl Fn(usize) -> usize,
    tests: usize,
) -> Vec<&'c Change> {
    let mut changes: Vec<_> = changes.collect();
    changes.sort_by_key(|change| (change.genre != Genre::FnValue, reached_by(change.id)));
    let mut of_functions: BTreeMap<String, usize> = BTreeMap::new();
    let mut numbered: Vec<_> = changes
        .into_iter()
        .map(|change| {
            let number = of_functions.entry(change.place()).or_default();
            *number += 1;
            (*number, change)
        })
        .collect();
    numbered.sort_by_key(|(number, change)| {
        let by = reached_by(change.id);
        (by > tests / 2, *number, by)
    });
    numbered.into_iter().map(|(_, change)| change).collect()
}

impl Trial<'_> {
    /// Seeks a change for each test of which nothing is known yet, so many at the same time. Returns what came of all tests.
    pub fn seek(&self, among: &Among<'_>, jobs: usize, kept: &Kept) -> Result<Seen> {
        let tests: Vec<_> = among.reach.tests.iter().enumerate().collect();
        let done = AtomicUsize::new(0);
        let seen = self.at_the_same_time(&tests, jobs, |&(at, test)| {
            let number = done.fetch_add(1, Ordering::Relaxed) + 1;
            if number.is_multiple_of(TOLD_EACH) {
                eprintln!("{number} of {}", tests.len());
            }
            let from = match kept.of(&test.name) {
                Some(Outcome::Passed { shown, .. }) => *shown,
                Some(outcome) => return Ok((test.name.clone(), outcome.clone())),
                None => 0,
            };
            let outcome = self.seek_for(test, among.of(at), from)?;
            kept.add(&test.name, &outcome)?;
            Ok((test.name.clone(), outcome))
        });
        // What was seen to fail with a change may fail without one by now, or on this server.
        let of_left_out = |test: &String| kept.of(test).filter(|_| kept.is_settled(test)).cloned();
        let left_out = among.reach.left_out.iter();
        let left_out = left_out.map(|test| Ok((test.clone(), of_left_out(test).unwrap_or(Outcome::LeftOut))));
        seen.into_iter().chain(left_out).collect()
    }

    /// Shows changes to a test: first those that come after so many, which it was shown before.
    fn seek_for(&self, test: &Test<'_>, mut changes: Vec<&Change>, before: usize) -> Result<Outcome> {
        let of = changes.len();
        let before = if before < of { before } else { 0 };
        changes.rotate_left(before);
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
        let shown = of.min(before + shown);
        eprintln!("{} passes with {shown} changes of {of}", test.name);
        Ok(Outcome::Passed { shown, of })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{Built, Program};
    use crate::groups::Groups;
    use std::time::Duration;

    /// Two changes of `f` and two of `g`, of which the second ones replace the whole function.
    fn changes() -> [Change; 4] {
        let change = |id, function: &str, genre| Change {
            function: Some(function.into()),
            genre,
            ..Change::called(id, &format!("a.rs:{id}:1: change {function}"))
        };
        [
            change(1, "f", Genre::UnaryOperator),
            change(2, "f", Genre::FnValue),
            change(3, "g", Genre::MatchArm),
            change(4, "g", Genre::FnValue),
        ]
    }

    #[test]
    fn whole_functions_come_first_and_those_that_few_tests_reach() {
        let mut all = changes();
        let order = |all: &[Change], reached_by: [usize; 4]| {
            in_order(all.iter(), |id| reached_by[id - 1], 20).iter().map(|change| change.id).collect::<Vec<_>>()
        };
        assert_eq!(order(&all, [1, 1, 1, 1]), [2, 4, 1, 3]);
        assert_eq!(order(&all, [1, 9, 2, 8]), [4, 2, 1, 3]);
        assert_eq!(order(&all, [2, 8, 1, 9]), [2, 4, 3, 1]);
        assert_eq!(order(&all, [9, 11, 2, 12]), [3, 1, 2, 4], "most tests reach those that replace all");
        all[1].genre = Genre::MatchArm;
        assert_eq!(order(&all, [1, 2, 3, 3]), [1, 4, 2, 3], "f has none that replaces it");
    }

    #[test]
    fn without_an_earlier_run_all_is_shown_but_what_is_known_not_to_be_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().join("verdicts.txt");
        let mut all = changes();
        all[2].description = "a.rs: change g #1 of 2".into();
        let known: Known = toml::from_str(
            "[[kind]]\nbecause = \"It is so.\"\nharmless = true\nchanges = [\"a.rs: change g #1 of 2\"]",
        )
        .unwrap();
        assert_eq!(worth_showing(&report, &all, &known).unwrap(), [1, 2, 4].into());
        let lines = "a.rs:1:1: change f: noticed by m::t\na.rs:2:1: change f: not noticed by 1 of 2 tests that reach it\n\
                     a.rs:3:1: change g: noticed by a hang of one of m::u, m::v\n";
        fs::write(&report, lines).unwrap();
        assert_eq!(worth_showing(&report, &all, &known).unwrap(), [1, 3].into());
    }

    /// What comes of the test `a::b`, which is this script, when it is shown changes of which `kept` has something, and which were shown.
    fn sought(script: &str, kept: &str) -> (Outcome, String, String) {
        sought_of(script, kept, &[])
    }

    /// The same while these tests fail without a change.
    fn sought_of(script: &str, kept: &str, left_out: &[&str]) -> (Outcome, String, String) {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("[ $RLOCK_CHANGE = 0 ] || echo $RLOCK_CHANGE >> shown\n{script}");
        let program = Program::script(folder.path(), &script);
        let built = Built { changes: BTreeSet::new(), programs: Vec::new(), module: "m".into() };
        let (lasts, groups) = (Duration::from_secs(60), Groups::default());
        let trial = Trial { built: &built, jobs: 1, lasts, server: "s", groups };
        let test = Test { program: &program, name: "a::b".into(), lasts: Duration::from_millis(1) };
        let of_changes = (1..=4).map(|change| (change, vec![0])).collect();
        let tests = if left_out.is_empty() { vec![test] } else { Vec::new() };
        let left_out = left_out.iter().map(|&name| name.to_owned()).collect();
        let reach = Reach { tests, of_changes, left_out };
        let file = folder.path().join("tests.txt");
        fs::write(&file, kept).unwrap();
        let all = changes();
        let among = Among { all: &all, reach: &reach, worth: &(1..=4).collect() };
        let kept = Kept::read(&file, &all, BTreeSet::new()).unwrap();
        let seen = trial.seek(&among, 1, &kept).unwrap();
        let shown = fs::read_to_string(folder.path().join("shown")).unwrap_or_default();
        (seen["a::b"].clone(), shown.replace('\n', " "), fs::read_to_string(file).unwrap())
    }

    #[test]
    fn a_test_is_shown_changes_until_it_fails_twice_and_a_run_writes_down_at_once_which() {
        let notices = "a::b: notices a.rs:1:1: change f\n";
        let (outcome, shown, file) = sought("[ $RLOCK_CHANGE != 1 ]", "");
        assert_eq!(outcome, Outcome::Notices("a.rs:1:1: change f".into()));
        assert_eq!((shown.as_str(), file.as_str()), ("2 4 1 1 ", notices));
        let (again, shown, _) = sought("false", notices);
        assert_eq!((again, shown.as_str()), (outcome, ""), "it is known already");
    }

    #[test]
    fn a_test_that_passes_with_all_changes_or_fails_without_any_has_noticed_none() {
        let passed = Outcome::Passed { shown: 4, of: 4 };
        let (outcome, shown, file) = sought("true", "");
        assert_eq!((outcome, shown.as_str()), (passed.clone(), "2 4 1 3 "));
        assert_eq!(file, "a::b: passes with 4 of 4 changes\n");
        assert_eq!(sought("false", "").0, passed);
    }

    #[test]
    fn a_test_that_fails_without_any_change_was_seen_to_fail_before_or_never() {
        let outcome = |kept| sought_of("false", kept, &["a::b"]).0;
        let notices = Outcome::Notices("a.rs:1:1: change f".into());
        assert_eq!(outcome("a::b: notices a.rs:1:1: change f\n"), notices);
        assert_eq!(outcome("a::b: passes with 3 of 4 changes\n"), Outcome::LeftOut);
        assert_eq!(outcome(""), Outcome::LeftOut);
    }

    #[test]
    fn another_run_begins_with_what_was_not_shown() {
        assert_eq!(sought("true", "a::b: passes with 3 of 4 changes\n").1, "3 2 4 1 ");
        assert_eq!(sought("true", "a::b: passes with 4 of 4 changes\n").1, "2 4 1 3 ");
    }
}
