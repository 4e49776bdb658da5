//! An uncontended pair on current servers, against the commands that replace the script there:
//! `DELEX … IFEQ` on Redis 8.4 and newer, `DELIFEQ` on Valkey 9.

use anyhow::Result;
use rlock_bench::server::{Server, ServerConfig};

use super::floor;
use super::pairs::{self, Listener, Pairs, Side};
use crate::report::{Aim, Line};

/// The commands of a current server that compare and delete, and the aims without and with an
/// append-only file.
fn peer(is_valkey: bool) -> (Side, f64, f64) {
    if is_valkey { (Side::SetDelIfEq, 1.0, 1.25) } else { (Side::SetDelEx, 0.95, 1.10) }
}

/// Measures the CPU time of each server per pair. With `has_bare` the servers load the bare module
/// too, whose steps show the server's own share of the costs.
pub fn measure(servers: &[ServerConfig], has_bare: bool, rounds: usize) -> Result<Vec<Line>> {
    let bare = if has_bare { &floor::BARE[..] } else { &[] };
    let mut lines = Vec::new();
    for config in servers {
        let mut server = Server::start(config)?;
        let name = server.name()?;
        let (peer, aim, aim_with_file) = peer(name.starts_with("Valkey"));
        let sides: Vec<Side> = [Side::Rlock, peer].into_iter().chain(bare.iter().map(|(side, _)| *side)).collect();
        let mut measured = Pairs::connect(&mut server)?;
        for (listener, aim) in [(Listener::None, aim), (Listener::AppendOnlyFile, aim_with_file)] {
            let costs_us = measured.measure(&mut server, listener, &sides, rounds)?;
            let figure = |side| pairs::figure(side, &sides, &costs_us);
            let what = format!("{name}, {}: rlock", listener.name());
            lines.push(Line::ratio(what, figure(Side::Rlock), figure(peer)).aim(Aim::AtMost(aim)));
            for (side, step) in bare {
                let what = format!("{name}, {}: {step}", listener.name());
                lines.push(Line::ratio(what, figure(*side), figure(peer)));
            }
        }
    }
    Ok(lines)
}
