//! The tests that each change was shown to, and that did not notice it: the next run begins with the others. What a test sees may depend on
//! the server, so each server has its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// For each server by its path, and each change by its name, the names of the tests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown(BTreeMap<String, OnServer>);

/// For each change by its name, the names of the tests.
pub type OnServer = BTreeMap<String, BTreeSet<String>>;

impl Shown {
    pub fn read(file: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(file).with_context(|| format!("there is no earlier run in {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("cannot read {}", file.display()))
    }

    pub fn write(&self, file: &Path) -> Result<()> {
        fs::write(file, serde_json::to_string(self)?).with_context(|| format!("cannot write {}", file.display()))
    }

    /// What was shown on a server.
    pub fn on(&mut self, server: &str) -> &mut OnServer {
        self.0.entry(server.to_owned()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_run_reads_what_was_shown_on_its_server() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut shown = Shown::default();
        shown.on("one").insert("a.rs:1:1: h".into(), ["m::t".into()].into());
        shown.write(file.path()).unwrap();
        let mut read = Shown::read(file.path()).unwrap();
        assert_eq!(read, shown);
        assert!(read.on("two").is_empty());
        assert!(read.on("one")["a.rs:1:1: h"].contains("m::t"));
    }
}
