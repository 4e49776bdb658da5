//! Whether a hand-over costs more with more waiters.
//!
//! In both cases the same connections request the lock in turns. So the sockets and clients of a
//! hand-over are as warm or as cold in the CPU's caches with 10 waiters as with 5000, and only the
//! queue differs. Redis's own queue, that of BLPOP, is measured in the same way.

use anyhow::Result;
use rlock_bench::server::Server;
use rlock_bench::swarm::Swarm;

use super::relay::{Cost, Prize, Round};
use crate::report::{Aim, Figure, Line, Series, Unit};

const SHORT: usize = 10;
const LONG: usize = 5000;
/// All waiters, the holder, and the next one to send a request.
const CONNECTIONS: usize = LONG + 2;
/// Every connection holds the lock once before the measured part.
const WARM_UP_HANDOVERS: u64 = CONNECTIONS as u64;
const HANDOVERS: u64 = 20_000;
/// No lease ends during a round, however slow the machine.
const LEASE_MS: u64 = 3_600_000;

#[derive(Default)]
struct Rounds {
    wall_us: Series,
    server_cpu_us: Series,
}

impl Rounds {
    fn push(&mut self, cost: Cost) {
        self.wall_us.push(cost.wall_us);
        self.server_cpu_us.push(cost.server_cpu_us);
    }
}

/// Measures one hand-over with few and with many waiters.
pub fn measure(server: &mut Server, rounds: usize) -> Result<Vec<Line>> {
    let mut swarm = Swarm::connect(server.address(), CONNECTIONS)?;
    let mut round = |prize, waiting| {
        Round {
            prize,
            chains: 1,
            size: swarm.size(),
            waiting,
            lease_ms: LEASE_MS,
            warm_up_handovers: WARM_UP_HANDOVERS,
            handovers: HANDOVERS,
        }
        .run(server, &mut swarm)
    };
    let [mut lock_long, mut lock_short, mut list_long, mut list_short] = std::array::from_fn(|_| Rounds::default());
    for _ in 0..rounds {
        lock_long.push(round(Prize::Lock, LONG)?);
        lock_short.push(round(Prize::Lock, SHORT)?);
        list_long.push(round(Prize::ListToken, LONG)?);
        list_short.push(round(Prize::ListToken, SHORT)?);
    }
    let ratio = |measure: &str, long: &Series, short: &Series| {
        Line::ratio(
            measure,
            Figure::new(format!("{LONG} waiters"), Unit::Us, long),
            Figure::new(format!("{SHORT} waiters"), Unit::Us, short),
        )
    };
    Ok(vec![
        ratio("RLOCK, server CPU per hand-over", &lock_long.server_cpu_us, &lock_short.server_cpu_us)
            .aim(Aim::AtMost(1.3)),
        ratio("RLOCK, time per hand-over", &lock_long.wall_us, &lock_short.wall_us).aim(Aim::AtMost(1.2)),
        ratio("BLPOP/RPUSH, server CPU per hand-over", &list_long.server_cpu_us, &list_short.server_cpu_us),
        ratio("BLPOP/RPUSH, time per hand-over", &list_long.wall_us, &list_short.wall_us),
    ])
}
