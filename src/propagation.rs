//! Whether to propagate effects. The module stops while nothing listens.
//!
//! A listener is a replica, the backlog from which replicas catch up, the append-only file, or a
//! node to which a slot migrates. Writing effects for no listener would be a large part of the cost
//! of an uncontended acquire and release.
//!
//! Invariant: **all changes after a snapshot of this server reach listeners as effects, none as a
//! command.** Outside a cluster every listener begins with a snapshot, and the server reports each
//! snapshot before it runs another command: a fork inside the call that forks, a save in the
//! foreground before its first byte. So:
//!
//! * The module propagates effects when it loads, and resumes at each snapshot, promotion, end of a
//!   load and change of a setting.
//! * It stops only in the server's tick, on a master outside a cluster without append-only file,
//!   replica, backlog and child. Without a backlog no replica can continue from an earlier
//!   snapshot: the next backlog begins with a new replication id.
//!
//! While it has stopped, a command propagates itself once for each effect. The server drops the
//! copies, but counts them as changes for its save points. With `repl-diskless-sync-delay` the
//! server creates the backlog shortly before the snapshot of the first replica, and appends these
//! copies to it. So the offset advances with each change, and no offset stands for two states. The
//! replica starts from the snapshot and never reads the copies.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock;
use crate::ffi::Ctx;

/// The time between two checks for listeners. A check costs as much as dozens of commands.
const CHECK_EVERY_US: u64 = 1_000_000;

static ON: AtomicBool = AtomicBool::new(true);

static LAST_CHECK_US: AtomicU64 = AtomicU64::new(0);

/// Whether there may be a listener.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Resumes propagation: there may be a listener from now on.
pub(crate) fn resume() {
    ON.store(true, Ordering::Relaxed);
}

/// The server forked a child, which may write a snapshot.
pub(crate) fn on_fork() {
    resume();
}

/// A setting changed: the append-only file may have been switched on. All supported servers fork
/// then, so `on_fork` is enough for them; this covers a server that does not fork.
pub(crate) fn on_configured() {
    resume();
}

/// The server's tick: the only place where propagation stops.
pub(crate) fn on_tick(ctx: Ctx<'_>) {
    if !is_on() {
        return;
    }
    let now_us = clock::mono_us();
    if now_us.saturating_sub(LAST_CHECK_US.load(Ordering::Relaxed)) < CHECK_EVERY_US {
        return;
    }
    LAST_CHECK_US.store(now_us, Ordering::Relaxed);
    let flags = ctx.flags();
    let may_be_heard = !flags.is_master()
        || flags.is_loading()
        || flags.is_cluster()
        || flags.has_append_only_file()
        || flags.has_child()
        || ctx.has_replica_or_backlog();
    ON.store(may_be_heard, Ordering::Relaxed);
}
