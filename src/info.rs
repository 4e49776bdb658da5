//! The INFO section. Each field is a stored number, or is computed from a bounded number of locks.

use std::ffi::CString;

use rlock_core::{ExclusionMode, Kind, MayGrant};

use crate::clock;
use crate::eviction;
use crate::exclusion::{self, Shown};
use crate::ffi::InfoCtx;
use crate::notices;
use crate::propagation;
use crate::state;

pub(crate) fn write(info: &InfoCtx) {
    let now = clock::now();
    state::with_engine(|engine| {
        info.add(c"held", engine.held() as u64);
        info.add(c"waiting", engine.waiting() as u64);
        let longest = engine.longest(now);
        info.add(c"oldest_wait_ms", longest.wait_ms);
        info.add(c"longest_hold_ms", longest.hold_ms);
        let waits = engine.wait_summary(now);
        info.add(c"wait_p50_us", waits.p50_us);
        info.add(c"wait_p99_us", waits.p99_us);
        info.add(c"wait_max_us", waits.max_us);
        info.add(c"waited_us", waits.total_us);
        let of_kinds = Kind::ALL.map(|kind| (kind, engine.waiting_for(kind), engine.stats(kind).named()));
        for (index, (name, _)) in of_kinds.first().map(|(_, _, named)| *named).into_iter().flatten().enumerate() {
            let counts = of_kinds.iter().filter_map(|(_, _, named)| named.get(index));
            add(info, name, counts.fold(0, |sum, (_, count)| sum.saturating_add(*count)));
        }
        for (kind, waiting, named) in of_kinds {
            add(info, &format!("{}_waiting", kind.name()), waiting as u64);
            for (name, count) in named {
                add(info, &format!("{}_{name}", kind.name()), count);
            }
        }
        info.add(c"unheard", engine.unheard_grants());
        info.add(c"waiting_notified", engine.waiting_notified() as u64);
        info.add(c"waiters_bytes", engine.waiters_bytes() as u64);
        info.add(c"tokens_left", engine.tokens_left());
    });
    info.add(c"notices_queued", notices::outgoing() as u64);
    if let Some(shown) = exclusion::shown() {
        add_exclusion(info, &shown);
    }
    info.add(c"max_lease_ms", exclusion::max_lease_ms());
    info.add(c"propagating", propagation::is_on().into());
    info.add(c"may_be_evicted", eviction::locks_may_be_evicted().into());
}

fn add_exclusion(info: &InfoCtx, shown: &Shown) {
    let (reason, left_ms) = match shown.may_grant {
        MayGrant::Yes => (c"none", 0),
        MayGrant::NoReplicas => (c"too-few-replicas", 0),
        MayGrant::TooManyReplicas => (c"too-many-replicas", 0),
        MayGrant::Quarantine { left_ms } => (c"quarantine", left_ms),
    };
    let mode = match shown.mode {
        ExclusionMode::Off => c"off",
        ExclusionMode::Restart => c"restart",
        ExclusionMode::Failover => c"failover",
    };
    info.add_word(c"exclusion", mode);
    info.add(c"may_grant", (shown.may_grant == MayGrant::Yes).into());
    info.add_word(c"paused_by", reason);
    info.add(c"paused_ms", shown.paused_ms);
    info.add(c"quarantine_left_ms", left_ms);
    info.add(c"replicas", shown.replicas);
    info.add(c"replicas_needed", shown.needed);
    info.add(c"replicas_following", shown.following);
    info.add(c"replicas_unproven", shown.unproven);
    info.add(c"settings_settle_ms", shown.settles_ms);
}

fn add(info: &InfoCtx, name: &str, number: u64) {
    if let Ok(name) = CString::new(name) {
        info.add(&name, number);
    }
}
