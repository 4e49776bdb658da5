//! What this server is at the moment: asking it costs as much as a whole command, so it is asked when it may have changed.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::configuration;
use crate::ffi::{self, Arg, Ctx, log_warning};

static IS_MASTER: AtomicBool = AtomicBool::new(false);
static IS_LOADING: AtomicBool = AtomicBool::new(false);
static IS_CLUSTER: AtomicBool = AtomicBool::new(false);
static TELLS_WHO_LISTENS: AtomicBool = AtomicBool::new(false);
/// How many replicas must be in step for a write, as `min-replicas-to-write` says.
static REPLICAS_NEEDED: AtomicU64 = AtomicU64::new(0);
/// Whether writing stops when a snapshot fails (`stop-writes-on-bgsave-error`, and any `save`).
static SNAPSHOTS_COUNT: AtomicBool = AtomicBool::new(false);
/// Whether that cannot be asked, because the command CONFIG is renamed. Then it is tried.
static SNAPSHOTS_MAY_COUNT: AtomicBool = AtomicBool::new(false);
/// Whether the server could not write its files when that was last looked at.
static FILES_FAIL: AtomicBool = AtomicBool::new(false);
/// Whether reading goes on while the cluster is down (`cluster-allow-reads-when-down`).
static READS_WHEN_DOWN: AtomicBool = AtomicBool::new(false);

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

/// Looks at the server's configuration: at the load of the module, and whenever it changed. Without its command CONFIG the module takes the careful
/// side: one replica is needed if any is, and reading goes on. Whether a snapshot that fails stops writing shows when one has failed.
pub(crate) fn look_at_settings(ctx: Ctx<'_>) {
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

/// Warns if the settings together do not keep what they promise.
pub(crate) fn warn_of_contradictions(ctx: Ctx<'_>) {
    let ping_period_s = ctx.setting(c"repl-ping-replica-period").and_then(|number| number.parse().ok());
    if let Some(text) = configuration::contradiction(ping_period_s) {
        log_warning(&format!("two owners may hold a lock after a restart or failover: {text}"));
    }
}

/// Looks whether the server can write its files: at each regular tick.
pub(crate) fn look_at_files(ctx: Ctx<'_>) {
    let (counts, may_count) = (&SNAPSHOTS_COUNT, &SNAPSHOTS_MAY_COUNT);
    let fails = ctx.files_fail(counts.load(Ordering::Relaxed))
        && (!may_count.load(Ordering::Relaxed) || ctx.refuses_a_script());
    FILES_FAIL.store(fails, Ordering::Relaxed);
}

/// Whether the server takes no write from anybody. What is granted then may be lost: it is in no file, or on no replica.
pub(crate) fn refuses_writes(ctx: Ctx<'_>) -> bool {
    FILES_FAIL.load(Ordering::Relaxed) || lacks_replicas(ctx)
}

/// Whether so few replicas are in step that the server takes no write: then it may be cut off, and another one give the locks.
fn lacks_replicas(ctx: Ctx<'_>) -> bool {
    let needed = REPLICAS_NEEDED.load(Ordering::Relaxed);
    needed > 0 && ctx.good_replicas().is_some_and(|good| good < needed)
}

/// Whether this node of a cluster may write the keys now, which are in one slot.
pub(crate) fn serves(ctx: Ctx<'_>, keys: &[Arg<'_>]) -> bool {
    ctx.serves(keys) && (!READS_WHEN_DOWN.load(Ordering::Relaxed) || ctx.cluster_is_up())
}

/// Looks for the commands of the server's that the module needs: when it is loaded. Whoever starts the server may have renamed them.
pub(crate) fn look_for_commands(ctx: Ctx<'_>) {
    let tells_who_listens = ctx.has_command(c"PUBSUB");
    TELLS_WHO_LISTENS.store(tells_who_listens, Ordering::Relaxed);
    if !tells_who_listens {
        log_warning(
            "requests with NOTIFY are refused: this server's command PUBSUB is renamed or disabled (rename-command), and by it the module sees who \
             listens",
        );
    }
    if !ctx.has_command(c"CLIENT") {
        log_warning(
            "who sends QUIT behind a request that waits loses the lock that it is told: this server's command CLIENT is renamed or disabled \
             (rename-command), and by it the module sees what was sent",
        );
    }
    if is_cluster() && !ctx.has_command(c"EXISTS") {
        log_warning(
            "no lock goes to the next waiter when its lease ends, and requests for many keys are answered TRYAGAIN: this server's command EXISTS is renamed or disabled \
             (rename-command), and by it the module sees which slots a node of a cluster serves",
        );
    }
}

/// Valkey 8.1.1 to 8.1.8, 9.0.0 to 9.0.4, and 9.1.0 select the database of a keyspace event for the
/// client of the command, to tell modules of it, and leave it there (valkey-io/valkey#4024).
const LEAVES_CLIENTS: [Range<c_int>; 3] = [0x08_01_01..0x08_01_09, 0x09_00_00..0x09_00_05, 0x09_01_00..0x09_01_01];

/// Warns of faults of this version of the server that no module can mend. Called at the load.
pub(crate) fn look_for_faults() {
    if ffi::valkey_version().is_some_and(|version| LEAVES_CLIENTS.iter().any(|versions| versions.contains(&version))) {
        log_warning(
            "do not use MOVE, nor COPY with DB, on this version of Valkey, for keys of any type: it leaves \
             the client in the other database, and replicas and the append-only file get other data \
             (valkey-io/valkey#4024, corrected in 8.1.9, 9.0.5 and 9.1.1)",
        );
    }
}

/// Whether it tells who listens to a channel.
pub(crate) fn tells_who_listens() -> bool {
    TELLS_WHO_LISTENS.load(Ordering::Relaxed)
}
