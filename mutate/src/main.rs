//! Tries every small change of a package's code against the tests that reach it.
//!
//! cargo-mutants knows the changes, and would build each by itself: thousands of builds, and for what is tested on servers thousands of
//! runs of minutes. Here all changes go into one build, each behind a switch that a variable of the environment turns on
//! ("mutant schemata": Untch, Offutt, Harrold, 1993). Each test is run once with all switches off, to see which changes it reaches; then each
//! change is shown to the tests that reach it, until one fails twice or hangs, or the change's time is over.

mod changes;
mod compile;
mod groups;
mod known;
mod package;
mod report;
mod rewrite;
mod shown;
mod trial;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

use crate::changes::Change;
use crate::groups::Groups;
use crate::package::Package;
use crate::report::{Report, noticed_before};
use crate::shown::Shown;
use crate::trial::{Trial, Verdict};

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
    /// Only changes that no test has noticed yet, or that a test noticed which is gone. They are shown first to the tests that have not seen them on
    /// this server.
    #[arg(long)]
    again: bool,
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
    let known = known::Known::read(&root.join("mutate/known").join(options.package.name()).with_extension("toml"))?;
    let all = changes::of(&root, options.package)?;
    eprintln!("{} changes", all.len());
    let target = root.join("target/mutate").join(options.package.name());
    let built = compile::with_all(&root, &target, options.package, &all)?;
    let groups = Groups::default();
    groups.end_on_ctrl_c()?;
    let trial = Trial {
        built: &built,
        jobs: options.jobs,
        lasts: Duration::from_secs(options.seconds),
        server: &options.server,
        groups,
    };
    let (file, file_of_shown) = (target.join("verdicts.txt"), target.join("shown.json"));
    let reach = trial.reach()?;
    let (mut verdicts, mut shown) = match options.again {
        true => (noticed_before(&file, &all, &reach.names())?, Shown::read(&file_of_shown)?),
        false => Default::default(),
    };
    let shown_here = shown.on(&options.server);
    verdicts.retain(|change, _| built.changes.contains(change));
    let only = options.only.as_deref();
    let is_meant = |change: &Change| only.is_none_or(|part| change.name.contains(part));
    let tried = trial.of(&all, &reach, shown_here, |change| is_meant(change) && !verdicts.contains_key(&change.id))?;
    for change in &all {
        if let Some(Verdict::Survived { shown, .. }) = tried.get(&change.id) {
            shown_here.insert(change.name.clone(), shown.clone());
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
