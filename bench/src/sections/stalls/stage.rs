//! The server of one round of a case, and a connection that sends only PINGs meanwhile.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rlock_bench::clock;
use rlock_bench::connection::Connection;
use rlock_bench::resp::{self, Frame};
use rlock_bench::server::{Server, ServerConfig};

use crate::report::{Aim, Unit};
use crate::sections::pings::{Pinging, waited_ms};

/// How long a case waits for any one reply. After that the case is aborted, and the PING that has
/// no reply by then is its result.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long the work that a case causes may take, while the server replies.
const DONE_TIMEOUT: Duration = Duration::from_secs(60);
/// No lease expires unintentionally during a case, however slow the machine.
pub const LONG_LEASE_MS: &[u8] = b"86400000";
/// The options of an ACQUIRE that waits until it is granted.
pub const FOREVER: [&[u8]; 4] = [b"PX", LONG_LEASE_MS, b"BLOCK", b"0"];
/// The lock of a case with a single lock.
pub const LOCK: &[u8] = b"lock";
/// The owner that holds the locks of a case. The other owners have lower numbers.
pub const HOLDER: usize = 1_000_000;

const PING_INTERVAL: Duration = Duration::from_micros(200);
/// How long the idle server gets PINGs before a case begins.
const IDLE_WATCH: Duration = Duration::from_millis(250);
/// How long PINGs are sent before and after the measured step.
const MARGIN: Duration = Duration::from_millis(50);
const BATCH: usize = 1000;

/// The PINGs of one round of a case.
pub struct Watched {
    pub worst_ms: f64,
    pub p99_ms: f64,
    /// The longest PING just before, when the server was idle.
    pub idle_worst_ms: f64,
    /// The longest time that the server's main thread ran within one PING. Unlike the PING's time,
    /// it does not include other load of the machine.
    pub worst_ran_ms: f64,
    /// How long the server's main thread waited for a CPU meanwhile.
    pub server_waited_ms: f64,
    /// How long the PING thread waited for a CPU: it may have missed a pause of that length.
    pub pings_waited_ms: f64,
    /// How long all the work of the case took.
    pub took_ms: f64,
}

/// Another measurement of a case, with its own line.
pub struct Extra {
    pub measure: String,
    pub unit: Unit,
    pub aim: Option<Aim>,
    pub value: f64,
}

/// The server of one round of a case.
pub struct Stage {
    pub server: Server,
    pub watched: Option<Watched>,
    pub extras: Vec<Extra>,
}

impl Stage {
    /// Starts the server.
    pub fn set(config: &ServerConfig) -> Result<Self> {
        let mut server = Server::start(config)?;
        server.control().set_patience(PATIENCE)?;
        Ok(Self { server, watched: None, extras: Vec::new() })
    }

    /// Opens a connection with the timeout of a case.
    pub fn connect(&self) -> Result<Connection> {
        let mut connection = self.server.connect()?;
        connection.set_patience(PATIENCE)?;
        Ok(connection)
    }

    /// Acquires a lock for the holder.
    pub fn hold(&mut self, kind: &str, key: &[u8], more: &[&[u8]]) -> Result<()> {
        let lease: [&[u8]; 2] = [b"PX", LONG_LEASE_MS];
        self.server.control().send(&acquire(kind, key, HOLDER, &[more, &lease].concat()))?;
        is_integer(self.server.control().reply()?)
    }

    /// Runs `act` while another connection sends PINGs. `act` must return only after all work that
    /// it causes is done.
    pub fn watch(&mut self, act: impl FnOnce(&mut Server) -> Result<()>) -> Result<()> {
        let watch = Pinging::start(&self.server, PING_INTERVAL)?;
        thread::sleep(IDLE_WATCH);
        let idle = watch.stop()?;
        let server_before = self.server.main_thread_times();
        let watch = Pinging::start(&self.server, PING_INTERVAL)?;
        thread::sleep(MARGIN);
        let begun = clock::now();
        let acted = act(&mut self.server);
        let took_ms = clock::as_ms(begun.elapsed());
        thread::sleep(MARGIN);
        let pings = watch.stop()?;
        self.watched = Some(Watched {
            worst_ms: pings.times_ms.max(),
            p99_ms: pings.times_ms.quantile(0.99),
            idle_worst_ms: idle.times_ms.max(),
            worst_ran_ms: pings.server_ran_ms.max(),
            server_waited_ms: waited_ms(server_before, self.server.main_thread_times()),
            pings_waited_ms: pings.thread_waited_ms,
            took_ms,
        });
        acted
    }

    /// Records another measurement.
    pub fn add(&mut self, measure: impl Into<String>, unit: Unit, aim: Option<Aim>, value: f64) {
        self.extras.push(Extra { measure: measure.into(), unit, aim, value });
    }
}

/// Waits until `count` requests wait for locks.
pub fn wait_for_waiting(server: &mut Server, count: usize) -> Result<()> {
    server.wait_for_info("rlock_waiting", count as u64, DONE_TIMEOUT)
}

/// Waits until there are `count` holds.
pub fn wait_for_held(server: &mut Server, count: usize) -> Result<()> {
    server.wait_for_info("rlock_held", count as u64, DONE_TIMEOUT)
}

/// Releases a lock of the holder.
pub fn release(server: &mut Server, kind: &str, key: &[u8], more: &[&[u8]]) -> Result<()> {
    let (name, holder) = (format!("{kind}.RELEASE"), crate::names::owner_id(HOLDER));
    let head: [&[u8]; 3] = [name.as_bytes(), key, holder.as_bytes()];
    server.control().call(&[&head[..], more].concat())?.expect(b":0\r\n")
}

/// Sends `count` commands on one connection, in batches, and checks each reply.
pub fn pipeline(
    connection: &mut Connection,
    count: usize,
    push: impl Fn(&mut Vec<u8>, usize),
    check: impl Fn(Frame<'_>) -> Result<()>,
) -> Result<()> {
    let mut commands = Vec::new();
    for first in (0..count).step_by(BATCH) {
        let batch = first..count.min(first + BATCH);
        commands.clear();
        for index in batch.clone() {
            push(&mut commands, index);
        }
        connection.send(&commands)?;
        for _ in batch {
            check(connection.reply()?)?;
        }
    }
    Ok(())
}

/// Fails unless the reply is an integer.
pub fn is_integer(reply: Frame<'_>) -> Result<()> {
    reply.integer().map(drop)
}

/// Fails unless the reply is nil.
pub fn is_nil(reply: Frame<'_>) -> Result<()> {
    reply.expect(b"$-1\r\n")
}

/// Connections that each wait for something.
pub struct Crowd(Vec<Connection>);

impl Crowd {
    /// Opens `size` connections.
    pub fn connect(stage: &Stage, size: usize) -> Result<Self> {
        let connections =
            (0..size).map(|index| stage.connect().with_context(|| format!("connection {index} of {size}")));
        Ok(Self(connections.collect::<Result<_>>()?))
    }

    /// Sends `request(index)` on each connection.
    pub fn ask(&mut self, request: impl Fn(usize) -> Vec<u8>) -> Result<()> {
        for (index, connection) in self.0.iter_mut().enumerate() {
            connection.send(&request(index))?;
        }
        Ok(())
    }

    /// Sends `request(index)` on each connection, and waits until all of them wait for locks.
    pub fn wait(&mut self, server: &mut Server, request: impl Fn(usize) -> Vec<u8>) -> Result<()> {
        self.ask(request)?;
        wait_for_waiting(server, self.0.len())
    }

    /// Reads one reply on each connection.
    pub fn hear(&mut self, check: impl Fn(Frame<'_>) -> Result<()>) -> Result<()> {
        for connection in &mut self.0 {
            check(connection.reply()?)?;
        }
        Ok(())
    }

    /// The first connection.
    pub fn first(&mut self) -> Result<&mut Connection> {
        self.0.first_mut().context("no connection is left")
    }

    /// Runs `act` on one connection after the other.
    pub fn each(&mut self, act: impl FnMut(&mut Connection) -> Result<()>) -> Result<()> {
        self.0.iter_mut().try_for_each(act)
    }

    /// Closes the first `count` connections.
    pub fn close(&mut self, count: usize) {
        self.0.drain(..count);
    }

    /// Closes all connections.
    pub fn close_all(&mut self) {
        self.0.clear();
    }
}

/// Encodes `kind.ACQUIRE key owner` with the options `more`.
pub fn acquire(kind: &str, key: &[u8], owner: usize, more: &[&[u8]]) -> Vec<u8> {
    let (name, owner) = (format!("{kind}.ACQUIRE"), crate::names::owner_id(owner));
    let head: [&[u8]; 3] = [name.as_bytes(), key, owner.as_bytes()];
    resp::command(&[&head[..], more].concat())
}
