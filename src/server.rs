//! A copy of the server's state: role, loading, settings. Asking the server costs as much as a
//! whole command, so the module refreshes this copy only when the state may have changed.

use std::ffi::{CStr, c_int};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rlock_core::ExclusionMode;

use crate::configuration;
use crate::ffi::{self, Arg, Ctx, log_warning};

static IS_MASTER: AtomicBool = AtomicBool::new(false);
static IS_LOADING: AtomicBool = AtomicBool::new(false);
static IS_CLUSTER: AtomicBool = AtomicBool::new(false);
static HAS_PUBSUB: AtomicBool = AtomicBool::new(false);
/// The number of good replicas that a write needs (`min-replicas-to-write`).
static REPLICAS_NEEDED: AtomicU64 = AtomicU64::new(0);
/// Whether the server refuses writes after a failed snapshot (`stop-writes-on-bgsave-error`, and
/// any `save`).
static SNAPSHOTS_COUNT: AtomicBool = AtomicBool::new(false);
/// Whether `SNAPSHOTS_COUNT` is a guess, because the command CONFIG is renamed. After a failed
/// snapshot the module then tries a write.
static SNAPSHOTS_MAY_COUNT: AtomicBool = AtomicBool::new(false);
/// Whether the server failed to write its files, as of the last tick.
static FILES_FAIL: AtomicBool = AtomicBool::new(false);
/// Whether the server allows reads while the cluster is down (`cluster-allow-reads-when-down`).
static READS_WHEN_DOWN: AtomicBool = AtomicBool::new(false);

/// Refreshes role, loading and cluster mode. Called when the module loads, when the role changes,
/// when a load of the data set begins or ends, and at each tick.
pub(crate) fn refresh(ctx: Ctx<'_>) {
    let flags = ctx.flags();
    IS_MASTER.store(flags.is_master(), Ordering::Relaxed);
    IS_LOADING.store(flags.is_loading(), Ordering::Relaxed);
    IS_CLUSTER.store(flags.is_cluster(), Ordering::Relaxed);
}

/// Whether this server decides about locks: it is a master and has loaded its data set.
pub(crate) fn decides() -> bool {
    IS_MASTER.load(Ordering::Relaxed) && !IS_LOADING.load(Ordering::Relaxed)
}

/// Whether this server is a node of a cluster.
pub(crate) fn is_cluster() -> bool {
    IS_CLUSTER.load(Ordering::Relaxed)
}

/// Refreshes the copy of the server's settings. Called when the module loads, and when a setting
/// changes.
///
/// If the command CONFIG is renamed, the module assumes the safe values: the server needs one
/// replica if it needs any, and allows reads while the cluster is down. After a failed snapshot the
/// module tries a write.
pub(crate) fn refresh_settings(ctx: Ctx<'_>) {
    let needed = ctx.setting(c"min-replicas-to-write").map_or(1, |number| number.parse().unwrap_or(0));
    let needed = if ctx.good_replicas().is_some() { needed } else { 0 };
    REPLICAS_NEEDED.store(needed, Ordering::Relaxed);
    let stops = ctx.setting(c"stop-writes-on-bgsave-error");
    let saves = ctx.setting(c"save");
    SNAPSHOTS_MAY_COUNT.store(stops.is_none() || saves.is_none(), Ordering::Relaxed);
    let (stops, saves) = (stops.is_none_or(|answer| answer == "yes"), saves.is_none_or(|moments| !moments.is_empty()));
    SNAPSHOTS_COUNT.store(stops && saves, Ordering::Relaxed);
    let reads = ctx.setting(c"cluster-allow-reads-when-down").is_none_or(|answer| answer == "yes");
    READS_WHEN_DOWN.store(reads, Ordering::Relaxed);
}

/// Logs a warning if, because of the server's own settings, replicas acknowledge or the module looks
/// too rarely, so that no lock is granted from time to time.
pub(crate) fn warn_of_slow_replication(ctx: Ctx<'_>) {
    if configuration::exclusion().mode != ExclusionMode::Failover {
        return;
    }
    let number = |name: &CStr| ctx.setting(name).and_then(|number| number.parse::<u64>().ok());
    if let Some(period_s @ 2..) = number(c"repl-ping-replica-period") {
        log_warning(&format!(
            "no lock is granted from time to time: repl-ping-replica-period is {period_s}, and rlock.exclusion failover \
             needs 1, so that the replication stream grows each second"
        ));
    }
    if let Some(hz @ ..10) = number(c"hz") {
        log_warning(&format!(
            "no lock is granted from time to time: hz is {hz}, and rlock.exclusion failover needs at least 10, because \
             the module counts its replicas at each tick"
        ));
    }
}

/// Checks whether the server can write its files. Called at each tick.
pub(crate) fn refresh_files(ctx: Ctx<'_>) {
    let (counts, may_count) = (&SNAPSHOTS_COUNT, &SNAPSHOTS_MAY_COUNT);
    let fails = ctx.files_fail(counts.load(Ordering::Relaxed))
        && (!may_count.load(Ordering::Relaxed) || ctx.refuses_script_writes());
    FILES_FAIL.store(fails, Ordering::Relaxed);
}

/// Whether the server refuses all writes. A grant could then be lost, because no file or too few
/// replicas would have it.
pub(crate) fn refuses_writes(ctx: Ctx<'_>) -> bool {
    FILES_FAIL.load(Ordering::Relaxed) || lacks_replicas(ctx)
}

/// Whether the server refuses writes for lack of good replicas. The network may have cut it off,
/// and another master may grant the same locks.
fn lacks_replicas(ctx: Ctx<'_>) -> bool {
    let needed = REPLICAS_NEEDED.load(Ordering::Relaxed);
    needed > 0 && ctx.good_replicas().is_some_and(|good| good < needed)
}

/// Whether this node of a cluster may write the keys now. All keys are in one slot.
pub(crate) fn serves(ctx: Ctx<'_>, keys: &[Arg<'_>]) -> bool {
    ctx.serves(keys) && (!READS_WHEN_DOWN.load(Ordering::Relaxed) || ctx.cluster_is_up())
}

/// Logs a warning if PUBSUB, CLIENT or, in a cluster, EXISTS was renamed: without it some waiters
/// get no lock, or lose it. Called when the module loads.
pub(crate) fn check_commands(ctx: Ctx<'_>) {
    let has_pubsub = ctx.has_command(c"PUBSUB");
    HAS_PUBSUB.store(has_pubsub, Ordering::Relaxed);
    if !has_pubsub {
        log_warning(
            "requests with NOTIFY are refused: the module finds listeners with the command PUBSUB, and this server's \
             command PUBSUB is renamed or disabled (rename-command)",
        );
    }
    if !ctx.has_command(c"CLIENT") {
        log_warning(
            "a client that sends QUIT right after a waiting request loses the lock that it is granted: the module \
             checks with the command CLIENT whether the answer was sent, and this server's command CLIENT is renamed \
             or disabled (rename-command)",
        );
    }
    if is_cluster() && !ctx.has_command(c"EXISTS") {
        log_warning(
            "expired leases are not handed over to the next waiter, and requests for several keys get TRYAGAIN: the \
             module checks with the command EXISTS which slots a node of a cluster serves, and this server's command \
             EXISTS is renamed or disabled (rename-command)",
        );
    }
}

/// To notify modules of a keyspace event, Valkey 8.1.1 to 8.1.8, 9.0.0 to 9.0.4, and 9.1.0 select
/// the event's database in the client of the command, and do not restore the client's database
/// (valkey-io/valkey#4024).
const LEAVES_CLIENTS: [Range<c_int>; 3] = [0x08_01_01..0x08_01_09, 0x09_00_00..0x09_00_05, 0x09_01_00..0x09_01_01];

/// Logs a warning for faults of this server version that no module can work around. Called when the
/// module loads.
pub(crate) fn check_version() {
    if ffi::valkey_version().is_some_and(|version| LEAVES_CLIENTS.iter().any(|versions| versions.contains(&version))) {
        log_warning(
            "do not use MOVE, nor COPY with DB, on this version of Valkey, for keys of any type: these commands leave \
             the client in the other database, so replicas and the append-only file get different data \
             (valkey-io/valkey#4024, fixed in 8.1.9, 9.0.5 and 9.1.1)",
        );
    }
}

/// Whether the server has the command PUBSUB, with which the module finds the listeners of a
/// channel.
pub(crate) fn has_pubsub() -> bool {
    HAS_PUBSUB.load(Ordering::Relaxed)
}
