//! The performance aims of the module relative to its peers, and whether they are met.

use crate::cell::Work;
use crate::crash;
use crate::report::Report;
use crate::samples::Summary;

pub const CONTENDED_64: &str = "64 clients, 1 proc., 0 ms";
pub const ASYNCIO_200: &str = "200 clients, 1 proc., 0 ms";
pub const UNCONTENDED_16: &str = "16 clients";
const UNCONTENDED_64: &str = "64 clients";
const FAIR_64: &str = "64 clients, 0 ms";

/// The direction of an aim.
#[derive(Clone, Copy, Debug)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// A line of the table of aims.
pub struct Aim {
    pub text: String,
    pub bound: String,
    pub result: Option<Summary>,
    pub is_met: Option<bool>,
}

fn aim(text: impl Into<String>, bound: Bound, result: Option<Summary>) -> Aim {
    let is_met = result.map(|result| match bound {
        Bound::AtLeast(least) => result.median >= least,
        Bound::AtMost(most) => result.median <= most,
    });
    let bound = match bound {
        Bound::AtLeast(least) => format!("≥ {least}"),
        Bound::AtMost(most) => format!("≤ {most}"),
    };
    Aim { text: text.into(), bound, result, is_met }
}

/// All aims. Most are ratios of two peers in the same rounds.
pub fn of(report: &Report<'_>) -> Vec<Aim> {
    let Some(ours) = report.baseline() else { return Vec::new() };
    let ours = ours.id();
    let ratio = |work, cell: &str, other: &str, figure| report.samples.ratio(work, cell, (&ours, other), figure);
    let mut aims = vec![
        aim(
            "Hand-overs per second, 64 clients on one lock, against Redisson's RLock",
            Bound::AtLeast(3.0),
            ratio(Work::Contended, CONTENDED_64, "redisson", "hand_overs_per_s"),
        ),
        aim(
            "The clients' CPU per pair there, against Redisson",
            Bound::AtMost(0.5),
            ratio(Work::Contended, CONTENDED_64, "redisson", "client_us_per_pair"),
        ),
        aim(
            "The least share of a client there",
            Bound::AtLeast(0.8),
            report.samples.summary(Work::Contended, CONTENDED_64, &ours, "min_share"),
        ),
        aim(
            "Hand-overs per second of fair locks, against RFairLock",
            Bound::AtLeast(12.0),
            ratio(Work::Fair, FAIR_64, "redisson", "hand_overs_per_s"),
        ),
    ];
    if let Some(best) = best_on_redis(report) {
        aims.push(aim(
            format!("Hand-overs per second of mutexes, against the best other client of Redis, {}", best.1),
            Bound::AtLeast(3.0),
            ratio(Work::Contended, CONTENDED_64, &best.0, "hand_overs_per_s"),
        ));
    }
    for (id, name) in [("etcd", "etcd"), ("curator", "Curator")] {
        let result = ratio(Work::Contended, CONTENDED_64, id, "hand_overs_per_s");
        aims.push(aim(format!("The same, against {name}'s mutex"), Bound::AtLeast(10.0), result));
    }
    let asyncio = ("rlock-asyncio", "redis-py-asyncio");
    aims.push(aim(
        "Hand-overs per second, 200 tasks of asyncio on one lock, against redis-py's Lock",
        Bound::AtLeast(1.2),
        report.samples.ratio(Work::Contended, ASYNCIO_200, asyncio, "hand_overs_per_s"),
    ));
    aims.extend(costs(report, &ours));
    aims
}

fn costs(report: &Report<'_>, ours: &str) -> Vec<Aim> {
    let samples = report.samples;
    let redisson = "redisson";
    vec![
        aim(
            "Server CPU per uncontended pair, 16 clients, against Redisson",
            Bound::AtMost(0.5),
            samples.ratio(Work::Uncontended, UNCONTENDED_16, (ours, redisson), "server_us_per_pair"),
        ),
        aim(
            "The same with 64 tasks of rlock-client, which share one connection",
            Bound::AtMost(0.2),
            samples.ratio(Work::Uncontended, UNCONTENDED_64, ("rlock-client", redisson), "server_us_per_pair"),
        ),
        aim(
            "Hand-over, p99, 64 clients, against Redisson",
            Bound::AtMost(0.1),
            samples.ratio(Work::Contended, CONTENDED_64, (ours, redisson), "hand_over_p99_ms"),
        ),
        aim(
            "From the death of a holder to the next holder, against Redisson's default",
            Bound::AtMost(0.02),
            samples.ratio(Work::Crash, crash::HOLDER, (ours, redisson), "next_holder_ms"),
        ),
        aim(
            "Main thread's CPU per pair with 10,000 waiters, against 10 (rlock-client)",
            Bound::AtMost(1.2),
            samples.growth(Work::Growth, ("10000 waiters", "10 waiters"), "rlock-client", "main_thread_us_per_pair"),
        ),
        aim(
            "Main thread's CPU per pair with 1,000,000 locks held, against 1",
            Bound::AtMost(1.2),
            samples.growth(Work::Growth, ("1000000 locks", "1 lock"), ours, "main_thread_us_per_pair"),
        ),
    ]
}

/// The client of a plain Redis with the most hand-overs, except Redisson: its id and its name.
fn best_on_redis(report: &Report<'_>) -> Option<(String, String)> {
    let others = report.contestants.iter().filter(|c| c.peer.server == "redis" && c.peer.id != "redisson");
    let rates = others.filter_map(|contestant| {
        let rate = report.samples.summary(Work::Contended, CONTENDED_64, &contestant.id(), "hand_overs_per_s")?;
        Some((rate.median, contestant))
    });
    let (_, best) = rates.max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some((best.id(), best.label()))
}
