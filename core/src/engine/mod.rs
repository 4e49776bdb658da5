//! The engine: decides about locks, and changes them. Its public interface, which is all that the module drives:
//!
//! | | |
//! |---|---|
//! | a client asks | [`Engine::acquire`], [`Engine::release`], [`Engine::renew`], [`Engine::force_release`], [`Engine::cancel`], [`Engine::init_semaphore`], [`Engine::resize_semaphore`], [`Engine::drain_semaphore`] |
//! | right after, until there is none | [`Engine::next_offer`], [`Engine::take_offer`] |
//! | the timer | [`Engine::begin_turn`], [`Engine::next_timeout_us`], [`Engine::next_job`], [`Engine::run_job`], [`Engine::postpone`]; while the server takes no writes [`Engine::end_waits`] |
//! | the server tells | [`Engine::waiter_left`], [`Engine::client_closed`], [`Engine::confirm_grants`], [`Engine::value_changed`], [`Engine::value_arrived`], [`Engine::value_loaded`], [`Engine::value_unlinked`], [`Engine::flushed`], [`Engine::swapped`], [`Engine::promoted`], [`Engine::demoted`], [`Engine::channel_gone`], [`Engine::published`], [`Engine::undo_grants`], [`Engine::nobody_listened`] |
//! | a replica, a load | [`Engine::apply_effect`], [`Engine::raise_token`], [`Engine::has_to_observe`], [`Engine::next_to_observe`], [`Engine::observe`], [`Engine::end_cut_off`] |
//! | to look at | `views.rs`, `contention.rs`, [`Engine::last_token`], [`Engine::concerns_client`], [`Engine::has_pending_answers`], [`Engine::has_offers`], [`Engine::has_cut_off`] |
//!
//! Each request brings its keys up to date (`reconcile`), is decided (`admission` of the lock), applied (`write`: the one
//! write path), and the queue of what it freed is served (`grant_next`). What has to happen outside (propagate, notify, answer
//! a waiter) is left in the outbox, in the order in which it must be done, and is done after the engine returned: other
//! modules may react to an event by calling commands of ours.
//!
//! Each file uses only those before it, which a test of the crate checks. They are, from the bottom to the top:
//!
//! | | |
//! |---|---|
//! | what is known | `work`, `databases`, `leases`, `connections`, `backlog`, `positions`, `dirty`, `owners`, `pending_grants`, `names`, `waiter`, `notified`, `wait_queues`, `statistics`; what a request is decided with: `transaction`; all of it together: `state`, `views`, `contention` |
//! | what changes | `end_wait`, `holders`, `write`, `lapse`, `cut_off`, `grant` |
//! | what the server tells | `closed_connections`, `undo`, `server_events` |
//! | who is served | `offers`, `serve`, `grant_next`, `up_to_date`, `multi_key` |
//! | a key is brought up to date | `review`, `reconcile`, `command` |
//! | what clients ask | `deadlock`, `begin_wait`, `fair`, `cancel`, `acquire`, `release`, `semaphore` |
//! | what is due | `sweep`, `timers`, `observe` |

mod acquire;
mod cancel;
mod closed_connections;
mod contention;
mod expire;
mod fair;
mod grant;
mod grant_next;
mod holders;
mod offers;
mod reconcile;
mod release;
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
pub use acquire::{Acquired, Tokens};
pub use contention::{Contended, Longest};
pub use release::HoldsLeft;
pub use transaction::Transaction;
pub use views::WaiterView;

/// The state of one server's locks beyond their values. Each part keeps its own state private; the files of this folder decide with
/// the verbs of the parts.
pub struct Engine {
    /// Who waits, under which names.
    registry: Registry,
    /// When the values are due.
    alarms: Alarms,
    /// Which holds are bound to which connections.
    sessions: Sessions,
    pending: PendingGrants,
    backlog: Backlog,
    /// Which source of work the timer asks first.
    next_timer: usize,
    budget: Budget,
    last_token: u64,
    stats: Statistics,
    /// Where the next look at the names that are waited for begins.
    next_look: u32,
}

impl Engine {
    /// An engine with nothing in it. The seeds make the hashing of client-chosen names unpredictable.
    #[must_use]
    pub fn new(seeds: [u64; 4]) -> Self {
        let [a, b, c, d] = seeds;
        let hasher = RandomState::with_seeds(a, b, c, d);
        Self {
            registry: Registry::new(&hasher),
            alarms: Alarms::new(&hasher),
            sessions: Sessions::default(),
            pending: PendingGrants::default(),
            backlog: Backlog::default(),
            next_timer: 0,
            budget: Budget::default(),
            last_token: 0,
            stats: Statistics::default(),
            next_look: 0,
        }
    }

    /// The last token given or seen.
    #[must_use]
    pub fn last_token(&self) -> u64 {
        self.last_token
    }

    /// Makes sure that every later token is above `token`.
    pub fn raise_token(&mut self, token: u64) {
        self.last_token = self.last_token.max(token.min(MAX_TOKEN));
    }

    /// The next fencing token, or arrival number: both come from one sequence, so that both keep rising over a restart
    /// and a failover.
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

    /// Whether anybody waits under the name of a key.
    fn is_waited_for(&self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        self.name(at).is_some_and(|name| self.registry.len_under(name) > 0)
    }

    /// The record of a key's name, made if need be.
    fn intern(&mut self, key: KeyRef<'_>) -> NameId {
        let generation = self.alarms.generation(key.db);
        self.registry.intern(key, generation)
    }

    /// Makes a name dirty, or adds to what there is to act upon.
    fn mark(&mut self, name: NameId, note: impl FnOnce(&mut Dirty)) {
        self.registry.mark(name, note);
    }

    /// Nothing more is done for a queue now: the timer goes on.
    fn leave_to_timer(&mut self, key: KeyRef<'_>) {
        let name = self.intern(key);
        self.mark(name, |_| {});
    }

    /// Notes that a waiter may close a cycle, to be searched by the timer.
    fn suspect(&mut self, ticket: u64) {
        if self.registry.set_suspected(ticket, true) {
            self.backlog.push_suspect(ticket);
        }
    }
}
