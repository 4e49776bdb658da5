//! The pure state machine behind rlock: it decides about locks and applies the decisions.
//!
//! This crate knows nothing of Redis, reads no clock and does no I/O. Time is a parameter
//! ([`Now`]), values are behind [`Keyspace`], and side effects go to an [`Outbox`]. So every rule
//! can be tested without a server, replayed and fuzzed.
//!
//! The path of a request:
//!
//! 1. [`Engine`], the only write path, reconciles the keys of the request (expired leases, closed
//!    connections, waiters that timed out). Then it asks each [`Lock`] for an admission decision,
//!    with one function for all kinds.
//! 2. A decision is an [`Event`]: a fact with absolute times and the granted token. Applying an
//!    event is total: it cannot fail and reads no clock. Replicas and AOF replay only apply.
//! 3. The events and the answers to waiters go to the [`Outbox`], in order.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// Tests may use plain arithmetic; other code must not overflow, whatever a client sends.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

extern crate alloc;

mod alarms;
mod backlog;
mod budget;
mod bytes;
mod channels;
mod codec;
mod collections;
mod effect;
mod engine;
mod event;
mod exclusion;
mod keyspace;
mod kind;
mod limits;
mod lock;
mod named;
mod outbox;
mod pending_grants;
mod place;
mod registry;
mod request;
mod sessions;
mod slot;
mod statistics;
#[cfg(test)]
mod strategies;
mod time;

pub use bytes::{Bytes, Key, KeyName, KeyRef, Owner};
pub use channels::Channels;
pub use codec::{DecodeError, decode, encode};
pub use collections::{Alarm, Deadlines};
pub use effect::{Arguments, EffectError, Facts, parse_effect, write_effect};
pub use engine::{Acquired, Contended, Engine, HoldsLeft, Job, LeasesLeft, Longest, Offer, Transaction, WaiterView};
pub use event::{ChangeCause, EndCause, Event, LeaveCause, Note, Phase, Terms};
pub use exclusion::{Contradiction, Exclusion, Mode as ExclusionMode, Readings, Replication, Settings};
pub use keyspace::{KeyId, Keyspace};
pub use kind::{Kind, Mode};
pub use limits::{Limits, MayGrant};
pub use lock::admission::Value;
pub use lock::{FairQueue, Hold, Idle, Lock, seed_hashing};
pub use outbox::{Answer, Belief, Effect, Grant, Notice, Outbox, Tokens, Told};
pub use place::{Place, Stay};
pub use request::{Ask, Cancel, Channel, Refusal, Release, Renew, Request, RequestMark, Verb, WaitEdge};
pub use slot::{SlotTags, Tag, slot_of};
pub use statistics::{KindStats, WaitSummary};
pub use time::{
    MAX_LEASE_MS, MAX_NOTE_BYTES, MAX_OWNER_BYTES, MAX_TOKEN, Now, TOKEN_AHEAD_LIMIT_US, TOKEN_CLOCK_END_US, US_PER_MS,
};
