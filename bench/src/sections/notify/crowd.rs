//! Many requests that wait without a blocked connection, and the connections that receive their
//! answers.
//!
//! The requests are sent in a known order: request `index` is for the name `index % names`, so the
//! queue of each name is known too. Each request has its own owner, and its id is its index plus
//! one.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rlock_bench::clock;
use rlock_bench::connection::Connection;
use rlock_bench::resp;
use rlock_bench::server::Server;
use rlock_bench::swarm::Swarm;

use crate::names;
use crate::sections::fill::{self, Taking};

/// No lease ends during a round, however slow the machine.
const LEASE_MS: u64 = 24 * 3_600_000;
/// The number of requests that one connection sends before the next one does.
pub const BATCH: usize = 500;
/// The number of connections that release locks.
pub const RELEASERS: usize = 8;

/// The number of waiting requests, their names and their connections.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The number of requests.
    pub requests: usize,
    /// The number of names that they wait for.
    pub names: usize,
    /// The number of connections that send them, each with its own channel.
    pub connections: usize,
}

impl Shape {
    /// The connection that sends a request.
    pub fn asker(self, index: usize) -> usize {
        index / BATCH % self.connections
    }
}

/// The key of a name: 20 bytes.
pub fn key(name: usize) -> String {
    format!("lock:orders:{name:08}")
}

/// The owner of a request: 40 bytes.
pub fn owner(index: usize) -> String {
    format!("own:{}", names::owner_id(index))
}

/// The first holder of a name: 40 bytes.
pub fn first_holder(name: usize) -> String {
    format!("1st:{}", names::owner_id(name))
}

/// The connections that send requests and receive answers. All names of the shape are held.
pub struct Crowd {
    /// The shape of the requests.
    pub shape: Shape,
    /// The connections that send requests. Dropping one closes it.
    pub askers: Vec<Connection>,
    /// One subscriber for each channel, followed by the connections that release locks.
    pub swarm: Swarm,
}

impl Crowd {
    /// Acquires each name for its first holder, and connects.
    pub fn assemble(server: &mut Server, shape: Shape) -> Result<Self> {
        let name = |name| (key(name), first_holder(name));
        fill::fill_named(server, Taking::Acquire, shape.names, name, |_| LEASE_MS)?;
        let askers = (0..shape.connections).map(|_| server.connect()).collect::<Result<_>>()?;
        let mut swarm = Swarm::connect(server.address(), shape.connections + RELEASERS)?;
        swarm.run(&mut super::hearing::Subscribing::new(shape.connections))?;
        Ok(Self { shape, askers, swarm })
    }

    /// Lets all requests begin to wait. `block_ms` is called for each when it is sent.
    pub fn ask(&mut self, block_ms: impl Fn(usize) -> u64) -> Result<()> {
        let mut commands = Vec::new();
        for first in (0..self.shape.requests).step_by(BATCH) {
            commands.clear();
            let batch = first..(first + BATCH).min(self.shape.requests);
            for index in batch.clone() {
                self.push_request(&mut commands, index, block_ms(index));
            }
            let asker = self.askers.get_mut(self.shape.asker(first)).context("this connection was closed")?;
            asker.send(&commands)?;
            for index in batch {
                asker.reply()?.expect(b"+WAITING\r\n").with_context(|| format!("request {index} does not wait"))?;
            }
        }
        Ok(())
    }

    fn push_request(&self, commands: &mut Vec<u8>, index: usize, block_ms: u64) {
        let (key, owner) = (key(index % self.shape.names), owner(index));
        let (lease_ms, block_ms, id) = (LEASE_MS.to_string(), block_ms.to_string(), (index + 1).to_string());
        let channel = channel(self.shape.asker(index));
        resp::push_command(
            commands,
            &[
                b"RLOCK.ACQUIRE",
                key.as_bytes(),
                owner.as_bytes(),
                b"PX",
                lease_ms.as_bytes(),
                b"BLOCK",
                block_ms.as_bytes(),
                b"NOTIFY",
                channel.as_bytes(),
                b"REQ",
                id.as_bytes(),
            ],
        );
    }

    /// Closes the requesting connections from `first` on, all at once. Returns their indices.
    pub fn cut(&mut self, first: usize) -> Range<usize> {
        let cut = first..self.askers.len();
        self.askers.truncate(first);
        cut
    }
}

/// The channel for the answers to the requests of a connection.
pub fn channel(connection: usize) -> String {
    format!("answers:{connection}")
}

/// Fails unless exactly `requests` requests wait.
pub fn ensure_waiting(server: &mut Server, requests: usize) -> Result<()> {
    let waiting = server.info_number("rlock_waiting")?;
    ensure!(waiting == requests as u64, "{waiting} requests wait, expected {requests}");
    Ok(())
}

/// A moment late enough that all requests are sent before it, if the last time they took
/// `asked_in`.
pub fn after_asking(asked_in: Duration) -> Instant {
    clock::now() + 2 * asked_in + Duration::from_secs(2)
}
