//! Tables that a run writes into a document, between two lines that say who writes there.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Puts a table in its place in a document: that of the `make` target which writes it.
///
/// # Errors
///
/// If the document has no such place.
pub fn write(document: &Path, target: &str, table: &str) -> Result<()> {
    let [begin, end] = ["begin", "end"].map(|word| format!("<!-- written by `make {target}`: {word} -->"));
    let text = fs::read_to_string(document).with_context(|| format!("cannot read {}", document.display()))?;
    let (before, rest) = text.split_once(&begin).with_context(|| format!("{} has no {begin}", document.display()))?;
    let after = rest.split_once(&end).map(|(_, after)| after);
    ensure!(after.is_some(), "{} has no {end}", document.display());
    Ok(fs::write(document, format!("{before}{begin}\n\n{table}\n{end}{}", after.unwrap_or_default()))?)
}
