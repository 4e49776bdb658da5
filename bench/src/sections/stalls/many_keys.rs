//! Requests for many keys.

use anyhow::Result;
use rlock_bench::resp;
use rlock_bench::server::Server;

use super::Case;
use super::stage::{Crowd, HOLDER, LONG_LEASE_MS, Stage, is_nil, wait_for_waiting};
use crate::names;
use crate::report::{Aim, Unit};

/// The most keys that one request may have.
const KEYS: usize = 128;
const OWNERS: usize = 200;
/// The number of further requests that are measured.
const PROBES: usize = 20;
const NEWCOMER: usize = 2_000_000;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("keys-arrive", format!("{OWNERS} owners begin to wait for the same {KEYS} keys"), arrive),
        Case::new(
            "keys-release",
            format!("{OWNERS} owners wait for the same {KEYS} keys, and the holder releases"),
            release,
        ),
    ]
}

/// Encodes `MACQUIRE` or `MRELEASE` of all keys.
fn many(command: &str, owner: usize, more: &[&[u8]]) -> Vec<u8> {
    let (count, owner) = (KEYS.to_string(), names::owner_id(owner));
    let keys: Vec<String> = (0..KEYS).map(names::lock_key).collect();
    let mut arguments: Vec<&[u8]> = vec![command.as_bytes(), count.as_bytes()];
    arguments.extend(keys.iter().map(|key| key.as_bytes()));
    arguments.push(owner.as_bytes());
    arguments.extend_from_slice(more);
    resp::command(&arguments)
}

fn acquire(owner: usize, more: &[&[u8]]) -> Vec<u8> {
    many("RLOCK.MACQUIRE", owner, &[&[b"PX".as_slice(), LONG_LEASE_MS], more].concat())
}

fn wait(owner: usize) -> Vec<u8> {
    acquire(owner, &[b"BLOCK", b"0"])
}

fn hold(server: &mut Server) -> Result<()> {
    server.control().send(&acquire(HOLDER, &[]))?;
    server.control().reply()?.expect_array(KEYS)
}

fn release_all(server: &mut Server) -> Result<()> {
    server.control().send(&many("RLOCK.MRELEASE", HOLDER, &[]))?;
    server.control().reply()?.expect_array(KEYS)
}

fn arrive(stage: &mut Stage) -> Result<()> {
    hold(&mut stage.server)?;
    let mut crowd = Crowd::connect(stage, OWNERS)?;
    stage.watch(|server| crowd.wait(server, wait))?;

    let mut probe = |what: &str, is_waiting: bool| -> Result<()> {
        let mut newcomers = Crowd::connect(stage, PROBES)?;
        let before_ns = stage.server.main_thread_cpu_ns()?;
        newcomers.ask(|index| {
            // The server sends the first reply after it has run both commands.
            let request = if is_waiting { wait(NEWCOMER + index) } else { acquire(NEWCOMER + index, &[]) };
            [resp::command(&[b"PING"]), request].concat()
        })?;
        newcomers.hear(|reply| reply.expect(b"+PONG\r\n"))?;
        if !is_waiting {
            newcomers.hear(is_nil)?;
        }
        let cpu_ns = stage.server.main_thread_cpu_ns()? - before_ns;
        stage.add(what, Unit::Ms, Some(Aim::AtMost(0.3)), cpu_ns as f64 / 1e6 / PROBES as f64);
        Ok(())
    };
    probe("server CPU of one more request that does not wait", false)?;
    probe("server CPU of one more request that waits", true)
}

fn release(stage: &mut Stage) -> Result<()> {
    hold(&mut stage.server)?;
    let mut crowd = Crowd::connect(stage, OWNERS)?;
    crowd.wait(&mut stage.server, wait)?;
    stage.watch(|server| {
        release_all(server)?;
        crowd.first()?.reply()?.expect_array(KEYS)?;
        wait_for_waiting(server, OWNERS - 1)
    })
}
