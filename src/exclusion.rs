//! Connects the rules of exclusion with the server: passes them the clock, the settings and the
//! state of the replicas, and logs the changes. The rules are in `core/src/exclusion`.

use rlock_core::{Exclusion, ExclusionMode, Limits, MayGrant, Readings, Replication};

use crate::clock;
use crate::configuration;
use crate::ffi::{self, Ctx, MainThread, log_notice, log_warning};
use crate::state;

static EXCLUSION: MainThread<Exclusion> = MainThread::new(Exclusion::new());

/// The addresses of replicas that may lack the module: they copied the data when nothing of the
/// module was in it. A server without the module cannot load a snapshot that has a lock.
static UNPROVEN: MainThread<Vec<Box<str>>> = MainThread::new(Vec::new());

/// Runs `body` on the state; `None` while it is in use.
#[inline]
fn with<R>(body: impl FnOnce(&mut Exclusion) -> R) -> Option<R> {
    EXCLUSION.with(body)
}

/// The module was loaded.
pub(crate) fn on_load() {
    on_settings();
    find_unproven();
}

/// Records the replicas that are online while nothing of the module is in the data.
fn find_unproven() {
    let unproven: Vec<_> = replicas().map(|(address, _)| address).collect();
    if !unproven.is_empty() {
        log_notice(&format!(
            "replicas copied the data before there was a lock in it ({}): a replica that lacks this module drops each \
             change of a lock, and only its own log shows that; load the module on all",
            unproven.join(", ")
        ));
    }
    UNPROVEN.with(|known| *known = unproven);
}

fn replicas() -> impl Iterator<Item = (Box<str>, u64)> {
    ffi::replication().replicas.into_iter()
}

/// The settings were read, or have changed.
pub(crate) fn on_settings() {
    with(|exclusion| exclusion.on_settings(configuration::exclusion(), clock::mono_us()));
}

/// This server became a master.
pub(crate) fn on_promoted() {
    let has_keys = ffi::has_keys();
    with(|exclusion| exclusion.on_promoted(has_keys, clock::mono_us()));
}

/// A replica came online (`has_new`) or its connection closed.
pub(crate) fn on_replicas(has_new: bool) {
    with(|exclusion| exclusion.on_replicas(has_new, &mut Server));
    if has_new && !proves_the_module() && state::with_engine(|engine| engine.last_token()) == Some(0) {
        find_unproven();
    }
}

/// Whether a snapshot for a replica has something of the module in it, even without a lock.
pub(crate) fn proves_the_module() -> bool {
    configuration::exclusion().mode == ExclusionMode::Failover
}

/// Looks at the newly loaded data set of this process, once. The event loop calls this before it
/// reads a command, so keys that clients add do not count.
pub(crate) fn on_turn(ctx: Ctx<'_>) {
    if with(|exclusion| exclusion.has_started()) != Some(false) {
        return;
    }
    let flags = ctx.flags();
    if !flags.is_loading() {
        let has_keys = ffi::has_keys();
        with(|exclusion| exclusion.on_started(flags.is_master(), has_keys, clock::mono_us()));
    }
}

/// The clock and the replication state, which the rules read at a tick.
struct Server;

impl Readings for Server {
    fn clock_us(&mut self) -> u64 {
        clock::mono_us()
    }

    fn replication(&mut self) -> Replication {
        ffi::replication()
    }
}

/// The server's tick. Returns whether grants have resumed: the timer then has to serve the queues.
pub(crate) fn on_tick(ctx: Ctx<'_>) -> bool {
    UNPROVEN.with(|unproven| {
        if !unproven.is_empty() {
            unproven.retain(|address| replicas().any(|(online, _)| online == *address));
        }
    });
    let is_master = ctx.flags().is_master();
    let changed = with(|exclusion| exclusion.on_tick(is_master, &mut Server)).flatten();
    let Some(may_grant) = changed else {
        return false;
    };
    if may_grant != MayGrant::Yes {
        log_warning(&format!("no lock is granted: {}", reason(may_grant)));
        return false;
    }
    log_notice("locks are granted again");
    state::tell(|engine| engine.grants_resumed(clock::now()));
    true
}

/// The limits of a request at a time of the steady clock. Nothing may be granted while the tick reads
/// the replication state; no client command runs then.
#[inline]
pub(crate) fn limits(now_us: u64) -> Limits {
    let limits = with(|exclusion| configuration::limits(exclusion.may_grant(now_us), exclusion.max_lease_ms()));
    limits.unwrap_or_else(|| configuration::limits(MayGrant::NoReplicas, 0))
}

/// Why nothing is granted, for errors and the log.
pub(crate) fn reason(may_grant: MayGrant) -> String {
    with(|exclusion| match may_grant {
        MayGrant::Yes => "grants are allowed".to_owned(),
        MayGrant::NoReplicas => format!(
            "{} of {} needed replicas follow this master, each for at least rlock.max-replica-lag-ms (rlock.replicas)",
            exclusion.following(),
            exclusion.needed()
        ),
        MayGrant::TooManyReplicas => format!(
            "{} replicas follow this master, but rlock.replicas is {}: raise it on every server",
            exclusion.acknowledging(),
            exclusion.settings().replicas
        ),
        MayGrant::Quarantine { left_ms } => {
            format!("locks that were granted before may be missing here (rlock.exclusion); {left_ms} ms left")
        }
    })
    .unwrap_or_default()
}

/// The longest lease that may begin now, in milliseconds.
#[inline]
pub(crate) fn max_lease_ms() -> u64 {
    with(|exclusion| exclusion.max_lease_ms()).unwrap_or(0)
}

/// The longest lease that may still run, in milliseconds.
pub(crate) fn longest_lease_ms() -> u64 {
    with(|exclusion| exclusion.longest_lease_ms()).unwrap_or(0)
}

/// The fields of INFO.
pub(crate) struct Shown {
    /// `rlock.exclusion`.
    pub(crate) mode: ExclusionMode,
    /// Whether the server may grant, and for how many milliseconds it has not.
    pub(crate) may_grant: MayGrant,
    pub(crate) paused_ms: u64,
    /// How many replicas have a vote, how many are needed, and how many there may be.
    pub(crate) following: u64,
    pub(crate) needed: u64,
    pub(crate) replicas: u64,
    /// How many may lack the module.
    pub(crate) unproven: u64,
    /// For how many milliseconds a change of the settings has not settled.
    pub(crate) settles_ms: u64,
}

/// What INFO shows.
pub(crate) fn shown() -> Option<Shown> {
    let (now_us, unproven) = (clock::mono_us(), UNPROVEN.with(|unproven| unproven.len() as u64).unwrap_or(0));
    with(|exclusion| Shown {
        mode: exclusion.settings().mode,
        may_grant: exclusion.may_grant(now_us),
        paused_ms: exclusion.paused_ms(now_us),
        following: exclusion.following(),
        needed: exclusion.needed(),
        replicas: exclusion.settings().replicas,
        unproven,
        settles_ms: exclusion.settles_in_ms(now_us),
    })
}
