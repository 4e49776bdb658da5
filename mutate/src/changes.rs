//! The changes of a package's code, as cargo-mutants lists them.

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
    /// What sort of change it is.
    pub genre: Genre,
    /// Where the text to be replaced begins, and where it ends.
    pub span: [Place; 2],
    /// What stands there then.
    pub replacement: String,
    /// What is changed, with line and column ahead.
    pub name: String,
}

impl Change {
    /// What is changed, without line and column: `core/src/time.rs: replace + with - in Now::after`.
    pub fn description(&self) -> String {
        let what = self.name.splitn(4, ':').nth(3).unwrap_or(&self.name);
        format!("{}:{what}", self.file)
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

#[derive(Deserialize)]
struct Listed {
    file: String,
    genre: Genre,
    span: Span,
    replacement: String,
    name: String,
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
    let changes = listed.into_iter().zip(1..).map(|(Listed { file, genre, span, replacement, name }, id)| Change {
        id,
        file,
        genre,
        span: [span.start, span.end],
        replacement,
        name,
    });
    Ok(changes.collect())
}
