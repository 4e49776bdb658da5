//! Whether effects are propagated: not while nobody listens.
//!
//! A listener is a replica, the backlog that replicas catch up from, the append-only file, or another node that a slot moves
//! to. Writing effects down for none of them would be a good part of an uncontended acquire and release.
//!
//! The invariant: **whatever can be replayed on top of a snapshot of this server is effects.** Outside of a cluster nobody
//! begins to listen without a snapshot, and the server tells of each one before it runs another command: of a fork inside
//! the call that forks, of a save in the foreground before its first byte. So:
//!
//! * Effects are propagated from the start, and again from each snapshot, promotion, end of a load and change of the
//!   configuration on.
//! * They stop only when the regular tick sees a master outside of a cluster without append-only file, replica, backlog
//!   and child. Without a backlog no earlier snapshot can be continued: the server takes a new replication id with the
//!   next one.
//!
//! While they are not propagated, each effect of a command passes the request on in its place, which the server drops unheard.
//! The change still counts for save points. And the backlog, which is there a moment before the snapshot of
//! the first replica, still advances with each change, so that a place in it never stands for two states. Who listens from
//! the snapshot on does not get to see these requests.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock;
use crate::ffi::Ctx;

/// Each look costs as much as some dozens of commands.
const LOOK_EVERY_US: u64 = 1_000_000;

static ON: AtomicBool = AtomicBool::new(true);

static LAST_LOOK_US: AtomicU64 = AtomicU64::new(0);

/// Whether somebody may listen.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Somebody may listen from here on.
pub(crate) fn resume() {
    ON.store(true, Ordering::Relaxed);
}

/// A child was forked, which may write a snapshot.
pub(crate) fn on_fork() {
    resume();
}

/// The configuration was changed: somebody may have switched the append-only file on. That forks as well, so this is here only
/// for a server that might come to do without.
pub(crate) fn on_configured() {
    resume();
}

/// The regular tick: the one place where propagation stops.
pub(crate) fn on_tick(ctx: Ctx<'_>) {
    if !is_on() {
        return;
    }
    let now_us = clock::mono_us();
    if now_us.saturating_sub(LAST_LOOK_US.load(Ordering::Relaxed)) < LOOK_EVERY_US {
        return;
    }
    LAST_LOOK_US.store(now_us, Ordering::Relaxed);
    let flags = ctx.flags();
    let may_be_heard = !flags.is_master()
        || flags.is_loading()
        || flags.is_cluster()
        || flags.has_append_only_file()
        || flags.has_child()
        || ctx.has_replica_or_backlog();
    ON.store(may_be_heard, Ordering::Relaxed);
}
