//! The pages of commands and errors match the server: neither has anything that the other lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Reply, Server};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a readable folder").map(|entry| entry.expect("a readable entry").path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("a text")
}

/// The usage lines of the pages, by command. A word after a word in capitals names its value, and
/// is replaced by `value`.
fn documented() -> BTreeMap<String, String> {
    let mut usages = BTreeMap::new();
    for page in files_below(&root().join("docs/commands")) {
        for line in read(&page).split("```").skip(1).step_by(2).flat_map(str::lines) {
            let usage = line.split(" -> ").next().unwrap_or_default();
            let Some((name, arguments)) = usage.split_once(' ').filter(|(name, _)| is_command(name)) else {
                continue;
            };
            let known = usages.insert(name.to_owned(), without_names(arguments));
            assert_eq!(known, None, "{name} is described twice");
        }
    }
    usages
}

fn is_command(word: &str) -> bool {
    word.starts_with('R')
        && word.contains('.')
        && word.chars().all(|letter| letter.is_ascii_uppercase() || letter == '.')
}

fn without_names(arguments: &str) -> String {
    let mut follows_token = false;
    let words = arguments.split_whitespace().map(|word| {
        let core = word.trim_matches(['[', ']']);
        let is_value = follows_token && core != "|";
        follows_token =
            core.len() > 1 && core.chars().all(|letter| letter.is_ascii_uppercase()) && !word.ends_with(']');
        if is_value { word.replace(core, "value") } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Formats an argument of COMMAND DOCS as the pages do.
fn usage_of(argument: &Reply) -> String {
    let field = |name: &str| argument.pairs().iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let text = |name: &str| field(name).map(|value| value.text());
    let flags: Vec<String> =
        field("flags").map(|flags| flags.array().iter().map(Reply::text).collect()).unwrap_or_default();
    let inner = |separator: &str| {
        let arguments = field("arguments").expect("arguments in an argument");
        arguments.array().iter().map(usage_of).collect::<Vec<_>>().join(separator)
    };
    let name = text("name").expect("a name");
    let value = match text("type").expect("a type").as_str() {
        "pure-token" => String::new(),
        "oneof" if !flags.contains(&"optional".to_owned()) => inner("|"),
        "oneof" => inner(" | "),
        "block" => inner(" "),
        _ if field("token").is_some() && flags.contains(&"multiple".to_owned()) => "value …".to_owned(),
        _ if field("token").is_some() => "value".to_owned(),
        _ if flags.contains(&"multiple".to_owned()) => format!("{name} [{name} …]"),
        _ => name,
    };
    let usage = [text("token").unwrap_or_default(), value].join(" ").trim().to_owned();
    if flags.contains(&"optional".to_owned()) { format!("[{usage}]") } else { usage }
}

#[test]
fn command_pages_match_command_docs() {
    let server = Server::start();
    let mut client = server.client();
    let mut actual = BTreeMap::new();
    for name in client.call("COMMAND LIST FILTERBY MODULE rlock").array() {
        let name = name.text().to_uppercase();
        // RLOCK.APPLY carries effects between servers and is not for users.
        if name == "RLOCK.APPLY" {
            continue;
        }
        let docs = client.call(format!("COMMAND DOCS {name}")).pairs().remove(0).1;
        assert!(
            !docs.field("summary").text().is_empty() && docs.field("complexity").text().starts_with("O("),
            "{name}"
        );
        let arguments = docs.field("arguments");
        actual.insert(name, arguments.array().iter().map(usage_of).collect::<Vec<_>>().join(" "));
    }
    let documented = documented();
    for (name, usage) in &actual {
        assert_eq!(documented.get(name), Some(usage), "{name}");
    }
    let unknown: Vec<_> = documented.keys().filter(|name| !actual.contains_key(*name)).collect();
    assert!(unknown.is_empty(), "unknown to the server: {unknown:?}");
}

/// The error codes in the table.
fn errors_in_the_table() -> BTreeSet<String> {
    let page = read(&root().join("docs/errors.md"));
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    cells.flat_map(|cell| cell.split("`").map(str::to_owned).collect::<Vec<_>>()).filter(|word| is_code(word)).collect()
}

fn is_code(word: &str) -> bool {
    word.len() >= 3 && word.chars().all(|letter| letter.is_ascii_uppercase())
}

/// Errors of the server itself in reply to commands of the module.
const SERVER_ERRORS: [&str; 6] = ["OOM", "CROSSSLOT", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"];

#[test]
fn error_table_has_exactly_the_errors_of_the_module() {
    let mut codes = BTreeSet::from(SERVER_ERRORS.map(str::to_owned));
    for file in files_below(&root().join("src")) {
        let text = read(&file);
        // String literals that begin with a word in capitals.
        let beginnings = text.match_indices('"').filter_map(|(at, _)| text[at + 1..].split_once(' '));
        codes.extend(beginnings.map(|(word, _)| word.to_owned()).filter(|word| is_code(word)));
    }
    assert_eq!(codes, errors_in_the_table());
}
