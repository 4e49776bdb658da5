//! Long replies, and long names.

use anyhow::Result;
use rlock_bench::resp;

use super::Case;
use super::stage::{Crowd, FOREVER, HOLDER, LOCK, LONG_LEASE_MS, Stage, acquire, is_integer, is_nil, pipeline};
use crate::names;
use crate::report::Unit;

/// The number of waiters with a connection: the server limits connections (`MAX_CLIENTS`).
const CONNECTED: usize = 8000;
const PLACES: usize = 10_000;
const HOLDS: usize = 10_000;
const NAME_BYTES: usize = 10 * 1024 * 1024;
const WAITERS_OF_NAME: usize = 10;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("reply-waiters", format!("RLOCK.WAITERS of a lock with {CONNECTED} waiters"), waiters),
        Case::new("reply-places", format!("RFAIRLOCK.WAITERS of a lock with {PLACES} places"), places),
        Case::new("reply-info", format!("RLOCK.INFO of a lock with {HOLDS} holds"), info),
        Case::new(
            "name-long",
            format!("{WAITERS_OF_NAME} wait for a lock with a name of {} MB, and are served", NAME_BYTES / 1024 / 1024),
            long_name,
        ),
        Case::peer(
            "name-long-peer",
            format!(
                "server alone: {WAITERS_OF_NAME} in BLPOP for a name of {} MB, and are served",
                NAME_BYTES / 1024 / 1024
            ),
            long_name_blpop,
        ),
    ]
}

/// Requests a long reply, and skips to its end.
fn watch_reply(stage: &mut Stage, command: &[&[u8]]) -> Result<()> {
    let mut reader = stage.connect()?;
    stage.watch(|_| {
        reader.send(&[resp::command(command), resp::command(&[b"PING"])].concat())?;
        reader.skip_to(b"+PONG\r\n")
    })
}

fn waiters(stage: &mut Stage) -> Result<()> {
    stage.hold("RLOCK", LOCK, &[])?;
    let mut crowd = Crowd::connect(stage, CONNECTED)?;
    crowd.wait(&mut stage.server, |index| acquire("RLOCK", LOCK, index, &FOREVER))?;
    watch_reply(stage, &[b"RLOCK.WAITERS", LOCK])
}

fn places(stage: &mut Stage) -> Result<()> {
    stage.hold("RFAIRLOCK", LOCK, &[])?;
    let queue = |out: &mut Vec<u8>, index| {
        out.extend_from_slice(&acquire("RFAIRLOCK", LOCK, index, &[b"QUEUE", LONG_LEASE_MS]));
    };
    pipeline(stage.server.control(), PLACES, queue, is_nil)?;
    watch_reply(stage, &[b"RFAIRLOCK.WAITERS", LOCK])
}

fn info(stage: &mut Stage) -> Result<()> {
    let read = |out: &mut Vec<u8>, index| {
        out.extend_from_slice(&acquire("RRWLOCK", LOCK, index, &[b"READ", b"PX", LONG_LEASE_MS]));
    };
    pipeline(stage.server.control(), HOLDS, read, is_integer)?;
    watch_reply(stage, &[b"RLOCK.INFO", LOCK])
}

/// Notes the memory per waiter, as a multiple of the length of the name.
fn note_memory(stage: &mut Stage, before_bytes: u64) -> Result<()> {
    let bytes = stage.server.info_number("used_memory")? as f64 - before_bytes as f64;
    let names = bytes / WAITERS_OF_NAME as f64 / NAME_BYTES as f64;
    stage.add("used_memory per waiter, in lengths of the name", Unit::Ratio, None, names);
    Ok(())
}

fn long_name(stage: &mut Stage) -> Result<()> {
    let name = vec![b'n'; NAME_BYTES];
    stage.hold("RLOCK", &name, &[])?;
    let mut crowd = Crowd::connect(stage, WAITERS_OF_NAME)?;
    let before_bytes = stage.server.info_number("used_memory")?;
    crowd.wait(&mut stage.server, |index| acquire("RLOCK", &name, index, &FOREVER))?;
    note_memory(stage, before_bytes)?;
    stage.watch(|server| {
        let mut owner = HOLDER;
        for served in 0..WAITERS_OF_NAME {
            let holder = names::owner_id(owner);
            server.control().call(&[b"RLOCK.RELEASE", &name, holder.as_bytes()])?.expect(b":0\r\n")?;
            crowd.first()?.reply()?.integer()?;
            crowd.close(1);
            owner = served;
        }
        Ok(())
    })
}

fn long_name_blpop(stage: &mut Stage) -> Result<()> {
    let name = vec![b'n'; NAME_BYTES];
    let mut crowd = Crowd::connect(stage, WAITERS_OF_NAME)?;
    let before_bytes = stage.server.info_number("used_memory")?;
    crowd.ask(|_| resp::command(&[b"BLPOP", &name, b"0"]))?;
    stage.server.wait_for_info("blocked_clients", WAITERS_OF_NAME as u64, super::stage::PATIENCE)?;
    note_memory(stage, before_bytes)?;
    stage.watch(|server| {
        for _ in 0..WAITERS_OF_NAME {
            server.control().call(&[b"RPUSH", &name, b"token"])?.expect(b":1\r\n")?;
            crowd.first()?.reply()?.expect_array(2)?;
            crowd.close(1);
        }
        Ok(())
    })
}
