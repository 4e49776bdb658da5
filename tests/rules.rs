//! Each numbered rule of the command pages has a test or a transcript in core/testdata that names
//! it, as `Rule C1` or `Rules C1, C2`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A rule is a letter and a number.
fn is_rule(word: &str) -> bool {
    let mut letters = word.chars();
    letters.next().is_some_and(|letter| letter.is_ascii_uppercase())
        && word.len() > 1
        && letters.all(|letter| letter.is_ascii_digit())
}

/// The rules of a page, each in bold before its text.
fn rules_of_page(page: &str) -> Vec<String> {
    page.split("**").filter(|word| is_rule(word)).map(str::to_owned).collect()
}

/// The rules that a text names.
fn named_in(text: &str) -> impl Iterator<Item = &str> {
    let lists = text.split("Rule").skip(1).filter_map(|rest| rest.strip_prefix("s ").or(rest.strip_prefix(" ")));
    lists.flat_map(|list| {
        let words = list.split([' ', '\n']).map(|word| word.trim_end_matches(['.', ',', ':']));
        words.take_while(|word| is_rule(word))
    })
}

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
    entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn each_numbered_rule_has_a_test_or_a_transcript() {
    let rules: Vec<String> = files("docs/commands").iter().flat_map(|page| rules_of_page(&read(page))).collect();
    let once: BTreeSet<&str> = rules.iter().map(String::as_str).collect();
    assert_eq!(once.len(), rules.len(), "two rules have the same number: {rules:?}");
    assert!(rules.len() >= 20, "{rules:?}");
    let mut shown: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in [files("tests"), files("core/testdata")].concat() {
        for rule in named_in(&read(&path)) {
            shown.entry(rule.to_owned()).or_default().push(path.display().to_string());
        }
    }
    let untested: Vec<_> = once.iter().filter(|rule| !shown.contains_key(**rule)).collect();
    assert!(untested.is_empty(), "no test and no transcript names {untested:?}");
    let unknown: Vec<_> = shown.iter().filter(|(rule, _)| !once.contains(rule.as_str())).collect();
    assert!(unknown.is_empty(), "not on any page: {unknown:?}");
}
