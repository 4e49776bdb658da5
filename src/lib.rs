//! rlock: distributed locks inside Redis, as a loadable module.
//!
//! How a request travels: `commands` parses and replies, [`execute`] runs it through the engine of `rlock-core` and does
//! what that decided, `ffi` is the only place that talks to the server's C API. The server's callbacks (timer,
//! disconnects, notifications) take the same way through [`execute`].

// The server does nothing else while a table is copied into a larger one.
#![deny(clippy::disallowed_types)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::undocumented_unsafe_blocks
)]

mod arguments;
mod channels;
mod clock;
mod commands;
mod configuration;
mod events;
mod eviction;
mod execute;
mod ffi;
mod info;
mod jobs;
mod load;
mod notices;
mod options;
mod propagation;
mod quarantine;
mod reply;
mod server;
mod shard_channels;
mod state;
mod timer;
mod turn;
mod value;
mod waiting;

/// Everything that the module allocates comes from the server, so that it shows in `used_memory` and obeys `maxmemory`.
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;
