//! Tables that a run writes into a document, between two marks that name the `make` target.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Returns the table of a `make` target in a document.
///
/// # Errors
///
/// If the document has no marks for it.
pub fn read(document: &Path, target: &str) -> Result<String> {
    let text = fs::read_to_string(document).with_context(|| format!("cannot read {}", document.display()))?;
    Ok(parts(&text, document, target)?[1].to_owned())
}

/// Replaces the table of a `make` target in a document.
///
/// # Errors
///
/// If the document has no marks for it.
pub fn write(document: &Path, target: &str, table: &str) -> Result<()> {
    let text = fs::read_to_string(document).with_context(|| format!("cannot read {}", document.display()))?;
    let [before, _, after] = parts(&text, document, target)?;
    Ok(fs::write(document, format!("{before}\n\n{table}\n{after}"))?)
}

/// Splits a document into the part up to the first mark, the table, and the part from the second
/// mark.
fn parts<'t>(text: &'t str, document: &Path, target: &str) -> Result<[&'t str; 3]> {
    let [begin, end] = ["begin", "end"].map(|word| format!("<!-- written by `make {target}`: {word} -->"));
    let missing = |line: &str| format!("{} has no {line}", document.display());
    let from = text.find(&begin).with_context(|| missing(&begin))?.saturating_add(begin.len());
    let (before, rest) = text.split_at(from);
    let (table, after) = rest.split_at(rest.find(&end).with_context(|| missing(&end))?);
    Ok([before, table, after])
}
