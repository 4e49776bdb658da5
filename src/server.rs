//! What this server is at the moment: asking it costs as much as a whole command, so it is asked when it may have changed.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::ffi::Ctx;

static IS_MASTER: AtomicBool = AtomicBool::new(false);
static IS_LOADING: AtomicBool = AtomicBool::new(false);
static IS_CLUSTER: AtomicBool = AtomicBool::new(false);

/// Asks the server: when the module is loaded, when its role changes or a load begins or ends, and at each regular tick.
pub(crate) fn look(ctx: Ctx<'_>) {
    let flags = ctx.flags();
    IS_MASTER.store(flags.is_master(), Ordering::Relaxed);
    IS_LOADING.store(flags.is_loading(), Ordering::Relaxed);
    IS_CLUSTER.store(flags.is_cluster(), Ordering::Relaxed);
}

/// Whether it decides about locks: it is a master, and has its data.
pub(crate) fn decides() -> bool {
    IS_MASTER.load(Ordering::Relaxed) && !IS_LOADING.load(Ordering::Relaxed)
}

/// Whether it is a node of a cluster.
pub(crate) fn is_cluster() -> bool {
    IS_CLUSTER.load(Ordering::Relaxed)
}
