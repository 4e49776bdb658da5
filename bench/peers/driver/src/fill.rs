//! Locks that are held during a measurement.

use anyhow::Result;

use crate::peer::Contestant;
use crate::server::Server;

const BATCH: usize = 1000;
/// Longer than any measurement.
const LEASE_MS: u64 = 3_600_000;

/// Lets `count` locks be held, stored as by this contestant. A million acquisitions of a client
/// would take minutes, so commands are sent in batches. For a lock in scripts, the resulting keys
/// are written.
pub fn hold_locks(server: &mut Server, contestant: &Contestant, count: usize) -> Result<()> {
    let is_rlock = contestant.is_rlock();
    let control = if count == 0 { return Ok(()) } else { server.control()? };
    for first in (0..count).step_by(BATCH) {
        let mut batch = redis::pipe();
        for index in first..count.min(first + BATCH) {
            let key = format!("held:{index:09}");
            // A UUID and a thread number: the owner that Redisson stores. The module gets one of
            // the same length.
            let owner = format!("{:08x}-5bd0-4b6c-9e1a-{index:012x}:{}", index / 7, index % 100);
            if is_rlock {
                batch.cmd("RLOCK.ACQUIRE").arg(&key).arg(&owner).arg("PX").arg(LEASE_MS).ignore();
            } else {
                batch.cmd("HINCRBY").arg(&key).arg(&owner).arg(1).ignore();
                batch.cmd("PEXPIRE").arg(&key).arg(LEASE_MS).ignore();
            }
        }
        batch.exec(control)?;
    }
    Ok(())
}
