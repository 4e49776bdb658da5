//! How fast a lock is handed over among connections that all wait for it.
//!
//! The peer is the fastest way of Redis itself to wake a blocked client: one token in a list, taken
//! with BLPOP and given back with RPUSH. Both run over the same sockets of one thread.
//!
//! Each hand-over waits for the client to answer, so the client's time is part of it. There are two
//! measurements. In the first the client sleeps until data arrives, as real clients do, so the time
//! that the machine needs to wake it is a large part on both sides. In the second the client spins,
//! so nearly all of the time is the server's. The second needs an idle machine with two CPUs.

use anyhow::Result;
use rlock_bench::server::Server;
use rlock_bench::swarm::{Idling, Swarm};

use super::notified_handover::{self, Crowd};
use super::relay::{Cost, Prize, Round};
use crate::report::{Aim, Figure, Line, Series, Unit};

pub const CONNECTIONS: usize = 64;
/// The waiters with NOTIFY: for one lock, over several connections and over one, and for many locks
/// at once. Each waiter in BLPOP needs its own connection.
const CROWDS: [Crowd; 4] = [
    Crowd { locks: 1, members: CONNECTIONS, connections: 8 },
    Crowd { locks: 1, members: CONNECTIONS, connections: 1 },
    Crowd { locks: 1, members: 10_000, connections: 8 },
    Crowd { locks: 64, members: 64, connections: 8 },
];
const HANDOVERS: u64 = 20_000;
const WARM_UP_HANDOVERS: u64 = 2_000;
/// Not above the longest lease in `failover`.
const LEASE_MS: u64 = 10_000;
const SLEEPING_AIM: Aim = Aim::AtLeast(0.95);
const SPINNING_AIM: Aim = Aim::AtLeast(0.9);
const CPU_AIM: Aim = Aim::AtMost(1.15);

/// The figures of one side.
#[derive(Default)]
pub struct Rounds {
    pub per_second: Series,
    pub server_cpu_us: Series,
    client_busy_percent: Series,
}

impl Rounds {
    pub fn push(&mut self, cost: Cost) {
        self.per_second.push(1e6 / cost.wall_us);
        self.server_cpu_us.push(cost.server_cpu_us);
        self.client_busy_percent.push(100.0 * cost.client_cpu_us / cost.wall_us);
    }
}

/// Both sides with one kind of client.
#[derive(Default)]
struct Comparison {
    lock: Rounds,
    list: Rounds,
}

impl Comparison {
    fn push_round(&mut self, server: &mut Server, swarm: &mut Swarm) -> Result<()> {
        self.lock.push(round(Prize::Lock, server, swarm)?);
        self.list.push(round(Prize::ListToken, server, swarm)?);
        Ok(())
    }

    fn rate(&self, client: &str, aim: Aim) -> Line {
        Line::ratio(
            format!("hand-overs per second among {CONNECTIONS}, {client}"),
            Figure::new("RLOCK", Unit::PerSecond, &self.lock.per_second),
            Figure::new("BLPOP/RPUSH", Unit::PerSecond, &self.list.per_second),
        )
        .aim(aim)
    }

    fn server_cpu(&self, client: &str) -> Line {
        Line::ratio(
            format!("server CPU per hand-over, {client}"),
            Figure::new("RLOCK", Unit::Us, &self.lock.server_cpu_us),
            Figure::new("BLPOP/RPUSH", Unit::Us, &self.list.server_cpu_us),
        )
        .aim(CPU_AIM)
    }

    fn client_busy(rounds: &Rounds, side: &str) -> Figure {
        let name = format!("client thread busy, {side}");
        Figure::new(name, Unit::Percent, &rounds.client_busy_percent)
    }
}

/// One round of hand-overs among all connections.
pub fn round(prize: Prize, server: &mut Server, swarm: &mut Swarm) -> Result<Cost> {
    Round {
        prize,
        chains: 1,
        size: CONNECTIONS,
        waiting: CONNECTIONS - 1,
        lease_ms: LEASE_MS,
        warm_up_handovers: WARM_UP_HANDOVERS,
        handovers: HANDOVERS,
    }
    .run(server, swarm)
}

/// Measures hand-overs per second and the server's CPU time for each.
pub fn measure(server: &mut Server, rounds: usize) -> Result<Vec<Line>> {
    let mut swarm = Swarm::connect(server.address(), CONNECTIONS)?;
    let (mut sleeping, mut spinning) = (Comparison::default(), Comparison::default());
    for _ in 0..rounds {
        swarm.set_idling(Idling::Sleep);
        sleeping.push_round(server, &mut swarm)?;
        swarm.set_idling(Idling::Spin);
        spinning.push_round(server, &mut swarm)?;
    }
    let (sleeps, spins) = ("client sleeps", "client spins");
    let mut lines = vec![
        sleeping
            .rate(sleeps, SLEEPING_AIM)
            .figure(Comparison::client_busy(&sleeping.lock, "RLOCK"))
            .figure(Comparison::client_busy(&sleeping.list, "BLPOP")),
        sleeping.server_cpu(sleeps),
        spinning.rate(spins, SPINNING_AIM),
        spinning.server_cpu(spins),
    ];
    drop(swarm);
    for crowd in CROWDS {
        lines.extend(notified_handover::measure(server, rounds, crowd)?);
    }
    Ok(lines)
}
