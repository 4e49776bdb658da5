//! What this server is at the moment: asking it costs as much as a whole command, so it is asked when it may have changed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::ffi::{Arg, Ctx, log_warning};

static IS_MASTER: AtomicBool = AtomicBool::new(false);
static IS_LOADING: AtomicBool = AtomicBool::new(false);
static IS_CLUSTER: AtomicBool = AtomicBool::new(false);
static TELLS_WHO_LISTENS: AtomicBool = AtomicBool::new(false);
/// How many replicas must be in step for a write, as `min-replicas-to-write` says.
static REPLICAS_NEEDED: AtomicU64 = AtomicU64::new(0);
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
/// side: one replica is needed if any is, and reading goes on.
pub(crate) fn look_at_settings(ctx: Ctx<'_>) {
    let needed = ctx.setting(c"min-replicas-to-write").map_or(1, |number| number.parse().unwrap_or(0));
    let needed = if ctx.good_replicas().is_some() { needed } else { 0 };
    REPLICAS_NEEDED.store(needed, Ordering::Relaxed);
    let reads = ctx.setting(c"cluster-allow-reads-when-down").is_none_or(|answer| answer == "yes");
    READS_WHEN_DOWN.store(reads, Ordering::Relaxed);
}

/// Whether so few replicas are in step that the server takes no write: then it may be cut off, and another one give the locks.
pub(crate) fn lacks_replicas(ctx: Ctx<'_>) -> bool {
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

/// Whether it tells who listens to a channel.
pub(crate) fn tells_who_listens() -> bool {
    TELLS_WHO_LISTENS.load(Ordering::Relaxed)
}
