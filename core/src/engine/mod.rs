//! The engine decides about locks and changes them. The module drives it only through this
//! interface:
//!
//! | | |
//! |---|---|
//! | client requests | [`Engine::acquire`], [`Engine::release`], [`Engine::renew`], [`Engine::force_release`], [`Engine::cancel`], [`Engine::init_semaphore`], [`Engine::resize_semaphore`], [`Engine::drain_semaphore`] |
//! | after each call, until `next_offer` is `None`: grants of several keys | [`Engine::next_offer`], [`Engine::take_offer`] |
//! | the timer | [`Engine::begin_turn`], [`Engine::next_timeout_us`], [`Engine::next_job`], [`Engine::run_job`], [`Engine::postpone`]; while the server takes no writes [`Engine::end_waits`] |
//! | server events | [`Engine::waiter_left`], [`Engine::client_closed`], [`Engine::confirm_grants`], [`Engine::value_changed`], [`Engine::value_arrived`], [`Engine::value_loaded`], [`Engine::value_unlinked`], [`Engine::flushed`], [`Engine::swapped`], [`Engine::promoted`], [`Engine::demoted`], [`Engine::channel_gone`], [`Engine::confirm_ticket`], [`Engine::undo_grants`], [`Engine::nobody_listened`], [`Engine::grants_resumed`] |
//! | replicas and loading | [`Engine::apply_effect`], [`Engine::raise_token`], [`Engine::has_to_observe`], [`Engine::next_to_observe`], [`Engine::observe`], [`Engine::end_cut_off`] |
//! | inspection | `views.rs`, `contention.rs`, [`Engine::last_token`], [`Engine::concerns_client`], [`Engine::may_have_told`], [`Engine::may_tell`], [`Engine::has_pending_answers`], [`Engine::has_offers`], [`Engine::has_cut_off`] |
//!
//! The engine reconciles the keys of a request (`reconcile`), decides (the lock's `admission`),
//! commits the events (`write`, the only write path), and serves the queues of the keys it freed
//! (`grant_next`). The outbox collects what has to happen outside (propagate, notify, answer a
//! waiter) in order. The module does it after the engine has returned, because other modules may
//! react to an event by calling our commands.
//!
//! The files of this folder:
//!
//! | | |
//! |---|---|
//! | context and inspection | `transaction`, `views`, `contention` |
//! | changes | `write`, `holders`, `waits`, `grant`, `expire` |
//! | server events | `server_events`, `closed_connections`, `undo` |
//! | hand-over | `grant_next`, `serve`, `offers` |
//! | reconciliation | `dirtiness`, `reconcile`, `review` |
//! | client requests | `acquire`, `fair`, `cancel`, `release`, `semaphore` |
//! | the timer | `job`, `sweep`, `timers`; on a replica `replica` |

mod acquire;
mod cancel;
mod closed_connections;
mod contention;
mod dirtiness;
mod expire;
mod fair;
mod grant;
mod grant_next;
mod holders;
mod job;
mod offers;
mod reconcile;
mod release;
mod replica;
mod review;
mod semaphore;
mod serve;
mod server_events;
mod sweep;
#[cfg(test)]
mod tests;
mod timers;
mod transaction;
mod undo;
mod views;
mod waits;
mod write;

use ahash::RandomState;

use crate::alarms::Alarms;
use crate::backlog::Backlog;
use crate::budget::Budget;
use crate::bytes::KeyRef;
use crate::keyspace::Keyspace;
use crate::pending_grants::PendingGrants;
use crate::registry::{Dirty, NameId, Registry};
use crate::request::Refusal;
use crate::sessions::Sessions;
use crate::statistics::Statistics;
use crate::time::{MAX_TOKEN, Now, TOKEN_CLOCK_END_US};

use self::transaction::At;

pub use crate::backlog::Offer;
pub use acquire::Acquired;
pub use contention::{Contended, Longest};
pub use job::Job;
pub use release::{HoldsLeft, LeasesLeft};
pub use transaction::Transaction;
pub use views::WaiterView;

/// What the engine knows beside the stored values: waiters, deadlines, sessions. Each part keeps
/// its own state private; the files of this folder combine the parts' methods into decisions.
#[cfg_attr(test, derive(Clone))]
pub struct Engine {
    /// The waiters, by key name.
    registry: Registry,
    /// The next deadline of each value.
    alarms: Alarms,
    /// The holds that are bound to connections.
    sessions: Sessions,
    /// The grants whose waiters may not have received the answer yet.
    pending: PendingGrants,
    /// The work left for the timer.
    backlog: Backlog,
    /// Index of the source of jobs that the timer asks first, so that all get their turn.
    next_timer: usize,
    /// How much work the current turn may still do.
    budget: Budget,
    last_token: u64,
    /// The end of the last pause of grants. Places, reservations and idle times that ended before
    /// begin again after the pause.
    resumed_us: u64,
    /// The counters for INFO.
    stats: Statistics,
    /// The registry's slot at which the next scan for contended names begins.
    next_scan: u32,
}

impl Engine {
    /// Creates an empty engine. The seeds make the hashing of client-chosen names unpredictable.
    #[must_use]
    pub fn new(seeds: [u64; 4]) -> Self {
        let [a, b, c, d] = seeds;
        let hasher = RandomState::with_seeds(a, b, c, d);
        Self {
            registry: Registry::new(&hasher),
            alarms: Alarms::default(),
            sessions: Sessions::default(),
            pending: PendingGrants::default(),
            backlog: Backlog::default(),
            next_timer: 0,
            budget: Budget::default(),
            last_token: 0,
            resumed_us: 0,
            stats: Statistics::default(),
            next_scan: 0,
        }
    }

    /// The last token granted or seen.
    #[must_use]
    pub fn last_token(&self) -> u64 {
        self.last_token
    }

    /// Ensures that every later token is above `token`.
    pub fn raise_token(&mut self, token: u64) {
        self.last_token = self.last_token.max(token.min(MAX_TOKEN));
    }

    /// The next fencing token or arrival number. Both come from one sequence, so both keep rising
    /// across restarts and failovers, within the limits of guarantees 6 and 13.
    fn next_number(&mut self, now: Now) -> Result<u64, Refusal> {
        if self.last_token >= MAX_TOKEN {
            return Err(Refusal::NoTokens);
        }
        self.last_token = self.last_token.saturating_add(1).max(now.wall_us.min(TOKEN_CLOCK_END_US));
        Ok(self.last_token)
    }

    /// The record of a key's name, if there is one.
    #[inline]
    fn name(&self, at: &mut At<'_, '_, impl Keyspace>) -> Option<NameId> {
        if self.registry.is_empty() { None } else { at.name(&self.registry) }
    }

    /// The record of a key's name, created if missing.
    fn intern(&mut self, key: KeyRef<'_>) -> NameId {
        self.registry.intern(key)
    }

    /// Puts a name on the list that `reconcile` works off, or adds to its events.
    fn mark(&mut self, name: NameId, update: impl FnOnce(&mut Dirty)) {
        self.registry.mark(name, update);
    }

    /// Leaves the rest of a queue to the timer.
    fn defer_to_timer(&mut self, key: KeyRef<'_>) {
        let name = self.intern(key);
        self.mark(name, |_| {});
    }

    /// Schedules a deadlock search for a waiter; the timer runs it.
    fn suspect(&mut self, ticket: u64) {
        if self.registry.set_suspected(ticket, true) {
            self.backlog.push_suspect(ticket);
        }
    }
}
