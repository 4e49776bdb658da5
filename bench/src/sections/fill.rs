//! Fills a server with held locks, of this module or by SET NX PX, and empties it again.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use rlock_bench::clock;
use rlock_bench::resp::{self, Frame};
use rlock_bench::server::Server;

use crate::names;

const BATCH: usize = 1000;
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// How a lock is acquired.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Taking {
    /// RLOCK.ACQUIRE.
    Acquire,
    /// SET NX PX.
    SetNxPx,
}

impl Taking {
    fn push_command(self, out: &mut Vec<u8>, (key, owner): (String, String), lease_ms: u64) {
        let lease_ms = lease_ms.to_string();
        let (key, owner, lease_ms) = (key.as_bytes(), owner.as_bytes(), lease_ms.as_bytes());
        match self {
            Self::Acquire => {
                resp::push_command(out, &[b"RLOCK.ACQUIRE", key, owner, b"PX", lease_ms]);
            }
            Self::SetNxPx => {
                resp::push_command(out, &[b"SET", key, owner, b"NX", b"PX", lease_ms]);
            }
        }
    }

    fn check(self, reply: Frame<'_>) -> Result<()> {
        match self {
            Self::Acquire => reply.integer().map(drop),
            Self::SetNxPx => reply.expect(b"+OK\r\n"),
        }
    }
}

/// Acquires the locks 0 to `count`, pipelined on a connection that is closed afterwards. `lease_ms`
/// is called for each lock when its command is written.
pub fn fill(server: &mut Server, taking: Taking, count: usize, lease_ms: impl Fn(usize) -> u64) -> Result<()> {
    fill_named(server, taking, count, |index| (names::lock_key(index), names::owner_id(index)), lease_ms)
}

/// As [`fill`], with `name` returning the names of lock and owner.
pub fn fill_named(
    server: &mut Server,
    taking: Taking,
    count: usize,
    name: impl Fn(usize) -> (String, String),
    lease_ms: impl Fn(usize) -> u64,
) -> Result<()> {
    let mut connection = server.connect()?;
    let mut commands = Vec::new();
    let mut sent = 0;
    while sent < count {
        let batch = BATCH.min(count - sent);
        commands.clear();
        for index in sent..sent + batch {
            taking.push_command(&mut commands, name(index), lease_ms(index));
        }
        connection.send(&commands)?;
        for _ in 0..batch {
            taking.check(connection.reply()?)?;
        }
        sent += batch;
    }
    drop(connection);
    let keys = server.key_count()?;
    if keys != count as u64 {
        bail!("{keys} keys after taking {count} locks");
    }
    Ok(())
}

/// Returns the memory in use, in bytes. Waits until only the control connection is left and two
/// readings agree, so that the tables have their final size.
pub fn settled_memory_bytes(server: &mut Server) -> Result<u64> {
    server.wait_for_info("connected_clients", 1, FLUSH_TIMEOUT)?;
    let deadline = clock::now() + FLUSH_TIMEOUT;
    let mut last_bytes = server.info_number("used_memory")?;
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let bytes = server.info_number("used_memory")?;
        if bytes.abs_diff(last_bytes) < 16 * 1024 {
            return Ok(bytes);
        }
        if clock::now() > deadline {
            bail!("used_memory does not come to rest: {last_bytes}, then {bytes}");
        }
        last_bytes = bytes;
    }
}

/// Removes all keys in the foreground.
pub fn flush(server: &mut Server) -> Result<()> {
    server.control().call(&[b"FLUSHALL", b"SYNC"])?.expect(b"+OK\r\n").context("cannot flush")?;
    server.ensure_no_keys()
}
