//! The table of mutants in a document: which checks noticed which mutant, under each fault.

use super::{Mutant, Verdict};

/// The cell of a check that missed a mutant that it has to notice.
const MISSED: &str = "NOT NOTICED";

/// The cell of a check that noticed nothing and did not have to.
pub(super) const NOTHING: &str = "nothing";

/// The fault cell in the line of a test.
const A_TEST: &str = "none: a test";

/// A line of the table: a mutant, and the checks that noticed it under one fault.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    name: String,
    what: String,
    fault: String,
    rules: String,
    /// The finding of the small worlds; empty in all lines of a mutant but the first.
    worlds: String,
}

impl Line {
    /// Parses a line of a table; `None` if it is not about a mutant.
    fn read(line: &str) -> Option<Self> {
        let cells: Vec<String> = line.replace("\\|", "\u{0}").split('|').map(|cell| cell.trim().to_owned()).collect();
        let [_, name, what, fault, rules, worlds, _] = <[String; 7]>::try_from(cells).ok()?;
        let name = name.strip_prefix('`')?.strip_suffix('`')?.to_owned();
        Some(Self { name, what, fault, rules, worlds: worlds.replace('\u{0}', "|") })
    }

    /// The lines of a mutant, one for each fault under which it was tried, and one for each test.
    fn of(mutant: &Mutant, verdict: &Verdict) -> Vec<Self> {
        let worlds = match verdict.worlds.as_deref() {
            None => "not asked",
            Some("") => MISSED,
            Some(said) => said,
        };
        let of_histories =
            verdict.histories.iter().map(|tried| (tried.fault.name(), tried.summary(), verdict.misses(tried)));
        let of_tests = verdict.tests.iter().map(|tested| (A_TEST, tested.summary(), !tested.has_failed));
        let line = |(at, (fault, noticed_by, is_missed)): (usize, (&str, String, bool))| Self {
            name: mutant.name.clone(),
            what: if at == 0 { mutant.what.clone() } else { "the same".into() },
            fault: fault.into(),
            rules: if is_missed { MISSED.into() } else { noticed_by },
            worlds: if at == 0 { worlds.to_owned() } else { String::new() },
        };
        of_histories.chain(of_tests).enumerate().map(line).collect()
    }

    fn text(&self) -> String {
        let Self { name, what, fault, rules, worlds } = self;
        // The message of an assertion may contain the mark that ends a cell.
        format!("| `{name}` | {what} | {fault} | {rules} | {} |\n", worlds.replace('|', "\\|"))
    }
}

/// Updates a table of Markdown: the mutants that were tried get new lines, and mutants that no
/// longer exist lose theirs.
#[must_use]
pub fn renewed(before: &str, verdicts: &[(Mutant, Verdict)], is_there: impl Fn(&str) -> bool) -> String {
    let is_new = |name: &str| verdicts.iter().any(|(mutant, _)| mutant.name == name);
    let is_kept = |line: &Line| is_there(&line.name) && !is_new(&line.name);
    let mut lines: Vec<Line> = before.lines().filter_map(Line::read).filter(is_kept).collect();
    lines.extend(verdicts.iter().flat_map(|(mutant, verdict)| Line::of(mutant, verdict)));
    // The sort is stable: the lines of one mutant stay in their order.
    lines.sort_by(|a, b| a.name.cmp(&b.name));
    let mut text = String::from(
        "| mutant | what is wrong | fault | rules of the histories | small worlds |\n|---|---|---|---|---|\n",
    );
    lines.iter().for_each(|line| text.push_str(&line.text()));
    let mutants: Vec<&[Line]> = lines.chunk_by(|a, b| a.name == b.name).collect();
    let is_missed = |line: &Line| line.rules == MISSED || line.worlds == MISSED;
    let caught = mutants.iter().filter(|lines| !lines.iter().any(is_missed)).count();
    let noticed = lines.iter().filter(|line| ![NOTHING, MISSED].contains(&line.rules.as_str())).count();
    let asked = lines.iter().filter(|line| !["", "not asked"].contains(&line.worlds.as_str()));
    let found = asked.clone().filter(|line| line.worlds != MISSED).count();
    text.push_str(&format!(
        "| {caught} of {} are caught | | | in {noticed} of {} campaigns and tests | {found} of {} |\n",
        mutants.len(),
        lines.len(),
        asked.count()
    ));
    text
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::Histories;
    use super::*;
    use crate::drive::fault::Faults;
    use crate::history::Rule;

    #[test]
    fn mutant_that_is_tried_again_gets_new_lines() {
        let mutant = |name: &str| Mutant {
            name: name.into(),
            what: "It is wrong.".into(),
            path: PathBuf::new(),
            is_for_worlds: false,
            is_in_client: false,
            faults: Vec::new(),
            rules: Vec::new(),
            tests: Vec::new(),
            lemmas: Vec::new(),
        };
        let tried = |fault, rules: &[Rule]| {
            let is_noticed = !rules.is_empty();
            Histories { fault, rules: rules.to_vec(), is_noticed, is_wanted: true }
        };
        let verdict = |histories, worlds: Option<&str>| {
            let (tests, worlds) = (Vec::new(), worlds.map(str::to_owned));
            Verdict { histories, tests, worlds }
        };
        let both = vec![tried(Faults::Kill, &[Rule::Exclusion]), tried(Faults::Stop, &[])];
        let first = [
            (mutant("b"), verdict(both, Some("a | b"))),
            (mutant("gone"), verdict(vec![tried(Faults::Kill, &[Rule::Permits])], None)),
        ];
        let before = renewed("", &first, |_| true);
        assert!(before.contains("| `b` | the same | SIGSTOP and SIGCONT | NOT NOTICED |  |\n"), "{before}");
        assert!(before.ends_with("| 1 of 2 are caught | | | in 2 of 3 campaigns and tests | 1 of 1 |\n"), "{before}");
        let second = [(mutant("a"), verdict(vec![tried(Faults::Kill, &[Rule::Permits])], None))];
        let after = renewed(&before, &second, |name| name != "gone");
        let lines: Vec<&str> = after.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| `a` | It is wrong. | kill -9 and restart | permits | not asked |",
                "| `b` | It is wrong. | kill -9 and restart | exclusion | a \\| b |",
                "| `b` | the same | SIGSTOP and SIGCONT | NOT NOTICED |  |",
                "| 1 of 2 are caught | | | in 2 of 3 campaigns and tests | 1 of 1 |",
            ]
        );
    }
}
