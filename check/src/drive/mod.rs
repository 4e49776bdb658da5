//! Clients that make a history on a server of their own, and faults around them.
//!
//! | | |
//! |---|---|
//! | [`server`] | servers on free ports of the loopback, in temporary folders, with a wall clock that can be stepped |
//! | [`wire`] | one connection, and what its answers mean |
//! | [`monitor`] | the order in which the server executed requests |
//! | [`worker`] | one client: what it does is drawn from a seed, what comes of it is recorded |
//! | [`scenes`] | what a client does that takes more than one connection |
//! | [`parade`] | holds of each kind, changed in each way, to compare a replica with its master |
//! | [`campaign`] | all of it together, for a while |

pub mod campaign;
pub mod monitor;
pub mod parade;
pub mod scenes;
pub mod server;
pub mod wire;
pub mod worker;
