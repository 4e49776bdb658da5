//! Code that the benchmark and the demo share: a server of their own, and cheap clients.
//!
//! A benchmark measures the server only if its client stays out of the way, so this is not a
//! general Redis client: it encodes commands by hand into reused buffers, and compares replies byte
//! by byte where they are known in advance. An unexpected reply is always an error: a figure proves
//! something only if the measured operation really happened.

#![warn(clippy::unwrap_used)]

pub mod clock;
pub mod connection;
pub mod memory;
pub mod notice;
pub mod resp;
pub mod server;
pub mod swarm;
