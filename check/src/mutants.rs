//! Builds that are wrong on purpose, and which rule notices.
//!
//! Each is a patch in `check/mutants/`, applied to a copy of the tree, so nothing of it is in the product. The first line of a
//! patch says what is wrong. What touches the core is shown to the small worlds as well (`core/src/engine/tests/worlds/`), which have to
//! notice it.
//!
//! Clients work on a mutant while the wall clock steps, unless lines `Fault: …` in the head of its patch name other faults: then they do
//! so once under each, and have to notice it under each. The rules ask for less where more goes wrong, and that shows whether what is left of
//! them can fail. `Fault: each` stands for all that there are. A line `Worlds: no, …` says why the small worlds cannot notice a mutant of the
//! core. What is wrong in the client is shown to what the processes of clients see.

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
    is_for_worlds: bool,
    is_in_client: bool,
    /// Those that its patch names; none if it names none.
    faults: Vec<Faults>,
}

/// Which rules were violated in the histories of clients that worked under a fault.
#[derive(Clone, Debug)]
pub struct Histories {
    /// The fault.
    pub fault: Faults,
    /// The rules, by their names.
    pub rules: Vec<&'static str>,
    /// The histories have to notice the mutant under this fault, since its patch names it.
    is_wanted: bool,
}

/// Who has noticed a mutant.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What was seen under each fault that it was tried under.
    pub histories: Vec<Histories>,
    /// What the small worlds say; `None` if they are not asked.
    pub worlds: Option<String>,
}

impl Histories {
    /// The rules in a line.
    #[must_use]
    pub fn told(&self) -> String {
        if self.rules.is_empty() { "nothing".into() } else { self.rules.join("; ") }
    }
}

impl Verdict {
    /// Whether those have noticed who have to: the small worlds what is wrong in the core, the histories what is wrong around it, and
    /// whatever names a fault, under that fault.
    #[must_use]
    pub fn is_caught(&self) -> bool {
        let is_missed = |tried: &Histories| tried.rules.is_empty() && (tried.is_wanted || self.worlds.is_none());
        !self.histories.iter().any(is_missed) && self.worlds.as_ref().is_none_or(|said| !said.is_empty())
    }
}

/// A table of Markdown: who has noticed which mutant. One that was tried under several faults has a line for each.
#[must_use]
pub fn table(verdicts: &[(Mutant, Verdict)]) -> String {
    let mut text = String::from(
        "| mutant | what is wrong | fault | rules of the histories | small worlds |\n|---|---|---|---|---|\n",
    );
    for (mutant, verdict) in verdicts {
        let worlds = match verdict.worlds.as_deref() {
            None => "not asked",
            Some("") => "nothing",
            Some(said) => said,
        };
        // What an assertion says may have what ends a cell.
        let worlds = worlds.replace('|', "\\|");
        for (at, tried) in verdict.histories.iter().enumerate() {
            let (what, worlds) = if at == 0 { (mutant.what.as_str(), worlds.as_str()) } else { ("the same", "") };
            let (fault, rules) = (tried.fault.name(), tried.told());
            text.push_str(&format!("| `{}` | {what} | {fault} | {rules} | {worlds} |\n", mutant.name));
        }
    }
    let count = |is_it: fn(&Verdict) -> bool| verdicts.iter().filter(|(_, verdict)| is_it(verdict)).count();
    let by_worlds = count(|verdict| verdict.worlds.as_ref().is_some_and(|said| !said.is_empty()));
    let asked = count(|verdict| verdict.worlds.is_some());
    let (caught, all) = (count(Verdict::is_caught), verdicts.len());
    let tried = || verdicts.iter().flat_map(|(_, verdict)| &verdict.histories);
    let (noticed, campaigns) = (tried().filter(|tried| !tried.rules.is_empty()).count(), tried().count());
    text.push_str(&format!(
        "| {caught} of {all} are caught | | | in {noticed} of {campaigns} campaigns | {by_worlds} of {asked} |\n"
    ));
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
        let head = || text.lines().take_while(|line| !line.is_empty());
        let is_for_worlds = text.contains("+++ b/core/") && !head().any(|line| line.starts_with("Worlds: no, "));
        let named = head().filter_map(|line| line.strip_prefix("Fault: "));
        let faults = faults(named).with_context(|| format!("the faults of {name}"))?;
        let is_in_client = text.contains("+++ b/client/");
        mutants.push(Mutant { name, what, path, is_for_worlds, is_in_client, faults });
    }
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(mutants)
}

/// The faults that a patch names.
fn faults<'n>(named: impl Iterator<Item = &'n str>) -> Result<Vec<Faults>> {
    let mut faults = Vec::new();
    for name in named {
        if name == "each" {
            faults.extend(Faults::EACH);
        } else {
            let known = Faults::EACH.into_iter().find(|known| known.name() == name);
            faults.push(known.with_context(|| format!("there is no fault called {name}"))?);
        }
    }
    Ok(faults)
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
        let built = self.target.join("build").join(PROFILE);
        let mut program = Program::alone(self.server.clone(), built.join("librlock.so"));
        if mutant.is_in_client {
            run(&mut self.cargo(&tree, &["build", "--package", "rlock-check"]))?;
            program.clients = Some(built.join("rlock-check"));
        }
        let is_wanted = !mutant.faults.is_empty();
        let faults = if is_wanted { mutant.faults.as_slice() } else { &[Faults::Clock] };
        let histories = faults.iter().map(|fault| self.under(*fault, &program, is_wanted)).collect::<Result<_>>()?;
        let worlds = if mutant.is_for_worlds { Some(self.worlds(&tree)?) } else { None };
        Ok(Verdict { histories, worlds })
    }

    /// Lets clients work on a mutant under a fault.
    fn under(&self, faults: Faults, program: &Program, is_wanted: bool) -> Result<Histories> {
        let (lasts, seed, program) = (self.lasts, self.seed, program.clone());
        let report = Campaign { program, lasts, seed, workers: 16, faults }.run();
        let report = report.with_context(|| faults.name())?;
        let rules: BTreeSet<_> = report.violations.iter().map(|violation| violation.rule).collect();
        let rules = rules.into_iter().map(crate::history::Rule::name).collect();
        Ok(Histories { fault: faults, rules, is_wanted })
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

/// What the first assertion that fails says, without the values that it compares or shows.
fn finding(said: &str) -> String {
    let found = said.lines().skip_while(|line| !line.contains("panicked at")).nth(1).unwrap_or("a test fails").trim();
    let compares =
        found.strip_prefix("assertion `left == right` failed: ").or(found.strip_prefix("assertion failed: "));
    without_fields(compares.unwrap_or(found))
}

/// A line in which a struct that was printed is left out where nothing but it stands behind a colon, and is its name otherwise.
fn without_fields(line: &str) -> String {
    let (mut kept, mut depth) = (String::new(), 0_usize);
    for letter in line.chars() {
        match letter {
            '{' => depth = depth.saturating_add(1),
            '}' => depth = depth.saturating_sub(1),
            letter if depth == 0 => kept.push(letter),
            _ => {}
        }
    }
    let kept = kept.trim_end();
    match kept.rsplit_once(": ") {
        Some((said, name)) if kept != line.trim_end() && !name.contains(' ') => said.to_owned(),
        _ => kept.to_owned(),
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} fails:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(message: &str) -> String {
        finding(&format!("thread 'worlds::x' panicked at core/src/x.rs:1:1:\n{message}\nnote: run with"))
    }

    #[test]
    fn what_an_assertion_shows_is_left_out() {
        let waits = "the head of the queue waits although it could hold";
        assert_eq!(said(&format!("{waits}: Request {{ kind: RwLock, ask: Wait {{ until_us: Some(1) }} }}")), waits);
        assert_eq!(
            said("the holders beside the queue of Key { name: \"k\", db: 0 }"),
            "the holders beside the queue of Key"
        );
        assert_eq!(said("assertion `left == right` failed: the answer to ACQUIRE"), "the answer to ACQUIRE");
        assert_eq!(said("owner 0 keeps what it holds: of key 1"), "owner 0 keeps what it holds: of key 1");
    }

    #[test]
    fn a_mutant_is_caught_only_if_it_is_noticed_wherever_it_has_to_be() {
        let tried =
            |rules: &[&'static str], is_wanted| Histories { fault: Faults::Kill, rules: rules.to_vec(), is_wanted };
        let verdict = |histories, worlds: Option<&str>| Verdict { histories, worlds: worlds.map(str::to_owned) };
        assert!(verdict(vec![tried(&["exclusion"], false)], None).is_caught());
        assert!(!verdict(vec![tried(&[], false)], None).is_caught());
        // What is wrong in the core need not show in histories, unless its patch says so.
        assert!(verdict(vec![tried(&[], false)], Some("the answer")).is_caught());
        assert!(!verdict(vec![tried(&["exclusion"], true), tried(&[], true)], Some("the answer")).is_caught());
        assert!(!verdict(vec![tried(&["exclusion"], true)], Some("")).is_caught());
    }
}
