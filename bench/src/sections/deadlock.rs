//! The costs of the search for deadlocks: requests with and without a wait, beside many other
//! waiters that form no cycle.
//!
//! All connections are open on both sides of a comparison; only the number of waiters differs.
//! Either all wait for one lock, or they form a chain: the owner of each lock waits for the next
//! one. A probe then joins again and again. It waits for the lock that all others wait for; or
//! joins at the back of the chain, so that a search from it would follow the whole chain; or at the
//! front, so that the whole chain waits for it; or links two halves of the chain, so that both ends
//! are far away.

use std::time::Duration;

use anyhow::{Context, Result};
use rlock_bench::connection::Connection;
use rlock_bench::resp;
use rlock_bench::server::Server;

use super::fill;
use crate::names;
use crate::report::{Aim, Figure, Line, Series, Unit};

const MANY: usize = 10_000;
const FEW: usize = 10;
/// No lease ends during a round, however slow the machine.
const LEASE_MS: &[u8] = b"86400000";
const PATIENCE: Duration = Duration::from_secs(20);
const BATCH: usize = 100;
const WARM_UPS: usize = 20;
const PAIRS: usize = 50_000;

/// How the others wait, and where the probe joins.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scene {
    OneLock,
    BackOfChain,
    FrontOfChain,
    MiddleOfChain,
}

impl Scene {
    /// The number of measured probes. A link between long chains costs milliseconds, so it has
    /// fewer.
    fn probes(self) -> usize {
        if self == Self::MiddleOfChain { 100 } else { 2000 }
    }
}

const SCENES: [(Scene, &str, Option<f64>); 4] = [
    (Scene::OneLock, "wait for the lock that all wait for, and leave", Some(1.2)),
    (Scene::BackOfChain, "wait for the last in a chain, and be granted", Some(1.2)),
    (Scene::FrontOfChain, "first in a chain waits, and is granted", Some(1.2)),
    (Scene::MiddleOfChain, "link two halves of a chain, and be granted", None),
];

/// The connections of the waiters, and the commands that end their waits.
struct Crowd {
    connections: Vec<Connection>,
    /// For each waiter the same request without BLOCK, which ends its wait.
    leaving: Vec<Vec<u8>>,
}

impl Crowd {
    fn connect(server: &Server) -> Result<Self> {
        let connections = (0..MANY).map(|_| server.connect()).collect::<Result<_>>()?;
        Ok(Self { connections, leaving: Vec::new() })
    }

    /// Lets one more connection wait for a lock, for `owner`.
    fn wait(&mut self, lock: usize, owner: usize) -> Result<()> {
        let (lock, owner) = (names::lock_key(lock), names::owner_id(owner));
        let try_once = [b"RLOCK.ACQUIRE", lock.as_bytes(), owner.as_bytes(), b"PX", LEASE_MS, b"REQ", b"1"];
        let connection = self.connections.get_mut(self.leaving.len()).context("more waiters than connections")?;
        connection.send(&resp::command(&[&try_once[..], &[b"BLOCK", b"0"]].concat()))?;
        self.leaving.push(resp::command(&try_once));
        Ok(())
    }

    /// Ends all waits.
    fn leave(&mut self, server: &mut Server) -> Result<()> {
        for batch in self.leaving.chunks(BATCH) {
            server.control().send(&batch.concat())?;
            for _ in batch {
                server.control().reply()?.expect(b"$-1\r\n")?;
            }
        }
        for connection in &mut self.connections[..self.leaving.len()] {
            connection.reply()?;
        }
        self.leaving.clear();
        Ok(())
    }
}

fn acquire(server: &mut Server, lock: usize, owner: usize) -> Result<()> {
    let (lock, owner) = (names::lock_key(lock), names::owner_id(owner));
    server.control().call(&[b"RLOCK.ACQUIRE", lock.as_bytes(), owner.as_bytes(), b"PX", LEASE_MS])?.integer()?;
    Ok(())
}

/// The measured request, which is repeated.
struct Probe {
    connection: Connection,
    lock: String,
    owner: String,
    /// The holder, which releases the lock for a moment; `None` if the probe leaves without the
    /// lock.
    holder: Option<String>,
}

impl Probe {
    fn run(&mut self, server: &mut Server) -> Result<()> {
        let (lock, owner) = (self.lock.as_bytes(), self.owner.as_bytes());
        let try_once: &[&[u8]] = &[b"RLOCK.ACQUIRE", lock, owner, b"PX", LEASE_MS, b"REQ", b"1"];
        // The server sends the first reply after it has run both commands, so the second one waits
        // by then.
        let mut commands = resp::command(&[b"PING"]);
        resp::push_command(&mut commands, &[try_once, &[b"BLOCK", b"0"]].concat());
        self.connection.send(&commands)?;
        self.connection.reply()?.expect(b"+PONG\r\n")?;
        let control = server.control();
        let Some(holder) = &self.holder else {
            control.call(try_once)?.expect(b"$-1\r\n")?;
            self.connection.reply()?;
            return Ok(());
        };
        control.call(&[b"RLOCK.RELEASE", lock, holder.as_bytes()])?.expect(b":0\r\n")?;
        self.connection.reply()?.integer()?;
        control.call(&[b"RLOCK.RELEASE", lock, owner])?.expect(b":0\r\n")?;
        control.call(&[b"RLOCK.ACQUIRE", lock, holder.as_bytes(), b"PX", LEASE_MS])?.integer()?;
        Ok(())
    }

    /// Returns the server's CPU time per run, in microseconds.
    fn measure(&mut self, server: &mut Server, probes: usize) -> Result<f64> {
        for _ in 0..WARM_UPS {
            self.run(server)?;
        }
        let before_ns = server.main_thread_cpu_ns()?;
        for _ in 0..probes {
            self.run(server)?;
        }
        let cpu_ns = server.main_thread_cpu_ns()? - before_ns;
        Ok(cpu_ns as f64 / 1e3 / probes as f64)
    }
}

/// Lets `waiting` connections wait as in the scene, and returns the probe for it. Owner `n` holds
/// lock `n`.
fn set_up(server: &mut Server, crowd: &mut Crowd, scene: Scene, waiting: usize) -> Result<Probe> {
    let (front, back, apart) = (waiting, 0, waiting + 1);
    let (lock, owner, holder) = match scene {
        Scene::OneLock => {
            acquire(server, back, back)?;
            for owner in 1..=waiting {
                crowd.wait(back, owner)?;
            }
            (back, apart, None)
        }
        Scene::BackOfChain | Scene::FrontOfChain | Scene::MiddleOfChain => {
            let gap = if scene == Scene::MiddleOfChain { waiting / 2 } else { front };
            for owner in back..=apart {
                acquire(server, owner, owner)?;
            }
            for owner in back..front {
                if owner != gap {
                    crowd.wait(owner + 1, owner)?;
                }
            }
            match scene {
                Scene::BackOfChain => (back, apart, Some(back)),
                Scene::FrontOfChain => (apart, front, Some(apart)),
                _ => (gap + 1, gap, Some(gap + 1)),
            }
        }
    };
    let waiting = crowd.leaving.len() as u64;
    server.wait_for_info("rlock_waiting", waiting, PATIENCE)?;
    Ok(Probe {
        connection: server.connect()?,
        lock: names::lock_key(lock),
        owner: names::owner_id(owner),
        holder: holder.map(names::owner_id),
    })
}

/// Acquires and releases uncontended locks. Returns the server's CPU time per pair, in
/// microseconds.
fn measure_pairs(server: &mut Server) -> Result<f64> {
    let mut connection = server.connect()?;
    let mut batch = Vec::new();
    for number in 0..BATCH {
        let (lock, owner) = (names::lock_key(2 * MANY + number), names::owner_id(2 * MANY + number));
        resp::push_command(&mut batch, &[b"RLOCK.ACQUIRE", lock.as_bytes(), owner.as_bytes(), b"PX", LEASE_MS]);
        resp::push_command(&mut batch, &[b"RLOCK.RELEASE", lock.as_bytes(), owner.as_bytes()]);
    }
    let mut run = |batches: usize| -> Result<()> {
        for _ in 0..batches {
            connection.send(&batch)?;
            for _ in 0..BATCH {
                connection.reply()?.integer()?;
                connection.reply()?.expect(b":0\r\n")?;
            }
        }
        Ok(())
    };
    run(WARM_UPS)?;
    let before_ns = server.main_thread_cpu_ns()?;
    run(PAIRS / BATCH)?;
    let cpu_ns = server.main_thread_cpu_ns()? - before_ns;
    Ok(cpu_ns as f64 / 1e3 / PAIRS as f64)
}

/// Measures both sides of each comparison in turns.
pub fn measure(server: &mut Server, rounds: usize) -> Result<Vec<Line>> {
    let mut crowd = Crowd::connect(server)?;
    let (mut pairs_alone, mut pairs_beside) = (Series::default(), Series::default());
    let mut costs = SCENES.map(|_| [Series::default(), Series::default()]);
    for _ in 0..rounds {
        pairs_alone.push(measure_pairs(server)?);
        for ((scene, ..), costs) in SCENES.iter().zip(&mut costs) {
            for (waiting, costs) in [MANY, FEW].into_iter().zip(costs) {
                let mut probe = set_up(server, &mut crowd, *scene, waiting)?;
                costs.push(probe.measure(server, scene.probes())?);
                if (*scene, waiting) == (Scene::BackOfChain, MANY) {
                    pairs_beside.push(measure_pairs(server)?);
                }
                drop(probe);
                crowd.leave(server)?;
                fill::flush(server)?;
            }
        }
    }
    let beside = Figure::new(format!("{MANY} waiters in a chain elsewhere"), Unit::Us, &pairs_beside);
    let alone = Figure::new("no waiters", Unit::Us, &pairs_alone);
    let mut lines =
        vec![Line::ratio("acquire + release of free locks, server CPU", beside, alone).aim(Aim::AtMost(1.05))];
    for ((_, measure, aim), [many, few]) in SCENES.iter().zip(&costs) {
        let figure = |waiting: usize, costs| Figure::new(format!("{waiting} waiters"), Unit::Us, costs);
        let line = Line::ratio(format!("{measure}, server CPU"), figure(MANY, many), figure(FEW, few));
        lines.push(match aim {
            Some(aim) => line.aim(Aim::AtMost(*aim)),
            None => line,
        });
    }
    Ok(lines)
}
