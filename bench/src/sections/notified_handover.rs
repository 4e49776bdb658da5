//! Hand-overs among members that wait with NOTIFY over a few connections, against blocked members
//! that each have their own connection: in BLPOP, and for the lock.
//!
//! With one lock, each hand-over waits for the client to wake, so the time saved on the server is a
//! small part of it. With many locks over the same few connections, one turn of the server makes
//! many hand-overs.
//!
//! For one lock, the same messages without a lock show the least work that a server can do over
//! these connections.

use anyhow::Result;
use rlock_bench::server::Server;
use rlock_bench::swarm::Swarm;

use super::relay::{self, Prize, Round};
use crate::report::{Aim, Figure, Line, Series, Unit};

const HANDOVERS: u64 = 10_000;
/// Many locks at once are many times faster, so they need more hand-overs.
const HANDOVERS_OF_MANY: u64 = 50_000;
const WARM_UP_HANDOVERS: u64 = 1_000;
/// No lease expires, however long the queue.
const LEASE_MS: u64 = 24 * 3_600_000;
const RATE_AIM: Aim = Aim::AtLeast(2.0);
const CPU_AIM: Aim = Aim::AtMost(0.6);

/// The locks, their members, and the connections with NOTIFY.
#[derive(Clone, Copy)]
pub struct Crowd {
    /// The number of locks.
    pub locks: usize,
    /// The number of members per lock.
    pub members: usize,
    /// The number of connections over which all members wait with NOTIFY.
    pub connections: usize,
}

#[derive(Default)]
struct Side {
    per_second: Series,
    server_cpu_us: Series,
}

impl Side {
    fn push_round(&mut self, server: &mut Server, swarm: &mut Swarm, prize: Prize, crowd: Crowd) -> Result<()> {
        let cost = Round {
            prize,
            chains: crowd.locks,
            size: crowd.members,
            waiting: crowd.members - 1,
            lease_ms: LEASE_MS,
            warm_up_handovers: WARM_UP_HANDOVERS,
            handovers: if crowd.locks == 1 { HANDOVERS } else { HANDOVERS_OF_MANY },
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

/// Measures hand-overs per second and the server's CPU time per hand-over.
pub fn measure(server: &mut Server, rounds: usize, crowd: Crowd) -> Result<Vec<Line>> {
    let Crowd { locks, members, connections } = crowd;
    let (mut notified, mut blocked, mut list, mut bare) =
        (Side::default(), Side::default(), Side::default(), Side::default());
    let mut few = Swarm::connect(server.address(), connections)?;
    relay::listen(&mut few)?;
    let mut many = Swarm::connect(server.address(), locks * members)?;
    for _ in 0..rounds {
        notified.push_round(server, &mut few, Prize::NotifiedLock, crowd)?;
        if locks == 1 {
            bare.push_round(server, &mut few, Prize::Message, crowd)?;
        }
        blocked.push_round(server, &mut many, Prize::Lock, crowd)?;
        list.push_round(server, &mut many, Prize::ListToken, crowd)?;
    }
    let over = if connections == 1 { "1 connection".to_owned() } else { format!("{connections} connections") };
    let among = match locks {
        1 => format!("among {members}, NOTIFY over {over}"),
        _ => format!("of {locks} locks among {members} each, NOTIFY over {over}"),
    };
    let (ours, theirs, least) = ("NOTIFY", "BLPOP/RPUSH", "PUBLISH and PING without a lock");
    let mut lines = vec![
        Line::ratio(format!("hand-overs per second {among}"), notified.rate(ours), list.rate(theirs))
            .aim(RATE_AIM)
            .figure(blocked.rate("BLOCK")),
        Line::ratio(format!("server CPU per hand-over {among}"), notified.server_cpu(ours), list.server_cpu(theirs))
            .aim(CPU_AIM)
            .figure(blocked.server_cpu("BLOCK")),
    ];
    if locks == 1 {
        lines.extend([
            Line::ratio(
                format!("hand-overs per second {among}, against its messages alone"),
                notified.rate(ours),
                bare.rate(least),
            ),
            Line::ratio(
                format!("server CPU per hand-over {among}, against its messages alone"),
                notified.server_cpu(ours),
                bare.server_cpu(least),
            ),
        ]);
    }
    Ok(lines)
}
