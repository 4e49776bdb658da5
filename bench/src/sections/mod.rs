//! One file per question that the benchmark answers, and what some of them share.

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
