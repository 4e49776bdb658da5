//! How long everybody else waits while a client with ordinary rights does something expensive.
//!
//! The server executes one command at a time, so whatever it does in one go is a pause for all. Each case makes it go
//! once through something that is long (waiters, holds, keys, sessions of a connection), on a server of its own, while
//! another connection sends a PING every 0.2 ms. The longest PING is the result. Where the server itself has work in
//! proportion, as with thousands of connections that close, a case without locks stands beside the one with locks.
//!
//! A case that lets the server stand still is given up after half a minute, and the PING that had no answer by then is
//! its result. A round that goes wrong has no result: the line says so, and the error is printed.

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

/// What nobody should feel.
const AIM: Aim = Aim::AtMost(20.0);

/// One way to make the server busy.
struct Case {
    /// What `--stall` calls it.
    id: &'static str,
    /// What happens, for the table.
    what: String,
    /// It is about the server alone, for comparison.
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
                // A server that stood still until it was given up has shown what there is to see.
                let stood_still = |worst_ms: f64| worst_ms * 2.0 > stage::PATIENCE.as_secs_f64() * 1e3;
                stage.watched = stage.watched.filter(|watched| stood_still(watched.worst_ms));
                seen.failures += usize::from(stage.watched.is_none());
            }
            seen.push(stage);
        }
        Ok(seen.lines(self))
    }
}

/// Everything that the rounds of a case have shown.
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
            measure += &format!(" ({} rounds went wrong)", self.failures);
        }
        let line = Line::value(measure, Statistic::Max, Unit::Ms, self.worst.clone())
            .figure(Figure::new("median round", Unit::Ms, &self.worst))
            .figure(Figure::of(Statistic::Max, "server CPU within one PING: up to", Unit::Ms, &self.worst_ran))
            .figure(Figure::new("PING p99", Unit::Ms, &self.p99))
            .figure(Figure::of(Statistic::Max, "idle right before: longest", Unit::Ms, &self.idle_worst))
            .figure(Figure::of(Statistic::Max, "server waited for a CPU: up to", Unit::Ms, &self.server_waited))
            .figure(Figure::of(Statistic::Max, "PING thread did: up to", Unit::Ms, &self.pings_waited))
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

/// Plays every case whose name begins with `wanted`.
pub fn measure(config: &ServerConfig, rounds: usize, wanted: &str) -> Result<Vec<Line>> {
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.id.starts_with(wanted)).collect();
    ensure!(!cases.is_empty(), "no case is called {wanted}");
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
    fn every_case_has_a_name_of_its_own() {
        let mut ids: Vec<&str> = cases().iter().map(|case| case.id).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}
