//! No file of this crate uses one that uses it: each can be read and understood when one knows those below it. In the engine the
//! order is the one that the head of `engine/mod.rs` gives.
//!
//! What counts as use is what can be seen in the text: paths, and calls of methods that another file adds to the same type.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Types whose methods are spread over the files of a folder, and how these call them.
const SPREAD: [(&str, &str, &[&str]); 2] = [
    ("engine", "Engine", &["self.", "engine.", "Self::", "Engine::"]),
    ("lock", "Lock", &["self.", "lock.", "Self::"]),
];

/// The text of each module without comments and tests, by its path: `engine/state`, and `engine` for `engine/mod.rs`.
fn modules() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut modules = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            if path.is_dir() && name != "tests" {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !["tests", "lib"].contains(&name) {
                let of = if name == "mod" { path.parent().unwrap().to_owned() } else { path.with_extension("") };
                let of = of.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                modules.insert(of, code(&fs::read_to_string(path).unwrap()));
            }
        }
    }
    modules
}

fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    text.lines().map(|line| line.split("//").next().unwrap().to_owned() + "\n").collect()
}

fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// What follows each place of `prefix` that is not the end of a longer word.
fn after<'t>(text: &'t str, prefix: &str) -> impl Iterator<Item = &'t str> {
    let is_word = |at: usize| text[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(prefix).filter(move |(at, _)| !is_word(*at)).map(move |(at, found)| &text[at + found.len()..])
}

/// The module that a path leads to from a folder, as far as it names modules.
fn resolve(modules: &BTreeMap<String, String>, folder: &str, path: &str) -> Option<String> {
    let (mut found, mut rest) = (folder.to_owned(), path);
    loop {
        let step = identifier(rest);
        let deeper = if found.is_empty() { step.to_owned() } else { format!("{found}/{step}") };
        if !modules.contains_key(&deeper) {
            return Some(found).filter(|found| !found.is_empty());
        }
        (found, rest) = (deeper, rest[step.len()..].trim_start_matches("::"));
    }
}

fn methods(text: &str, of: &str) -> BTreeSet<String> {
    let head = format!("\nimpl {of} {{\n");
    let blocks = text.split(&head).skip(1).filter_map(|block| block.split("\n}\n").next());
    blocks.flat_map(|block| after(block, "fn ")).map(|rest| identifier(rest).to_owned()).collect()
}

/// What each module uses.
fn uses() -> BTreeMap<String, BTreeSet<String>> {
    let modules = modules();
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, text) in &modules {
        let folder = module.rsplit_once('/').map_or("", |(folder, _)| folder);
        let absolute = after(text, "crate::").map(|path| ("", path));
        let relative = after(text, "super::").map(|path| (folder, path));
        let inner = after(text, "use ").map(|path| (module.as_str(), path));
        let used = absolute.chain(relative).chain(inner).filter_map(|(from, path)| resolve(&modules, from, path));
        uses.entry(module.clone()).or_default().extend(used.filter(|used| used != module));
    }
    for (folder, of, calls) in SPREAD {
        let spread: BTreeMap<&String, BTreeSet<String>> = modules
            .iter()
            .filter(|(module, _)| module.split('/').next() == Some(folder))
            .map(|(module, text)| (module, methods(text, of)))
            .collect();
        for module in spread.keys() {
            let text = &modules[*module];
            let own: BTreeSet<&str> = after(text, "fn ").map(identifier).collect();
            let named = calls.iter().flat_map(|call| after(text, call));
            let called = named.filter_map(|rest| rest.split_once('(').map(|(name, _)| name));
            for called in called.filter(|name| identifier(name) == *name && !own.contains(name)) {
                let found = spread.iter().filter(|(_, methods)| methods.contains(called)).map(|(at, _)| (*at).clone());
                uses.get_mut(*module).unwrap().extend(found);
            }
        }
    }
    uses
}

/// Follows what is used until it comes back to where it has been.
fn circle(uses: &BTreeMap<String, BTreeSet<String>>, way: &mut Vec<String>, done: &mut BTreeSet<String>) -> bool {
    let at = way.last().unwrap().clone();
    for next in &uses[&at] {
        let is_back = way.contains(next);
        if done.contains(next) {
            continue;
        }
        way.push(next.clone());
        if is_back || circle(uses, way, done) {
            return true;
        }
        way.pop();
    }
    done.insert(at);
    false
}

#[test]
fn no_file_uses_one_that_uses_it() {
    let (uses, mut done) = (uses(), BTreeSet::new());
    assert!(uses["engine/acquire"].contains("engine/grant"), "calls of methods are seen");
    for module in uses.keys() {
        let mut way = vec![module.clone()];
        assert!(!circle(&uses, &mut way, &mut done), "{}", way.join(" uses "));
    }
}

#[test]
fn the_files_of_the_engine_are_listed_from_the_bottom_to_the_top() {
    let head = include_str!("../src/engine/mod.rs");
    let list = head.split("from the bottom to the top").nth(1).unwrap().split("\nmod ").next().unwrap();
    let listed: Vec<String> = list.split('`').skip(1).step_by(2).map(|name| format!("engine/{name}")).collect();
    let uses = uses();
    let here: BTreeSet<&String> = uses.keys().filter(|module| module.starts_with("engine/")).collect();
    assert_eq!(here, listed.iter().collect(), "each file is listed");
    for (at, module) in listed.iter().enumerate() {
        let above = uses[module].iter().find(|used| listed[at..].contains(used));
        assert_eq!(above, None, "{module} uses only what is listed before it");
    }
}
