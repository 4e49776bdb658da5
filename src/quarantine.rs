//! Connects the rules of the quarantine with the server: passes them the clock, the configuration
//! and the state of the replicas, and logs the changes. The rules are in `core/src/quarantine.rs`
//! and `core/src/right_to_grant.rs`.
//!
//! `rlock.quarantine-after` sets which events begin a quarantine, and `rlock.quarantine-ms` how
//! long it lasts:
//!
//! | `quarantine-after` | a quarantine begins |
//! |---|---|
//! | `empty` | when a start, or a load of a master's data set, finds no key at all |
//! | `restart` | as for `empty`, and at each start |
//! | `failover` | as for `restart`, and at each promotion, and again when enough replicas follow the new master |

use rlock_core::{GrantRules, MayGrant, Quarantine, Readings, Reason, Replication};

use crate::clock;
use crate::configuration;
use crate::ffi::{self, Ctx, MainThread, log_notice, log_warning};
use crate::state;

static QUARANTINE: MainThread<Quarantine> = MainThread::new(Quarantine::new());

/// Runs `body` on the state and the settings; `None` while the state is in use.
#[inline]
fn with<R>(body: impl FnOnce(&mut Quarantine, &GrantRules) -> R) -> Option<R> {
    QUARANTINE.with(|quarantine| body(quarantine, &configuration::grant_rules()))
}

fn text(reason: Reason) -> &'static str {
    match reason {
        Reason::Empty => "this server started without data",
        Reason::Restart => "this server was restarted",
        Reason::Failover => "this server was promoted",
    }
}

fn log_begin() {
    let left_ms = remaining_ms();
    if left_ms > 0 {
        let text = reason();
        log_warning(&format!(
            "{text}, so locks that were granted before may be missing: no lock is granted for {left_ms} ms (rlock.quarantine-ms)"
        ));
    }
}

/// A load of a master's data set begins.
pub(crate) fn on_load_from_master() {
    with(|quarantine, _| quarantine.on_load_from_master());
}

/// This server became a master.
pub(crate) fn on_promoted() {
    if with(|quarantine, rules| quarantine.on_promoted(rules, clock::mono_us())) == Some(true) {
        log_begin();
    }
}

/// Checks whether a newly loaded data set is empty. The event loop calls this before it reads a
/// command, so keys that clients add do not count.
pub(crate) fn look(ctx: Ctx<'_>) {
    let is_undecided = with(|quarantine, _| quarantine.is_undecided()) == Some(true);
    if !is_undecided || ctx.flags().is_loading() {
        return;
    }
    let has_keys = ffi::has_keys();
    if with(|quarantine, rules| quarantine.look(rules, has_keys, clock::mono_us())) == Some(true) {
        log_begin();
    }
}

/// The clock and the replication state, which the rules read at a tick.
struct Server<'c>(Ctx<'c>);

impl Readings for Server<'_> {
    fn clock_us(&mut self) -> u64 {
        clock::mono_us()
    }

    fn replication(&mut self) -> Option<Replication> {
        self.0.replication()
    }
}

/// The server's tick. Returns whether grants have resumed: the timer then has to serve the queues.
pub(crate) fn on_tick(ctx: Ctx<'_>) -> bool {
    let is_master = ctx.flags().is_master();
    let Some(ticked) = with(|quarantine, rules| quarantine.on_tick(rules, is_master, &mut Server(ctx))) else {
        return false;
    };
    if ticked.has_begun {
        log_begin();
    }
    if ticked.lacks_replicas {
        log_warning("too few replicas follow: no lock is granted or renewed (rlock.min-replicas)");
    }
    if ticked.has_resumed {
        log_notice("locks are granted again");
        state::tell(|engine| engine.grants_resumed(clock::now()));
    }
    ticked.has_resumed
}

/// Whether the server may grant and renew at a time of the steady clock. It may not while the tick
/// reads the replication state; no client command runs then.
#[inline]
pub(crate) fn may_grant(now_us: u64) -> MayGrant {
    with(|quarantine, rules| quarantine.may_grant(rules, now_us)).unwrap_or(MayGrant::NoReplicas)
}

/// The milliseconds left of the quarantine; 0 without one.
pub(crate) fn remaining_ms() -> u64 {
    with(|quarantine, rules| quarantine.left_ms(rules, clock::mono_us())).unwrap_or(0)
}

/// The event that began the quarantine, for errors and the log.
pub(crate) fn reason() -> &'static str {
    with(|quarantine, _| text(quarantine.reason())).unwrap_or_default()
}

/// The number of replicas that followed at the last tick.
pub(crate) fn following() -> u64 {
    with(|quarantine, _| quarantine.following() as u64).unwrap_or(0)
}
