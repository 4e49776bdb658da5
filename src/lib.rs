//! rlock: distributed locks inside Redis, as a loadable module.
//!
//! The path of a request: [`commands`] parses it and replies, [`execute`] passes it to the engine
//! of `rlock-core` and carries out the decision. Jobs of the timer take the same path, from
//! [`jobs`]. Only [`ffi`] calls the server's C API.
//!
//! The layers; the first row is the lowest. A module uses only modules of earlier rows and of its
//! own row; `scripts/circles` checks that there are no circles.
//!
//! | layer | modules |
//! |---|---|
//! | the server's C API | [`ffi`] |
//! | clocks, configuration, the state of the server and of the engine | [`clock`], [`configuration`], [`eviction`], [`server`], [`state`], [`turn`], [`propagation`], [`exclusion`] |
//! | the timer | [`timer`] |
//! | arguments, replies, values | [`reply`], [`arguments`], [`options`], [`value`] |
//! | blocked and notified waiters | [`waiting`], [`channels`], [`shard_channels`], [`notices`] |
//! | execution of requests and jobs | [`execute`], [`jobs`] |
//! | commands, events and INFO | [`commands`], [`events`], [`info`] |
//! | loading | [`load`] |

// `clippy.toml` lists the types: they grow by copying all of their entries in one step, which would
// stall the server.
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
mod exclusion;
mod execute;
mod ffi;
mod info;
mod jobs;
mod load;
mod notices;
mod options;
mod propagation;
mod reply;
mod server;
mod shard_channels;
mod state;
mod timer;
mod turn;
mod value;
mod waiting;

/// The module uses the server's allocator, so its memory counts in `used_memory` and for
/// `maxmemory`.
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;
