//! The time from the deadline of a lease to the grant of the next waiter.
//!
//! The lease begins when the server executes the ACQUIRE, between the sending and the answer. The
//! client counts the lease from the sending. So every figure is too high by at most one round trip,
//! and a grant before the counted deadline is certainly an error.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use rlock_bench::clock;
use rlock_bench::connection::Connection;
use rlock_bench::resp;
use rlock_bench::server::Server;

use super::fill::{self, Taking};
use crate::report::{Aim, Figure, Line, Series, Statistic, Unit};

const SAMPLES: usize = 500;
const LEASE: Duration = Duration::from_millis(50);
const OTHER_LOCKS: usize = 100_000;
/// The other locks outlive the measurement.
const OTHER_LEASE_MS: u64 = 3_600_000;
/// Pauses of different length keep the samples out of step with the server's own timers.
const PAUSE_STEP: Duration = Duration::from_micros(1370);
const PAUSE_STEPS: u32 = 8;
const KEY: &[u8] = b"punctuality:lock";

/// Measures the delay on an otherwise empty server and beside many held locks.
pub fn measure(server: &mut Server) -> Result<Vec<Line>> {
    let alone = measure_lateness(server)?;
    fill::fill(server, Taking::Acquire, OTHER_LOCKS, |_| OTHER_LEASE_MS)?;
    let beside = measure_lateness(server)?;
    let held = server.info_number("rlock_held")?;
    ensure!(held == OTHER_LOCKS as u64, "the module counts {held} locks held, expected {OTHER_LOCKS}");
    Ok(vec![line(alone, 0), line(beside, OTHER_LOCKS)])
}

fn line(lateness_ms: Series, other_locks: usize) -> Line {
    let median = Figure::new("median", Unit::Ms, &lateness_ms);
    Line::value(
        format!("from deadline to grant, {SAMPLES} times, {other_locks} other locks held"),
        Statistic::P99,
        Unit::Ms,
        lateness_ms,
    )
    .aim(Aim::AtMost(5.0))
    .figure(median)
}

fn measure_lateness(server: &mut Server) -> Result<Series> {
    let (mut first, mut second) = (server.connect()?, server.connect()?);
    let mut lateness_ms = Series::default();
    for sample in 0..SAMPLES {
        thread::sleep(PAUSE_STEP * (sample as u32 % PAUSE_STEPS));
        lateness_ms.push(measure_once(&mut first, &mut second)?);
    }
    Ok(lateness_ms)
}

/// Lets the lease of `first` expire while `second` waits. Returns the time from the deadline to the
/// grant, in milliseconds.
fn measure_once(first: &mut Connection, second: &mut Connection) -> Result<f64> {
    let lease_ms = LEASE.as_millis().to_string();
    let hold = resp::command(&[b"RLOCK.ACQUIRE", KEY, b"first", b"PX", lease_ms.as_bytes()]);
    let wait = resp::command(&[b"RLOCK.ACQUIRE", KEY, b"second", b"PX", b"30000", b"BLOCK", b"0"]);
    let earliest_deadline = clock::now() + LEASE;
    first.send(&hold)?;
    let first_token = first.reply()?.integer()?;
    second.send(&wait)?;
    let second_token = second.reply()?.integer()?;
    let granted = clock::now();
    ensure!(second_token > first_token, "token {second_token} after {first_token}");
    ensure!(
        granted >= earliest_deadline,
        "granted {:?} before the lease could have ended",
        earliest_deadline - granted
    );
    second.call(&[b"RLOCK.RELEASE", KEY, b"second"])?.expect(b":0\r\n")?;
    Ok(clock::as_ms(granted - earliest_deadline))
}
