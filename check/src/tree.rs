//! Copies of the tree, for builds that are wrong on purpose.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Copies what git knows of a tree and what is new in it, but for the files of which another text is given, or which only that names. A file that is
/// the same already is left alone, so that cargo builds anew only what has changed.
///
/// # Errors
///
/// If git does not know the tree, or a file cannot be written.
pub fn copy(from: &Path, to: &Path, others: &BTreeMap<String, String>) -> Result<()> {
    let listed = git(from).args(["ls-files", "--cached", "--others", "--exclude-standard"]).output()?;
    ensure!(listed.status.success(), "git cannot list the tree");
    let listed = String::from_utf8(listed.stdout)?;
    let names: BTreeSet<_> = listed.lines().chain(others.keys().map(String::as_str)).collect();
    for name in names {
        let text = match others.get(name) {
            Some(text) => text.clone().into_bytes(),
            // What is deleted, and not yet for git.
            None => match fs::read(from.join(name)) {
                Ok(text) => text,
                Err(_) => continue,
            },
        };
        let copy = to.join(name);
        if fs::read(&copy).is_ok_and(|known| known == text) {
            continue;
        }
        fs::create_dir_all(copy.parent().unwrap_or(to))?;
        fs::write(&copy, text).with_context(|| format!("cannot write {}", copy.display()))?;
    }
    Ok(())
}

/// git in a folder; a copy inside of a repository is not taken for a part of it.
#[must_use]
pub fn git(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(folder);
    if let Some(above) = folder.parent() {
        command.env("GIT_CEILING_DIRECTORIES", above);
    }
    command
}
