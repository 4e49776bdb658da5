//! Checks after all clients have left: whether the servers are alive, whether anything is left
//! over, and whether a new replica agrees.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use redis::Value;

use super::campaign::LONG_LEASES;
use super::parade;
use super::server::Server;
use super::wire::{Connection, info, now_us};
use crate::history::{Key, Kind, Rule, Violation};
use crate::timeline::SLACK_US;

/// Longer than a server without a listener takes to stop propagating.
const UNHEARD: Duration = Duration::from_millis(2_500);

/// Log lines that a healthy server never writes.
const FAULTS_IN_LOG: [&str; 4] = ["rlock: internal error", "crashed by signal", "ASSERTION FAILED", "BUG REPORT START"];

/// Logged by a replica whose value does not fit an effect of its master, or by a server that finds
/// such an effect in its append-only file.
const DIFFERS: &str = "could not be applied";

/// Whether a server has ended or is about to: writing its crash report may take a while.
pub(super) fn has_ended(server: &mut Server) -> bool {
    let mut violations = Vec::new();
    check_life("server", server.is_alive(), &server.log(), &mut violations);
    !violations.is_empty()
}

/// Checks that a server has not ended, and has not logged a fault.
pub fn check_life(name: &str, is_alive: bool, log: &str, violations: &mut Vec<Violation>) {
    if let Some(said) = log.lines().find(|line| line.contains(DIFFERS)) {
        violations.push(Violation { rule: Rule::ReplicaAgrees, story: format!("the {name} logged: {said}") });
    }
    let said = log.lines().find(|line| FAULTS_IN_LOG.iter().any(|news| line.contains(news)));
    if !is_alive || said.is_some() {
        let story = format!("the {name} ended or logged: {}", said.unwrap_or_default());
        violations.push(Violation { rule: Rule::ServerLives, story });
    }
}

/// Checks that nothing is held after all clients have left, except by a short lease that is still
/// running.
///
/// # Errors
///
/// If the server does not answer.
pub fn check_leftovers(control: &mut Connection, keys: &[Key], violations: &mut Vec<Violation>) -> Result<()> {
    let deadline_us = now_us() + LONG_LEASES.lease_ms * 1000 + SLACK_US;
    loop {
        let mut left = Vec::new();
        for key in keys {
            if let Value::Array(fields) = control.ask(&format!("RLOCK.INFO {}", key.name))? {
                let holders = fields.iter().skip(3).step_by(2).next();
                let is_idle = key.kind == Kind::Semaphore && holders == Some(&Value::Array(Vec::new()));
                if !is_idle {
                    left.push(format!("{} is held after all clients have left: {fields:?}", key.name));
                }
            }
        }
        if left.is_empty() || now_us() > deadline_us {
            violations.extend(left.into_iter().map(|story| Violation { rule: Rule::NothingIsLeftOver, story }));
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Checks that a server has no key left. No server removes a semaphore on its own, so this deletes
/// semaphores first. It then waits until the last short lease has expired.
///
/// # Errors
///
/// If the server does not answer.
pub fn check_emptied(control: &mut Connection, keys: &[Key], violations: &mut Vec<Violation>) -> Result<()> {
    for key in keys.iter().filter(|key| key.kind == Kind::Semaphore) {
        control.ask(&format!("DEL {}", key.name))?;
    }
    let deadline_us = now_us() + LONG_LEASES.lease_ms * 1000 + SLACK_US;
    while control.ask("DBSIZE")? != Value::Int(0) {
        if now_us() > deadline_us {
            let story = format!("a key is left: {:?}", control.ask("RANDOMKEY")?);
            violations.push(Violation { rule: Rule::NothingIsLeftOver, story });
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Checks what is left after the clients, and lets a replica follow.
pub(super) fn look_afterwards(
    master: &Server,
    replica: &Server,
    keys: &[Key],
    violations: &mut Vec<Violation>,
) -> Result<()> {
    let mut control = Connection::insist(master.address())?;
    check_leftovers(&mut control, keys, violations)?;
    follow(&mut control, replica, master.address().port(), violations)
}

/// Attaches the first replica to a master that had no listener so far, compares the two, and
/// promotes the replica.
fn follow(control: &mut Connection, replica: &Server, master_port: u16, violations: &mut Vec<Violation>) -> Result<()> {
    thread::sleep(UNHEARD);
    let mut there = Connection::insist(replica.address())?;
    there.ask(&format!("REPLICAOF 127.0.0.1 {master_port}"))?;
    let deadline_us = now_us() + 20_000_000;
    while !info(&mut there)?.contains("master_link_status:up") {
        if now_us() > deadline_us {
            return Err(anyhow!("the replica did not connect within 20 s")).context(replica.log());
        }
        thread::sleep(Duration::from_millis(20));
    }
    let highest_token = parade::make(control)?;
    control.ask("WAIT 1 5000")?;
    parade::compare(control, &mut there, violations)?;
    parade::intrude(&mut there, violations)?;
    parade::take_over(&mut there, highest_token, violations)
}
