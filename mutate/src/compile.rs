//! One build with all changes of a package that compile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use rlock_check::tree;
use serde::Deserialize;

use crate::changes::Change;
use crate::package::{Builds, Package};
use crate::rewrite::{self, Rewritten};
use crate::uncompilable::Uncompilable;

/// The profile of the workspace that builds which are wrong on purpose are made with: quickly.
const PROFILE: &str = "mutant";

const SWITCH: &str = include_str!("../template/mutation_switch.rs");

/// What has been built.
#[derive(Debug)]
pub struct Built {
    /// The changes that are in it.
    pub changes: BTreeSet<usize>,
    /// The test programs, in the order in which they are to look at a change.
    pub programs: Vec<Program>,
    /// The module that they load.
    pub module: PathBuf,
}

/// A test program.
#[derive(Debug)]
pub struct Program {
    pub path: PathBuf,
    /// Where cargo would run it.
    pub folder: PathBuf,
}

#[cfg(test)]
impl Program {
    /// A script in a folder that stands for a test program.
    pub fn script(folder: &Path, script: &str) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let path = folder.join("program");
        fs::write(&path, format!("#!/bin/bash\ncd {}\n{script}\n", folder.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self { path, folder: folder.to_owned() }
    }
}

/// A message of cargo, of those that matter here.
#[derive(Deserialize)]
struct Message {
    /// What the compiler says.
    message: Option<Diagnostic>,
    /// The program that has been built.
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    spans: Vec<Span>,
    children: Vec<Diagnostic>,
    rendered: Option<String>,
}

#[derive(Deserialize)]
struct Span {
    file_name: String,
    byte_start: usize,
    byte_end: usize,
    is_primary: bool,
}

/// Builds what a package asks for in a copy of the tree, in the target folder, with all changes that compile. Those that do not are left out, as the
/// compiler names them, and so are those that are not `wanted`, so that there is less to compile. Which do not compile is kept beside the copy, so that
/// the next build of the same sources has nothing to find out.
pub fn with_all(
    root: &Path,
    target: &Path,
    package: Package,
    all: &[Change],
    builds: Builds,
    wanted: Option<&BTreeSet<usize>>,
) -> Result<Built> {
    let is_left_out = |id: &usize| wanted.is_some_and(|wanted| !wanted.contains(id));
    let mut left_out: BTreeSet<_> = all.iter().map(|change| change.id).filter(is_left_out).collect();
    let file = target.join("uncompilable.json");
    let mut uncompilable = Uncompilable::read(&file, &sources(root, all)?);
    left_out.extend(&uncompilable.changes);
    loop {
        let files = rewritten(root, all, &left_out)?;
        let mut texts: BTreeMap<_, _> = files.iter().map(|(name, file)| (name.clone(), file.text.clone())).collect();
        add_switch(root, package, all.len(), &mut texts)?;
        let copy = target.join("tree");
        tree::copy(root, &copy, &texts)?;
        let mut programs = Vec::new();
        let failed =
            package.builds(builds).iter().find_map(|words| build(&copy, target, words, &mut programs).transpose());
        let Some(errors) = failed.transpose()? else {
            let changes: BTreeSet<_> = files.values().flat_map(|file| file.placed.iter().copied()).collect();
            eprintln!("{} of them are in the build", changes.len());
            uncompilable.write(&file)?;
            return Ok(Built { changes, programs, module: target.join("build").join(PROFILE).join("librlock.so") });
        };
        let blamed: BTreeSet<_> = errors.iter().flat_map(|error| blamed_for(error, &files)).collect();
        if blamed.is_empty() {
            let said: String = errors.into_iter().filter_map(|error| error.rendered).collect();
            bail!("the changes do not compile, and none of them is to blame:\n{said}");
        }
        eprintln!("{} do not compile", blamed.len());
        left_out.extend(&blamed);
        uncompilable.changes.extend(blamed);
    }
}

/// The texts of the files that have changes, by their names.
fn sources(root: &Path, all: &[Change]) -> Result<BTreeMap<String, String>> {
    let files: BTreeSet<_> = all.iter().map(|change| &change.file).collect();
    files.into_iter().map(|file| Ok((file.clone(), fs::read_to_string(root.join(file))?))).collect()
}

/// The files that have changes, with all of them that are not left out.
fn rewritten(root: &Path, all: &[Change], left_out: &BTreeSet<usize>) -> Result<BTreeMap<String, Rewritten>> {
    let mut of_files: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for change in all.iter().filter(|change| !left_out.contains(&change.id)) {
        of_files.entry(change.file.clone()).or_default().push(change);
    }
    let with_changes = |(name, changes): (String, Vec<&Change>)| {
        let text = fs::read_to_string(root.join(&name))?;
        let file = rewrite::with_changes(&text, &changes).with_context(|| name.clone())?;
        Ok((name, file))
    };
    of_files.into_iter().map(with_changes).collect()
}

/// Adds the switch to the package. It wants the standard library and its prelude, and so do some of the changes.
fn add_switch(root: &Path, package: Package, changes: usize, texts: &mut BTreeMap<String, String>) -> Result<()> {
    let name = format!("{}/lib.rs", package.sources());
    let text = match texts.remove(&name) {
        Some(text) => text,
        None => fs::read_to_string(root.join(&name))?,
    };
    let text = text.replace("#![cfg_attr(not(test), no_std)]", "");
    texts.insert(name, format!("{text}\nmod mutation_switch;\n"));
    let switch = SWITCH.replace("CHANGES", &changes.to_string());
    texts.insert(format!("{}/mutation_switch.rs", package.sources()), switch);
    Ok(())
}

/// Lets cargo build something. Returns the compiler's errors, or nothing if it has been built.
fn build(tree: &Path, target: &Path, words: &[&str], programs: &mut Vec<Program>) -> Result<Option<Vec<Diagnostic>>> {
    let mut command = Command::new("cargo");
    command.args(words).args(["--profile", PROFILE, "--message-format", "json"]).current_dir(tree);
    command.env("CARGO_TARGET_DIR", target.join("build")).stderr(Stdio::piped());
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let mut errors = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Message>(line) else { continue };
        errors.extend(message.message.filter(|said| said.level.starts_with("error")));
        if let (Some(path), Some(manifest), Some(Profile { test: true })) =
            (message.executable, message.manifest_path, message.profile)
        {
            programs.push(Program { path, folder: manifest.parent().unwrap_or(tree).to_owned() });
        }
    }
    if output.status.success() {
        return Ok(None);
    }
    if errors.is_empty() {
        bail!("{command:?} fails:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(Some(errors))
}

/// The changes that an error of the compiler is about: those at the first place that it names and that has any.
fn blamed_for(error: &Diagnostic, files: &BTreeMap<String, Rewritten>) -> Vec<usize> {
    let mut spans: Vec<_> = error.spans.iter().collect();
    spans.sort_by_key(|span| !span.is_primary);
    spans.extend(error.children.iter().flat_map(|child| &child.spans));
    let blamed = |span: &Span| {
        let bytes: Range<_> = span.byte_start..span.byte_end;
        files.get(&span.file_name)?.blamed_for(&bytes).map(<[usize]>::to_vec)
    };
    spans.into_iter().find_map(blamed).unwrap_or_default()
}
