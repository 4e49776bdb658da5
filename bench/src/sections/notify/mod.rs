//! A million requests that wait over few connections: their memory, and the pauses of other clients
//! when they end.
//!
//! The clients check that each request ends once, on its channel, and that the requests for one
//! lock are granted in the order of arrival. Meanwhile another connection sends only PINGs.

mod crowd;
mod hearing;

use std::time::Duration;

use anyhow::{Result, ensure};
use rlock_bench::clock;
use rlock_bench::notice::Outcome;
use rlock_bench::server::Server;
use rlock_bench::swarm::Swarm;

use super::fill;
use super::pings::{Pinging, Pings};
use crate::report::{Aim, Figure, Line, Series, Statistic, Unit};
use crowd::{Crowd, RELEASERS, Shape, after_asking, ensure_waiting};
use hearing::{Draining, Ended, Ending, Subscribing, Telling};

const CONNECTIONS: usize = 100;
/// The number of names in the case with few names.
const FEW_NAMES: usize = 1000;
/// No wait times out during a round.
const FOREVER_MS: u64 = 0;
/// All waits that time out do so within this time.
const SPREAD_MS: u64 = 1000;
const PING_INTERVAL: Duration = Duration::from_millis(1);
const PING_AIM: Aim = Aim::AtMost(10.0);

/// The pauses of other clients during one part of a round.
#[derive(Default)]
struct Felt {
    longest_ms: Series,
    p99_ms: Series,
    server_ran_ms: Series,
    lasted_ms: Series,
}

impl Felt {
    fn during(&mut self, server: &Server, part: impl FnOnce() -> Result<()>) -> Result<Duration> {
        let watch = Pinging::start(server, PING_INTERVAL)?;
        let begin = clock::now();
        part()?;
        let lasted = begin.elapsed();
        let Pings { times_ms, server_ran_ms, .. } = watch.stop()?;
        self.longest_ms.push(times_ms.max());
        self.p99_ms.push(times_ms.quantile(0.99));
        self.server_ran_ms.push(server_ran_ms.max());
        self.lasted_ms.push(clock::as_ms(lasted));
        Ok(lasted)
    }

    fn line(&self, what: String) -> Line {
        Line::value(format!("longest PING while {what}"), Statistic::Max, Unit::Ms, self.longest_ms.clone())
            .figure(Figure::new("PING p99", Unit::Ms, &self.p99_ms))
            .figure(Figure::of(Statistic::Max, "server CPU within one PING: up to", Unit::Ms, &self.server_ran_ms))
            .figure(Figure::new("lasted", Unit::Ms, &self.lasted_ms))
    }
}

/// The results of the rounds with one number of names.
#[derive(Default)]
struct Rounds {
    bytes: Series,
    bytes_told: Series,
    asking: Felt,
    granting: Felt,
    cutting: Felt,
    granting_the_rest: Felt,
    timing_out: Felt,
}

impl Rounds {
    fn push_round(&mut self, server: &mut Server, shape: Shape) -> Result<()> {
        self.push_drained(server, shape)?;
        self.push_cut(server, shape)?;
        self.push_timed_out(server, shape)
    }

    /// All requests wait, and are granted in turn.
    fn push_drained(&mut self, server: &mut Server, shape: Shape) -> Result<()> {
        let mut crowd = Crowd::assemble(server, shape)?;
        let before = server.info_number("used_memory")?;
        self.asking.during(server, || crowd.ask(|_| FOREVER_MS))?;
        ensure_waiting(server, shape.requests)?;
        let grown = server.info_number("used_memory")? as f64 - before as f64;
        self.bytes.push(grown / shape.requests as f64);
        self.bytes_told.push(server.info_number("rlock_waiters_bytes")? as f64 / shape.requests as f64);
        let mut ended = Ended::new(shape);
        self.granting.during(server, || crowd.swarm.run(&mut Draining::new(&mut ended)))?;
        all_are_gone(server)
    }

    /// All requests wait, and half of the connections close; the rest is granted in turn.
    fn push_cut(&mut self, server: &mut Server, shape: Shape) -> Result<()> {
        let mut crowd = Crowd::assemble(server, shape)?;
        crowd.ask(|_| FOREVER_MS)?;
        let mut ended = Ended::new(shape);
        self.cutting.during(server, || {
            let cut = crowd.cut(shape.connections / 2);
            let until = (0..shape.requests).filter(|index| cut.contains(&shape.asker(*index))).count();
            crowd.swarm.run(&mut Ending::new(&mut ended, Outcome::Error, until))
        })?;
        ensure_waiting(server, shape.requests - ended.count())?;
        self.granting_the_rest.during(server, || crowd.swarm.run(&mut Draining::new(&mut ended)))?;
        all_are_gone(server)
    }

    /// All requests wait, and time out within one second.
    fn push_timed_out(&mut self, server: &mut Server, shape: Shape) -> Result<()> {
        let mut crowd = Crowd::assemble(server, shape)?;
        let asked_in_ms = self.asking.lasted_ms.max();
        let first_deadline = after_asking(Duration::from_secs_f64(asked_in_ms / 1e3));
        crowd.ask(|index| {
            let until_first = first_deadline.saturating_duration_since(clock::now());
            until_first.as_millis() as u64 + index as u64 % SPREAD_MS
        })?;
        ensure!(clock::now() < first_deadline, "sending the requests took too long");
        clock::sleep_until(first_deadline);
        let mut ended = Ended::new(shape);
        self.timing_out
            .during(server, || crowd.swarm.run(&mut Ending::new(&mut ended, Outcome::Nil, shape.requests)))?;
        ensure_waiting(server, 0)?;
        drop(crowd);
        fill::flush(server)
    }

    fn lines(&self, Shape { requests, names, connections }: Shape, bytes_aim: f64) -> Vec<Line> {
        let on = format!("on {names} names");
        vec![
            Line::value(
                format!("used_memory per request, {requests} wait {on} over {connections} connections"),
                Statistic::Median,
                Unit::Bytes,
                self.bytes.clone(),
            )
            .aim(Aim::AtMost(bytes_aim))
            .figure(Figure::new("rlock_waiters_bytes per request", Unit::Bytes, &self.bytes_told)),
            self.asking.line(format!("{requests} begin to wait {on}")).aim(PING_AIM),
            self.granting.line(format!("{requests} are granted in turn {on}")).aim(PING_AIM),
            self.cutting.line(format!("half of the connections of {requests} are cut {on}")).aim(PING_AIM),
            self.granting_the_rest.line(format!("the other half is granted in turn {on}")).aim(PING_AIM),
            self.timing_out.line(format!("{requests} waits end in {SPREAD_MS} ms {on}")).aim(PING_AIM),
        ]
    }
}

/// Measures the same number of messages, published by clients, without locks.
fn push_told(felt: &mut Felt, server: &Server, shape: Shape) -> Result<()> {
    let mut swarm = Swarm::connect(server.address(), shape.connections + RELEASERS)?;
    swarm.run(&mut Subscribing::new(shape.connections))?;
    felt.during(server, || swarm.run(&mut Telling::new(shape)))?;
    Ok(())
}

fn all_are_gone(server: &mut Server) -> Result<()> {
    ensure_waiting(server, 0)?;
    server.ensure_no_keys()
}

/// Measures both shapes. Every figure is over whole rounds.
pub fn measure(server: &mut Server, rounds: usize, requests: usize) -> Result<Vec<Line>> {
    let limit = (2 * requests).to_string();
    server.control().call(&[b"CONFIG", b"SET", b"rlock.max-waiters", limit.as_bytes()])?.expect(b"+OK\r\n")?;
    let shape = |names| Shape { requests, names, connections: CONNECTIONS };
    let (few, many) = (shape(FEW_NAMES.min(requests)), shape(requests));
    let (mut on_few, mut on_many, mut told) = (Rounds::default(), Rounds::default(), Felt::default());
    for _ in 0..rounds {
        push_told(&mut told, server, few)?;
        on_few.push_round(server, few)?;
        on_many.push_round(server, many)?;
    }
    ensure!(server.info_number("rlock_unheard")? == 0, "a grant was undone although its channel had a subscriber");
    let told = told.line(format!("{requests} messages are published by clients, without a lock"));
    Ok([vec![told], on_few.lines(few, 400.0), on_many.lines(many, 700.0)].concat())
}
