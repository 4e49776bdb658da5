//! The changes of a package of which it is known that no test notices them, and why.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// What is known, by kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    #[serde(default, rename = "kind")]
    pub kinds: Vec<Kind>,
    /// Tests that fail by something else than a change of the package.
    #[serde(default)]
    pub tests: Vec<OtherTests>,
}

/// Tests for which the same can be said.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherTests {
    /// What they are about, and by what they were seen to fail.
    pub because: String,
    pub tests: Vec<String>,
}

/// Changes for which the same can be said.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    /// Why no test notices them.
    pub because: String,
    /// Whether nobody can notice them; else it is a test that is missing.
    pub harmless: bool,
    /// What is changed, without line and column. Of changes that read the same in a function each has its number: `#2 of 3`.
    pub changes: Vec<String>,
}

impl Known {
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        toml::from_str(&text).with_context(|| format!("cannot read {}", file.display()))
    }

    /// Each change that is named, and whether it is harmless.
    pub fn changes(&self) -> BTreeMap<&str, bool> {
        self.kinds.iter().flat_map(|kind| kind.changes.iter().map(|change| (change.as_str(), kind.harmless))).collect()
    }
}
