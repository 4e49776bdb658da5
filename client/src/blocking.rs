//! The same API for threads: each method blocks until the method of the same name in the [crate
//! root](crate) completes.
//!
//! ```no_run
//! # fn main() -> Result<(), rlock_client::Error> {
//! let client = rlock_client::blocking::Client::connect("redis://127.0.0.1/")?;
//! let guard = client.lock("orders:42").acquire()?;
//! // … work, with guard.token() …
//! guard.release()?;
//! # Ok(())
//! # }
//! ```
//!
//! Each client has a runtime with one thread, which renews its guards. Do not call these methods
//! inside an asynchronous task: they would block its runtime, so they panic.

mod client;
mod driver;
mod guards;
mod locks;
#[cfg(feature = "observe")]
mod observer;
#[cfg(feature = "quorum")]
mod quorum;
mod same;

pub use client::Client;
pub use driver::Interrupt;
pub use guards::Guard;
#[cfg(feature = "multi-lock")]
pub use guards::MultiGuard;
#[cfg(feature = "quorum")]
pub use guards::QuorumGuard;
#[cfg(feature = "multi-lock")]
pub use locks::MultiLock;
pub use locks::{Lock, RwLock, Semaphore};
#[cfg(feature = "events")]
pub use observer::Events;
#[cfg(feature = "observe")]
pub use observer::Observer;
#[cfg(feature = "quorum")]
pub use quorum::{Quorum, QuorumLock, QuorumRwLock};
