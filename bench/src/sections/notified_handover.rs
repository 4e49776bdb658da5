//! The same among members that wait with NOTIFY over a few connections, against those that wait blocked, each with a connection of
//! its own: in BLPOP, and for the lock.

use anyhow::Result;
use rlock_bench::server::Server;
use rlock_bench::swarm::Swarm;

use super::relay::{self, Prize, Round};
use crate::report::{Aim, Figure, Line, Series, Unit};

const CONNECTIONS: usize = 8;
const HANDOVERS: u64 = 10_000;
const WARM_UP_HANDOVERS: u64 = 1_000;
/// Nobody's lease ends, however long the queue.
const LEASE_MS: u64 = 24 * 3_600_000;
const RATE_AIM: Aim = Aim::AtLeast(2.0);
const CPU_AIM: Aim = Aim::AtMost(0.6);

#[derive(Default)]
struct Side {
    per_second: Series,
    server_cpu_us: Series,
}

impl Side {
    fn push_round(&mut self, server: &mut Server, swarm: &mut Swarm, prize: Prize, size: usize) -> Result<()> {
        let cost = Round {
            prize,
            size,
            waiting: size - 1,
            lease_ms: LEASE_MS,
            warm_up_handovers: WARM_UP_HANDOVERS,
            handovers: HANDOVERS,
        }
        .run(server, swarm)?;
        self.per_second.push(1e6 / cost.wall_us);
        self.server_cpu_us.push(cost.server_cpu_us);
        Ok(())
    }

    fn rate(&self, name: &str) -> Figure {
        Figure::new(name, Unit::PerSecond, &self.per_second)
    }

    fn server_cpu(&self, name: &str) -> Figure {
        Figure::new(name, Unit::Us, &self.server_cpu_us)
    }
}

/// Measures hand-overs per second and the server's CPU time for each.
pub fn measure(server: &mut Server, rounds: usize, members: usize) -> Result<Vec<Line>> {
    let (mut notified, mut blocked, mut list) = (Side::default(), Side::default(), Side::default());
    let mut few = Swarm::connect(server.address(), CONNECTIONS)?;
    relay::listen(&mut few)?;
    let mut many = Swarm::connect(server.address(), members)?;
    for _ in 0..rounds {
        notified.push_round(server, &mut few, Prize::NotifiedLock, members)?;
        blocked.push_round(server, &mut many, Prize::Lock, members)?;
        list.push_round(server, &mut many, Prize::ListToken, members)?;
    }
    let among = format!("among {members}, NOTIFY over {CONNECTIONS} connections");
    Ok(vec![
        Line::ratio(format!("hand-overs per second {among}"), notified.rate("NOTIFY"), list.rate("BLPOP/RPUSH"))
            .aim(RATE_AIM)
            .figure(blocked.rate("BLOCK")),
        Line::ratio(
            format!("server CPU per hand-over {among}"),
            notified.server_cpu("NOTIFY"),
            list.server_cpu("BLPOP/RPUSH"),
        )
        .aim(CPU_AIM)
        .figure(blocked.server_cpu("BLOCK")),
    ])
}
