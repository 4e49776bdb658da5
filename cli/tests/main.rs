//! The tool against real servers with the module, one file per concern.

mod commands;
mod documents;
mod ending;
mod looking;
mod package;
mod picture;
mod places;
mod running;
mod sharing;
// The servers and plain connections of the module's own tests. Not all of it is used here.
#[allow(dead_code, unused_imports)]
#[path = "../../tests/support/mod.rs"]
mod support;
mod terminal;

use std::time::Duration;

/// Far above anything that a healthy server needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a condition.
#[track_caller]
fn eventually(condition: impl FnMut() -> bool) {
    support::eventually(PATIENCE, condition);
}
