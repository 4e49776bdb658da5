//! Builds that are wrong on purpose, and which rule notices.
//!
//! Each is a patch in `check/mutants/`, applied to a copy of the tree, so nothing of it is in the product. The first line of a
//! patch says what is wrong; a line `Fault: …` names the fault under which it shows, if it is not the one of the clock. What touches
//! the core is shown to the small worlds as well (`core/src/engine/tests/worlds/`), which have to notice it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::drive::campaign::Campaign;
use crate::drive::harm::Faults;
use crate::drive::server::Program;
use crate::tree::{self, git};

/// The profile of the workspace that mutants are built with: quickly.
const PROFILE: &str = "mutant";

/// How many states of small worlds a mutant of the core is shown to. Most are found among the first ones.
const STATES: [&str; 2] = ["16000", "160000"];

/// What to show the mutants to.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The root of the tree.
    pub root: PathBuf,
    /// Where to build.
    pub target: PathBuf,
    /// The server's program.
    pub server: PathBuf,
    /// For how long clients work on each.
    pub lasts: Duration,
    /// What the clients' choices are drawn from.
    pub seed: u64,
}

/// A patch.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// Its file, without the ending.
    pub name: String,
    /// What is wrong with it.
    pub what: String,
    path: PathBuf,
    is_in_core: bool,
    faults: Faults,
}

/// Who has noticed a mutant.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The rules that were violated in the histories of its clients.
    pub rules: Vec<&'static str>,
    /// What the small worlds say; `None` if it is not in the core.
    pub worlds: Option<String>,
}

impl Verdict {
    /// Whether those have noticed who have to: the small worlds what is wrong in the core, the histories what is wrong around it.
    #[must_use]
    pub fn is_caught(&self) -> bool {
        match &self.worlds {
            Some(said) => !said.is_empty(),
            None => !self.rules.is_empty(),
        }
    }
}

/// A table of Markdown: who has noticed which mutant.
#[must_use]
pub fn table(verdicts: &[(Mutant, Verdict)]) -> String {
    let mut text =
        String::from("| mutant | what is wrong | rules of the histories | small worlds |\n|---|---|---|---|\n");
    for (mutant, verdict) in verdicts {
        let rules = if verdict.rules.is_empty() { "nothing".into() } else { verdict.rules.join("; ") };
        let worlds = match verdict.worlds.as_deref() {
            None => "not in the core",
            Some("") => "nothing",
            Some(said) => said,
        };
        // What an assertion says may have what ends a cell.
        let worlds = worlds.replace('|', "\\|");
        text.push_str(&format!("| `{}` | {} | {rules} | {worlds} |\n", mutant.name, mutant.what));
    }
    let count = |is_it: fn(&Verdict) -> bool| verdicts.iter().filter(|(_, verdict)| is_it(verdict)).count();
    let by_rules = count(|verdict| !verdict.rules.is_empty());
    let by_worlds = count(|verdict| verdict.worlds.as_ref().is_some_and(|said| !said.is_empty()));
    let in_core = count(|verdict| verdict.worlds.is_some());
    let caught = count(Verdict::is_caught);
    let all = verdicts.len();
    text.push_str(&format!("| {caught} of {all} are caught | | {by_rules} of {all} | {by_worlds} of {in_core} |\n"));
    text
}

/// The patches of a tree, by name.
///
/// # Errors
///
/// If one of them cannot be read.
pub fn all(root: &Path) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for entry in fs::read_dir(root.join("check/mutants"))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let what = text.lines().next().unwrap_or_default().to_owned();
        let is_in_core = text.contains("+++ b/core/");
        let fault = text.lines().find_map(|line| line.strip_prefix("Fault: "));
        let known = |fault| Faults::EACH.into_iter().find(|known| known.name() == fault);
        let faults = fault.map_or(Some(Faults::Clock), known).with_context(|| format!("{name} names no fault"))?;
        mutants.push(Mutant { name, what, path, is_in_core, faults });
    }
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(mutants)
}

impl Mutant {
    /// Whether the patch fits the tree.
    ///
    /// # Errors
    ///
    /// What does not fit.
    pub fn check(&self, root: &Path) -> Result<()> {
        run(git(root).args(["apply", "--check"]).arg(&self.path))
            .with_context(|| format!("{} does not apply", self.name))
    }
}

impl Trial {
    /// Makes a mutant, and shows it around.
    ///
    /// # Errors
    ///
    /// If it cannot be built. That nobody notices it is no error here.
    pub fn of(&self, mutant: &Mutant) -> Result<Verdict> {
        let tree = self.target.join("tree");
        tree::copy(&self.root, &tree, &BTreeMap::new())?;
        run(git(&tree).arg("apply").arg(&mutant.path)).with_context(|| format!("{} does not apply", mutant.name))?;
        run(&mut self.cargo(&tree, &["build", "--package", "rlock"]))?;
        let module = self.target.join("build").join(PROFILE).join("librlock.so");
        let program = Program::alone(self.server.clone(), module);
        let (lasts, seed, faults) = (self.lasts, self.seed, mutant.faults);
        let report = Campaign { program, lasts, seed, workers: 16, faults }.run()?;
        let rules: BTreeSet<_> = report.violations.iter().map(|violation| violation.rule).collect();
        let rules = rules.into_iter().map(crate::history::Rule::name).collect();
        let worlds = if mutant.is_in_core { Some(self.worlds(&tree)?) } else { None };
        Ok(Verdict { rules, worlds })
    }

    /// Searches the small worlds of the core in a tree. Returns what was found, in a line; nothing if all is well.
    fn worlds(&self, tree: &Path) -> Result<String> {
        run(&mut self.cargo(tree, &["test", "--package", "rlock-core", "--lib", "--no-run"]))?;
        for states in STATES {
            let mut search = self.cargo(tree, &["test", "--package", "rlock-core", "--lib", "worlds::"]);
            let output = search.env("RLOCK_WORLDS_STATES", states).output()?;
            if !output.status.success() {
                return Ok(finding(&String::from_utf8_lossy(&output.stdout)));
            }
        }
        Ok(String::new())
    }

    fn cargo(&self, tree: &Path, words: &[&str]) -> Command {
        let mut command = Command::new("cargo");
        command.args(words).args(["--quiet", "--profile", PROFILE]).current_dir(tree);
        command.env("CARGO_TARGET_DIR", self.target.join("build"));
        command
    }
}

/// What the first assertion that fails says, without the values that it compares.
fn finding(said: &str) -> String {
    let found = said.lines().skip_while(|line| !line.contains("panicked at")).nth(1).unwrap_or("a test fails").trim();
    let compares =
        found.strip_prefix("assertion `left == right` failed: ").or(found.strip_prefix("assertion failed: "));
    compares.unwrap_or(found).to_owned()
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} fails:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
