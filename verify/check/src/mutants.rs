//! Builds that are broken on purpose, and the checks that notice them.
//!
//! Each mutant is a patch in `verify/check/mutants/`, applied to a copy of the tree, so the product
//! contains nothing of it. The first line of a patch says what is wrong. If a patch changes the
//! core, the small worlds (`core/src/engine/tests/worlds/`) have to notice it too. A line `Worlds:
//! no, …` says why they cannot.
//!
//! By default, clients work on a mutant while the wall clock steps. Lines `Fault: …` in the head of
//! the patch name other faults: the clients then work once under each of them, and have to notice
//! the mutant under each, if need be in a second, longer run. The rules excuse more where more goes
//! wrong; these runs show that they can still fail. `Fault: each` stands for all faults. If a patch
//! changes the client, the processes of clients are built with it.
//!
//! Lines `Rule: …` name rules. Under each fault of the patch, one of these rules has to be broken.
//! Without such a line any rule counts, except `server lives`: that rule is not about locks, and
//! counts only if a line names it.
//!
//! Lines `Lemma: …` name the step of the proof in docs/guarantees.md that the mutant breaks. Each
//! step needs a mutant.
//!
//! Lines `Test: …` name tests of the module (`tests/`) that have to fail. A mutant that names tests
//! but no fault changes only the server's own state, and no clients work on it.

mod table;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

pub use self::table::renewed;
use crate::drive::campaign::Campaign;
use crate::drive::fault::Faults;
use crate::drive::server::Program;
use crate::history::Rule;
use crate::tree::{self, git};

/// The workspace profile that builds mutants: it compiles quickly.
const PROFILE: &str = "mutant";

/// How many states of the small worlds a mutant of the core is tried in. Most mutants are noticed
/// within the first number.
const STATES: [&str; 2] = ["16000", "160000"];

/// The steps of the proof in docs/guarantees.md that failovers leave one holder. Each has a mutant
/// that breaks it.
const LEMMAS: [&str; 7] = ["1", "2", "3", "4", "5", "6", "7"];

/// The second run of clients takes this many times as long as the first.
const RETRY_FACTOR: u32 = 4;

/// How mutants are built and tried.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The root of the source tree.
    pub root: PathBuf,
    /// The folder for builds.
    pub target: PathBuf,
    /// The server's program.
    pub server: PathBuf,
    /// How long clients work on each mutant.
    pub lasts: Duration,
    /// The seed of the clients' random choices.
    pub seed: u64,
}

/// A mutant: a patch and the checks that have to notice it.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The name of its file, without the extension.
    pub name: String,
    /// The first line of the patch, which says what is wrong.
    pub what: String,
    path: PathBuf,
    is_for_worlds: bool,
    is_in_client: bool,
    /// The faults that its patch names; empty if none.
    faults: Vec<Faults>,
    /// The rules that its patch names: one of them has to notice it.
    pub rules: Vec<Rule>,
    /// Tests of the module that its patch names.
    tests: Vec<String>,
    /// The steps of the proof in docs/guarantees.md that it breaks.
    lemmas: Vec<String>,
}

/// The rules that were violated in the histories of clients that worked under one fault.
#[derive(Clone, Debug)]
pub struct Histories {
    /// The fault.
    pub fault: Faults,
    /// The rules.
    pub rules: Vec<Rule>,
    /// Whether a rule that has to notice the mutant was broken.
    is_noticed: bool,
    /// Whether the histories have to notice the mutant under this fault, because its patch names
    /// it.
    is_wanted: bool,
}

/// The result of one test of the module.
#[derive(Clone, Debug)]
pub struct Tested {
    /// The test, as `cargo test` names it.
    pub name: String,
    /// Whether it failed, as it has to.
    pub has_failed: bool,
}

/// The checks that noticed a mutant.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The result under each fault that it was tried under.
    pub histories: Vec<Histories>,
    /// The results of the tests that its patch names.
    pub tests: Vec<Tested>,
    /// The finding of the small worlds: empty if they found nothing, `None` if they were not run.
    pub worlds: Option<String>,
}

impl Histories {
    /// The broken rules in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let names: Vec<&str> = self.rules.iter().map(|rule| rule.name()).collect();
        if names.is_empty() { table::NOTHING.into() } else { names.join("; ") }
    }
}

impl Tested {
    /// The test in one line, if it noticed the mutant.
    #[must_use]
    pub fn summary(&self) -> String {
        if self.has_failed { format!("`{}` fails", self.name) } else { table::NOTHING.into() }
    }
}

impl Verdict {
    /// Whether every check that has to notice the mutant did: the small worlds for a mutant of the
    /// core, the histories for other mutants and under each fault that the patch names, and each
    /// test that it names.
    #[must_use]
    pub fn is_caught(&self) -> bool {
        !self.histories.iter().any(|tried| self.misses(tried))
            && self.tests.iter().all(|tested| tested.has_failed)
            && self.worlds.as_ref().is_none_or(|said| !said.is_empty())
    }

    /// Whether the histories under a fault missed a mutant that they have to notice.
    fn misses(&self, tried: &Histories) -> bool {
        !tried.is_noticed && (tried.is_wanted || self.worlds.is_none())
    }
}

/// Returns the patches of a tree, sorted by name.
///
/// # Errors
///
/// If a patch cannot be read, or names an unknown fault or rule, or if no patch breaks one of the
/// lemmas.
pub fn all(root: &Path) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for entry in fs::read_dir(root.join("verify/check/mutants"))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let what = text.lines().next().unwrap_or_default().to_owned();
        let head = || text.lines().take_while(|line| !line.is_empty());
        let is_for_worlds = text.contains("+++ b/core/") && !head().any(|line| line.starts_with("Worlds: no, "));
        let named = head().filter_map(|line| line.strip_prefix("Fault: "));
        let faults = faults(named).with_context(|| format!("the faults of {name}"))?;
        let is_in_client = text.contains("+++ b/client/");
        let named = head().filter_map(|line| line.strip_prefix("Rule: "));
        let rules = rules(named).with_context(|| format!("the rules of {name}"))?;
        let tests = head().filter_map(|line| line.strip_prefix("Test: ")).map(str::to_owned).collect();
        let lemmas = head().filter_map(|line| line.strip_prefix("Lemma: ")).map(str::to_owned).collect();
        mutants.push(Mutant { name, what, path, is_for_worlds, is_in_client, faults, rules, tests, lemmas });
    }
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    for lemma in LEMMAS {
        if !mutants.iter().any(|mutant| mutant.lemmas.iter().any(|broken| broken == lemma)) {
            bail!("no mutant breaks lemma {lemma} of docs/guarantees.md");
        }
    }
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
            faults.push(known.with_context(|| format!("unknown fault '{name}'"))?);
        }
    }
    Ok(faults)
}

/// The rules that a patch names.
fn rules<'n>(named: impl Iterator<Item = &'n str>) -> Result<Vec<Rule>> {
    let known = |name: &str| Rule::ALL.into_iter().find(|rule| rule.name() == name);
    named.map(|name| known(name).with_context(|| format!("unknown rule '{name}'"))).collect()
}

impl Mutant {
    /// Whether these broken rules notice the mutant.
    fn is_noticed_by(&self, broken: &BTreeSet<Rule>) -> bool {
        let may_notice = |rule: &&Rule| match self.rules.as_slice() {
            [] => **rule != Rule::ServerLives,
            named => named.contains(rule),
        };
        broken.iter().any(|rule| may_notice(&rule))
    }

    /// Checks that the patch applies to the tree.
    ///
    /// # Errors
    ///
    /// If it does not apply.
    pub fn check(&self, root: &Path) -> Result<()> {
        run(git(root).args(["apply", "--check"]).arg(&self.path))
            .with_context(|| format!("{} does not apply", self.name))
    }
}

impl Trial {
    /// Builds a mutant, and lets every check try it.
    ///
    /// # Errors
    ///
    /// If it cannot be built. A mutant that no check notices is not an error here.
    pub fn of(&self, mutant: &Mutant) -> Result<Verdict> {
        let tree = self.target.join("tree");
        tree::copy(&self.root, &tree)?;
        run(git(&tree).arg("apply").arg(&mutant.path)).with_context(|| format!("{} does not apply", mutant.name))?;
        run(&mut self.cargo(&tree, &["build", "--package", "rlock"]))?;
        let built = self.target.join("build").join(PROFILE);
        let mut program = Program::alone(self.server.clone(), built.join("librlock.so"));
        if mutant.is_in_client {
            run(&mut self.cargo(&tree, &["build", "--package", "rlock-check"]))?;
            program.clients = Some(built.join("rlock-check"));
        }
        let is_wanted = !mutant.faults.is_empty();
        let faults = match mutant.faults.as_slice() {
            [] if mutant.tests.is_empty() => &[Faults::Clock],
            named => named,
        };
        let under = |fault: &Faults| self.under(*fault, mutant, &program, is_wanted);
        let histories = faults.iter().map(under).collect::<Result<_>>()?;
        let tests = mutant.tests.iter().map(|name| self.test(name, &program)).collect::<Result<_>>()?;
        let worlds = if mutant.is_for_worlds { Some(self.worlds(&tree)?) } else { None };
        Ok(Verdict { histories, tests, worlds })
    }

    /// Lets clients work on a mutant under a fault; a second time, and for longer, if they have to
    /// notice it and did not.
    fn under(&self, fault: Faults, mutant: &Mutant, program: &Program, is_wanted: bool) -> Result<Histories> {
        let mut rules = self.broken(fault, program, self.lasts)?;
        if is_wanted && !mutant.is_noticed_by(&rules) {
            rules.extend(self.broken(fault, program, self.lasts * RETRY_FACTOR)?);
        }
        let is_noticed = mutant.is_noticed_by(&rules);
        Ok(Histories { fault, rules: rules.into_iter().collect(), is_noticed, is_wanted })
    }

    /// The rules that break while clients work on a mutant.
    fn broken(&self, faults: Faults, program: &Program, lasts: Duration) -> Result<BTreeSet<Rule>> {
        let (seed, program) = (self.seed, program.clone());
        let report = Campaign { program, lasts, seed, workers: 16, faults }.run();
        let report = report.with_context(|| faults.name())?;
        Ok(report.violations.iter().map(|violation| violation.rule).collect())
    }

    /// Runs a test of the module on a mutant.
    fn test(&self, name: &str, program: &Program) -> Result<Tested> {
        let mut cargo = Command::new("cargo");
        // With these names cargo reuses the build of `make test`.
        let program_of_tests = ["test-all", "--quiet", "--test", "module"];
        run(cargo.args(program_of_tests).arg("--no-run").current_dir(&self.root))?;
        let mut cargo = Command::new("cargo");
        cargo.args(program_of_tests).args(["--", "--exact", name]);
        cargo.env("RLOCK_MODULE", &program.module).env("RLOCK_SERVER", &program.server);
        let output = cargo.current_dir(&self.root).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        // A test that does not exist cannot fail, and a run of no tests succeeds.
        Ok(Tested { name: name.to_owned(), has_failed: said.contains("test result: FAILED. 0 passed; 1 failed;") })
    }

    /// Searches the small worlds of the core in a tree. Returns what it found, in one line; empty
    /// if nothing.
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

/// The message of the first assertion that fails, without the values that it compares or prints.
fn finding(said: &str) -> String {
    let found = said.lines().skip_while(|line| !line.contains("panicked at")).nth(1).unwrap_or("a test fails").trim();
    let compares =
        found.strip_prefix("assertion `left == right` failed: ").or(found.strip_prefix("assertion failed: "));
    without_fields(compares.unwrap_or(found))
}

/// Removes the fields of a printed struct from a line. Removes its name too if only that stands
/// after a colon.
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
        bail!("{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(rules: &[Rule]) -> Mutant {
        Mutant {
            name: "m".into(),
            what: "It is wrong.".into(),
            path: PathBuf::new(),
            is_for_worlds: false,
            is_in_client: false,
            faults: Vec::new(),
            rules: rules.to_vec(),
            tests: Vec::new(),
            lemmas: Vec::new(),
        }
    }

    #[test]
    fn mutant_is_noticed_by_a_rule_that_it_names() {
        let is_noticed =
            |named: &[Rule], broken: &[Rule]| mutant(named).is_noticed_by(&broken.iter().copied().collect());
        assert!(is_noticed(&[Rule::Exclusion, Rule::Permits], &[Rule::Permits, Rule::ServerLives]));
        assert!(!is_noticed(&[Rule::Exclusion], &[Rule::Permits, Rule::ServerLives]));
        assert!(is_noticed(&[], &[Rule::Permits]));
        assert!(!is_noticed(&[], &[Rule::ServerLives]));
        assert!(is_noticed(&[Rule::ServerLives], &[Rule::ServerLives]));
        assert!(rules(["exclusion"].into_iter()).is_ok() && rules(["exclusive"].into_iter()).is_err());
    }

    fn said(message: &str) -> String {
        finding(&format!("thread 'worlds::x' panicked at core/src/x.rs:1:1:\n{message}\nnote: run with"))
    }

    #[test]
    fn printed_values_are_left_out_of_a_finding() {
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
    fn mutant_is_caught_only_if_every_required_check_notices_it() {
        let tried = |rules: &[Rule], is_wanted| {
            let is_noticed = mutant(&[]).is_noticed_by(&rules.iter().copied().collect());
            Histories { fault: Faults::Kill, rules: rules.to_vec(), is_noticed, is_wanted }
        };
        let verdict = |histories, worlds: Option<&str>| {
            let (tests, worlds) = (Vec::new(), worlds.map(str::to_owned));
            Verdict { histories, tests, worlds }
        };
        assert!(verdict(vec![tried(&[Rule::Exclusion], false)], None).is_caught());
        assert!(!verdict(vec![tried(&[], false)], None).is_caught());
        // A mutant of the core need not show in histories, unless its patch says so.
        assert!(verdict(vec![tried(&[], false)], Some("the answer")).is_caught());
        assert!(!verdict(vec![tried(&[Rule::Exclusion], true), tried(&[], true)], Some("the answer")).is_caught());
        assert!(!verdict(vec![tried(&[Rule::Exclusion], true)], Some("")).is_caught());
        for has_failed in [true, false] {
            let tests = vec![Tested { name: "x::y".into(), has_failed }];
            let verdict = Verdict { histories: Vec::new(), tests, worlds: None };
            assert_eq!(verdict.is_caught(), has_failed);
        }
    }
}
