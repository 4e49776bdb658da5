//! The same for threads: each method here waits for the one of the same name in the [crate root](crate).
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
//! A client has a runtime of its own with one thread, on which guards renew themselves. Methods must not be called inside an
//! asynchronous task: they would hold up its runtime, and panic instead.

mod client;
mod driver;
mod guards;
mod locks;
mod observer;
#[cfg(feature = "quorum")]
mod quorum;
mod same;

pub use client::Client;
pub use driver::Interrupt;
#[cfg(feature = "quorum")]
pub use guards::QuorumGuard;
pub use guards::{Guard, MultiGuard};
pub use locks::{Drain, Lock, MultiLock, RwLock, Semaphore};
#[cfg(feature = "events")]
pub use observer::Events;
pub use observer::Observer;
#[cfg(feature = "quorum")]
pub use quorum::{Quorum, QuorumLock, QuorumRwLock};
