//! The changes of a package's code, as cargo-mutants lists them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::package::Package;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its number in the list, from 1 on: what the switch is called by.
    pub id: usize,
    /// The file, below the root of the tree.
    pub file: String,
    /// The function, if it is in one.
    pub function: Option<String>,
    /// What sort of change it is.
    pub genre: Genre,
    /// Where the text to be replaced begins, and where it ends.
    pub span: [Place; 2],
    /// What stands there then.
    pub replacement: String,
    /// What is changed, with line and column ahead.
    pub name: String,
    /// What is changed, without line and column, and the how manieth it is if several read the same: `src/time.rs: replace + with - in after #2 of 3`.
    pub description: String,
}

impl Change {
    /// The function that is changed, as far as it can be named.
    pub fn place(&self) -> String {
        format!("{} {}", self.file, self.function.as_deref().unwrap_or_default())
    }
}

#[cfg(test)]
impl Change {
    /// A change of which nothing matters but its name, with line and column.
    pub fn called(id: usize, name: &str) -> Self {
        Self {
            id,
            file: "a.rs".into(),
            function: None,
            genre: Genre::FnValue,
            span: [Place { line: 1, column: 1 }; 2],
            replacement: String::new(),
            name: name.into(),
            description: description("a.rs", name),
        }
    }
}

/// The sorts of changes that cargo-mutants knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Genre {
    /// A function returns something at once.
    FnValue,
    /// Another operator between two operands.
    BinaryOperator,
    /// No operator ahead of an operand.
    UnaryOperator,
    /// A match does not know one of its arms.
    MatchArm,
    /// What an arm asks for besides is always so, or never.
    MatchArmGuard,
    /// A field is taken from the base of a struct.
    StructField,
}

/// A place in a file: line and column, both from 1 on; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

#[derive(Deserialize)]
struct Listed {
    file: String,
    function: Option<Function>,
    genre: Genre,
    span: Span,
    replacement: String,
    name: String,
}

#[derive(Deserialize)]
struct Function {
    function_name: String,
}

#[derive(Deserialize)]
struct Span {
    start: Place,
    end: Place,
}

/// All changes of a package.
pub fn of(root: &Path, package: Package) -> Result<Vec<Change>> {
    let mut command = Command::new("cargo");
    command.args(["mutants", "--list", "--json", "--package", package.cargo_name()]).current_dir(root);
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} fails:\n{}", String::from_utf8_lossy(&output.stderr));
    read(&output.stdout).with_context(|| format!("cannot read what {command:?} says"))
}

fn read(list: &[u8]) -> Result<Vec<Change>> {
    let listed: Vec<Listed> = serde_json::from_slice(list)?;
    let changes = listed.into_iter().zip(1..).map(|(listed, id)| Change {
        id,
        description: description(&listed.file, &listed.name),
        file: listed.file,
        function: listed.function.map(|function| function.function_name),
        genre: listed.genre,
        span: [listed.span.start, listed.span.end],
        replacement: listed.replacement,
        name: listed.name,
    });
    let mut changes: Vec<_> = changes.collect();
    number_namesakes(&mut changes);
    Ok(changes)
}

/// What is changed, without line and column.
fn description(file: &str, name: &str) -> String {
    let what = name.splitn(4, ':').nth(3).unwrap_or(name);
    format!("{file}:{what}")
}

/// Tells apart those that read the same, by their order in the file. How many there are is told too: once there is one more or fewer, nobody knows any
/// longer which of them was meant.
fn number_namesakes(changes: &mut [Change]) {
    let mut all: BTreeMap<String, Vec<&mut Change>> = BTreeMap::new();
    for change in changes {
        all.entry(change.description.clone()).or_default().push(change);
    }
    for mut namesakes in all.into_values().filter(|namesakes| namesakes.len() > 1) {
        namesakes.sort_by_key(|change| change.span);
        let of = namesakes.len();
        for (change, number) in namesakes.into_iter().zip(1..) {
            let _ = write!(change.description, " #{number} of {of}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cargo_mutants_is_read() {
        let list = br#"[{
            "package": "p", "file": "src/a.rs", "genre": "BinaryOperator", "replacement": "<=",
            "function": {"function_name": "S<T>::f", "return_type": "", "span": {"start": {"line": 1, "column": 1}, "end": {"line": 9, "column": 2}}},
            "span": {"start": {"line": 3, "column": 7}, "end": {"line": 3, "column": 8}},
            "name": "src/a.rs:3:7: replace < with <= in S<T>::f"
        }]"#;
        let [change] = read(list).unwrap().try_into().unwrap();
        assert_eq!((change.id, change.genre, change.replacement.as_str()), (1, Genre::BinaryOperator, "<="));
        assert_eq!(change.function.as_deref(), Some("S<T>::f"));
        assert_eq!(change.span, [Place { line: 3, column: 7 }, Place { line: 3, column: 8 }]);
        assert_eq!(change.description, "src/a.rs: replace < with <= in S<T>::f");
    }

    #[test]
    fn changes_that_read_the_same_are_told_apart_by_their_order() {
        let one = |line: usize, column: usize, what: &str| {
            format!(
                r#"{{"file": "a.rs", "function": null, "genre": "BinaryOperator", "replacement": "", "name": "a.rs:{line}:{column}: {what}",
                "span": {{"start": {{"line": {line}, "column": {column}}}, "end": {{"line": {line}, "column": {column}}}}}}}"#
            )
        };
        let list = format!("[{}, {}, {}]", one(3, 9, "x in f"), one(3, 5, "x in f"), one(2, 1, "x in g"));
        let descriptions = read(list.as_bytes()).unwrap().into_iter().map(|change| change.description);
        assert_eq!(descriptions.collect::<Vec<_>>(), ["a.rs: x in f #2 of 2", "a.rs: x in f #1 of 2", "a.rs: x in g"]);
    }
}
