#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod blocking;
mod call;
mod client;
mod clock;
mod error;
mod guard;
mod hold;
mod identity;
mod link;
mod lock;
mod multi;
mod options;
mod quorum;
mod request;
mod semaphore;
mod servers;
mod slots;
mod validity;
mod waiter;
mod waiting_room;
mod wire;

pub use client::{Builder, Client};
pub use error::Error;
pub use guard::Guard;
pub use lock::{Fair, Kind, Lock, Mutex, Permits, Read, Reentrant, RwLock, Write};
pub use multi::{MultiGuard, MultiLock};
pub use quorum::{Quorum, QuorumGuard, QuorumLock};
pub use semaphore::Semaphore;
