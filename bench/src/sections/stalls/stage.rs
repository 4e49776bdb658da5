//! Where a case is played: a server of its own, and a connection that does nothing but PING meanwhile.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rlock_bench::clock;
use rlock_bench::connection::Connection;
use rlock_bench::resp::{self, Frame};
use rlock_bench::server::{Server, ServerConfig};

use crate::report::{Aim, Unit};
use crate::sections::pings::{Pinging, waited_ms};

/// How long a case waits for any one reply. A server that is silent for longer is given up, and the PING that it has
/// not answered by then is the case's result.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long what a case has caused may take to be done, while the server answers.
const DONE_TIMEOUT: Duration = Duration::from_secs(60);
/// No lease ends during a case, however slow the machine, if it is not to.
pub const LONG_LEASE_MS: &[u8] = b"86400000";
/// What an ACQUIRE says that waits until it is granted.
pub const FOREVER: [&[u8]; 4] = [b"PX", LONG_LEASE_MS, b"BLOCK", b"0"];
/// The lock of a case that is about a single one.
pub const LOCK: &[u8] = b"lock";
/// The owner that has what the others wait for. None of these has so high a number.
pub const HOLDER: usize = 1_000_000;

const PING_INTERVAL: Duration = Duration::from_micros(200);
/// How long the idle server is watched before a case begins.
const IDLE_WATCH: Duration = Duration::from_millis(250);
/// PINGs go on so long before and after what is watched.
const MARGIN: Duration = Duration::from_millis(50);
const BATCH: usize = 1000;

/// What PINGs have seen of one round of a case.
pub struct Watched {
    pub worst_ms: f64,
    pub p99_ms: f64,
    /// The worst one right before, when the server was idle.
    pub idle_worst_ms: f64,
    /// How long the server's main thread ran within one PING, at most. Unlike the PING's time, it knows nothing of what else
    /// the machine does.
    pub worst_ran_ms: f64,
    /// How long the server's main thread waited for a CPU meanwhile.
    pub server_waited_ms: f64,
    /// How long the thread that sent the PINGs waited for one: it may have missed a pause as long.
    pub pings_waited_ms: f64,
    /// How long it took until all was done that the case has caused.
    pub took_ms: f64,
}

/// Something else that a case measures, for a line of its own.
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

    /// A new connection, as patient as a case is.
    pub fn connect(&self) -> Result<Connection> {
        let mut connection = self.server.connect()?;
        connection.set_patience(PATIENCE)?;
        Ok(connection)
    }

    /// The holder takes a lock.
    pub fn hold(&mut self, kind: &str, key: &[u8], more: &[&[u8]]) -> Result<()> {
        let lease: [&[u8]; 2] = [b"PX", LONG_LEASE_MS];
        self.server.control().send(&acquire(kind, key, HOLDER, &[more, &lease].concat()))?;
        is_integer(self.server.control().reply()?)
    }

    /// Does what the case is about while another connection sends PINGs. `act` returns when all is done that it causes.
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

    /// Notes something else that was measured.
    pub fn add(&mut self, measure: impl Into<String>, unit: Unit, aim: Option<Aim>, value: f64) {
        self.extras.push(Extra { measure: measure.into(), unit, aim, value });
    }
}

/// Waits until so many connections wait for locks.
pub fn wait_for_waiting(server: &mut Server, count: usize) -> Result<()> {
    server.wait_for_info("rlock_waiting", count as u64, DONE_TIMEOUT)
}

/// Waits until so many locks are held.
pub fn wait_for_held(server: &mut Server, count: usize) -> Result<()> {
    server.wait_for_info("rlock_held", count as u64, DONE_TIMEOUT)
}

/// The holder releases a lock.
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

/// Demands an integer, whatever it is.
pub fn is_integer(reply: Frame<'_>) -> Result<()> {
    reply.integer().map(drop)
}

/// Demands nil.
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

    /// Each connection sends what `request` says for its index.
    pub fn ask(&mut self, request: impl Fn(usize) -> Vec<u8>) -> Result<()> {
        for (index, connection) in self.0.iter_mut().enumerate() {
            connection.send(&request(index))?;
        }
        Ok(())
    }

    /// The same, and waits until all of them wait for locks.
    pub fn wait(&mut self, server: &mut Server, request: impl Fn(usize) -> Vec<u8>) -> Result<()> {
        self.ask(request)?;
        wait_for_waiting(server, self.0.len())
    }

    /// Each connection takes one reply.
    pub fn hear(&mut self, check: impl Fn(Frame<'_>) -> Result<()>) -> Result<()> {
        for connection in &mut self.0 {
            check(connection.reply()?)?;
        }
        Ok(())
    }

    /// The first connection, alone.
    pub fn first(&mut self) -> Result<&mut Connection> {
        self.0.first_mut().context("nobody is there")
    }

    /// Does something with one connection after the other.
    pub fn each(&mut self, act: impl FnMut(&mut Connection) -> Result<()>) -> Result<()> {
        self.0.iter_mut().try_for_each(act)
    }

    /// The first `count` connections close.
    pub fn close(&mut self, count: usize) {
        self.0.drain(..count);
    }

    /// All connections close.
    pub fn close_all(&mut self) {
        self.0.clear();
    }
}

/// `RLOCK.ACQUIRE key owner` and what follows, or that of another kind of lock.
pub fn acquire(kind: &str, key: &[u8], owner: usize, more: &[&[u8]]) -> Vec<u8> {
    let (name, owner) = (format!("{kind}.ACQUIRE"), crate::names::owner_id(owner));
    let head: [&[u8]; 3] = [name.as_bytes(), key, owner.as_bytes()];
    resp::command(&[&head[..], more].concat())
}
