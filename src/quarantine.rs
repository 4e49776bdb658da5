//! Whether this server may grant. Not in a *quarantine*, and not while too few replicas follow (`right_to_grant.rs`).
//!
//! A server that may have lost holds that it, or the master before it, has acknowledged grants nothing until each of them has
//! expired. `rlock.quarantine-after` says which events begin a quarantine, `rlock.quarantine-ms` how long it lasts:
//!
//! | `quarantine-after` | a quarantine begins |
//! |---|---|
//! | `empty` | when a start, or a load of a master's data set, finds no key at all |
//! | `restart` | and at each start |
//! | `failover` | and at each promotion, and again when enough replicas follow the new master |
//!
//! A load that brought keys ends a quarantine of the first kind. FLUSHALL begins none: it is a wish, and not a loss.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use rlock_core::{Engine, MayGrant, US_PER_MS};

use crate::clock;
use crate::configuration::{self, QuarantineAfter};
use crate::ffi::{self, Ctx, log_notice, log_warning};
use crate::right_to_grant;
use crate::state;

/// Whether a data set was taken up, or is about to be, that was not looked at.
static UNDECIDED: AtomicBool = AtomicBool::new(true);

/// Whether the first data set of this process was looked at.
static HAS_STARTED: AtomicBool = AtomicBool::new(false);

/// When the quarantine began, in microseconds of the steady clock; 0 if there is none.
static SINCE_US: AtomicU64 = AtomicU64::new(0);

/// Why, as a number of [`Reason`].
static REASON: AtomicU8 = AtomicU8::new(Reason::Empty as u8);

/// This server was promoted, and enough replicas have not followed it since: the quarantine begins again when they do.
static AWAITS_REPLICAS: AtomicBool = AtomicBool::new(false);

/// There was a pause of grants since the last `grants_resumed`.
static WAS_PAUSED: AtomicBool = AtomicBool::new(false);

/// The log says that too few replicas follow.
static HAS_WARNED: AtomicBool = AtomicBool::new(false);

/// Why a quarantine began. A later one is the stronger reason: it forbids more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    Empty = 0,
    Restart = 1,
    Failover = 2,
}

impl Reason {
    fn of_present() -> Self {
        match REASON.load(Ordering::Relaxed) {
            0 => Self::Empty,
            1 => Self::Restart,
            _ => Self::Failover,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Empty => "this server started without data",
            Self::Restart => "this server was restarted",
            Self::Failover => "this server was promoted",
        }
    }
}

/// Begins the quarantine, or begins it anew. Within one the stronger reason stays.
fn begin(reason: Reason) {
    let reason = if remaining_ms() > 0 { reason.max(Reason::of_present()) } else { reason };
    REASON.store(reason as u8, Ordering::Relaxed);
    SINCE_US.store(clock::mono_us().max(1), Ordering::Relaxed);
    let left_ms = remaining_ms();
    if left_ms > 0 {
        let text = reason.text();
        log_warning(&format!(
            "{text}, so locks that were granted before may be missing: no lock is granted for {left_ms} ms (rlock.quarantine-ms)"
        ));
    }
}

/// A load of a master's data set begins.
pub(crate) fn on_load_from_master() {
    UNDECIDED.store(true, Ordering::Relaxed);
}

/// This server became a master.
pub(crate) fn on_promoted() {
    right_to_grant::begin_term();
    if configuration::quarantine_after() == QuarantineAfter::Failover {
        AWAITS_REPLICAS.store(configuration::min_replicas() > 0, Ordering::Relaxed);
        begin(Reason::Failover);
    }
}

/// Looks at a data set that was taken up. The server's event loop calls this before it reads a command, so what clients
/// add does not count.
pub(crate) fn look(ctx: Ctx<'_>) {
    if !UNDECIDED.load(Ordering::Relaxed) || ctx.flags().is_loading() {
        return;
    }
    UNDECIDED.store(false, Ordering::Relaxed);
    let is_start = !HAS_STARTED.swap(true, Ordering::Relaxed);
    if !ffi::has_keys() {
        begin(Reason::Empty);
    } else if is_start && configuration::quarantine_after() != QuarantineAfter::Empty {
        begin(Reason::Restart);
    } else if Reason::of_present() == Reason::Empty {
        SINCE_US.store(0, Ordering::Relaxed);
    }
}

/// The server's regular tick: the right to grant may have come or gone, and a quarantine may have ended. Returns whether holds may
/// begin again: then the timer has to serve the queues.
pub(crate) fn on_tick(ctx: Ctx<'_>) -> bool {
    right_to_grant::on_tick(ctx);
    let now_us = clock::mono_us();
    let is_missing = right_to_grant::is_missing(now_us);
    if !is_missing && AWAITS_REPLICAS.swap(false, Ordering::Relaxed) {
        begin(Reason::Failover);
    }
    if !ctx.flags().is_master() {
        return false;
    }
    match may_grant(now_us) {
        MayGrant::Yes if WAS_PAUSED.swap(false, Ordering::Relaxed) => {
            HAS_WARNED.store(false, Ordering::Relaxed);
            log_notice("locks are granted again");
            state::tell(Engine::grants_resumed);
            return true;
        }
        MayGrant::NoReplicas if !HAS_WARNED.swap(true, Ordering::Relaxed) => {
            log_warning("too few replicas follow: no lock is granted or renewed (rlock.min-replicas)");
        }
        _ => {}
    }
    false
}

/// Whether holds may begin and be renewed at a moment of the steady clock.
#[inline]
pub(crate) fn may_grant(now_us: u64) -> MayGrant {
    let since_us = SINCE_US.load(Ordering::Relaxed);
    if since_us == 0 && configuration::min_replicas() == 0 {
        return MayGrant::Yes;
    }
    may_grant_since(now_us, since_us)
}

fn may_grant_since(now_us: u64, since_us: u64) -> MayGrant {
    let left_ms = left_ms(now_us, since_us);
    let may_grant = if right_to_grant::is_missing(now_us) {
        MayGrant::NoReplicas
    } else if left_ms > 0 {
        let lag_us = configuration::max_replica_lag_ms().saturating_mul(US_PER_MS);
        let renews = Reason::of_present() != Reason::Failover || now_us >= since_us.saturating_add(lag_us);
        MayGrant::Quarantine { left_ms, renews }
    } else {
        return MayGrant::Yes;
    };
    WAS_PAUSED.store(true, Ordering::Relaxed);
    may_grant
}

/// For how many milliseconds the quarantine lasts from now on; 0 outside of one.
pub(crate) fn remaining_ms() -> u64 {
    left_ms(clock::mono_us(), SINCE_US.load(Ordering::Relaxed))
}

fn left_ms(now_us: u64, since_us: u64) -> u64 {
    let quarantine_ms = configuration::quarantine_ms();
    if quarantine_ms == 0 || since_us == 0 {
        return 0;
    }
    let end_us = since_us.saturating_add(quarantine_ms.saturating_mul(US_PER_MS));
    end_us.saturating_sub(now_us).div_ceil(US_PER_MS)
}

/// Why there is a quarantine, for the error.
pub(crate) fn reason() -> &'static str {
    Reason::of_present().text()
}
