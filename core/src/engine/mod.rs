//! The engine: decides about locks, and changes them. Its public interface, which is all that the module drives:
//!
//! | | |
//! |---|---|
//! | a client asks | [`Engine::acquire`], [`Engine::release`], [`Engine::renew`], [`Engine::force_release`], [`Engine::cancel`], [`Engine::init_semaphore`], [`Engine::resize_semaphore`], [`Engine::drain_semaphore`] |
//! | right after, until there is none | [`Engine::next_offer`], [`Engine::take_offer`] |
//! | the timer | [`Engine::begin_turn`], [`Engine::next_timeout_us`], [`Engine::next_job`], [`Engine::run_job`], [`Engine::postpone`] |
//! | the server tells | [`Engine::waiter_left`], [`Engine::client_closed`], [`Engine::confirm_grants`], [`Engine::value_changed`], [`Engine::value_arrived`], [`Engine::value_loaded`], [`Engine::value_unlinked`], [`Engine::flushed`], [`Engine::swapped`], [`Engine::promoted`] |
//! | a replica, a load | [`Engine::apply_effect`], [`Engine::raise_token`], [`Engine::has_to_observe`], [`Engine::next_to_observe`], [`Engine::observe`] |
//! | to look at | `views.rs`, [`Engine::concerns_client`], [`Engine::has_undelivered_grants`] |
//!
//! Each request brings its keys up to date (`reconcile`), is decided (`admission` of the lock), applied (`state`: the one
//! write path), and the queue of what it freed is served (`grant_next`). What has to happen outside (propagate, notify, answer
//! a waiter) is left in the outbox, in the order in which it must be done, and is done after the engine returned: other
//! modules may react to an event by calling commands of ours.
//!
//! The files, from the bottom to the top; each uses only those before it:
//! `work`, `databases`, `leases`, `connections`, `dirty` + `names` + `owners` + `wait_queues` (who waits), `state`, `holders`,
//! `server_events`, `deadlock`, `grant_next` + `reconcile`, `release`, `fair` + `acquire`, `semaphore`, `timers`, `views` + `contention`. `statistics` counts for all of them.

mod acquire;
mod connections;
mod contention;
mod databases;
mod deadlock;
mod dirty;
mod fair;
mod grant_next;
mod holders;
mod leases;
mod names;
mod owners;
mod reconcile;
mod release;
mod semaphore;
mod server_events;
mod state;
mod statistics;
#[cfg(test)]
mod tests;
mod timers;
mod views;
mod wait_queues;
mod work;

pub use acquire::{Acquired, Tokens};
pub use contention::{Contended, Longest};
pub use grant_next::Offer;
pub use release::HoldsLeft;
pub use state::{Engine, Transaction};
pub use statistics::{KindStats, WaitSummary};
pub use views::WaiterView;
