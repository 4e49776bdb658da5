//! Tests of the driver: faulty programs fail scenarios, which name the broken rule.

#![allow(missing_docs, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// A fault of the Rust program, a scenario that detects it, and a rule that the scenario names.
const CAUGHT: [(&str, &str, &str); 48] = [
    ("believes-after-deadline", "hold-fixed-lease", "B15"),
    ("believes-after-deadline", "sleep-past-lease", "B13"),
    ("believes-after-deadline", "sleep-at-work", "B13"),
    ("tells-nothing", "hold-stalled", "B15"),
    ("tells-late", "hold-cut-off", "B15"),
    ("tells-late", "hold-server-stopped", "B15"),
    ("gives-up-at-first-trouble", "readonly-holding", "B17"),
    ("gives-up-at-first-trouble", "refused-renewal", "B17"),
    ("never-renews", "hold-renewed", "B16"),
    ("keeps-what-it-releases", "kind-mutex", "B21"),
    ("leaves-waiter", "cancel-while-waiting", "B6"),
    ("leaves-waiter", "cancel-at-each-await", "B11"),
    ("ignores-cancel", "cancel-while-stalled", "B11"),
    ("waits-too-long", "wait-timeout-server-stopped", "B5"),
    ("hides-result", "run-keeps-result", "B22"),
    ("ignores-database", "connection-database", "B25"),
    ("shares-owner", "reentry-default-owner", "B1"),
    ("shares-owner", "kind-mutex", "B5"),
    ("enters-late", "grant-on-its-way", "B13"),
    ("closes-nothing", "close", "B24"),
    ("ignores-session", "killed-with-session", "B13"),
    ("settles-with-high-id", "settle-then-acquire", "B11"),
    ("settles-with-high-id", "settle-then-acquire-superseded", "B11"),
    ("settles-with-high-id", "settle-then-acquire-lost-reply", "B11"),
    ("settles-with-high-id", "words-on-the-wire", "B21"),
    ("believes-what-it-asked", "limit-expire", "B13"),
    ("believes-what-it-asked", "limit-lowered", "B13"),
    ("hangs-on-extremes", "duration-lease", "B31"),
    ("hangs-on-extremes", "duration-wait-free", "B31"),
    ("hangs-on-extremes", "duration-wait-held", "B31"),
    ("hangs-on-extremes", "duration-release", "B31"),
    ("hides-outage", "outage-unreachable", "B33"),
    ("hides-outage", "outage-refused", "B33"),
    ("hides-outage", "outage-silent", "B33"),
    ("hides-outage", "outage-accepted", "B33"),
    ("blames-server", "outage-over", "B33"),
    ("ignores-loss", "loss-first", "B22"),
    ("steps-after-loss", "loss-first", "B22"),
    ("ignores-loss", "loss-first-forced", "B22"),
    ("ignores-loss", "loss-overwritten-run", "B21"),
    ("hides-loss", "loss-overwritten", "B21"),
    ("hides-loss", "loss-inner-release", "B32"),
    ("closes-twice", "reentry-closed-twice", "B32"),
    ("declares-all", "loss-then-acquire", "B32"),
    ("declares-all", "loss-then-acquire-renewed", "B32"),
    ("declares-all", "limit-fixed-lease", "B29"),
    ("declares-all", "limit-fixed-lease-extended", "B29"),
    ("declares-all", "limit-fixed-lease-killed", "B29"),
];

/// Scenarios that the naive client fails, see `rust-program/naive.rs`.
const NAIVE: &str = "keep note reentry-some-keys words-on-the-wire wait-timeout-no-server wait-timeout-stalled wait-one-subscriber wait-fair-grace \
    hold-forced hold-reentry-after-loss hold-two-servers hold-sixty-at-200ms hold-session-cut hold-session-lost \
    hold-session-end-unseen \
    hold-short-stall lost-reply-try lost-reply-wait lost-reply-renew lost-reply-release cut-hand-over refused-wait refused-release refused-release-then-acquire \
    refused-for-good wrong-type module-missing module-too-old readonly-waiting readonly-until-lost restart-holding restart-waiting \
    connection-user connection-key-prefix connection-numbers-as-strings sleep-while-waiting close-server-stopped exit-with-session \
    wait-owner-deadlock wait-owner-superseded wait-keeps-place wait-try-stalled wait-timeout-replies-stalled lead-again hold-slow-network hold-slower-than-lease \
    close-at-each-await close-frees-everything run-cancelled limit-fixed-lease limit-lowered-acquire outage-over loss-first \
    grant-on-its-way grant-unanswered-copy grant-with-session grant-claimed settle-once settle-then-late-copy";

fn judge(program: &str, fault: Option<&str>, scenarios: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conformance"));
    command.args(["--program", program, "--once", "--module"]).arg(module()).args(scenarios);
    command.envs(fault.map(|fault| ("RLOCK_CONFORMANCE_FAULT", fault)));
    String::from_utf8_lossy(&command.output().expect("the judge runs").stdout).into_owned()
}

fn verdict<'a>(said: &'a str, scenario: &str) -> Option<&'a str> {
    said.lines().find(|line| line.split_whitespace().nth(1) == Some(scenario))
}

fn module() -> PathBuf {
    let named = std::env::var_os("RLOCK_MODULE").map(PathBuf::from);
    let module = named.unwrap_or_else(|| {
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(target).join("release/librlock.so")
    });
    assert!(module.exists(), "{} is missing: run `make build`", module.display());
    module
}

#[test]
fn a_naive_client_is_red() {
    let scenarios: Vec<_> = NAIVE.split_whitespace().collect();
    let said = judge(env!("CARGO_BIN_EXE_conformance-naive"), None, &scenarios);
    let is_red = |scenario: &&&str| verdict(&said, scenario).is_some_and(|line| line.starts_with("red"));
    let green: Vec<_> = scenarios.iter().filter(|scenario| !is_red(scenario)).collect();
    assert!(green.is_empty(), "not red: {green:?}\n{said}");
}

#[test]
fn rule_that_is_not_listed_is_lacking_or_asked_for() {
    let naive = env!("CARGO_BIN_EXE_conformance-naive");
    let said = judge(naive, Some("declares-none"), &["grant-with-session", "reentry-closed-twice"]);
    let broken = verdict(&said, "grant-with-session").unwrap_or_default();
    assert!(broken.starts_with("lacking") && broken.contains("it entered after"), "{said}");
    let kept = verdict(&said, "reentry-closed-twice").unwrap_or_default();
    assert!(kept.starts_with("green") && kept.ends_with("not listed: B32"), "{said}");
    assert!(said.contains("1 green, 0 red, 1 lacking"), "{said}");
    assert!(said.contains("B32 is green and not listed") && !said.contains("timed is green"), "{said}");
}

#[test]
fn each_fault_is_found_by_a_scenario_that_names_the_rule() {
    let missed = Mutex::new(Vec::new());
    let next = Mutex::new(CAUGHT.iter());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some((fault, scenario, rule)) = next.lock().unwrap().next() else { break };
                    let mut verdicts = Vec::new();
                    // Scenarios with random moments find a fault in most runs, not in each.
                    let is_caught = (0..5).any(|_| {
                        let said = judge(env!("CARGO_BIN_EXE_conformance-rust"), Some(fault), &[*scenario]);
                        let line = verdict(&said, scenario).unwrap_or_default().to_owned();
                        let is_caught = line.starts_with("red") && line.contains(rule);
                        verdicts.push(line);
                        is_caught
                    });
                    if !is_caught {
                        missed.lock().unwrap().push(format!("{fault} in {scenario} ({rule}): {verdicts:?}"));
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
}
