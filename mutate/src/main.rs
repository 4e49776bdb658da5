//! Tries every small change of a package's code against the tests that reach it.
//!
//! cargo-mutants knows the changes, and would build each by itself: thousands of builds, and for what is tested on servers thousands of
//! runs of minutes. Here all changes go into one build, each behind a switch that a variable of the environment turns on
//! ("mutant schemata": Untch, Offutt, Harrold, 1993). Each test is run once with all switches off, to see which changes it reaches; then each
//! change is shown to the tests that reach it, until one fails or hangs twice and passes without it, or the change's time is over.

mod changes;
mod compile;
mod groups;
mod known;
mod never_failed;
mod package;
mod report;
mod rewrite;
mod seek;
mod shown;
mod trial;
mod uncompilable;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

use crate::changes::Change;
use crate::groups::Groups;
use crate::known::Known;
use crate::never_failed::{Counts, Kept, Seen};
use crate::package::{Builds, Package};
use crate::report::{Report, noticed_before};
use crate::seek::Among;
use crate::shown::Shown;
use crate::trial::{Trial, Verdict, is_timed};

/// Tries every small change of rlock's code against the tests that reach it.
#[derive(Parser)]
struct Options {
    /// Whose code is changed.
    package: Package,
    /// For how long each change is shown to tests, in seconds.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// How many tests run at the same time.
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Only changes whose description has this in it, as a file's name or a function's.
    #[arg(long)]
    only: Option<String>,
    /// Only changes of `--only` go into the build, and those of the core are shown to its own tests only: quick, and says nothing of the others.
    #[arg(long, requires = "only")]
    short: bool,
    /// Only changes that no test has noticed yet, or that a test noticed which is gone. They are shown first to the tests that have not seen them on
    /// this server.
    #[arg(long)]
    again: bool,
    /// Changes are shown to the tests about spans of time, one after the other, in place of all the others.
    #[arg(long, requires = "again")]
    timed: bool,
    /// Changes are not tried: each of the package's own tests that was not the first to notice one, in the last runs for all packages, is shown changes until
    /// it notices one.
    #[arg(long, conflicts_with_all = ["only", "again"])]
    tests: bool,
    /// The server that the tests start.
    #[arg(long, env = "RLOCK_SERVER", default_value = "redis-server")]
    server: String,
    /// The document to write the counts into.
    #[arg(long)]
    write: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let root = std::env::current_dir()?;
    let known = Known::read(&root.join("mutate/known").join(options.package.name()).with_extension("toml"))?;
    let all = changes::of(&root, options.package)?;
    eprintln!("{} changes", all.len());
    let target = root.join("target/mutate").join(options.package.name());
    let only = options.only.as_deref();
    let is_meant = |change: &Change| only.is_none_or(|part| change.name.contains(part));
    let meant: BTreeSet<_> = all.iter().filter(|change| is_meant(change)).map(|change| change.id).collect();
    let builds = if options.short || options.tests { Builds::Own } else { Builds::All };
    let built = compile::with_all(&root, &target, options.package, &all, builds, options.short.then_some(&meant))?;
    let groups = Groups::default();
    groups.end_on_ctrl_c()?;
    let trial = Trial {
        built: &built,
        jobs: if options.timed { 1 } else { options.jobs },
        lasts: Duration::from_secs(options.seconds),
        server: &options.server,
        groups,
    };
    let (file, file_of_shown) = (target.join("verdicts.txt"), target.join("shown.json"));
    if options.tests {
        return seek_for_tests(&options, &trial, &all, &known, &target);
    }
    let reach = trial.reach(trial.jobs, |test| is_timed(test) == options.timed)?;
    let (mut verdicts, mut shown) = match options.again {
        true => (
            noticed_before(&file, &all, &trial.names()?.iter().map(String::as_str).collect())?,
            Shown::read(&file_of_shown)?,
        ),
        false => Default::default(),
    };
    let shown_here = shown.on(&options.server);
    verdicts.retain(|change, _| built.changes.contains(change));
    let tried = trial.of(&all, &reach, shown_here, &verdicts, |change| {
        meant.contains(&change.id) && !verdicts.contains_key(&change.id)
    })?;
    for change in &all {
        if let Some(Verdict::Survived { shown, .. }) = tried.get(&change.id) {
            shown_here.entry(change.name.clone()).or_default().extend(shown.iter().cloned());
        }
    }
    verdicts.extend(tried);
    let report = Report::new(&all, &verdicts, &known, reach.left_out, only.is_some());
    if only.is_some() {
        print!("{}", report.verdicts());
    } else {
        std::fs::write(&file, report.verdicts())?;
        shown.write(&file_of_shown)?;
        println!("What came of each is in {}", file.display());
    }
    print!("{}", report.text());
    if let Some(document) = options.write.filter(|_| only.is_none()) {
        report.write(&root.join(document), options.package)?;
    }
    Ok(if report.is_as_known() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Seeks a change for each test that was not the first to notice one. Tests about spans of time come last, one after the other.
fn seek_for_tests(
    options: &Options,
    trial: &Trial<'_>,
    all: &[Change],
    known: &Known,
    target: &Path,
) -> Result<ExitCode> {
    let file = target.join("tests.txt");
    let worth = seek::worth_showing(&target.join("verdicts.txt"), all, known)?;
    let kept = Kept::read(&file, all, never_failed::first(target.parent().unwrap_or(target))?)?;
    // What goes one after the other takes its time: such a test is not run once more only to see what it reaches.
    let is_done = |test: &str| is_timed(test) && kept.is_settled(test);
    let done = trial.names()?.into_iter().filter(|test| is_done(test));
    let mut seen: Seen = done.filter_map(|test| Some((test.clone(), kept.of(&test)?.clone()))).collect();
    for (jobs, is_timed_too) in [(options.jobs, false), (1, true)] {
        let is_wanted = |test: &str| is_timed(test) == is_timed_too && !is_done(test);
        let reach = trial.reach(jobs, is_wanted)?;
        seen.extend(trial.seek(&Among { all, reach: &reach, worth: &worth }, jobs, &kept)?);
    }
    std::fs::write(&file, never_failed::lines(&seen))?;
    println!("What came of each is in {}", file.display());
    let counts = Counts::new(&seen, known);
    print!("{}", counts.text());
    if let Some(document) = &options.write {
        counts.write(document, options.package)?;
    }
    Ok(if counts.is_as_known() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
