//! The right to grant: a lease that the replicas give their master (`rlock.min-replicas`).
//!
//! A master that was superseded must not grant for longer than its successor waits. So a master grants only for
//! `rlock.max-replica-lag-ms` after a moment at which enough replicas followed it:
//!
//! 1. Each tick of the server it reads the steady clock, and *then* notes the offset of its stream. What a replica acknowledges
//!    beyond that offset was written later than the clock was read, and since this server became a master.
//! 2. The right lasts until the newest noted time that enough replicas have acknowledged, plus the lag.
//! 3. Each step that grants or renews compares its one reading of the clock with that, see [`crate::quarantine`].
//!
//! The server's own `min-replicas-to-write` is no substitute: it stamps an acknowledgement when it reads it, so a master that was
//! stopped for ten seconds still grants what is queued in its sockets, and it measures on the wall clock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use rlock_core::US_PER_MS;

use crate::clock;
use crate::configuration;
use crate::ffi::{Ctx, MainThread};

/// Until when this master may grant, in microseconds of the steady clock.
static UNTIL_US: AtomicU64 = AtomicU64::new(0);

/// How many replicas follow, as far as the last tick saw.
static FOLLOWING: AtomicU64 = AtomicU64::new(0);

/// Offsets of the stream, and for each the last moment at which nothing beyond it was written: those that not enough replicas have
/// acknowledged, and the last one that they have.
static NOTED: MainThread<BTreeMap<u64, u64>> = MainThread::new(BTreeMap::new());

/// How many offsets are kept. More come only if the server ticks more often than it is asked to; then the oldest go, which
/// makes the right end earlier.
const MAX_NOTED: usize = 4096;

/// Another term begins: what replicas acknowledged in the one before does not count.
pub(crate) fn begin_term() {
    UNTIL_US.store(0, Ordering::Relaxed);
    FOLLOWING.store(0, Ordering::Relaxed);
    NOTED.with(BTreeMap::clear);
}

/// Whether replicas are needed, and too few follow at a moment.
#[inline]
pub(crate) fn is_missing(now_us: u64) -> bool {
    configuration::min_replicas() > 0 && now_us >= UNTIL_US.load(Ordering::Relaxed)
}

/// How many replicas followed at the last tick.
pub(crate) fn following() -> u64 {
    FOLLOWING.load(Ordering::Relaxed)
}

/// The server's regular tick.
pub(crate) fn on_tick(ctx: Ctx<'_>) {
    let needed = usize::try_from(configuration::min_replicas()).unwrap_or(usize::MAX);
    if needed == 0 || !ctx.flags().is_master() {
        return begin_term();
    }
    // Before the offset: what comes beyond that offset comes later than this.
    let at_us = clock::mono_us();
    let Some(replication) = ctx.replication() else {
        return;
    };
    NOTED.with(|noted| {
        let followers = |offset: u64| replication.acknowledged.iter().filter(|by| **by > offset).count();
        let newest = noted.iter().rev().find(|(offset, _)| followers(**offset) >= needed);
        if let Some((offset, at_us)) = newest.map(|(offset, at_us)| (*offset, *at_us)) {
            let lag_us = configuration::max_replica_lag_ms().saturating_mul(US_PER_MS);
            UNTIL_US.fetch_max(at_us.saturating_add(lag_us), Ordering::Relaxed);
            *noted = noted.split_off(&offset);
        }
        let oldest = noted.first_key_value().map_or(replication.offset, |(offset, _)| *offset);
        FOLLOWING.store(followers(oldest) as u64, Ordering::Relaxed);
        // If nothing was written since the last tick, the later moment holds as well.
        noted.insert(replication.offset, at_us);
        if noted.len() > MAX_NOTED {
            noted.pop_first();
        }
    });
}
