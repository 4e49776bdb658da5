//! Owners that wait for each other in long chains, which the search for deadlocks has to follow.

use anyhow::Result;
use rlock_bench::resp;

use super::Case;
use super::stage::{Crowd, FOREVER, LONG_LEASE_MS, Stage, acquire, is_integer, pipeline, wait_for_waiting};
use crate::names;

/// The number of owners in a chain.
const CHAIN: usize = 5000;
/// The number of requests that link the two chains at the same time.
const LINKS: usize = 50;

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new(
        "chains-link",
        format!("{LINKS} requests at once that each link two chains of {CHAIN} owners that wait for each other"),
        link,
    )]
}

/// Owner `n` holds lock `n`. All owners except the last one of each chain wait for the next lock.
fn link(stage: &mut Stage) -> Result<()> {
    let wait_for = |owner: usize, key: usize| acquire("RLOCK", names::lock_key(key).as_bytes(), owner, &FOREVER);
    let wait = |owner: usize| wait_for(owner, owner + 1);
    let hold = |out: &mut Vec<u8>, index: usize| {
        out.extend_from_slice(&acquire("RLOCK", names::lock_key(index).as_bytes(), index, &[b"PX", LONG_LEASE_MS]));
    };
    let end_of_first = CHAIN - 1;
    pipeline(stage.server.control(), 2 * CHAIN, hold, is_integer)?;
    let mut chains = Crowd::connect(stage, 2 * (CHAIN - 1))?;
    chains.wait(&mut stage.server, |index| wait(if index < end_of_first { index } else { index + 1 }))?;
    let mut links = Crowd::connect(stage, LINKS)?;
    stage.watch(|server| {
        // Each waits for a key of its own: a newer request for the same key would end the one before.
        links.ask(|index| [resp::command(&[b"PING"]), wait_for(end_of_first, CHAIN + index)].concat())?;
        links.hear(|reply| reply.expect(b"+PONG\r\n"))?;
        wait_for_waiting(server, 2 * (CHAIN - 1) + LINKS)
    })
}
