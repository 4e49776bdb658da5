//! Locks that are bound to connections, and the server's commands on whole databases.

use anyhow::Result;
use rlock_bench::connection::Connection;
use rlock_bench::resp;
use rlock_bench::server::Server;

use super::Case;
use super::stage::{Crowd, LONG_LEASE_MS, Stage, acquire, is_integer, pipeline, wait_for_held};
use crate::names;
use crate::report::Unit;

const HOLDS_OF_ONE: usize = 400_000;
const HOLDS_IN_DATABASE: usize = 600_000;
const RENEWED: usize = 20_000;
const CONNECTIONS: usize = 60;
const SHARED: usize = 50;
const SHARERS: usize = 8000;

pub(super) fn cases() -> Vec<Case> {
    let (one, all) = (HOLDS_OF_ONE, HOLDS_IN_DATABASE);
    vec![
        Case::new("session-close", format!("a connection with {one} locks closes"), close),
        Case::new(
            "session-close-swap",
            format!("a connection with {one} locks closes, and SWAPDB follows"),
            close_and_swap,
        ),
        Case::new("session-swapdb", format!("SWAPDB with {all} locks of a session"), |stage| {
            on_database(stage, &[b"SWAPDB", b"0", b"1"])
        }),
        Case::new("session-flushdb", format!("FLUSHDB with {all} locks of a session"), |stage| {
            on_database(stage, &[b"FLUSHDB"])
        }),
        Case::new("session-flushall", format!("FLUSHALL with {all} locks of a session"), |stage| {
            on_database(stage, &[b"FLUSHALL"])
        }),
        Case::peer("session-flushall-peer", format!("server alone: FLUSHALL with {all} strings"), |stage| {
            on_strings(stage, &[b"FLUSHALL"])
        }),
        Case::new("session-flush-async", format!("FLUSHALL ASYNC with {all} locks of a session"), |stage| {
            on_database(stage, &[b"FLUSHALL", b"ASYNC"])
        }),
        Case::peer("session-flush-async-peer", format!("server alone: FLUSHALL ASYNC with {all} strings"), |stage| {
            on_strings(stage, &[b"FLUSHALL", b"ASYNC"])
        }),
        Case::new(
            "session-shared",
            format!("{SHARED} locks of a session are renewed over {SHARERS} connections, which close"),
            shared,
        ),
        Case::new(
            "session-renew",
            format!("{RENEWED} locks of a session are renewed over {CONNECTIONS} connections"),
            renew,
        ),
    ]
}

/// Acquires locks that end 1 ms after the returned connection closes.
fn take(stage: &Stage, count: usize) -> Result<Connection> {
    let mut connection = stage.connect()?;
    let more: [&[u8]; 4] = [b"PX", LONG_LEASE_MS, b"SESSION", b"1"];
    let hold = |out: &mut Vec<u8>, index: usize| {
        out.extend_from_slice(&acquire("RLOCK", names::lock_key(index).as_bytes(), index, &more));
    };
    pipeline(&mut connection, count, hold, is_integer)?;
    Ok(connection)
}

fn close(stage: &mut Stage) -> Result<()> {
    let holder = take(stage, HOLDS_OF_ONE)?;
    stage.watch(|server| {
        drop(holder);
        wait_for_held(server, 0)
    })
}

fn close_and_swap(stage: &mut Stage) -> Result<()> {
    let holder = take(stage, HOLDS_OF_ONE)?;
    stage.watch(|server| {
        drop(holder);
        server.control().call(&[b"SWAPDB", b"0", b"1"])?.expect(b"+OK\r\n")?;
        wait_for_held(server, 0)
    })
}

fn call_ok(server: &mut Server, command: &[&[u8]]) -> Result<()> {
    server.control().call(command)?.expect(b"+OK\r\n")
}

/// Runs a command on the database. No lock may be left: those that it does not delete count as
/// locks of a closed connection.
fn on_database(stage: &mut Stage, command: &[&[u8]]) -> Result<()> {
    let _holder = take(stage, HOLDS_IN_DATABASE)?;
    stage.watch(|server| {
        call_ok(server, command)?;
        wait_for_held(server, 0)
    })
}

fn on_strings(stage: &mut Stage, command: &[&[u8]]) -> Result<()> {
    let mut connection = stage.connect()?;
    let set = |out: &mut Vec<u8>, index: usize| {
        let (key, owner) = (names::lock_key(index), names::owner_id(index));
        resp::push_command(out, &[b"SET", key.as_bytes(), owner.as_bytes(), b"NX", b"PX", LONG_LEASE_MS]);
    };
    pipeline(&mut connection, HOLDS_IN_DATABASE, set, |reply| reply.expect(b"+OK\r\n"))?;
    stage.watch(|server| {
        call_ok(server, command)?;
        server.ensure_no_keys()
    })
}

fn push_renew(out: &mut Vec<u8>, index: usize) {
    let (key, owner) = (names::lock_key(index), names::owner_id(index));
    resp::push_command(out, &[b"RLOCK.RENEW", key.as_bytes(), owner.as_bytes(), b"PX", LONG_LEASE_MS]);
}

fn renew(stage: &mut Stage) -> Result<()> {
    let _holder = take(stage, RENEWED)?;
    let mut crowd = Crowd::connect(stage, CONNECTIONS)?;
    let before_bytes = stage.server.info_number("used_memory")?;
    stage.watch(|_| crowd.each(|connection| pipeline(connection, RENEWED, push_renew, is_integer)))?;
    let bytes = stage.server.info_number("used_memory")? as f64 - before_bytes as f64;
    stage.add("used_memory more per lock", Unit::Bytes, None, bytes / RENEWED as f64);
    Ok(())
}

fn shared(stage: &mut Stage) -> Result<()> {
    let holder = take(stage, SHARED)?;
    let mut crowd = Crowd::connect(stage, SHARERS)?;
    crowd.each(|connection| pipeline(connection, SHARED, push_renew, is_integer))?;
    drop(holder);
    stage.watch(|server| {
        crowd.close_all();
        wait_for_held(server, 0)
    })
}
