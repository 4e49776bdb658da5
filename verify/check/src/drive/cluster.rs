//! A cluster of two nodes: a slot moves from one to the other, or a replica takes over.
//!
//! [`move_slot`] completes a move whatever happens to the nodes meanwhile: it repeats the steps
//! until both agree where the slot is.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use redis::Value;

use super::campaign::SLOT;
use super::server::Server;
use super::wire::{Connection, info, now_us, text};

/// How long nodes may take to agree. A node that was killed accepts no requests for two seconds
/// after its restart.
const AGREE_US: u64 = 30_000_000;

/// How long one attempt of `CLUSTER FAILOVER` may take. The server gives it five seconds.
const ATTEMPT_US: u64 = 6_000_000;

/// How many keys one MIGRATE moves.
const KEYS_A_STEP: usize = 3;

/// Joins two servers to a cluster. The first has all slots.
///
/// # Errors
///
/// If they do not find each other.
pub fn join(first: &Server, second: &Server) -> Result<()> {
    let bus_port = second.bus_port().context("the second server is no node of a cluster")?;
    let mut there = Connection::open(first.address())?;
    there.ask("CLUSTER ADDSLOTSRANGE 0 16383")?;
    there.ask(&format!("CLUSTER MEET 127.0.0.1 {} {bus_port}", second.address().port()))?;
    wait_until_it_is_up(first)?;
    wait_until_it_is_up(second)
}

/// Waits until a node reports that the cluster of two accepts requests.
///
/// # Errors
///
/// If it does not within 30 seconds.
pub fn wait_until_it_is_up(node: &Server) -> Result<()> {
    let mut connection = Connection::open(node.address())?;
    until("the cluster stayed down", || {
        let info = text(connection.ask("CLUSTER INFO")?)?;
        Ok(info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2"))
    })
}

/// Makes the second node a replica of the first.
///
/// # Errors
///
/// If it does not follow within 30 seconds.
pub fn replicate(master: &Server, replica: &Server) -> Result<()> {
    let id = text(Connection::open(master.address())?.ask("CLUSTER MYID")?)?;
    let mut there = Connection::open(replica.address())?;
    // The second node may not know yet that the first is a master.
    until("the replica did not connect to its master", || {
        // A second request would start over.
        if !info(&mut there)?.contains("role:slave") {
            there.call(&format!("CLUSTER REPLICATE {id}"));
        }
        is_replica(&mut there)
    })
}

/// Lets a replica take over by `CLUSTER FAILOVER`, where `how` is `FORCE`, `TAKEOVER` or empty, and
/// waits until its former master follows it. Returns the time at which it had become the master.
///
/// # Errors
///
/// If it does not take over within 30 seconds.
pub fn take_over(master: &Server, replica: &Server, how: &str) -> Result<u64> {
    let [mut there, mut here] = [Connection::open(master.address())?, Connection::open(replica.address())?];
    let (mut attempt_ends_us, mut taken_over_us) = (0, None);
    until("the replica did not take over", || {
        let is_master = info(&mut here)?.contains("role:master");
        if is_master {
            taken_over_us.get_or_insert_with(now_us);
        } else {
            // Redis 7.0 sometimes counts the votes of the previous election, and soon finds that it
            // has not become the master. Meanwhile the other node waits for it.
            taken_over_us = None;
            if now_us() > attempt_ends_us {
                // Send the next request only after the attempt has timed out, because a request
                // ends the attempt before it. An attempt also ends if the other node does not
                // agree.
                here.call(&format!("CLUSTER FAILOVER {how}"));
                attempt_ends_us = now_us() + ATTEMPT_US;
            }
        }
        is_replica(&mut there)
    })?;
    Ok(taken_over_us.unwrap_or_else(now_us))
}

/// Whether a node follows another one and has its data.
fn is_replica(node: &mut Connection) -> Result<bool> {
    let info = info(node)?;
    Ok(info.contains("role:slave") && info.contains("master_link_status:up"))
}

/// Waits until a condition holds, or fails with `otherwise`.
fn until(otherwise: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline_us = now_us() + AGREE_US;
    while !is_so()? {
        ensure!(now_us() < deadline_us, "{otherwise}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Moves the slot of all keys from the first node to the second, a few keys per step.
/// `at_each_step` may do harm to both.
///
/// # Errors
///
/// If the nodes do not agree within 30 seconds, or `at_each_step` fails.
pub fn move_slot(
    mut ends: [&mut Server; 2],
    mut at_each_step: impl FnMut(&mut [&mut Server; 2]) -> Result<()>,
) -> Result<()> {
    let deadline_us = now_us() + AGREE_US;
    loop {
        // A node that was killed refuses steps for a while. A node also refuses a step that was
        // already taken.
        let step = take_step(&ends);
        if matches!(step, Ok(true)) {
            return Ok(());
        }
        ensure!(now_us() < deadline_us, "the slot did not move: {step:?}");
        if step.is_ok() {
            at_each_step(&mut ends)?;
        } else {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Takes one step. Returns whether the move is complete.
fn take_step(ends: &[&mut Server; 2]) -> Result<bool> {
    let [mut source, mut target] = [Connection::open(ends[0].address())?, Connection::open(ends[1].address())?];
    let Value::Int(slot) = source.ask(&format!("CLUSTER KEYSLOT {SLOT}"))? else {
        return Ok(false);
    };
    let (source_id, target_id) = (text(source.ask("CLUSTER MYID")?)?, text(target.ask("CLUSTER MYID")?)?);
    // Refused if the node already has the slot.
    let _ = target.call(&format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"));
    let _ = source.call(&format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"));
    let Value::Array(keys) = source.ask(&format!("CLUSTER GETKEYSINSLOT {slot} {KEYS_A_STEP}"))? else {
        return Ok(false);
    };
    if !keys.is_empty() {
        let (keys, port) =
            (keys.into_iter().map(text).collect::<Result<Vec<_>>>()?, ends[1].address().port().to_string());
        // After a crash a key may exist on both nodes. The copy of the node that has the slot
        // counts.
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
