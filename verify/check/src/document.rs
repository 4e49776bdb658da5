//! Tables that a run writes into a document, between two lines that say who writes there.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The table in its place in a document: that of the `make` target which writes it.
///
/// # Errors
///
/// If the document has no such place.
pub fn read(document: &Path, target: &str) -> Result<String> {
    let text = fs::read_to_string(document).with_context(|| format!("cannot read {}", document.display()))?;
    Ok(parts(&text, document, target)?[1].to_owned())
}

/// Puts a table in its place in a document: that of the `make` target which writes it.
///
/// # Errors
///
/// If the document has no such place.
pub fn write(document: &Path, target: &str, table: &str) -> Result<()> {
    let text = fs::read_to_string(document).with_context(|| format!("cannot read {}", document.display()))?;
    let [before, _, after] = parts(&text, document, target)?;
    Ok(fs::write(document, format!("{before}\n\n{table}\n{after}"))?)
}

/// A document up to the end of the line ahead of a table, the table, and the document from the line behind it on.
fn parts<'t>(text: &'t str, document: &Path, target: &str) -> Result<[&'t str; 3]> {
    let [begin, end] = ["begin", "end"].map(|word| format!("<!-- written by `make {target}`: {word} -->"));
    let missing = |line: &str| format!("{} has no {line}", document.display());
    let from = text.find(&begin).with_context(|| missing(&begin))?.saturating_add(begin.len());
    let (before, rest) = text.split_at(from);
    let (table, after) = rest.split_at(rest.find(&end).with_context(|| missing(&end))?);
    Ok([before, table, after])
}
