//! What the benchmark and the demo have in common: a server of their own, and cheap clients.
//!
//! A benchmark measures the server only as far as its client stays out of the way, so nothing here
//! is a general Redis client: commands are encoded by hand into buffers that are used again, and a
//! reply is checked byte for byte where it is known beforehand. A reply that is not the expected one
//! is always an error: a figure proves something only if the thing measured really happened.

#![warn(clippy::unwrap_used)]

pub mod clock;
pub mod connection;
pub mod memory;
pub mod notice;
pub mod resp;
pub mod server;
pub mod swarm;
