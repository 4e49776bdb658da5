//! The server's share of the costs of a lock: steps from a command that does nothing, over a module
//! with the smallest lock and each service of the server that a lock needs, to this module and to
//! scripts.
//!
//! Every step is a ratio to SET NX PX and DEL, the cheapest lock without a module.

use anyhow::Result;
use rlock_bench::server::Server;

use super::pairs::{self, Listener, Pairs, Side};
use crate::report::Line;

const FOOT: Side = Side::SetDel;

/// The steps of the bare module, cheapest first, each with its text in the table.
pub const BARE: [(Side, &str); 6] = [
    (Side::Noop, "two empty module commands"),
    (Side::Bare(""), "bare lock"),
    (Side::Bare(".EVENT"), "bare lock, with keyspace events"),
    (Side::Bare(".VERBATIM"), "bare lock, propagated verbatim"),
    (Side::Bare(".EFFECT"), "bare lock, propagated as an effect"),
    (Side::Bare(".BOTH"), "bare lock, with events and effects"),
];

/// The steps above them.
const ABOVE: [(Side, &str); 3] =
    [(Side::Rlock, "rlock"), (Side::SetScript, "SET + script"), (Side::HashScripts, "scripts on a hash")];

/// Measures the server's CPU time per pair on every step.
pub fn measure(server: &mut Server, rounds: usize) -> Result<Vec<Line>> {
    let steps: Vec<(Side, &str)> = [(FOOT, "SET + DEL")].into_iter().chain(BARE).chain(ABOVE).collect();
    let sides: Vec<Side> = steps.iter().map(|(side, _)| *side).collect();
    let mut measured = Pairs::connect(server)?;
    let mut lines = Vec::new();
    for listener in [Listener::None, Listener::AppendOnlyFile] {
        let costs_us = measured.measure(server, listener, &sides, rounds)?;
        let figure = |side| pairs::figure(side, &sides, &costs_us);
        for (side, step) in &steps {
            lines.push(Line::ratio(format!("{}: {step}", listener.name()), figure(*side), figure(FOOT)));
        }
    }
    Ok(lines)
}
