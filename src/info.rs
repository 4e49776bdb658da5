//! The section of INFO.

use crate::eviction;
use crate::ffi::InfoCtx;
use crate::notices;
use crate::propagation;
use crate::quarantine;
use crate::state;

pub(crate) fn write(info: &InfoCtx) {
    state::with_engine(|engine| {
        let stats = engine.stats();
        info.add(c"held", engine.held() as u64);
        info.add(c"waiting", engine.waiting() as u64);
        info.add(c"granted_at_once", stats.granted_at_once);
        info.add(c"granted_after_waiting", stats.granted_after_waiting);
        info.add(c"timed_out", stats.timed_out);
        info.add(c"expired", stats.expired);
        info.add(c"forced", stats.forced);
        info.add(c"handed_over", stats.handed_over);
        info.add(c"disconnected", stats.disconnected);
        info.add(c"unheard", stats.unheard);
        info.add(c"waiting_notified", engine.waiting_notified() as u64);
        info.add(c"waiters_bytes", engine.waiters_bytes() as u64);
        info.add(c"tokens_left", engine.tokens_left());
    });
    info.add(c"notices_queued", notices::outgoing() as u64);
    info.add(c"quarantine_left_ms", quarantine::remaining_ms());
    info.add(c"propagating", propagation::is_on().into());
    info.add(c"may_be_evicted", eviction::locks_may_be_evicted().into());
}
