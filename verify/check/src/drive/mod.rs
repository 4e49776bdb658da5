//! Clients that record histories on servers of their own, and the faults around them.
//!
//! | | |
//! |---|---|
//! | [`server`] | servers on free loopback ports, in temporary folders, with a wall clock that can be stepped |
//! | `small_disk` | a disk for one of them that can be full |
//! | [`wire`] | one connection, and the meaning of its answers |
//! | [`monitor`] | the order in which the server executed requests |
//! | [`worker`] | one client: a seed decides what it does, and the results are recorded |
//! | [`scenes`] | what a client does with more than one connection |
//! | `leases` | what it does with its leases |
//! | [`parade`] | holds of each kind, changed in each way, to compare a replica with its master |
//! | [`retries`] | repeated requests, and commands for one particular hold (`ONCE`, `TOKEN`) |
//! | [`waits`] | requests that wait without a blocked connection (`NOTIFY`), and their ends (`CANCEL`) |
//! | [`subscriber`] | listens for answers to `NOTIFY` |
//! | [`fault`] | the kinds of faults, and what clients may expect under each |
//! | [`harm`] | makes the faults happen |
//! | [`cluster`] | two nodes of a cluster: a slot moves, or a replica takes over |
//! | [`sentinel`] | Sentinels that replace a master by its replica |
//! | [`processes`] | clients in processes of their own, with the crate `rlock-client`: what they believe while they are stopped |
//! | [`half_open`] | a network that loses connections |
//! | [`faults`] | a campaign for each fault on each server, and the table of the results |
//! | [`soak`] | a long load, and whether memory and latency stay the same |
//! | [`campaign`] | all of this together, for a while |
//! | [`afterwards`] | the checks after all clients have left |

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
