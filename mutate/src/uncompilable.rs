//! The changes that do not compile, as long as the sources stay as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The changes that do not compile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uncompilable {
    /// The texts of the files that have changes, by their names. With other texts the changes have other numbers.
    sources: BTreeMap<String, String>,
    /// Their numbers.
    pub changes: BTreeSet<usize>,
}

impl Uncompilable {
    /// What earlier builds of these sources have found out.
    pub fn read(file: &Path, sources: &BTreeMap<String, String>) -> Self {
        let known = fs::read(file).ok().and_then(|text| serde_json::from_slice::<Self>(&text).ok());
        known
            .filter(|known| known.sources == *sources)
            .unwrap_or_else(|| Self { sources: sources.clone(), changes: BTreeSet::new() })
    }

    pub fn write(&self, file: &Path) -> Result<()> {
        fs::write(file, serde_json::to_string(self)?).with_context(|| format!("cannot write {}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_compile_is_known_until_a_source_is_another_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let sources = |text: &str| [("a.rs".to_owned(), text.to_owned())].into();
        let mut known = Uncompilable::read(file.path(), &sources("f"));
        known.changes.insert(7);
        known.write(file.path()).unwrap();
        assert_eq!(Uncompilable::read(file.path(), &sources("f")), known);
        assert!(Uncompilable::read(file.path(), &sources("g")).changes.is_empty());
    }
}
