//! How long other clients wait while a client with ordinary permissions does something expensive.
//!
//! The server executes one command at a time, so each long step is a pause for all clients. Each
//! case makes its own server process something long once (waiters, holds, keys, sessions of a
//! connection), while another connection sends a PING every 0.2 ms. The longest PING is the result.
//! Where the server itself has proportional work, as when thousands of connections close, a case
//! without locks is measured for comparison.
//!
//! A case that blocks the server is aborted after 30 s, and the PING that has no reply by then is
//! its result. A round that fails has no result: the line says so, and the error is printed.

mod chains;
mod held;
mod many_keys;
mod one_owner;
mod places;
mod replies;
mod sessions;
mod stage;
mod waiting;

use anyhow::{Result, ensure};
use rlock_bench::server::ServerConfig;

use self::stage::{Extra, Stage};
use crate::report::{Aim, Figure, Line, Series, Statistic, Unit};

/// No client should wait longer than this.
const AIM: Aim = Aim::AtMost(20.0);

/// One way to make the server busy.
struct Case {
    /// The name for `--stall`.
    id: &'static str,
    /// The description in the table.
    what: String,
    /// Whether it measures the server alone, for comparison.
    is_peer: bool,
    run: fn(&mut Stage) -> Result<()>,
}

impl Case {
    fn new(id: &'static str, what: impl Into<String>, run: fn(&mut Stage) -> Result<()>) -> Self {
        Self { id, what: what.into(), is_peer: false, run }
    }

    fn peer(id: &'static str, what: impl Into<String>, run: fn(&mut Stage) -> Result<()>) -> Self {
        Self { is_peer: true, ..Self::new(id, what, run) }
    }

    fn measure(&self, config: &ServerConfig, rounds: usize) -> Result<Vec<Line>> {
        let mut seen = Seen::default();
        for _ in 0..rounds {
            let mut stage = Stage::set(config)?;
            let outcome = (self.run)(&mut stage);
            if let Err(error) = outcome {
                eprintln!("  {}: {error:#}", self.id);
                // If the server was blocked until the case was aborted, the PING is still a result.
                let stood_still = |worst_ms: f64| worst_ms * 2.0 > stage::PATIENCE.as_secs_f64() * 1e3;
                stage.watched = stage.watched.filter(|watched| stood_still(watched.worst_ms));
                seen.failures += usize::from(stage.watched.is_none());
            }
            seen.push(stage);
        }
        Ok(seen.lines(self))
    }
}

/// The results of all rounds of a case.
#[derive(Default)]
struct Seen {
    worst: Series,
    p99: Series,
    idle_worst: Series,
    server_waited: Series,
    pings_waited: Series,
    worst_ran: Series,
    took: Series,
    failures: usize,
    extras: Vec<(Extra, Series)>,
}

impl Seen {
    fn push(&mut self, stage: Stage) {
        if let Some(watched) = stage.watched {
            self.worst.push(watched.worst_ms);
            self.p99.push(watched.p99_ms);
            self.idle_worst.push(watched.idle_worst_ms);
            self.server_waited.push(watched.server_waited_ms);
            self.pings_waited.push(watched.pings_waited_ms);
            self.worst_ran.push(watched.worst_ran_ms);
            self.took.push(watched.took_ms);
        }
        for extra in stage.extras {
            match self.extras.iter_mut().find(|(known, _)| known.measure == extra.measure) {
                Some((_, values)) => values.push(extra.value),
                None => {
                    let mut values = Series::default();
                    values.push(extra.value);
                    self.extras.push((extra, values));
                }
            }
        }
    }

    fn lines(self, case: &Case) -> Vec<Line> {
        let mut measure = format!("{}: {}", case.id, case.what);
        if self.failures > 0 {
            measure += &format!(" ({} rounds failed)", self.failures);
        }
        let line = Line::value(measure, Statistic::Max, Unit::Ms, self.worst.clone())
            .figure(Figure::new("median round", Unit::Ms, &self.worst))
            .figure(Figure::of(Statistic::Max, "server CPU within one PING: up to", Unit::Ms, &self.worst_ran))
            .figure(Figure::new("PING p99", Unit::Ms, &self.p99))
            .figure(Figure::of(Statistic::Max, "idle right before: longest", Unit::Ms, &self.idle_worst))
            .figure(Figure::of(Statistic::Max, "server waited for a CPU: up to", Unit::Ms, &self.server_waited))
            .figure(Figure::of(Statistic::Max, "PING thread waited for a CPU: up to", Unit::Ms, &self.pings_waited))
            .figure(Figure::new("lasted", Unit::Ms, &self.took));
        let mut lines = vec![if case.is_peer { line } else { line.aim(AIM) }];
        lines.extend(self.extras.into_iter().map(|(extra, values)| {
            let line = Line::value(format!("{}: {}", case.id, extra.measure), Statistic::Median, extra.unit, values);
            match extra.aim {
                Some(aim) => line.aim(aim),
                None => line,
            }
        }));
        lines
    }
}

fn cases() -> Vec<Case> {
    [
        many_keys::cases(),
        one_owner::cases(),
        waiting::cases(),
        chains::cases(),
        places::cases(),
        held::cases(),
        sessions::cases(),
        replies::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Runs every case whose name begins with `wanted`.
pub fn measure(config: &ServerConfig, rounds: usize, wanted: &str) -> Result<Vec<Line>> {
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.id.starts_with(wanted)).collect();
    ensure!(!cases.is_empty(), "no case has a name that begins with {wanted}");
    let mut lines = Vec::new();
    for case in cases {
        eprintln!("  {} …", case.id);
        lines.extend(case.measure(config, rounds)?);
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_unique_name() {
        let mut ids: Vec<&str> = cases().iter().map(|case| case.id).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}
