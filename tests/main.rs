//! The module in real servers, one file per concern. Each test owns its servers, so all may run at once.

mod bad_input;
mod clock;
mod cluster;
mod configuration;
mod contexts;
mod counter;
mod effects;
mod events;
mod eviction;
mod fair;
mod fair_leaving;
mod fair_order;
mod fair_restart;
mod holding;
mod leases;
mod leaving;
mod payloads;
mod persistence;
mod quarantine;
mod readme;
mod requests;
mod sessions;
mod storm;
mod support;
mod waiting;
mod wake;
