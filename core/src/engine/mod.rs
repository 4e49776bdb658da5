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
mod backlog;
mod begin_wait;
mod cancel;
mod closed_connections;
mod command;
mod connections;
mod contention;
mod cut_off;
mod databases;
mod deadlock;
mod dirty;
mod end_wait;
mod fair;
mod grant;
mod grant_next;
mod holders;
mod lapse;
mod leases;
mod multi_key;
mod names;
mod notified;
mod observe;
mod offers;
mod owners;
mod pending_grants;
mod positions;
mod reconcile;
mod release;
mod review;
mod semaphore;
mod serve;
mod server_events;
mod state;
mod statistics;
mod sweep;
#[cfg(test)]
mod tests;
mod timers;
mod transaction;
mod undo;
mod up_to_date;
mod views;
mod wait_queues;
mod waiter;
mod work;
mod write;

pub use acquire::{Acquired, Tokens};
pub use contention::{Contended, Longest};
pub use offers::Offer;
pub use release::HoldsLeft;
pub use state::Engine;
pub use statistics::{KindStats, WaitSummary};
pub use transaction::Transaction;
pub use views::WaiterView;
