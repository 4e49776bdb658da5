//! Many requests of one owner, as from a service whose processes all use the same name.

use anyhow::Result;

use super::Case;
use super::stage::{Crowd, FOREVER, HOLDER, LONG_LEASE_MS, Stage, acquire, is_integer, pipeline};
use crate::names;

const REQUESTS: usize = 3000;

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new(
        "owner-spread",
        format!("{REQUESTS} requests of one owner begin to wait, each for a lock of its own"),
        spread,
    )]
}

fn spread(stage: &mut Stage) -> Result<()> {
    let hold = |out: &mut Vec<u8>, index: usize| {
        let key = names::lock_key(index);
        out.extend_from_slice(&acquire("RLOCK", key.as_bytes(), HOLDER, &[b"PX", LONG_LEASE_MS]));
    };
    pipeline(stage.server.control(), REQUESTS, hold, is_integer)?;
    let wait = |index: usize| acquire("RLOCK", names::lock_key(index).as_bytes(), 0, &FOREVER);
    let mut crowd = Crowd::connect(stage, REQUESTS)?;
    stage.watch(|server| crowd.wait(server, wait))
}
