//! Masters are killed, stopped, cut off and replaced while workers acquire locks. With the settings
//! in docs/operations/failover.md no two workers believe at the same time that they hold one lock.
//! Without the settings some do, which shows that the check detects it.
//!
//! Each fault is a test, which causes it once. `make test-failover` causes each fault on each
//! server ten times or more, with and without the settings, and adds the results to the table in
//! docs/internals/failovers.md.

mod beliefs;
mod faults;
mod fleet;
mod packages;
mod record;
mod rolling_upgrade;
mod watch;
mod workers;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;

use self::beliefs::{kept, longest_gap, overlaps, publish};
use self::faults::Fault;
use self::fleet::{Fleet, SOON, Settings};
use self::record::{Outcome, Record};
use self::watch::Watch;
use self::workers::Load;
use crate::support::{eventually, seed, skipped_here};

/// The length of a run.
#[derive(Clone, Copy)]
struct Length {
    faults: usize,
    /// The acquisitions before, during and after each fault.
    acquisitions: usize,
    /// The longest lease. Pauses within a fault are in proportion to it.
    lease: Duration,
    /// How long a late replica is cut off before it is promoted.
    cut_off: Duration,
    /// The number of steps of a chaos.
    steps: usize,
}

const SHORT: Length =
    Length { faults: 1, acquisitions: 60, lease: Duration::from_secs(2), cut_off: Duration::from_secs(3), steps: 8 };
/// An interrupted run loses the faults of one such length at most.
const LONG: Length = Length {
    faults: 5,
    acquisitions: 340,
    lease: Duration::from_secs(10),
    cut_off: Duration::from_secs(60),
    steps: 24,
};
/// The number of acquisitions that must come before and after a fault.
const AFTERWARDS: usize = 30;

/// Causes a fault under load. Returns the outcome, and a report if workers overlapped; `None` if
/// this machine cannot show the fault.
fn run(fault: Fault, settings: Settings, length: Length) -> Option<(Outcome, Vec<String>)> {
    if fault == Fault::Packages && packages::commands().is_empty() {
        return None;
    }
    let mut fleet = Fleet::of(fault, settings, length, StdRng::seed_from_u64(seed()))?;
    let (load, watch) = (Load::new(fleet.ports(), length.lease), Watch::default());
    let (began, mut began_at) = (Instant::now(), Vec::new());
    thread::scope(|scope| {
        let _end = if fault == Fault::Packages { packages::begin(scope, &load) } else { load.begin(scope) };
        scope.spawn(|| watch.run(&load));
        for n in 0..length.faults {
            let acquired = load.acquired();
            eventually(SOON, || load.acquired() >= acquired + AFTERWARDS);
            began_at.push(Instant::now());
            fleet.suffer(fault, n, &load);
            fleet.settle();
            let after = (load.acquired() + AFTERWARDS).max(acquired + length.acquisitions);
            eventually(SOON, || load.acquired() >= after);
        }
        began_at.push(Instant::now());
    });
    let beliefs = load.beliefs();
    let found = overlaps(&beliefs, began);
    publish(&format!("{fault:?}-{settings:?}"), &beliefs, began, found.len());
    let times = || began_at.iter().zip(&began_at[1..]);
    let outcome = Outcome {
        faults: length.faults,
        acquisitions: beliefs.len(),
        overlaps: found.len(),
        gaps: times().map(|(from, until)| longest_gap(&beliefs, *from, *until)).collect(),
        waits: times().map(|(from, until)| watch.longest_until_grants(*from, *until)).collect(),
        kept: times().map(|(from, _)| kept(&beliefs, *from, length.lease)).sum(),
    };
    println!("{fault:?}, {settings:?}: {outcome:?}");
    let happened = |(at, what): &(Instant, String)| format!("{:.3} s: {what}", (*at - began).as_secs_f64());
    let diary = fleet.diary.iter().filter(|(at, _)| *at >= began).map(happened);
    let report =
        if found.is_empty() { Vec::new() } else { found.iter().map(ToString::to_string).chain(diary).collect() };
    Some((outcome, report))
}

/// Fails if there is a report, and writes it to a file.
#[track_caller]
fn assert_no_overlap(name: &str, report: &[String]) {
    let text = report.join("\n");
    if !report.is_empty() {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("overlaps-{name}-{}", std::process::id()));
        fs::write(&path, &text).expect("a writable folder");
        panic!("{}:\n{text}", path.display());
    }
}

fn try_fault(fault: Fault) {
    let Some(record) = Record::asked_for() else {
        match run(fault, Settings::Safe, SHORT) {
            Some((_, report)) => assert_no_overlap(&format!("{fault:?}"), &report),
            None if fault == Fault::Packages => {
                eprintln!("not run: {} names no programs; make test-failover builds them", packages::PROGRAMS);
            }
            None => skipped_here("this process may not make network namespaces"),
        }
        return;
    };
    for settings in [Settings::Safe, Settings::Default] {
        loop {
            let faults = record.lacks(fault, settings).min(LONG.faults);
            if faults == 0 {
                break;
            }
            let Some((outcome, report)) = run(fault, settings, Length { faults, ..LONG }) else { return };
            record.add(fault, settings, &outcome);
            if settings == Settings::Safe {
                assert_no_overlap(&format!("{fault:?}"), &report);
            }
        }
    }
}

macro_rules! no_two_workers_believe_after {
    ($($test:ident: $fault:ident,)*) => {$(
        #[test]
        fn $test() {
            try_fault(Fault::$fault);
        }
    )*};
}

no_two_workers_believe_after! {
    no_two_workers_believe_after_a_chaos: Chaos,
    no_two_workers_believe_after_a_change_of_the_settings: Changes,
    no_two_workers_believe_after_a_failover_by_a_cluster: Automatic,
    no_two_workers_believe_after_a_failover_by_sentinel: Sentinel,
    no_two_workers_believe_after_a_forced_failover: Force,
    no_two_workers_believe_after_a_kill: Kill,
    no_two_workers_believe_after_a_late_replica_takes_over: LateReplica,
    no_two_workers_believe_after_a_lease_is_lowered_for_a_waiter: LoweredWhileWaiting,
    no_two_workers_believe_after_a_planned_failover: Planned,
    no_two_workers_believe_after_a_restart_in_a_chain: ChainedRestarts,
    no_two_workers_believe_after_a_restart_of_any_server: AnyRestarts,
    no_two_workers_believe_after_a_restart_of_the_promoted_server: PromotedRestarts,
    no_two_workers_believe_after_a_restart_with_a_file: RestartWithFile,
    no_two_workers_believe_after_a_restart_without_a_file: Restart,
    no_two_workers_believe_after_a_takeover: Takeover,
    no_two_workers_believe_after_replicas_restart_without_data: EmptyRestarts,
    no_two_workers_believe_after_two_failovers_in_a_row: Twice,
    no_two_workers_believe_of_five_packages_some_of_them_stopped: Packages,
    no_two_workers_believe_on_servers_whose_clocks_differ: ClocksDiffer,
    no_two_workers_believe_when_a_replica_returns_to_the_old_master: ReplicaReturns,
    no_two_workers_believe_when_a_relay_cuts_the_master_off: Partition,
    no_two_workers_believe_when_routes_cut_the_master_off: Blackhole,
    no_two_workers_believe_when_sentinels_cannot_reach_the_master: SentinelPartition,
    no_two_workers_believe_when_the_old_clock_steps: ClockSteps,
    no_two_workers_believe_when_the_old_master_continues: Stop,
    no_two_workers_believe_while_the_old_master_lives: SplitBrain,
    no_two_workers_believe_with_a_chained_replica: Chained,
}

#[test]
fn without_the_settings_two_workers_believe_at_the_same_time() {
    // Pauses are in proportion to the lease, and workers need some time to meet.
    let length = Length { lease: LONG.lease, ..SHORT };
    let (outcome, _) = run(Fault::SplitBrain, Settings::Default, length).expect("any machine can show it");
    assert!(outcome.overlaps > 0, "the check did not detect an overlap");
}
