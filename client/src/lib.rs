#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod acquire;
#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod clock;
#[cfg(feature = "cluster")]
mod cluster;
mod core;
mod error;
#[cfg(feature = "events")]
mod events;
mod guard;
mod held;
mod hold;
mod identity;
pub mod kinds;
#[cfg(feature = "events")]
mod listeners;
mod lock;
#[cfg(feature = "connection-manager")]
mod managed;
mod metrics;
#[cfg(feature = "multi-lock")]
mod multi;
mod node;
#[cfg(feature = "observe")]
mod observer;
mod options;
mod owners;
#[cfg(feature = "quorum")]
mod quorum;
mod release;
mod renewal;
mod request;
mod semaphore;
#[cfg(feature = "sentinel")]
mod sentinel;
mod settle;
#[cfg(feature = "cluster")]
mod slots;
mod subscriber;
mod sync;
mod transport;
mod validity;
mod wire;

pub use client::{Builder, Client};
pub use error::Error;
#[cfg(feature = "events")]
pub use events::Events;
pub use guard::{Detached, Guard};
#[doc(no_inline)]
pub use kinds::Kind;
#[cfg(feature = "events")]
pub use listeners::Event;
pub use lock::{Lock, RwLock};
pub use metrics::Metrics;
#[cfg(feature = "multi-lock")]
pub use multi::{MultiGuard, MultiLock};
#[cfg(feature = "observe")]
pub use observer::{Holder, Observer, Waiter};
#[cfg(feature = "quorum")]
pub use quorum::{Quorum, QuorumGuard, QuorumLock, QuorumRwLock};
pub use semaphore::Semaphore;

/// The Redis client crate this one is built on: for [`Builder::connect_to`] and
/// [`Builder::connection_config`].
pub use redis;
