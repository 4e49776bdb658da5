//! The table of guarantees names only rules, functions and mutants that exist, and names all of
//! them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rlock_check::history::Rule;
use rlock_check::mutants;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document() -> String {
    fs::read_to_string(root().join("docs/guarantees.md")).expect("docs/guarantees.md is readable")
}

/// The rows of the table whose heading begins with `heading`, as cells.
fn rows(document: &str, heading: &str) -> Vec<Vec<String>> {
    let below = document.lines().skip_while(|line| !line.starts_with(heading)).skip(2);
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    below.take_while(|line| line.starts_with('|')).map(cells).collect()
}

fn table(document: &str) -> Vec<Vec<String>> {
    let rows = rows(document, "| guarantee |");
    assert!(!rows.is_empty(), "no table begins with '| guarantee |'");
    assert!(rows.iter().all(|row| row.len() == 4), "guarantee, rules, small worlds, mutants");
    rows
}

/// The texts between backquotes.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn patches() -> BTreeSet<String> {
    mutants::all(&root()).expect("the patches are readable").into_iter().map(|mutant| mutant.name).collect()
}

#[test]
fn each_guarantee_has_a_row() {
    let document = document();
    let named: Vec<String> = table(&document).into_iter().filter_map(|row| row.into_iter().next()).collect();
    // Guarantees look like `1. **One owner at a time.** By the server's clock, …`.
    let promised: Vec<String> = document
        .lines()
        .filter_map(|line| line.split_once(". **"))
        .filter(|(number, _)| number.parse::<u32>().is_ok())
        .filter_map(|(number, rest)| Some(format!("{number}. {}", rest.split_once("**")?.0.trim_end_matches('.'))))
        .collect();
    assert!(promised.len() >= 11, "{promised:?}");
    for guarantee in promised {
        // The sentence may continue after the title, as in `3. **First come, first served** among
        // the clients …`.
        assert!(named.contains(&guarantee), "{guarantee} is not in the table: {named:?}");
    }
}

#[test]
fn each_rule_is_named_and_nothing_else() {
    let rows = table(&document());
    // That the server answers is no promise about locks.
    for rule in Rule::ALL.into_iter().filter(|rule| *rule != Rule::ServerLives) {
        let is_named = rows.iter().any(|row| row[1].contains(rule.name()));
        assert!(is_named, "{:?} is the rule of no guarantee", rule.name());
    }
    for row in rows {
        let is_known = row[1] == "none" || Rule::ALL.iter().any(|rule| row[1].contains(rule.name()));
        assert!(is_known, "{:?} names no rule", row[1]);
    }
}

#[test]
fn named_functions_of_the_small_worlds_exist() {
    let mut sources = String::new();
    for folder in ["core/src/engine/tests", "core/src/engine/tests/worlds"] {
        for entry in fs::read_dir(root().join(folder)).expect("the tests of the engine exist") {
            let path = entry.expect("a file").path();
            if path.is_file() {
                sources.push_str(&fs::read_to_string(path).expect("a source file"));
            }
        }
    }
    for row in table(&document()) {
        for name in quoted(&row[2]).into_iter().filter(|name| name.contains('_')) {
            assert!(sources.contains(&format!("fn {name}(")), "no function {name}");
        }
    }
}

#[test]
fn each_mutant_breaks_a_guarantee_and_each_guarantee_has_one() {
    let rows = table(&document());
    for row in &rows {
        assert!(!quoted(&row[3]).is_empty(), "no mutant shows that the checks of {:?} can fail", row[0]);
    }
    let named: BTreeSet<String> = rows.iter().flat_map(|row| quoted(&row[3])).collect();
    assert_eq!(named, patches());
}

#[test]
fn each_rule_has_a_mutant_that_it_has_to_notice() {
    let mutants = mutants::all(&root()).expect("the patches are readable");
    // A server that is wrong about locks still answers.
    for rule in Rule::ALL.into_iter().filter(|rule| *rule != Rule::ServerLives) {
        assert!(mutants.iter().any(|mutant| mutant.rules.contains(&rule)), "no mutant names {rule:?}");
    }
}

/// The rules that a patch names and the results that the last run wrote agree.
#[test]
fn each_mutant_was_noticed_by_a_rule_that_it_names() {
    let tried = rows(&document(), "| mutant |");
    for mutant in mutants::all(&root()).expect("the patches are readable") {
        let is_of = |row: &&Vec<String>| quoted(&row[0]).first() == Some(&mutant.name) && row[2] != "none: a test";
        for row in tried.iter().filter(is_of).filter(|_| !mutant.rules.is_empty()) {
            let is_named = mutant.rules.iter().any(|rule| row[3].split("; ").any(|name| name == rule.name()));
            assert!(is_named, "{} under {}: {}", mutant.name, row[2], row[3]);
        }
    }
}

/// The table that the last run wrote is about these mutants.
#[test]
fn the_table_of_the_last_run_has_each_mutant() {
    let tried = rows(&document(), "| mutant |");
    let named: BTreeSet<String> = tried.iter().filter_map(|row| quoted(&row[0]).into_iter().next()).collect();
    assert_eq!(named, patches(), "run make check-mutants WRITE=1");
}
