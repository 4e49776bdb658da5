//! The pure state machine behind rlock: it decides and it applies.
//!
//! Nothing here knows Redis, reads a clock or does I/O: time is a parameter ([`Now`]), the values live behind
//! [`Keyspace`], and all that has to happen outside is left in an [`Outbox`]. That makes every rule testable
//! without a server, replayable and fuzzable.
//!
//! How a request travels:
//!
//! 1. [`Engine`] is the only write path. It settles what is pending on the key (a lapsed lease, a connection that
//!    closed, a waiter whose time is over), then asks the [`Lock`] and its queue for a decision.
//! 2. A decision is an [`Event`]: a fact with absolute times and the token given. [`Lock::apply`] is total: it cannot
//!    fail and reads no clock. Replicas and AOF replay only apply.
//! 3. The events and the answers to waiters go to the [`Outbox`], in order.
//!
//! A kind of lock (mutex, fair, rwlock, semaphore) is an admission rule on one structure: see [`Lock::admits`].

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// A test may add two numbers; the product may not overflow, whatever a client sends.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

extern crate alloc;

mod bytes;
mod chunked;
mod codec;
mod crowd;
mod deadlines;
mod effect;
mod engine;
mod event;
mod hold;
mod keyspace;
mod lock;
mod outbox;
mod places;
mod queue;
mod request;
mod sessions;
mod slot;
#[cfg(test)]
mod strategies;
mod time;

pub use bytes::{Bytes, Key, KeyName, KeyRef, Owner};
pub use codec::{DecodeError, decode, encode};
pub use deadlines::{Alarm, Deadlines};
pub use effect::{EffectError, Facts, parse_effect, write_effect};
pub use engine::{Acquired, Engine, Stats, Turn, WaiterView};
pub use event::{ChangeCause, EndCause, Event, LeaveCause, Terms};
pub use hold::Hold;
pub use keyspace::{KeyId, Keyspace, Slot, Stored};
pub use lock::{Kind, Lock, Mode};
pub use outbox::{Answer, Outbox, Output};
pub use places::{Place, Places, Stay, seed_hashing};
pub use request::{Acquire, Ask, Limits, Refusal, Release, Renew, RequestMark, Verb, WaitEdge};
pub use slot::{SlotTags, Tag};
pub use time::{MAX_LEASE_MS, MAX_OWNER_BYTES, MAX_TOKEN, Now, TOKEN_AHEAD_LIMIT_US, US_PER_MS};
