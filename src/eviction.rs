//! Whether the server may evict held locks. It may with an `allkeys-*` policy, which is a
//! misconfiguration of a server with locks. The module logs a warning when the policy becomes one
//! of these, and INFO shows it as `rlock_may_be_evicted`.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::ffi::{Ctx, log_warning};

static LOCKS_MAY_BE_EVICTED: AtomicBool = AtomicBool::new(false);

/// Checks the server's settings. Called when the module loads, and when a setting changes.
pub(crate) fn refresh(ctx: Ctx<'_>) {
    let may_be_evicted = ctx.evicts_any_key();
    if may_be_evicted && !LOCKS_MAY_BE_EVICTED.load(Ordering::Relaxed) {
        log_warning(
            "held locks may be evicted: maxmemory is set and maxmemory-policy is one of allkeys-*; \
             use noeviction or volatile-* on a server that has locks",
        );
    }
    LOCKS_MAY_BE_EVICTED.store(may_be_evicted, Ordering::Relaxed);
}

/// Whether held locks may be evicted, as of the last check.
pub(crate) fn locks_may_be_evicted() -> bool {
    LOCKS_MAY_BE_EVICTED.load(Ordering::Relaxed)
}
