//! Clients that make a history on a server of their own, and faults around them.
//!
//! | | |
//! |---|---|
//! | [`server`] | servers on free ports of the loopback, in temporary folders, with a wall clock that can be stepped |
//! | `small_disk` | a disk for one of them that can be full |
//! | [`wire`] | one connection, and what its answers mean |
//! | [`monitor`] | the order in which the server executed requests |
//! | [`worker`] | one client: what it does is drawn from a seed, what comes of it is recorded |
//! | [`scenes`] | what a client does that takes more than one connection |
//! | `leases` | what it does about its leases |
//! | [`parade`] | holds of each kind, changed in each way, to compare a replica with its master |
//! | [`retries`] | requests that are sent again, and commands that mean one hold (`ONCE`, `TOKEN`) |
//! | [`waits`] | requests that wait without a blocked connection, and the ways in which they end (`NOTIFY`, `CANCEL`) |
//! | [`subscriber`] | who listens for answers to `NOTIFY` |
//! | [`fault`] | what can go wrong meanwhile, and what clients may expect then |
//! | [`harm`] | who makes it go wrong |
//! | [`cluster`] | two nodes of a cluster: a slot goes from one to the other, or a replica takes over |
//! | [`sentinel`] | Sentinels that put a replica in the place of a master |
//! | [`processes`] | clients in processes of their own, with the crate `rlock-client`: what they believe while they are stopped |
//! | [`half_open`] | a network that loses connections |
//! | [`faults`] | a campaign for each fault on each server, and the table of them |
//! | [`soak`] | a long load, and whether memory and latency stay as they are |
//! | [`campaign`] | all of it together, for a while |
//! | [`afterwards`] | what is looked at when everybody has gone |

pub mod afterwards;
pub mod campaign;
pub mod cluster;
pub mod fault;
pub mod faults;
pub mod half_open;
pub mod harm;
mod leases;
pub mod monitor;
pub mod parade;
pub mod processes;
mod proof;
pub mod retries;
pub mod scenes;
pub mod sentinel;
pub mod server;
mod small_disk;
pub mod soak;
pub mod subscriber;
pub mod waits;
pub mod wire;
pub mod worker;
