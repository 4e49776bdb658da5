//! Copies of the source tree, for builds that are broken on purpose.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Copies the files of a tree that git tracks or would track. A file that the copy has already
/// is left alone, so that cargo rebuilds only what has changed; other files are removed.
///
/// # Errors
///
/// If git cannot list the tree, or a file cannot be written.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let listed = git(from).args(["ls-files", "--cached", "--others", "--exclude-standard"]).output()?;
    ensure!(listed.status.success(), "git cannot list the tree");
    let listed = String::from_utf8(listed.stdout)?;
    let mut kept = BTreeSet::new();
    for name in listed.lines() {
        // git also lists deleted files. They are skipped.
        let Ok(text) = fs::read(from.join(name)) else {
            continue;
        };
        let copy = to.join(name);
        kept.insert(copy.clone());
        if fs::read(&copy).is_ok_and(|known| known == text) {
            continue;
        }
        fs::create_dir_all(copy.parent().unwrap_or(to))?;
        fs::write(&copy, text).with_context(|| format!("cannot write {}", copy.display()))?;
    }
    remove_others(to, &kept)
}

/// Removes the files of a folder that are not in `kept`.
fn remove_others(folder: &Path, kept: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            remove_others(&path, kept)?;
        } else if !kept.contains(&path) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// A git command in a folder. It does not treat a copy inside a repository as a part of it.
#[must_use]
pub fn git(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(folder);
    if let Some(above) = folder.parent() {
        command.env("GIT_CEILING_DIRECTORIES", above);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_follows_the_tree() {
        let [tree, copy] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        assert!(git(tree.path()).args(["init", "--quiet"]).status().unwrap().success());
        fs::create_dir_all(tree.path().join("a")).unwrap();
        for (name, text) in [("a/stays", "1"), ("a/goes", "2"), ("differs", "3")] {
            fs::write(tree.path().join(name), text).unwrap();
        }
        super::copy(tree.path(), copy.path()).unwrap();
        let in_copy = |name: &str| fs::read_to_string(copy.path().join(name)).ok();
        let all = || ["a/stays", "a/goes", "differs"].map(|name| in_copy(name).unwrap_or_default());
        assert_eq!(all(), ["1", "2", "3"]);

        fs::remove_file(tree.path().join("a/goes")).unwrap();
        fs::write(tree.path().join("differs"), "4").unwrap();
        super::copy(tree.path(), copy.path()).unwrap();
        assert_eq!(all(), ["1", "", "4"]);
    }
}
