//! One file per section of the benchmark, and code that several sections share.

pub mod client;
pub mod current_servers;
pub mod deadlock;
pub mod failover;
pub mod fair;
pub mod fill;
pub mod floor;
pub mod handover;
pub mod mass_expiry;
pub mod memory;
pub mod notified_handover;
pub mod notify;
pub mod pairs;
pub mod pings;
pub mod punctuality;
pub mod queue_length;
pub mod relay;
pub mod stalls;
pub mod uncontended;
