//! The server's costs of acquiring and releasing an uncontended lock.

use anyhow::Result;
use rlock_bench::server::Server;

use super::pairs::{self, Listener, Pairs, Side};
use crate::report::{Aim, Line};

const SIDES: [Side; 4] = [Side::Rlock, Side::SetDel, Side::SetScript, Side::HashScripts];

/// Measures the server's CPU time per pair.
pub fn measure(server: &mut Server, rounds: usize) -> Result<Vec<Line>> {
    let mut measured = Pairs::connect(server)?;
    let mut lines = Vec::new();
    for listener in [Listener::None, Listener::AppendOnlyFile] {
        let costs_us = measured.measure(server, listener, &SIDES, rounds)?;
        let figure = |side| pairs::figure(side, &SIDES, &costs_us);
        let line = |what: &str, above, below| {
            Line::ratio(format!("server CPU per pair, {}: {what}", listener.name()), figure(above), figure(below))
        };
        let against_set_del = line("against SET + DEL", Side::Rlock, Side::SetDel);
        let against_script = line("against SET + script", Side::Rlock, Side::SetScript);
        let against_hash = line("scripts on a hash, against the module", Side::HashScripts, Side::Rlock);
        lines.extend(match listener {
            Listener::None => [
                against_set_del.aim(Aim::AtMost(1.05)),
                against_script.aim(Aim::AtMost(0.45)),
                against_hash.aim(Aim::AtLeast(5.0)),
            ],
            Listener::AppendOnlyFile => [against_set_del.aim(Aim::AtMost(1.3)), against_script, against_hash],
        });
    }
    Ok(lines)
}
