//! Tests of the tool with real servers that have loaded the module.

mod acl;
mod commands;
mod container;
mod documents;
mod ending;
mod looking;
mod package;
mod picture;
mod places;
mod profiles;
mod runbook;
mod running;
mod sharing;
// Servers and connections from the module's tests, some of which these tests do not use.
#[allow(dead_code, unused_imports)]
#[path = "../../tests/support/mod.rs"]
mod support;
mod terminal;
mod tls;

use std::time::Duration;

/// Far more than a healthy server needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
#[track_caller]
fn eventually(condition: impl FnMut() -> bool) {
    support::eventually(PATIENCE, condition);
}
