//! Whether the server may evict held locks: it may under `allkeys-*` policies, which is a mistake on a server that has
//! locks. It is said in the log when it becomes so, and in INFO while it is so.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::ffi::{Ctx, log_warning};

static LOCKS_MAY_BE_EVICTED: AtomicBool = AtomicBool::new(false);

/// Looks at the server's configuration: at the load of the module, and whenever it changed.
pub(crate) fn look(ctx: Ctx<'_>) {
    let may_be_evicted = ctx.evicts_any_key();
    if may_be_evicted && !LOCKS_MAY_BE_EVICTED.load(Ordering::Relaxed) {
        log_warning(
            "held locks may be evicted: maxmemory is set and maxmemory-policy is one of allkeys-*; \
             use noeviction or volatile-* on a server that has locks",
        );
    }
    LOCKS_MAY_BE_EVICTED.store(may_be_evicted, Ordering::Relaxed);
}

/// What the last look found.
pub(crate) fn locks_may_be_evicted() -> bool {
    LOCKS_MAY_BE_EVICTED.load(Ordering::Relaxed)
}
