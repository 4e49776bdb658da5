//! Which test notices which change.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Seek as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::changes::Change;
use crate::compile::{Built, Program};
use crate::groups::Groups;
use crate::shown::OnServer;

/// How long a test may take that changes nothing.
const LONGEST: Duration = Duration::from_secs(300);

/// How long a test may take with a change, besides some times its usual time: then it hangs.
const HANGS_AFTER: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });

/// No change has this number.
const NONE: &str = "0";

/// After how many changes somebody who waits is told how far it is.
const TOLD_EACH: usize = 100;

/// How long tests take that run together: what they notice ends them only all together.
const BATCH: Duration = Duration::from_secs(1);

/// What a test may take of addresses, in KiB: a change that takes memory without end is to end.
const MEMORY_KIB: u32 = 8 << 20;

/// What tests are told: the core's searches take their short form, since what they notice they notice early; and a random test keeps no seed, since
/// it would be one of a change.
const SHORT: [(&str, &str); 3] = [
    ("RLOCK_WORLDS_STATES", "500"),
    ("RLOCK_DEADLOCK_REQUESTS", "3000"),
    ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1"),
];

/// What is said of tests, named after it, of which one does not end any more.
pub const HANG: &str = "a hang of one of ";

/// Whether a test is about a span of time. It measures, and would notice the tests beside it.
pub fn is_timed(test: &str) -> bool {
    test.contains("::timed_")
}

/// What to show the changes to.
#[derive(Debug)]
pub struct Trial<'b> {
    pub built: &'b Built,
    /// How many tests run at the same time.
    pub jobs: usize,
    /// For how long each change is shown to tests.
    pub lasts: Duration,
    /// The server that they start.
    pub server: &'b str,
    /// The tests that are under way.
    pub groups: Groups,
}

/// What came of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This test fails, or hangs.
    Noticed(String),
    /// These tests did not fail, of so many that reach it.
    Survived { shown: BTreeSet<String>, of: usize },
    /// No test reaches it.
    Unreached,
}

/// A test, and what it was like without a change.
#[derive(Debug)]
pub struct Test<'b> {
    pub program: &'b Program,
    pub name: String,
    pub lasts: Duration,
}

/// Which tests reach which changes.
#[derive(Debug)]
pub struct Reach<'b> {
    /// Those that pass without a change: those without a server first, then the fastest. What follows calls them by their places here.
    pub tests: Vec<Test<'b>>,
    /// The tests that reach each change.
    pub of_changes: BTreeMap<usize, Vec<usize>>,
    /// The names of those that fail without a change, and are shown none.
    pub left_out: Vec<String>,
}

impl Reach<'_> {
    /// The place of the test with a name.
    fn place_of(&self, name: &str) -> Option<usize> {
        self.tests.iter().position(|test| test.name == name)
    }

    /// The tests that reach a change: last those to which it was shown before, and first of the others those of which it is likely that they
    /// notice it.
    fn of(&self, change: usize, likely: &Likely, shown: &BTreeSet<String>) -> Vec<usize> {
        let mut tests = self.of_changes.get(&change).cloned().unwrap_or_default();
        tests.sort_by_key(|test| (shown.contains(&self.tests[*test].name), likely.rank(*test)));
        tests
    }

    /// The first of these tests that can run together: starting a program takes longer than most tests of the core.
    fn batch(&self, tests: &[usize]) -> Vec<&Test<'_>> {
        let mut tests = tests.iter().map(|&at| &self.tests[at]);
        let Some(first) = tests.next() else { return Vec::new() };
        let mut together = first.lasts;
        let fits = |test: &&Test| {
            together += test.lasts;
            std::ptr::eq(first.program, test.program) && together <= BATCH
        };
        [first].into_iter().chain(tests.take_while(fits)).collect()
    }
}

/// Which tests have noticed changes of each function, and of each file: they come first for the next ones.
#[derive(Debug, Default)]
struct Noticing(Mutex<BTreeMap<String, BTreeSet<usize>>>);

/// Which tests have noticed other changes nearby. Those that are named after the file count as those that have noticed another one in it.
#[derive(Debug, Default)]
struct Likely {
    of_function: BTreeSet<usize>,
    of_file: BTreeSet<usize>,
}

impl Likely {
    /// The lower, the earlier.
    fn rank(&self, test: usize) -> usize {
        if self.of_function.contains(&test) {
            0
        } else if self.of_file.contains(&test) {
            1
        } else {
            2
        }
    }
}

impl Noticing {
    /// What an earlier run has seen.
    fn before(all: &[Change], reach: &Reach, verdicts: &BTreeMap<usize, Verdict>) -> Self {
        let noticing = Self::default();
        for change in all {
            if let Some(Verdict::Noticed(by)) = verdicts.get(&change.id) {
                noticing.add(change, reach.place_of(by));
            }
        }
        noticing
    }

    fn of(&self, change: &Change, reach: &Reach) -> Likely {
        let Ok(known) = self.0.lock() else { return Likely::default() };
        let of = |place: &str| known.get(place).cloned().unwrap_or_default();
        let stem = Path::new(&change.file).file_stem().unwrap_or_default().to_string_lossy();
        let is_namesake = |test: &Test| test.name.split("::").any(|part| part == stem);
        let mut of_file = of(&change.file);
        of_file.extend((0..).zip(&reach.tests).filter(|(_, test)| is_namesake(test)).map(|(place, _)| place));
        Likely { of_function: of(&change.place()), of_file }
    }

    fn add(&self, change: &Change, test: Option<usize>) {
        if let (Some(test), Ok(mut known)) = (test, self.0.lock()) {
            for place in [change.place(), change.file.clone()] {
                known.entry(place).or_default().insert(test);
            }
        }
    }
}

/// How tests have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Passed,
    /// The first that failed.
    Failed(String),
    Hangs,
}

impl Trial<'_> {
    /// Tries the changes that are wanted, of those in the build. Returns what came of each by its number. `shown` has the tests that an earlier run has
    /// shown them to, and `before` what that run has noticed.
    pub fn of(
        &self,
        all: &[Change],
        reach: &Reach,
        shown: &OnServer,
        before: &BTreeMap<usize, Verdict>,
        is_wanted: impl Fn(&Change) -> bool,
    ) -> Result<BTreeMap<usize, Verdict>> {
        let noticing = Noticing::before(all, reach, before);
        let wanted: Vec<_> =
            all.iter().filter(|change| self.built.changes.contains(&change.id) && is_wanted(change)).collect();
        eprintln!("{} are tried", wanted.len());
        let done = AtomicUsize::new(0);
        let verdicts = self.at_the_same_time(&wanted, self.jobs, |change| {
            let before = shown.get(&change.name).cloned().unwrap_or_default();
            let verdict = self.show(change, reach, &noticing, before);
            let number = done.fetch_add(1, Ordering::Relaxed) + 1;
            if number.is_multiple_of(TOLD_EACH) {
                eprintln!("{number} of {}", wanted.len());
            }
            if !matches!(verdict, Ok(Verdict::Noticed(_))) {
                eprintln!("nobody notices {}", change.name);
            }
            verdict.map(|verdict| (change.id, verdict))
        });
        verdicts.into_iter().collect()
    }

    /// The names of all tests.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for program in &self.built.programs {
            all.extend(names(program)?);
        }
        Ok(all)
    }

    /// Runs each test that is wanted without a change, and those that fail once more, so many at the same time.
    pub fn reach(&self, jobs: usize, is_wanted: impl Fn(&str) -> bool) -> Result<Reach<'_>> {
        let mut known = Vec::new();
        for program in &self.built.programs {
            let names = names(program)?.into_iter().filter(|name| is_wanted(name));
            known.extend(names.map(|name| (program, name)));
        }
        eprintln!("{} tests", known.len());
        let reached = self.at_the_same_time(&known, jobs, |(program, name)| {
            let noted = tempfile::NamedTempFile::new()?;
            let run = || self.run(program, &[name], ("RLOCK_REACHED", noted.path().as_os_str()), LONGEST);
            let mut begin = Instant::now();
            let mut end = run()?;
            if end != End::Passed {
                begin = Instant::now();
                end = run()?;
            }
            let test = Test { program, name: name.clone(), lasts: begin.elapsed() };
            // Each server that it starts notes them.
            let changes: BTreeSet<usize> =
                fs::read_to_string(noted.path())?.lines().filter_map(|line| line.parse().ok()).collect();
            Ok((test, end, changes))
        });
        let mut reached: Vec<_> = reached.into_iter().collect::<Result<_>>()?;
        let left_out = reached.extract_if(.., |(_, end, _)| *end != End::Passed).map(|(test, ..)| test.name).collect();
        let place = |test: &Test| self.built.programs.iter().position(|program| std::ptr::eq(program, test.program));
        reached.sort_by_key(|(test, ..)| (place(test), test.lasts));
        let mut reaching: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (number, (_, _, changes)) in reached.iter().enumerate() {
            for &change in changes {
                reaching.entry(change).or_default().push(number);
            }
        }
        Ok(Reach { tests: reached.into_iter().map(|(test, ..)| test).collect(), of_changes: reaching, left_out })
    }

    /// Shows a change to tests that reach it, until one notices or the time is over.
    fn show(&self, change: &Change, reach: &Reach, noticing: &Noticing, before: BTreeSet<String>) -> Result<Verdict> {
        let tests = reach.of(change.id, &noticing.of(change, reach), &before);
        if tests.is_empty() {
            return Ok(Verdict::Unreached);
        }
        let begin = Instant::now();
        let number = change.id.to_string();
        let mut tried = 0;
        while let Some(rest) = tests.get(tried..).filter(|rest| !rest.is_empty()) {
            let batch = reach.batch(rest);
            let lasts: Duration = batch.iter().map(|test| test.lasts).sum();
            if tried > 0 && begin.elapsed() + lasts > self.lasts {
                break;
            }
            let program = batch[0].program;
            let names: Vec<_> = batch.iter().map(|test| test.name.as_str()).collect();
            let shown = |names: &[&str], number: &str, longest| {
                self.run(program, names, ("RLOCK_CHANGE", number.as_ref()), longest)
            };
            let longest = HANGS_AFTER + lasts * 5;
            let mut end = shown(&names, &number, longest)?;
            if end == End::Hangs {
                // Something else may have kept the machine.
                end = shown(&names, &number, longest)?;
            }
            let by = match end {
                End::Passed => {
                    tried += batch.len();
                    continue;
                }
                // A test that fails now and then, or by now whatever is changed, has not noticed anything. What comes after it may have.
                End::Failed(name)
                    if shown(&[&name], &number, LONGEST)? == End::Passed
                        || shown(&[&name], NONE, LONGEST)? != End::Passed =>
                {
                    tried += names.iter().position(|other| *other == name).unwrap_or(0) + 1;
                    continue;
                }
                End::Failed(name) => name,
                End::Hangs => return Ok(Verdict::Noticed(format!("{HANG}{}", names.join(", ")))),
            };
            noticing.add(change, reach.place_of(&by));
            return Ok(Verdict::Noticed(by));
        }
        let tests = tests.into_iter().map(|at| &reach.tests[at].name).enumerate();
        let (shown, others): (Vec<_>, Vec<_>) = tests.partition(|(at, name)| *at < tried || before.contains(*name));
        let of = shown.len() + others.len();
        Ok(Verdict::Survived { shown: shown.into_iter().map(|(_, name)| name.clone()).collect(), of })
    }

    /// Whether a test fails or hangs with a change, twice, and does not without it.
    pub fn is_noticed_by(&self, test: &Test<'_>, change: usize) -> Result<bool> {
        let passes = |number: &str| {
            let longest = HANGS_AFTER + test.lasts * 5;
            Ok::<_, anyhow::Error>(
                self.run(test.program, &[&test.name], ("RLOCK_CHANGE", number.as_ref()), longest)? == End::Passed,
            )
        };
        let number = change.to_string();
        Ok(!passes(&number)? && !passes(&number)? && passes(NONE)?)
    }

    /// Runs tests of a program, one after the other.
    fn run(&self, program: &Program, names: &[&str], set: (&str, &OsStr), longest: Duration) -> Result<End> {
        let mut said = tempfile::tempfile()?;
        let mut command = Command::new("bash");
        command.args(["-c", &format!("ulimit -v {MEMORY_KIB}; exec \"$@\""), "bash"]);
        command.arg(&program.path).args(["--test-threads=1", "--exact"]).args(names).current_dir(&program.folder);
        command.env("RLOCK_MODULE", &self.built.module).env("RLOCK_SERVER", self.server);
        command.env(set.0, set.1).envs(SHORT);
        command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(Stdio::null());
        match self.groups.begin(&mut command)?.finish(longest)? {
            None => return Ok(End::Hangs),
            Some(status) if status.success() => return Ok(End::Passed),
            Some(_) => {}
        }
        let mut text = String::new();
        said.rewind()?;
        said.read_to_string(&mut text)?;
        Ok(End::Failed(first_failed(&text).unwrap_or(names[0]).to_owned()))
    }

    /// Does something with each of many, so many at the same time. The results are in the order of the many.
    pub fn at_the_same_time<T: Sync, R: Send>(&self, many: &[T], jobs: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
        let next = Mutex::new(many.iter().enumerate());
        let done = Mutex::new(BTreeMap::new());
        let take = || next.lock().ok().and_then(|mut next| next.next());
        thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    while let Some((number, one)) = take() {
                        let result = work(one);
                        if let Ok(mut done) = done.lock() {
                            done.insert(number, result);
                        }
                    }
                });
            }
        });
        done.into_inner().unwrap_or_default().into_values().collect()
    }
}

/// The first test that has failed or has not come to its end, by what a test program says while it runs.
fn first_failed(said: &str) -> Option<&str> {
    let tests = said.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    let has_failed = |result: &str| result.is_empty() || result.ends_with("FAILED");
    tests.into_iter().find(|(_, result)| has_failed(result)).map(|(name, _)| name)
}

/// The names of a program's tests.
fn names(program: &Program) -> Result<Vec<String>> {
    let mut command = Command::new(&program.path);
    command.args(["--list", "--format", "terse"]).current_dir(&program.folder).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
    let mut list = String::new();
    child.stdout.take().context("no output")?.read_to_string(&mut list)?;
    if !child.wait()?.success() {
        bail!("{command:?} fails");
    }
    Ok(list.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_fails_is_named() {
        let said = "\nrunning 3 tests\ntest a::b ... ok\ntest a::c ... FAILED\ntest a::d ... FAILED\n\nfailures:\n";
        assert_eq!(first_failed(said), Some("a::c"));
        assert_eq!(first_failed("test a::b ... ok\ntest a::c ... "), Some("a::c"));
        assert_eq!(first_failed("test a::b ... ok\n"), None);
    }

    #[test]
    fn a_change_is_shown_to_likely_tests_first_and_to_those_that_have_seen_it_last() {
        let program = Program { path: "p".into(), folder: "/".into() };
        let test = |name: &str| Test { program: &program, name: name.into(), lasts: Duration::ZERO };
        let tests = ["a", "b", "c", "d"].map(test).into();
        let reach = Reach { tests, of_changes: [(1, vec![0, 1, 2, 3])].into(), left_out: Vec::new() };
        let shown = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let likely = |of_function: &[usize], of_file: &[usize]| {
            let set = |tests: &[usize]| tests.iter().copied().collect();
            Likely { of_function: set(of_function), of_file: set(of_file) }
        };
        assert_eq!(reach.of(1, &likely(&[], &[]), &shown(&[])), [0, 1, 2, 3]);
        assert_eq!(reach.of(1, &likely(&[3], &[2, 3]), &shown(&[])), [3, 2, 0, 1]);
        assert_eq!(reach.of(1, &likely(&[0], &[3]), &shown(&["a", "b"])), [3, 2, 0, 1]);
        assert!(reach.of(2, &likely(&[0], &[]), &shown(&["a"])).is_empty());
    }

    #[test]
    fn likely_are_tests_that_noticed_something_nearby_in_an_earlier_run_and_namesakes_of_the_file() {
        let program = Program { path: "p".into(), folder: "/".into() };
        let names = ["fair::a", "clock::b", "many::c", "many::d", "lock::e"];
        let test = |name: &str| Test { program: &program, name: name.into(), lasts: Duration::ZERO };
        let reach = Reach {
            tests: names.map(test).into(),
            of_changes: [(3, vec![0, 1, 2, 3, 4])].into(),
            left_out: Vec::new(),
        };
        let change = |id, name, file: &str| Change { file: file.into(), ..Change::called(id, name) };
        let all =
            [change(1, "one", "src/clock.rs"), change(2, "two", "src/timer.rs"), change(3, "three", "src/clock.rs")];
        let verdicts =
            [(1, Verdict::Noticed("many::d".into())), (2, Verdict::Noticed("many::c".into())), (3, Verdict::Unreached)];
        let noticing = Noticing::before(&all, &reach, &verdicts.into());
        assert_eq!(reach.of(3, &noticing.of(&all[2], &reach), &BTreeSet::new()), [3, 1, 0, 2, 4]);
    }

    #[test]
    fn tests_run_together_for_a_second_and_in_one_program() {
        let programs = ["p", "q"].map(|name| Program { path: name.into(), folder: "/".into() });
        let test = |program: usize, ms| Test {
            program: &programs[program],
            name: String::new(),
            lasts: Duration::from_millis(ms),
        };
        let tests = vec![test(0, 400), test(0, 500), test(0, 600), test(1, 10), test(1, 2000), test(1, 10)];
        let reach = Reach { tests, of_changes: BTreeMap::new(), left_out: Vec::new() };
        let sizes = [0, 1, 2, 3, 4, 5].map(|from| reach.batch(&(from..6).collect::<Vec<_>>()).len());
        assert_eq!(sizes, [2, 1, 1, 1, 1, 1]);
    }

    /// What comes of a change that is shown to a test program which is this script, whose words are `$@`.
    fn verdict(script: &str) -> Verdict {
        let folder = tempfile::tempdir().unwrap();
        let program = Program::script(folder.path(), script);
        let built = Built { changes: [1].into(), programs: Vec::new(), module: "m".into() };
        let (lasts, groups) = (Duration::from_secs(1), Groups::default());
        let trial = Trial { built: &built, jobs: 1, lasts, server: "s", groups };
        let test = Test { program: &program, name: "a::b".into(), lasts: Duration::from_millis(1) };
        let reach = Reach { tests: vec![test], of_changes: [(1, vec![0])].into(), left_out: Vec::new() };
        trial.show(&Change::called(1, "a.rs:1:1: f"), &reach, &Noticing::default(), BTreeSet::new()).unwrap()
    }

    const FAILS: &str = "echo 'test a::b ... FAILED'; exit 101";

    #[test]
    fn what_fails_with_the_change_alone_has_noticed_it() {
        let noticed = verdict(&format!("[ \"$RLOCK_CHANGE\" != 1 ] || {{ {FAILS}; }}"));
        assert_eq!(noticed, Verdict::Noticed("a::b".into()));
    }

    /// The machine is so busy by now, or its disk so full, that the test fails whatever is switched on.
    #[test]
    fn what_fails_without_the_change_as_well_has_not_noticed_it() {
        assert!(matches!(verdict(FAILS), Verdict::Survived { .. }), "{:?}", verdict(FAILS));
    }

    /// Something else keeps the machine for a moment: the next run of the same test with the same change passes at once.
    #[test]
    fn a_hang_that_does_not_come_again_is_none() {
        let verdict = verdict("[ -e once ] || { touch once; sleep 40; }; echo 'test a::b ... ok'");
        assert!(matches!(verdict, Verdict::Survived { .. }), "{verdict:?}");
    }
}
