//! A long load on locks of all kinds, with disconnects, in rounds on one server. After each round
//! all clients leave. Then the checker makes sure that nothing is left over, checks the recorded
//! history, and measures the server's memory and latency.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::afterwards::{check_emptied, check_leftovers, check_life};
use super::campaign::Campaign;
use super::fault::Faults;
use super::server::{Disk, Program, Server, WallClock};
use super::wire::{Connection, text};
use crate::history::{History, Rule, Violation};
use crate::rules;

/// How long a round is.
const ROUND: Duration = Duration::from_secs(20);

/// How many bytes `used_memory` may grow. A leak in each round adds up to more in an hour.
const MOST_GROWTH: f64 = 1024.0 * 1024.0;

/// How many bytes resident memory may grow: memory that `used_memory` does not count. The allocator
/// keeps some megabytes more or less.
const MOST_RESIDENT_GROWTH: f64 = 32.0 * 1024.0 * 1024.0;

/// The largest ratio of a pair's duration at the end to that at the start, each relative to two
/// PINGs of its round.
const MOST_SLOWDOWN: f64 = 1.5;

/// With more rounds than this, one disturbed round in the first or last tenth does not decide the
/// comparison.
const FEWEST_TO_COMPARE: usize = 40;

/// The slope of the memory is meaningful only with more rounds than this.
const FEWEST: usize = 10;

/// How many pairs of ACQUIRE and RELEASE are timed after each round.
const TIMED: usize = 2_000;

/// Measurements of the server after a round.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Seconds since the beginning.
    pub at_s: f64,
    /// `used_memory`, in bytes.
    pub used: f64,
    /// `used_memory_rss`, in bytes.
    pub resident: f64,
    /// The median of the timed pairs, in microseconds.
    pub median_us: f64,
    /// The median of the timed pairs of PINGs, in microseconds: the time that the machine and the
    /// server take for any two requests.
    pub pings_us: f64,
    /// The 99th percentile of the timed pairs, in microseconds.
    pub slow_us: f64,
    /// The number of operations so far.
    pub operations: usize,
}

/// The result of a soak.
pub struct Soaked {
    /// One for each round.
    pub samples: Vec<Sample>,
    /// The broken rules.
    pub violations: Vec<Violation>,
}

/// Runs rounds for a while, and calls `show` with each sample as soon as it exists.
///
/// # Errors
///
/// If the server cannot be started, or a client fails in a way that no rule covers.
pub fn soak(
    program: &Program,
    lasts: Duration,
    seed: u64,
    workers: u64,
    mut show: impl FnMut(&Sample),
) -> Result<Soaked> {
    let clocks = [WallClock::new()?, WallClock::new()?];
    let program = Program { disk: Disk::None, loses_clients: true, ..program.clone() };
    let mut master = Server::start(&program, Some(&clocks[0]))?;
    let mut replica = Server::start(&program, Some(&clocks[1]))?;
    // The log of slow commands grows for hours. That memory is the server's own, and not a leak.
    Connection::insist(master.address())?.ask("CONFIG SET slowlog-log-slower-than -1")?;
    let mut soaked = Soaked { samples: Vec::new(), violations: Vec::new() };
    let (began, mut round, mut operations) = (Instant::now(), 0, 0);
    while began.elapsed() < lasts {
        round += 1;
        let (program, faults) = (program.clone(), Faults::Disconnects);
        let campaign = Campaign { program, lasts: ROUND, seed: seed + round, workers, faults };
        let keys = campaign.make_keys(&mut Connection::insist(master.address())?)?;
        let (seen, _) = campaign.record(&mut master, &mut replica, &clocks, &keys, &mut soaked.violations)?;
        operations += seen.len();
        // The round may have cut the control connection before it.
        let mut control = Connection::insist(master.address())?;
        soaked.violations.extend(rules::check(&mut History {
            keys: keys.to_vec(),
            operations: seen,
            ..History::default()
        }));
        check_leftovers(&mut control, &keys, &mut soaked.violations)?;
        check_emptied(&mut control, &keys, &mut soaked.violations)?;
        check_life("server", master.is_alive(), &master.log(), &mut soaked.violations);
        let (pings_us, median_us, slow_us) = latency(&mut control)?;
        let (used, resident) = memory(&mut control)?;
        let at_s = began.elapsed().as_secs_f64();
        let sample = Sample { at_s, used, resident, median_us, pings_us, slow_us, operations };
        show(&sample);
        soaked.samples.push(sample);
    }
    soaked.violations.extend(growth(&soaked.samples));
    soaked.violations.extend(has_slowed_down(&soaked.samples));
    Ok(soaked)
}

/// Whether there are enough rounds to judge the memory.
#[must_use]
pub fn is_long_enough(samples: &[Sample]) -> bool {
    samples.len() > FEWEST
}

/// The kinds of memory that have grown by more than the difference between rounds.
fn growth(samples: &[Sample]) -> Vec<Violation> {
    let (true, Some(first), Some(last)) = (is_long_enough(samples), samples.get(1), samples.last()) else {
        return Vec::new();
    };
    let hours = (last.at_s - first.at_s) / 3600.0;
    let grown = |what: &str, value: fn(&Sample) -> f64, most: f64| {
        let grown = slope_by_hour(samples, value) * hours;
        (grown > most).then(|| {
            let story = format!("{what} grew by {:.0} KiB", grown / 1024.0);
            Violation { rule: Rule::NothingIsLeftOver, story }
        })
    };
    let used = grown("used_memory", |sample| sample.used, MOST_GROWTH);
    let resident = grown("resident memory", |sample| sample.resident, MOST_RESIDENT_GROWTH);
    used.into_iter().chain(resident).collect()
}

/// Whether the server was slower at the end.
fn has_slowed_down(samples: &[Sample]) -> Option<Violation> {
    let is_long = samples.len() > FEWEST_TO_COMPARE;
    let slowdown = slowdown(samples).filter(|slowdown| is_long && *slowdown > MOST_SLOWDOWN)?;
    let story = format!("a pair takes {slowdown:.2} times as long as at the start");
    Some(Violation { rule: Rule::ServerLives, story })
}

/// The growth per hour: the slope of the line through all samples but the first, in which the
/// server allocates memory that it keeps.
#[must_use]
pub fn slope_by_hour(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> f64 {
    let samples = samples.get(1..).unwrap_or_default();
    let mean = |of: &dyn Fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / samples.len().max(1) as f64;
    let (mean_s, mean_value) = (mean(&|sample| sample.at_s), mean(&|sample| value(sample)));
    let spread: f64 = samples.iter().map(|sample| (sample.at_s - mean_s).powi(2)).sum();
    let both: f64 = samples.iter().map(|sample| (sample.at_s - mean_s) * (value(sample) - mean_value)).sum();
    if spread > 0.0 { both / spread * 3600.0 } else { 0.0 }
}

/// The duration of a pair at the end relative to the start, each counted in PINGs of its round, so
/// that the machine's own speed does not count. Compares the median of the last tenth of the
/// samples with that of the first tenth. Of each two samples it takes the faster one, because
/// disturbances only slow a round down. The first sample is ignored.
#[must_use]
pub fn slowdown(samples: &[Sample]) -> Option<f64> {
    let samples = samples.get(1..).unwrap_or_default();
    let share = samples.len().div_ceil(10);
    let middle = |part: &[Sample]| {
        let mut medians: Vec<f64> = part.iter().map(|sample| sample.median_us / sample.pings_us).collect();
        medians.sort_unstable_by(f64::total_cmp);
        medians.get(medians.len().checked_sub(1)? / 2).copied()
    };
    Some(middle(samples.get(samples.len() - share..)?)? / middle(samples.get(..share)?)?)
}

/// The median of pairs of PINGs, and the median and 99th percentile of pairs of ACQUIRE and
/// RELEASE, in microseconds. They are timed in turn, so that other work of the machine slows down
/// both.
fn latency(control: &mut Connection) -> Result<(f64, f64, f64)> {
    const PAIRS: [[&str; 2]; 2] =
        [["PING", "PING"], ["RLOCK.ACQUIRE timed owner PX 60000", "RLOCK.RELEASE timed owner"]];
    let mut took_us = [Vec::with_capacity(TIMED), Vec::with_capacity(TIMED)];
    for _ in 0..TIMED {
        for (pair, took_us) in PAIRS.iter().zip(&mut took_us) {
            let began = Instant::now();
            for words in pair {
                control.ask(words)?;
            }
            took_us.push(began.elapsed().as_secs_f64() * 1e6);
        }
    }
    let [pings, pairs] = took_us.each_mut().map(|took_us| {
        took_us.sort_unstable_by(f64::total_cmp);
        |share: usize| took_us.get(TIMED * share / 100).copied().unwrap_or_default()
    });
    Ok((pings(50), pairs(50), pairs(99)))
}

fn memory(control: &mut Connection) -> Result<(f64, f64)> {
    // Ten times a second the server frees the memory of closed connections, and updates its memory
    // figures.
    thread::sleep(Duration::from_millis(500));
    let said = text(control.ask("INFO memory")?)?;
    let number = |name: &str| {
        let value = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.and_then(|value| value.trim().parse().ok()).with_context(|| format!("INFO has no {name}"))
    };
    Ok((number("used_memory")?, number("used_memory_rss")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_compared_with_the_start() {
        let samples = |medians: &[f64]| -> Vec<Sample> {
            let sample = |median_us: &f64| Sample {
                at_s: 1.0,
                used: 1.0,
                resident: 1.0,
                median_us: *median_us,
                pings_us: 1.0,
                slow_us: 1.0,
                operations: 1,
            };
            medians.iter().map(sample).collect()
        };
        assert_eq!(slowdown(&samples(&[9.0])), None);
        assert_eq!(slowdown(&samples(&[9.0, 2.0, 5.0, 3.0])), Some(1.5));
        // Of two samples, the less disturbed one counts.
        assert_eq!(slowdown(&samples(&[&[9.0; 1][..], &[2.0; 10], &[4.0, 2.0]].concat())), Some(1.0));
        // A disturbed sample does not count.
        let mut many = [&[9.0; 1][..], &[2.0; 40]].concat();
        (many[2], many[39]) = (50.0, 70.0);
        assert_eq!(slowdown(&samples(&many)), Some(1.0));
        assert_eq!(has_slowed_down(&samples(&many)), None);
        let mut slower = samples(&[&[2.0; 21][..], &[3.5; 20]].concat());
        assert_eq!(has_slowed_down(&slower).map(|violation| violation.rule), Some(Rule::ServerLives));
        // The machine got slower, and not the server.
        slower.iter_mut().skip(21).for_each(|sample| sample.pings_us = 1.75);
        assert_eq!(has_slowed_down(&slower), None);
        assert_eq!(has_slowed_down(&samples(&[&[2.0; 20][..], &[3.5; 20]].concat())), None, "too few");
    }

    #[test]
    fn growth_has_a_slope() {
        let sample = |at_s: f64, used: f64| Sample {
            at_s,
            used,
            resident: 7.0,
            median_us: 1.0,
            pings_us: 1.0,
            slow_us: 1.0,
            operations: 1,
        };
        let samples = [sample(1.0, 5000.0), sample(10.0, 100.0), sample(20.0, 110.0), sample(30.0, 120.0)];
        assert_eq!(slope_by_hour(&samples, |sample| sample.used).round() as i64, 3600);
        assert_eq!(slope_by_hour(&samples, |sample| sample.resident).round() as i64, 0);
        assert_eq!(growth(&samples), []);
        let leak = |by_round: f64| {
            (0..30).map(|at| sample(20.0 * f64::from(at), by_round * f64::from(at))).collect::<Vec<_>>()
        };
        let rules = |samples: &[Sample]| growth(samples).iter().map(|violation| violation.rule).collect::<Vec<_>>();
        assert_eq!(rules(&leak(30_000.0)), []);
        assert_eq!(rules(&leak(60_000.0)), [Rule::NothingIsLeftOver]);
        let mut resident = leak(0.0);
        (0..30).zip(&mut resident).for_each(|(at, sample)| sample.resident = 2e6 * f64::from(at));
        assert_eq!(rules(&resident), [Rule::NothingIsLeftOver]);
        assert!(!is_long_enough(&resident[..10]) && is_long_enough(&resident[..11]));
    }
}
