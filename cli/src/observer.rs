//! What can be seen of the locks on a server, by commands that change nothing.
//!
//! Every request is bounded in what it makes the server do: a few hundred keys in a step of SCAN, a few dozen locks in a pipeline, and a
//! lock that very many hold is not asked for all of its holders.

use std::collections::{HashMap, HashSet};

use redis::{Cmd, Value};
use serde::Serialize;

use crate::address::Address;
use crate::answers::{bytes, field, items, number, text, words};
use crate::exit::Failure;
use crate::nodes::{self, Nodes};
use crate::text::printable;

/// How many keys the server looks at in one step of SCAN.
const KEYS_PER_STEP: usize = 500;

/// How many locks are asked about in one pipeline.
const LOCKS_PER_PIPELINE: usize = 50;

/// A lock whose value is larger may have more than a thousand holders or places.
const LARGE_BYTES: i64 = 128 * 1024;

/// How many waiters of a lock with very many holders are counted.
const COUNTED_WAITERS: usize = 1000;

/// What RLOCK.TOP lists at most.
const MOST_CONTENDED: usize = 1000;

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
    /// The holder's note.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A release that keeps the lock closed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Kept {
    /// The former owner.
    pub owner: String,
    /// The fencing token of the hold that has ended.
    pub token: i64,
    /// The time until the lock opens.
    pub keep_ms: i64,
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
    /// The waiter's note.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A lock.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Lock {
    /// Its key, as text: bytes that are none are escaped.
    pub key: String,
    /// mutex, fair, rwlock or semaphore; empty if there are too many holders to ask for.
    pub kind: String,
    /// Who holds it, a thousand at most; the first is enough for a table.
    pub holders: Vec<Holder>,
    /// How many hold it; absent if they were not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holders_count: Option<i64>,
    /// Whether it has more holders than are asked for; then none is listed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub many_holders: bool,
    /// The release that keeps it closed, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
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
            None => self.holders.is_empty() && self.kept.is_none() && !self.many_holders && self.waiters == 0,
        }
    }
}

/// How far a walk over all keys has come: which server, and where on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    node: usize,
    cursor: u64,
}

/// Connections for looking: one, or in a cluster one to each master that is asked something.
pub struct Observer {
    nodes: Nodes,
    refusals: Refusals,
}

/// Locks of which a server did not tell all, since somebody last asked for that.
#[derive(Default)]
struct Refusals {
    /// By the server's number, and the key.
    locks: HashSet<(usize, Vec<u8>)>,
    /// What was said to the first of them.
    first: Option<Failure>,
}

impl Refusals {
    /// Takes note of an answer that is an error. That something else is under the key is none: it was no lock any more when it was asked about.
    fn note(&mut self, node: usize, key: &[u8], answer: &Value) {
        if let Value::ServerError(error) = answer
            && error.code() != "WRONGTYPE"
        {
            self.locks.insert((node, key.to_vec()));
            let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
            self.first.get_or_insert_with(|| Failure::refused(text.trim()));
        }
    }
}

impl Observer {
    /// Connects.
    ///
    /// # Errors
    ///
    /// If nobody answers there.
    pub async fn connect(url: &str) -> Result<Self, Failure> {
        Ok(Self { nodes: nodes::find(&Address::parse(url)?).await?, refusals: Refusals::default() })
    }

    /// Whether all was told of the locks that were asked about since this was last asked.
    ///
    /// # Errors
    ///
    /// If a server refused to tell of some of them.
    pub fn all_was_told(&mut self) -> Result<(), Failure> {
        let Refusals { locks, first } = std::mem::take(&mut self.refusals);
        match first {
            None => Ok(()),
            Some(Failure { status, message }) => {
                Err(Failure::new(status, format!("not all is shown of {} locks: {message}", locks.len())))
            }
        }
    }

    /// Sends a command about a key.
    pub(crate) async fn ask_about(&mut self, key: &[u8], command: &Cmd) -> Result<Value, Failure> {
        self.nodes.of_key(key).await?.ask(command).await
    }

    /// A lock with all of its holders, if there is one under the key.
    ///
    /// # Errors
    ///
    /// If the server refuses, as when something else is under the key.
    pub async fn lock(&mut self, key: &[u8]) -> Result<Option<Lock>, Failure> {
        let answer = self.ask_about(key, redis::cmd("RLOCK.INFO").arg(key)).await?;
        Ok(lock_of(key, &answer))
    }

    /// The first in the queue of a lock.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub async fn waiters(&mut self, key: &[u8], count: usize) -> Result<Vec<Waiter>, Failure> {
        let answer = self.ask_about(key, redis::cmd("RLOCK.WAITERS").arg(key).arg("COUNT").arg(count)).await?;
        Ok(items(&answer).iter().map(waiter_of).collect())
    }

    /// One step over the keys of all servers: those that are locks, and where to go on; `None` is the end.
    ///
    /// # Errors
    ///
    /// If the server refuses.
    pub async fn step(
        &mut self,
        place: Place,
        pattern: Option<&[u8]>,
    ) -> Result<(Option<Place>, Vec<Vec<u8>>), Failure> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(place.cursor).arg("TYPE").arg("RedisLock").arg("COUNT").arg(KEYS_PER_STEP);
        if let Some(pattern) = pattern {
            scan.arg("MATCH").arg(pattern);
        }
        let answer = self.nodes.all()[place.node].ask(&scan).await?;
        let (cursor, keys) = match items(&answer) {
            [cursor, keys] => (text(cursor).parse().unwrap_or(0), items(keys)),
            _ => (0, &[][..]),
        };
        let next = if cursor > 0 { Place { cursor, ..place } } else { Place { node: place.node + 1, cursor: 0 } };
        let next = Some(next).filter(|next| next.node < self.nodes.all().len());
        Ok((next, keys.iter().map(|key| bytes(key).to_vec()).collect()))
    }

    /// The locks of all servers that most requests wait for, the most contended first. Those of other databases than that of the address have
    /// their number before the key, and no more than one holder.
    ///
    /// # Errors
    ///
    /// If a server refuses.
    pub async fn most_contended(&mut self, count: usize) -> Result<Vec<Lock>, Failure> {
        let asked_for = count.clamp(1, MOST_CONTENDED);
        let mut found = Vec::new();
        for (number, node) in self.nodes.all().iter_mut().enumerate() {
            let answer = node.ask(redis::cmd("RLOCK.TOP").arg("COUNT").arg(asked_for)).await?;
            found.extend(items(&answer).iter().map(|map| contended_lock_of(number, map)));
        }
        found.sort_by(|one, other| {
            other.lock.waiters.cmp(&one.lock.waiters).then_with(|| one.lock.key.cmp(&other.lock.key))
        });
        found.truncate(count);
        // The rest of what is shown, for those of which it can be asked over these connections.
        let mut details = HashMap::new();
        for number in 0..self.nodes.all().len() {
            let database = self.nodes.all()[number].database;
            let here = found.iter().filter(|found| (found.node, found.database) == (number, database));
            let keys: Vec<_> = here.map(|found| found.lock.key_bytes.clone()).collect();
            let locks = self.locks(Place { node: number, cursor: 0 }, &keys).await?;
            details.extend(locks.into_iter().map(|lock| ((number, lock.key_bytes.clone()), lock)));
        }
        let complete = |Contended { node, database, lock }: Contended| {
            if database != self.nodes.all()[node].database {
                return Some(Lock { key: format!("{database}/{}", lock.key), ..lock });
            }
            let place = (node, lock.key_bytes.clone());
            match details.remove(&place) {
                Some(details) => {
                    let waiters = details.waiters.max(lock.waiters);
                    Some(Lock { waiters, longest_wait_ms: lock.longest_wait_ms, ..details })
                }
                None if self.refusals.locks.contains(&place) => Some(lock),
                // Nobody holds it any more, or waits for it.
                None => None,
            }
        };
        Ok(found.into_iter().filter_map(complete).collect())
    }

    /// What is under these keys, which a step has found from this place on. A key that is no lock any more is left out, and one that the server
    /// does not tell of: [`all_was_told`](Self::all_was_told).
    ///
    /// # Errors
    ///
    /// If the server refuses.
    pub async fn locks(&mut self, place: Place, keys: &[Vec<u8>]) -> Result<Vec<Lock>, Failure> {
        let node = &mut self.nodes.all()[place.node];
        let mut locks = Vec::with_capacity(keys.len());
        for keys in keys.chunks(LOCKS_PER_PIPELINE) {
            let mut sizes = redis::pipe();
            for key in keys {
                // The second tells a fair lock: its value is large by its queue, and not by its holders.
                sizes.cmd("MEMORY").arg("USAGE").arg(key).cmd("RFAIRLOCK.HOLDS").arg(key).arg("-");
            }
            let sizes = node.ask_all(&sizes, 2 * keys.len()).await?;
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
            let answers = node.ask_all(&questions, keys.len()).await?;
            for ((key, answer), are_few) in keys.iter().zip(&answers).zip(are_few) {
                self.refusals.note(place.node, key, answer);
                locks.extend(if are_few { lock_of(key, answer) } else { large_lock_of(key, answer) });
            }
        }
        Ok(locks)
    }

    /// Finds out how long the first in each queue has waited, of locks that a step has found from this place on.
    ///
    /// # Errors
    ///
    /// If the server refuses.
    pub async fn add_longest_waits(&mut self, place: Place, locks: &mut [Lock]) -> Result<(), Failure> {
        let node = &mut self.nodes.all()[place.node];
        for locks in locks.chunks_mut(LOCKS_PER_PIPELINE) {
            let mut questions = redis::pipe();
            for lock in &*locks {
                questions.cmd("RLOCK.WAITERS").arg(&lock.key_bytes).arg("COUNT").arg(1);
            }
            let answers = node.ask_all(&questions, locks.len()).await?;
            for (lock, answer) in locks.iter_mut().zip(&answers) {
                self.refusals.note(place.node, &lock.key_bytes, answer);
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

    /// A section of INFO of each server, by field.
    ///
    /// # Errors
    ///
    /// If a server refuses.
    pub async fn info(&mut self, section: &str) -> Result<Vec<Vec<(String, String)>>, Failure> {
        let mut all = Vec::with_capacity(self.nodes.all().len());
        for node in self.nodes.all() {
            let answer = node.ask(redis::cmd("INFO").arg(section)).await?;
            let lines = text(&answer);
            let fields = lines.lines().filter_map(|line| line.split_once(':'));
            all.push(fields.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect());
        }
        Ok(all)
    }
}

/// A lock of which RLOCK.TOP tells.
struct Contended {
    /// By which server.
    node: usize,
    database: i64,
    lock: Lock,
}

fn contended_lock_of(node: usize, map: &Value) -> Contended {
    let key = field(map, "key").map(bytes).unwrap_or_default();
    let holder = field(map, "owner").map(|owner| Holder {
        owner: printable(bytes(owner)),
        token: number(map, "token").unwrap_or(0),
        note: note_of(map),
        ..Holder::default()
    });
    let lock = Lock {
        key: printable(key),
        kind: words(map, "kind"),
        holders: holder.into_iter().collect(),
        waiters: number(map, "waiters").unwrap_or(0),
        longest_wait_ms: number(map, "oldest-wait-ms"),
        key_bytes: key.to_vec(),
        ..Lock::default()
    };
    Contended { node, database: number(map, "db").unwrap_or(0), lock }
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
        note: note_of(map),
    };
    let kept = |map: &Value| Kept {
        owner: words(map, "owner"),
        token: number(map, "token").unwrap_or(0),
        keep_ms: number(map, "keep-ms").unwrap_or(0),
    };
    Some(Lock {
        key: printable(key),
        kind: words(info, "kind"),
        holders: holders.iter().map(holder).collect(),
        holders_count: number(info, "holders-count"),
        kept: field(info, "kept").map(kept),
        waiters: number(info, "waiters").unwrap_or(0),
        permits: number(info, "permits"),
        available: number(info, "available"),
        key_bytes: key.to_vec(),
        ..Lock::default()
    })
}

/// A lock of whose holders nothing is known but that they are many.
fn large_lock_of(key: &[u8], waiters: &Value) -> Option<Lock> {
    let Value::Array(waiters) = waiters else { return None };
    let waiters = i64::try_from(waiters.len()).unwrap_or(i64::MAX);
    Some(Lock { key: printable(key), many_holders: true, waiters, key_bytes: key.to_vec(), ..Lock::default() })
}

fn waiter_of(map: &Value) -> Waiter {
    Waiter {
        owner: words(map, "owner"),
        mode: words(map, "mode"),
        waited_ms: number(map, "waited-ms").unwrap_or(0),
        connected: number(map, "connected") == Some(1),
        note: note_of(map),
    }
}

fn note_of(map: &Value) -> Option<String> {
    field(map, "note").map(|note| printable(bytes(note)))
}
