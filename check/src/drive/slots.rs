//! Two nodes of a cluster, and a slot that goes from one to the other.
//!
//! A move is finished whatever happens to the nodes meanwhile: its steps are taken again until both agree on where the slot is. Nothing
//! else moves it back.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use redis::Value;

use super::campaign::{SLOT, text};
use super::server::Server;
use super::wire::{Connection, now_us};

/// How long nodes may take to agree. One that was killed takes no requests for two seconds after it has come back.
const AGREE_US: u64 = 30_000_000;

/// How many keys one MIGRATE takes along.
const KEYS_A_STEP: usize = 3;

/// Makes two servers a cluster. All slots are on the first.
///
/// # Errors
///
/// If they do not come to know each other.
pub fn join(first: &Server, second: &Server) -> Result<()> {
    let bus_port = second.bus_port().context("the second server is a node of a cluster")?;
    let mut there = Connection::open(first.address())?;
    there.ask("CLUSTER ADDSLOTSRANGE 0 16383")?;
    there.ask(&format!("CLUSTER MEET 127.0.0.1 {} {bus_port}", second.address().port()))?;
    wait_until_it_is_up(first)?;
    wait_until_it_is_up(second)
}

/// Waits until the cluster of two takes requests, as far as a node knows.
///
/// # Errors
///
/// If it does not.
pub fn wait_until_it_is_up(node: &Server) -> Result<()> {
    let mut connection = Connection::open(node.address())?;
    let deadline_us = now_us() + AGREE_US;
    loop {
        let info = text(connection.ask("CLUSTER INFO")?)?;
        if info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2") {
            return Ok(());
        }
        ensure!(now_us() < deadline_us, "the cluster stays down; a node says:\n{info}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Moves the slot of all keys from the first node to the second, a few keys a step. `at_each_step` may do harm to both.
///
/// # Errors
///
/// If the nodes do not come to agree, or `at_each_step` fails.
pub fn move_slot(
    mut ends: [&mut Server; 2],
    mut at_each_step: impl FnMut(&mut [&mut Server; 2]) -> Result<()>,
) -> Result<()> {
    let deadline_us = now_us() + AGREE_US;
    loop {
        // A node that was killed refuses for a while, and a step that was taken already is refused as well.
        let step = take_step(&ends);
        if matches!(step, Ok(true)) {
            return Ok(());
        }
        ensure!(now_us() < deadline_us, "the slot does not move: {step:?}");
        if step.is_ok() {
            at_each_step(&mut ends)?;
        } else {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether the move is at its end.
fn take_step(ends: &[&mut Server; 2]) -> Result<bool> {
    let [mut source, mut target] = [Connection::open(ends[0].address())?, Connection::open(ends[1].address())?];
    let Value::Int(slot) = source.ask(&format!("CLUSTER KEYSLOT {SLOT}"))? else {
        return Ok(false);
    };
    let (source_id, target_id) = (text(source.ask("CLUSTER MYID")?)?, text(target.ask("CLUSTER MYID")?)?);
    // Refused where the node has the slot already.
    let _ = target.call(&format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"));
    let _ = source.call(&format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"));
    let Value::Array(keys) = source.ask(&format!("CLUSTER GETKEYSINSLOT {slot} {KEYS_A_STEP}"))? else {
        return Ok(false);
    };
    if !keys.is_empty() {
        let (keys, port) =
            (keys.into_iter().map(text).collect::<Result<Vec<_>>>()?, ends[1].address().port().to_string());
        // After a crash a key may be on both, and counts where the slot is.
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "REPLACE", "KEYS"];
        words.extend(keys.iter().map(String::as_str));
        source.ask_words(&words)?;
        return Ok(false);
    }
    for node in [&mut target, &mut source] {
        node.ask(&format!("CLUSTER SETSLOT {slot} NODE {target_id}"))?;
    }
    Ok(true)
}
