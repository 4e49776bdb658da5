//! The pauses of other clients while a million leases expire within one second.
//!
//! The deadlines are spread evenly over one second, which begins well after the last lock is
//! acquired. A connection sends one PING after the other, so each pause of the event loop shows as
//! the time of one PING. Two other figures show the machine's share: the same loop just before, on
//! the idle server with all of these locks, and the time that the server and the PING thread waited
//! for a CPU.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rlock_bench::clock;
use rlock_bench::server::Server;

use super::fill::{self, Taking};
use super::pings::{Pinging, Pings, waited_ms};
use crate::report::{Aim, Figure, Line, Series, Statistic, Unit};

/// All leases expire within this time.
const SPREAD_MS: u64 = 1000;
/// How long the idle server is watched before the first deadline.
const IDLE_WATCH: Duration = Duration::from_millis(1200);
/// Each PING is sent right after the previous reply.
const NO_PAUSE: Duration = Duration::ZERO;
/// The time from the end of that watch to the first deadline.
const GAP: Duration = Duration::from_millis(200);
/// How long acquiring the locks may take: a base time, and more for each lock.
const FILL_BASE: Duration = Duration::from_secs(2);
const FILL_PER_LOCK: Duration = Duration::from_micros(10);
const GONE_TIMEOUT: Duration = Duration::from_secs(120);
const GONE_POLL_INTERVAL: Duration = Duration::from_millis(1);

struct RoundResult {
    idle: Pings,
    expiry: Pings,
    /// How long the server's main thread waited for a CPU while the leases ended.
    server_waited_ms: f64,
    /// The time from the last deadline until no key was left.
    gone_after_ms: f64,
}

/// Measures the stalls and the time until the last lock is gone.
pub fn measure(server: &mut Server, rounds: usize, locks: usize) -> Result<Vec<Line>> {
    let [mut stall, mut p99, mut idle_stall, mut idle_p99] = std::array::from_fn(|_| Series::default());
    let [mut server_ran, mut server_waited, mut client_waited, mut gone_after] =
        std::array::from_fn(|_| Series::default());
    for _ in 0..rounds {
        let round = measure_round(server, locks)?;
        stall.push(round.expiry.times_ms.max());
        p99.push(round.expiry.times_ms.quantile(0.99));
        idle_stall.push(round.idle.times_ms.max());
        idle_p99.push(round.idle.times_ms.quantile(0.99));
        server_ran.push(round.expiry.server_ran_ms.max());
        server_waited.push(round.server_waited_ms);
        client_waited.push(round.expiry.thread_waited_ms);
        gone_after.push(round.gone_after_ms);
    }
    let expired = server.info_number("rlock_expired")?;
    ensure!(
        expired == (rounds * locks) as u64,
        "the module counted {expired} expired leases, expected {}",
        rounds * locks
    );
    Ok(vec![
        Line::value(
            format!("longest PING of a round while {locks} leases end in {SPREAD_MS} ms"),
            Statistic::Max,
            Unit::Ms,
            stall.clone(),
        )
        .aim(Aim::AtMost(20.0))
        .figure(Figure::new("median round", Unit::Ms, &stall))
        .figure(Figure::new("PING p99", Unit::Ms, &p99))
        .figure(Figure::of(Statistic::Max, "idle right before: longest", Unit::Ms, &idle_stall))
        .figure(Figure::new("idle p99", Unit::Ms, &idle_p99))
        .figure(Figure::of(Statistic::Max, "server CPU within one PING: up to", Unit::Ms, &server_ran))
        .figure(Figure::of(Statistic::Max, "server waited for a CPU, in all: up to", Unit::Ms, &server_waited))
        .figure(Figure::of(
            Statistic::Max,
            "PING thread waited for a CPU, in all: up to",
            Unit::Ms,
            &client_waited,
        )),
        Line::value("from the last deadline until no lock is left", Statistic::Median, Unit::Ms, gone_after),
    ])
}

fn measure_round(server: &mut Server, locks: usize) -> Result<RoundResult> {
    let fill_time = FILL_BASE + FILL_PER_LOCK * u32::try_from(locks)?;
    let first_deadline = clock::now() + fill_time + IDLE_WATCH + GAP;
    let last_deadline = first_deadline + Duration::from_millis(SPREAD_MS);
    fill::fill(server, Taking::Acquire, locks, |index| {
        let until_first = first_deadline.saturating_duration_since(clock::now());
        until_first.as_millis() as u64 + index as u64 % SPREAD_MS
    })?;
    let idle_from = first_deadline - GAP - IDLE_WATCH;
    ensure!(clock::now() < idle_from, "acquiring {locks} locks took longer than {fill_time:?}");

    clock::sleep_until(idle_from);
    let watch = Pinging::start(server, NO_PAUSE)?;
    clock::sleep_until(first_deadline - GAP);
    let idle = watch.stop()?;
    ensure!(server.key_count()? == locks as u64, "locks expired before their deadlines");

    let server_before = server.main_thread_times();
    let watch = Pinging::start(server, NO_PAUSE)?;
    let gone = wait_until_no_keys(server, last_deadline)?;
    let expiry = watch.stop()?;
    let server_waited_ms = waited_ms(server_before, server.main_thread_times());
    ensure!(server.info_number("rlock_held")? == 0, "no key is left, but the module still counts holds");
    Ok(RoundResult {
        idle,
        expiry,
        server_waited_ms,
        gone_after_ms: clock::as_ms(gone.saturating_duration_since(last_deadline)),
    })
}

fn wait_until_no_keys(server: &mut Server, last_deadline: Instant) -> Result<Instant> {
    loop {
        let keys = server.key_count()?;
        let now = clock::now();
        if keys == 0 {
            return Ok(now);
        }
        ensure!(now < last_deadline + GONE_TIMEOUT, "{keys} locks are left {GONE_TIMEOUT:?} after the last deadline");
        thread::sleep(GONE_POLL_INTERVAL);
    }
}
