//! What can be seen of the locks on a server, by commands that change nothing.
//!
//! Every request is bounded in what it makes the server do: a few hundred keys in a step of SCAN, a few dozen locks in a pipeline, and a
//! lock that very many hold is not asked for all of its holders.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, Value};
use serde::Serialize;
use std::time::Duration;

use crate::exit::{FAILED, Failure};
use crate::text::printable;

/// How many keys the server looks at in one step of SCAN.
const KEYS_PER_STEP: usize = 500;

/// How many locks are asked about in one pipeline.
const LOCKS_PER_PIPELINE: usize = 50;

/// A lock whose value is larger may have more than a thousand holders or places.
const LARGE_BYTES: i64 = 128 * 1024;

/// How many waiters of a lock with very many holders are counted.
const COUNTED_WAITERS: usize = 1000;

/// Long for an answer of a server that is alive.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Holder {
    /// The owner.
    pub owner: String,
    /// exclusive, read, write or permits.
    pub mode: String,
    /// How often, or how many permits.
    pub holds: i64,
    /// The fencing token.
    pub token: i64,
    /// What is left of the lease.
    pub lease_ms: i64,
    /// Whether the hold is bound to a connection.
    pub session: bool,
}

/// Who waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Waiter {
    /// The owner.
    pub owner: String,
    /// exclusive, read, write or permits.
    pub mode: String,
    /// For how long by now.
    pub waited_ms: i64,
    /// Whether over a connection; otherwise it is a place in a fair queue.
    pub connected: bool,
}

/// A lock.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Lock {
    /// Its key, as text: bytes that are none are escaped.
    pub key: String,
    /// mutex, fair, rwlock or semaphore; empty if there are too many holders to ask for.
    pub kind: String,
    /// Who holds it; the first is enough for a table.
    pub holders: Vec<Holder>,
    /// Whether it has more holders than are asked for; then none is listed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub many_holders: bool,
    /// How many wait.
    pub waiters: i64,
    /// Of a semaphore: how many permits there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permits: Option<i64>,
    /// Of a semaphore: how many are available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
    /// How long the first in the queue has waited, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_wait_ms: Option<i64>,
    /// The key itself.
    #[serde(skip)]
    pub key_bytes: Vec<u8>,
}

impl Lock {
    /// Whether somebody could take it now.
    pub fn is_free(&self) -> bool {
        match self.available {
            Some(available) => available > 0 && self.waiters == 0,
            None => self.holders.is_empty() && !self.many_holders && self.waiters == 0,
        }
    }
}

/// A connection for looking.
pub struct Observer {
    connection: MultiplexedConnection,
    url: String,
}

impl Observer {
    /// Connects.
    ///
    /// # Errors
    ///
    /// If nobody answers there.
    pub async fn connect(url: &str) -> Result<Self, Failure> {
        let client = redis::Client::open(url).map_err(|error| Failure::new(FAILED, format!("--url: {error}")))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(2)))
            .set_response_timeout(Some(PATIENCE));
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connection.map_err(|error| Failure::of_server(url, &error))?;
        Ok(Self { connection, url: url.to_owned() })
    }

    /// Sends a command.
    pub(crate) async fn ask(&mut self, command: &Cmd) -> Result<Value, Failure> {
        let answer = self.connection.send_packed_command(command).await.and_then(Value::extract_error);
        answer.map_err(|error| Failure::of_server(&self.url, &error))
    }

    /// Sends several commands in one write. An answer may be an error.
    async fn ask_all(&mut self, commands: &Pipeline, count: usize) -> Result<Vec<Value>, Failure> {
        let answers = self.connection.send_packed_commands(commands, 0, count).await;
        answers.map_err(|error| Failure::of_server(&self.url, &error))
    }

    /// A lock with all of its holders, if there is one under the key.
    ///
    /// # Errors
    ///
    /// If the server refuses, as when something else is under the key.
    pub async fn lock(&mut self, key: &[u8]) -> Result<Option<Lock>, Failure> {
        let answer = self.ask(redis::cmd("RLOCK.INFO").arg(key)).await?;
        Ok(lock_of(key, &answer))
    }

    /// The first in the queue of a lock.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub async fn waiters(&mut self, key: &[u8], count: usize) -> Result<Vec<Waiter>, Failure> {
        let answer = self.ask(redis::cmd("RLOCK.WAITERS").arg(key).arg("COUNT").arg(count)).await?;
        Ok(items(&answer).iter().map(waiter_of).collect())
    }

    /// One step over the keys: those that are locks, and where to go on; 0 is the end.
    ///
    /// # Errors
    ///
    /// If the server refuses.
    pub async fn step(&mut self, cursor: u64, pattern: Option<&[u8]>) -> Result<(u64, Vec<Vec<u8>>), Failure> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("TYPE").arg("RedisLock").arg("COUNT").arg(KEYS_PER_STEP);
        if let Some(pattern) = pattern {
            scan.arg("MATCH").arg(pattern);
        }
        let answer = self.ask(&scan).await?;
        let (cursor, keys) = match items(&answer) {
            [cursor, keys] => (text(cursor).parse().unwrap_or(0), items(keys)),
            _ => (0, &[][..]),
        };
        Ok((cursor, keys.iter().map(|key| bytes(key).to_vec()).collect()))
    }

    /// What is under these keys. A key that is no lock any more is left out.
    ///
    /// # Errors
    ///
    /// If the server refuses.
    pub async fn locks(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Lock>, Failure> {
        let mut locks = Vec::with_capacity(keys.len());
        for keys in keys.chunks(LOCKS_PER_PIPELINE) {
            let mut sizes = redis::pipe();
            for key in keys {
                // The second tells a fair lock: its value is large by its queue, and not by its holders.
                sizes.cmd("MEMORY").arg("USAGE").arg(key).cmd("RFAIRLOCK.HOLDS").arg(key).arg("-");
            }
            let sizes = self.ask_all(&sizes, 2 * keys.len()).await?;
            let has_few_holders = |size: &[Value]| match size {
                [Value::Int(bytes), fair] => *bytes < LARGE_BYTES || matches!(fair, Value::Int(_)),
                _ => true,
            };
            let mut questions = redis::pipe();
            let mut are_few = Vec::with_capacity(keys.len());
            for (key, size) in keys.iter().zip(sizes.chunks(2)) {
                let are_few_here = has_few_holders(size);
                are_few.push(are_few_here);
                match are_few_here {
                    true => questions.cmd("RLOCK.INFO").arg(key),
                    false => questions.cmd("RLOCK.WAITERS").arg(key).arg("COUNT").arg(COUNTED_WAITERS),
                };
            }
            let answers = self.ask_all(&questions, keys.len()).await?;
            for ((key, answer), are_few) in keys.iter().zip(&answers).zip(are_few) {
                locks.extend(if are_few { lock_of(key, answer) } else { Some(large_lock_of(key, answer)) });
            }
        }
        Ok(locks)
    }

    /// Finds out how long the first in each queue has waited.
    ///
    /// # Errors
    ///
    /// If the server refuses.
    pub async fn add_longest_waits(&mut self, locks: &mut [Lock]) -> Result<(), Failure> {
        for locks in locks.chunks_mut(LOCKS_PER_PIPELINE) {
            let mut questions = redis::pipe();
            for lock in &*locks {
                questions.cmd("RLOCK.WAITERS").arg(&lock.key_bytes).arg("COUNT").arg(1);
            }
            let answers = self.ask_all(&questions, locks.len()).await?;
            for (lock, answer) in locks.iter_mut().zip(&answers) {
                lock.longest_wait_ms = items(answer).first().map(|waiter| waiter_of(waiter).waited_ms);
            }
        }
        Ok(())
    }

    /// Refuses a server that has not loaded the module: there, an empty list would be misleading.
    ///
    /// # Errors
    ///
    /// If the module is missing.
    pub async fn expect_module(&mut self) -> Result<(), Failure> {
        match self.lock(b"").await {
            Err(failure) if failure.is_about_missing_module() => Err(failure),
            // Whatever else it says, such as that this user may not look at that key, it is the module that says so.
            _ => Ok(()),
        }
    }

    /// A section of INFO, by field.
    ///
    /// # Errors
    ///
    /// If the server refuses.
    pub async fn info(&mut self, section: &str) -> Result<Vec<(String, String)>, Failure> {
        let answer = self.ask(redis::cmd("INFO").arg(section)).await?;
        let lines = text(&answer);
        let fields = lines.lines().filter_map(|line| line.split_once(':'));
        Ok(fields.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect())
    }
}

/// The items of an array; none if it is something else.
fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        _ => &[],
    }
}

fn bytes(value: &Value) -> &[u8] {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) => text.as_bytes(),
        Value::VerbatimString { text, .. } => text.as_bytes(),
        _ => &[],
    }
}

fn text(value: &Value) -> String {
    String::from_utf8_lossy(bytes(value)).into_owned()
}

/// A field of a map, which RESP2 has as an array.
fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    match map {
        Value::Map(fields) => fields.iter().find(|(key, _)| bytes(key) == name.as_bytes()).map(|(_, value)| value),
        Value::Array(fields) => {
            fields.chunks_exact(2).find(|pair| bytes(&pair[0]) == name.as_bytes()).map(|pair| &pair[1])
        }
        _ => None,
    }
}

fn number(map: &Value, name: &str) -> Option<i64> {
    match field(map, name) {
        Some(Value::Int(number)) => Some(*number),
        _ => None,
    }
}

fn words(map: &Value, name: &str) -> String {
    field(map, name).map(|value| printable(bytes(value))).unwrap_or_default()
}

fn lock_of(key: &[u8], info: &Value) -> Option<Lock> {
    let holders = items(field(info, "holders")?);
    let holder = |map: &Value| Holder {
        owner: words(map, "owner"),
        mode: words(map, "mode"),
        holds: number(map, "holds").unwrap_or(0),
        token: number(map, "token").unwrap_or(0),
        lease_ms: number(map, "lease-ms").unwrap_or(0),
        session: number(map, "session") == Some(1),
    };
    Some(Lock {
        key: printable(key),
        kind: words(info, "kind"),
        holders: holders.iter().map(holder).collect(),
        waiters: number(info, "waiters").unwrap_or(0),
        permits: number(info, "permits"),
        available: number(info, "available"),
        key_bytes: key.to_vec(),
        ..Lock::default()
    })
}

/// A lock of whose holders nothing is known but that they are many.
fn large_lock_of(key: &[u8], waiters: &Value) -> Lock {
    let waiters = i64::try_from(items(waiters).len()).unwrap_or(i64::MAX);
    Lock { key: printable(key), many_holders: true, waiters, key_bytes: key.to_vec(), ..Lock::default() }
}

fn waiter_of(map: &Value) -> Waiter {
    Waiter {
        owner: words(map, "owner"),
        mode: words(map, "mode"),
        waited_ms: number(map, "waited-ms").unwrap_or(0),
        connected: number(map, "connected") == Some(1),
    }
}
