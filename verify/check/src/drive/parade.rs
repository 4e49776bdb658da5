//! Holds of each kind, changed in each way, to compare a replica with its master. After the
//! promotion of the replica, they are released there.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use redis::Value;

use super::wire::{Connection, now_us};
use crate::history::{Outcome, Rule, Violation};

/// The commands that make the holds. The last hold expires before the comparison; all others
/// outlast it.
const STEPS: &[&str] = &[
    "RLOCK.ACQUIRE parade:taken a PX 60000",
    "RLOCK.ACQUIRE parade:twice a PX 60000 REQ 5",
    "RLOCK.ACQUIRE parade:twice a PX 61000 REQ 6",
    "RLOCK.ACQUIRE parade:renewed a PX 30000",
    "RLOCK.RENEW parade:renewed a PX 90000",
    "RLOCK.ACQUIRE parade:given-back a PX 60000",
    "RLOCK.ACQUIRE parade:given-back a PX 60000",
    "RLOCK.ACQUIRE parade:given-back a PX 60000",
    "RLOCK.RELEASE parade:given-back a",
    "RLOCK.ACQUIRE parade:free a PX 60000",
    "RLOCK.RELEASE parade:free a",
    "RLOCK.ACQUIRE parade:forced a PX 60000",
    "RLOCK.FORCERELEASE parade:forced",
    "RLOCK.MACQUIRE 2 parade:many-1 parade:many-2 a PX 60000",
    "RRWLOCK.ACQUIRE parade:read a READ PX 60000",
    "RRWLOCK.ACQUIRE parade:read b READ PX 70000",
    "RRWLOCK.ACQUIRE parade:written a WRITE PX 60000",
    "RRWLOCK.ACQUIRE parade:written a READ PX 70000",
    "RSEMAPHORE.INIT parade:semaphore 5",
    "RSEMAPHORE.ACQUIRE parade:semaphore a PERMITS 2 PX 60000",
    "RSEMAPHORE.ACQUIRE parade:semaphore b PERMITS 3 PX 60000",
    "RSEMAPHORE.RELEASE parade:semaphore b PERMITS 1",
    "RSEMAPHORE.RESIZE parade:semaphore 7",
    "RFAIRLOCK.ACQUIRE parade:fair a PX 60000",
    "RFAIRLOCK.ACQUIRE parade:fair b QUEUE 60000",
    "RFAIRLOCK.ACQUIRE parade:fair c QUEUE 60000",
    "RFAIRLOCK.ACQUIRE parade:fair d QUEUE 60000",
    "RFAIRLOCK.CANCEL parade:fair c",
    "RLOCK.ACQUIRE parade:lapses a PX 1",
];

/// The keys to compare.
const KEYS: &[&str] = &[
    "taken",
    "twice",
    "renewed",
    "given-back",
    "free",
    "forced",
    "many-1",
    "many-2",
    "read",
    "written",
    "semaphore",
    "fair",
    "lapses",
];

/// How the holds are released on a promoted server, and the expected answers.
const GIVEN_UP: &[(&str, u64)] = &[
    ("RLOCK.RELEASE parade:taken a", 0),
    ("RLOCK.HOLDS parade:twice a", 2),
    ("RLOCK.RELEASE parade:twice a REQ 7", 1),
    ("RLOCK.RELEASE parade:given-back a", 1),
    ("RRWLOCK.RELEASE parade:read b READ", 0),
    ("RRWLOCK.RELEASE parade:written a WRITE", 0),
    ("RSEMAPHORE.RELEASE parade:semaphore b PERMITS 1", 1),
    ("RFAIRLOCK.RELEASE parade:fair a", 0),
];

/// How far leases may differ, in milliseconds: the time that passes between two looks.
const LEASE_SLACK_MS: i64 = 10_000;

/// Makes the holds. Returns the highest token among them.
///
/// # Errors
///
/// If a command is refused.
pub fn make(master: &mut Connection) -> Result<u64> {
    let mut highest = 0;
    for step in STEPS {
        if let Value::Int(token) = master.ask(step)? {
            highest = highest.max(u64::try_from(token)?);
        }
    }
    Ok(highest)
}

/// Compares what both servers show, and reports differences. The replica may need a moment.
///
/// # Errors
///
/// If one of them does not answer.
pub fn compare(master: &mut Connection, replica: &mut Connection, violations: &mut Vec<Violation>) -> Result<()> {
    let deadline_us = now_us() + 10_000_000;
    loop {
        let mut differing = Vec::new();
        for key in KEYS {
            for verb in ["RLOCK.INFO", "RLOCK.WAITERS"] {
                let words = format!("{verb} parade:{key}");
                let (there, here) = (numbers(&master.ask(&words)?), numbers(&replica.ask(&words)?));
                if !are_alike(&there, &here) {
                    differing.push(format!("{words}: the master says {there:?}, the replica {here:?}"));
                }
            }
        }
        if differing.is_empty() {
            return Ok(());
        }
        if now_us() > deadline_us {
            let different = differing.into_iter().map(|story| Violation { rule: Rule::ReplicaAgrees, story });
            violations.extend(different);
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Asks a replica that accepts writes for a lock, and to end the holds of others.
///
/// # Errors
///
/// If it does not answer.
pub fn intrude(replica: &mut Connection, violations: &mut Vec<Violation>) -> Result<()> {
    for words in [
        "RLOCK.ACQUIRE parade:taken intruder PX 60000",
        "RLOCK.ACQUIRE parade:free intruder PX 60000",
        "RLOCK.RENEW parade:taken a PX 90000",
        "RLOCK.RELEASE parade:taken a",
        "RLOCK.FORCERELEASE parade:forced",
        "RFAIRLOCK.CANCEL parade:fair b",
    ] {
        let outcome = replica.call(words);
        if outcome != Outcome::Refused {
            let story = format!("a replica answered {words} with {outcome:?}");
            violations.push(Violation { rule: Rule::ReplicaDecidesNothing, story });
        }
    }
    Ok(())
}

/// Promotes the replica, and releases the holds. The next hold must have a higher token than all
/// before.
///
/// # Errors
///
/// If the replica is not promoted.
pub fn take_over(replica: &mut Connection, highest_token: u64, violations: &mut Vec<Violation>) -> Result<()> {
    // The queue lasts for this grace from here on: longer than the commands below take on any
    // machine.
    replica.ask("CONFIG SET rlock.fair-grace-ms 10000").context("cannot set the grace of fair locks")?;
    replica.ask("REPLICAOF NO ONE").context("cannot promote a replica")?;
    // The master has already counted this request.
    replica.ask("RLOCK.ACQUIRE parade:twice a PX 60000 REQ 6").context("cannot repeat a request after a promotion")?;
    for (words, left) in GIVEN_UP {
        let outcome = replica.call(words);
        if outcome != Outcome::Number(*left) {
            let story = format!("after a promotion, the answer to {words} was {outcome:?}; expected {left}");
            violations.push(Violation { rule: Rule::HoldIsKept, story });
        }
    }
    let passed = replica.call("RFAIRLOCK.ACQUIRE parade:fair e PX 60000");
    let answer = replica.call("RFAIRLOCK.ACQUIRE parade:fair b PX 60000");
    ensure!(!matches!(answer, Outcome::Unknown), "the promoted server does not answer");
    if matches!(answer, Outcome::Number(token) if token <= highest_token) {
        let story = format!("the token {answer:?} after a promotion is not above {highest_token}, given before");
        violations.push(Violation { rule: Rule::TokensRise, story });
    }
    if !matches!(answer, Outcome::Number(_)) || passed != Outcome::Nil {
        let story =
            format!("after a promotion, the head of a fair queue got {answer:?}, and a later request {passed:?}");
        violations.push(Violation { rule: Rule::FirstComeFirstServed, story });
    }
    Ok(())
}

/// The names and numbers of an answer, flattened.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Text(String),
    Number(i64),
}

fn numbers(value: &Value) -> Vec<Word> {
    match value {
        Value::Int(number) => vec![Word::Number(*number)],
        Value::BulkString(bytes) => vec![Word::Text(String::from_utf8_lossy(bytes).into_owned())],
        Value::SimpleString(text) => vec![Word::Text(text.clone())],
        Value::Array(values) => values.iter().flat_map(numbers).collect(),
        Value::Map(pairs) => pairs.iter().flat_map(|(key, value)| [numbers(key), numbers(value)].concat()).collect(),
        _ => Vec::new(),
    }
}

/// Spans of time may differ a little; everything else must be equal.
fn are_alike(there: &[Word], here: &[Word]) -> bool {
    const SPANS: [&str; 3] = ["lease-ms", "held-ms", "waited-ms"];
    let is_span = |name: Option<&Word>| matches!(name, Some(Word::Text(name)) if SPANS.contains(&name.as_str()));
    there.len() == here.len()
        && there.iter().zip(here).enumerate().all(|(at, (one, other))| match (one, other) {
            (Word::Number(one), Word::Number(other)) if is_span(at.checked_sub(1).and_then(|at| there.get(at))) => {
                (one - other).abs() < LEASE_SLACK_MS
            }
            _ => one == other,
        })
}
