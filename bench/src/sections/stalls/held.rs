//! One lock with as many holders as it may have.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rlock_bench::clock;
use rlock_bench::connection::Connection;

use super::Case;
use super::stage::{LOCK, LONG_LEASE_MS, PATIENCE, Stage, acquire, is_integer, pipeline, wait_for_held};

const HOLDS: usize = 10_000;
const SESSION_HOLDS: usize = 10_000;
/// The options of an ACQUIRE whose hold ends 1 ms after its connection.
const SESSION: [&[u8]; 2] = [b"SESSION", b"1"];
/// When leases expire together, all of them are acquired within this time.
const TIME_TO_TAKE: Duration = Duration::from_secs(10);
const OTHER_LOCK: &[u8] = b"lock-renamed";
const NEWCOMER: usize = 1_000_000;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("held-lapse", format!("the leases of {HOLDS} readers expire together"), lapse),
        Case::new(
            "held-lapse-write",
            format!("the leases of {HOLDS} readers expire together, and a writer waits"),
            lapse_write,
        ),
        Case::new(
            "held-lapse-other",
            format!("the leases of {HOLDS} readers expire together, and a mutex of that name is requested"),
            lapse_other,
        ),
        Case::new("held-force", format!("FORCERELEASE of a semaphore with {HOLDS} holds"), force),
        Case::new("held-rename", format!("RENAME of a semaphore with {SESSION_HOLDS} holds of sessions"), rename),
        Case::new("held-del", format!("DEL of a semaphore with {SESSION_HOLDS} holds of sessions"), delete),
        Case::new("held-unlink", format!("UNLINK of a semaphore with {HOLDS} holds"), unlink),
        Case::new("held-close", format!("a connection with {SESSION_HOLDS} readers of one lock closes"), close),
    ]
}

/// Acquires holds for many readers, whose leases expire at the returned moment.
fn readers_until(stage: &mut Stage) -> Result<Instant> {
    let end = clock::now() + TIME_TO_TAKE;
    let read = |out: &mut Vec<u8>, index: usize| {
        let lease_ms = end.saturating_duration_since(clock::now()).as_millis().max(1).to_string();
        out.extend_from_slice(&acquire("RRWLOCK", LOCK, index, &[b"READ", b"PX", lease_ms.as_bytes()]));
    };
    pipeline(stage.server.control(), HOLDS, read, is_integer)?;
    ensure!(clock::now() < end, "acquiring {HOLDS} holds took longer than {TIME_TO_TAKE:?}");
    Ok(end)
}

fn lapse(stage: &mut Stage) -> Result<()> {
    let end = readers_until(stage)?;
    stage.watch(|server| {
        clock::sleep_until(end);
        wait_for_held(server, 0)
    })
}

fn lapse_write(stage: &mut Stage) -> Result<()> {
    let end = readers_until(stage)?;
    let request = acquire("RRWLOCK", LOCK, NEWCOMER, &[b"WRITE", b"PX", LONG_LEASE_MS, b"BLOCK", b"0"]);
    stage.watch(|server| {
        clock::sleep_until(end);
        server.control().send(&request)?;
        is_integer(server.control().reply()?)
    })
}

fn lapse_other(stage: &mut Stage) -> Result<()> {
    let end = readers_until(stage)?;
    let request = acquire("RLOCK", LOCK, NEWCOMER, &[b"PX", LONG_LEASE_MS]);
    stage.watch(|server| {
        clock::sleep_until(end);
        // A lease is counted from its grant, so the last ones expire a little after `end`.
        while clock::now() < end + PATIENCE {
            server.control().send(&request)?;
            let reply = server.control().reply()?;
            if reply.integer().is_ok() {
                return Ok(());
            }
            reply.expect_error("WRONGTYPE")?;
            thread::sleep(Duration::from_micros(500));
        }
        bail!("the mutex was never granted")
    })
}

/// Makes a semaphore with `holds` permits, all held. Returns the connection of the holds, on which
/// those with a session depend.
fn semaphore(stage: &mut Stage, holds: usize, session: &[&[u8]]) -> Result<Connection> {
    let permits = holds.to_string();
    stage.server.control().call(&[b"RSEMAPHORE.INIT", LOCK, permits.as_bytes()])?.expect(b":1\r\n")?;
    let mut connection = stage.connect()?;
    let lease: [&[u8]; 2] = [b"PX", LONG_LEASE_MS];
    let more = [&lease[..], session].concat();
    let hold = |out: &mut Vec<u8>, index| out.extend_from_slice(&acquire("RSEMAPHORE", LOCK, index, &more));
    pipeline(&mut connection, holds, hold, is_integer)?;
    Ok(connection)
}

/// Ends all holds of a semaphore with one command.
fn end_all(stage: &mut Stage, holds: usize, session: &[&[u8]], command: &[&[u8]], reply: &[u8]) -> Result<()> {
    let _holder = semaphore(stage, holds, session)?;
    stage.watch(|server| {
        server.control().call(command)?.expect(reply)?;
        wait_for_held(server, 0)
    })
}

fn force(stage: &mut Stage) -> Result<()> {
    end_all(stage, HOLDS, &[], &[b"RSEMAPHORE.FORCERELEASE", LOCK], b":1\r\n")
}

/// Under another name the holds count as holds of closed connections.
fn rename(stage: &mut Stage) -> Result<()> {
    end_all(stage, SESSION_HOLDS, &SESSION, &[b"RENAME", LOCK, OTHER_LOCK], b"+OK\r\n")
}

fn delete(stage: &mut Stage) -> Result<()> {
    end_all(stage, SESSION_HOLDS, &SESSION, &[b"DEL", LOCK], b":1\r\n")
}

fn unlink(stage: &mut Stage) -> Result<()> {
    end_all(stage, HOLDS, &[], &[b"UNLINK", LOCK], b":1\r\n")
}

fn close(stage: &mut Stage) -> Result<()> {
    let mut holder = stage.connect()?;
    let more: [&[u8]; 5] = [b"READ", b"PX", LONG_LEASE_MS, b"SESSION", b"1"];
    let read = |out: &mut Vec<u8>, index| out.extend_from_slice(&acquire("RRWLOCK", LOCK, index, &more));
    pipeline(&mut holder, SESSION_HOLDS, read, is_integer)?;
    stage.watch(|server| {
        drop(holder);
        wait_for_held(server, 0)
    })
}
