//! Reads the state of locks with commands that change nothing.
//!
//! Each request costs the server a bounded time: a step of SCAN covers 500 keys, a pipeline 50
//! locks, and no request returns the holders of a lock that has thousands.

use std::collections::{HashMap, HashSet};

use redis::{Cmd, Value};
use serde::Serialize;

use crate::address::Address;
use crate::answers::{bytes, field, integer, items, number, text, words};
use crate::exit::Failure;
use crate::nodes::{self, Nodes};
use crate::text::printable;

/// Keys per step of SCAN.
const KEYS_PER_STEP: usize = 500;

/// Locks per pipeline.
const LOCKS_PER_PIPELINE: usize = 50;

/// A lock with a larger value may have more than a thousand holders or places.
const LARGE_BYTES: i64 = 128 * 1024;

/// The most waiters to count of a lock with thousands of holders.
const COUNTED_WAITERS: usize = 1000;

/// The largest COUNT of RLOCK.TOP.
const MOST_CONTENDED: usize = 1000;

/// A holder of a lock.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Holder {
    /// The owner.
    pub owner: String,
    /// exclusive, read, write or permits.
    pub mode: String,
    /// The count of the hold; its number of permits for a semaphore.
    pub holds: i64,
    /// The fencing token.
    pub token: i64,
    /// The time left of the lease.
    pub lease_ms: i64,
    /// The time since the grant.
    pub held_ms: i64,
    /// Whether the hold has a session: it is bound to connections.
    pub session: bool,
    /// The ids of these connections, as in `CLIENT LIST ID`.
    pub clients: Vec<i64>,
    /// The note of the hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A release that keeps the lock closed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Kept {
    /// The former owner.
    pub owner: String,
    /// The fencing token of the released hold.
    pub token: i64,
    /// The time until the lock opens.
    pub keep_ms: i64,
}

/// A waiter of a lock.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Waiter {
    /// The owner.
    pub owner: String,
    /// exclusive, read, write or permits.
    pub mode: String,
    /// The time since it began to wait.
    pub waited_ms: i64,
    /// Whether it waits on a connection. Otherwise it is a place in a fair queue.
    pub connected: bool,
    /// The id of that connection, as in `CLIENT LIST ID`; 0 without one.
    pub client: i64,
    /// The note of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A lock.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Lock {
    /// The key as text; bytes that are not text are escaped.
    pub key: String,
    /// mutex, fair, rwlock or semaphore; empty if `many_holders`.
    pub kind: String,
    /// At most 1000 holders. A table shows the first.
    pub holders: Vec<Holder>,
    /// The number of holders; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holders_count: Option<i64>,
    /// Whether the lock is too large to request its holders; `holders` is empty then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub many_holders: bool,
    /// The release that keeps the lock closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    /// The number of waiters.
    pub waiters: i64,
    /// The number of permits of a semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permits: Option<i64>,
    /// The number of available permits of a semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
    /// How long the first waiter has waited, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_wait_ms: Option<i64>,
    /// The bytes of the key.
    #[serde(skip)]
    pub key_bytes: Vec<u8>,
}

impl Lock {
    /// Whether a request would be granted now.
    pub fn is_free(&self) -> bool {
        match self.available {
            Some(available) => available > 0 && self.waiters == 0,
            None => self.holders.is_empty() && self.kept.is_none() && !self.many_holders && self.waiters == 0,
        }
    }
}

/// A position of a scan over the keys of all servers: the server, and the cursor of SCAN on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    node: usize,
    cursor: u64,
}

/// Connections to the servers: to one, or to the masters of a cluster, each connected at its first
/// request.
pub struct Observer {
    nodes: Nodes,
    refusals: Refusals,
}

/// The locks whose details a server refused since the last [`Observer::check_complete`].
#[derive(Default)]
struct Refusals {
    /// The index of the server, and the key.
    locks: HashSet<(usize, Vec<u8>)>,
    /// The error for the first of them.
    first: Option<Failure>,
}

impl Refusals {
    /// Records an error reply. WRONGTYPE is no refusal: the lock was replaced by another value
    /// after SCAN had found it.
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
    /// Connects to the server of an address.
    ///
    /// # Errors
    ///
    /// If the address is invalid, or no server answers.
    pub async fn connect(url: &str) -> Result<Self, Failure> {
        Ok(Self { nodes: nodes::find(&Address::parse(url)?).await?, refusals: Refusals::default() })
    }

    /// Checks that the servers answered all requests about locks since the last check.
    ///
    /// # Errors
    ///
    /// If a server refused some of them.
    pub fn check_complete(&mut self) -> Result<(), Failure> {
        let Refusals { locks, first } = std::mem::take(&mut self.refusals);
        match first {
            None => Ok(()),
            Some(Failure { status, message }) => {
                Err(Failure::new(status, format!("details of {} locks are missing: {message}", locks.len())))
            }
        }
    }

    /// Sends a command about a key.
    pub(crate) async fn ask_about(&mut self, key: &[u8], command: &Cmd) -> Result<Value, Failure> {
        self.nodes.of_key(key).await?.ask(command).await
    }

    /// The lock under a key, with its holders.
    ///
    /// # Errors
    ///
    /// If the server refuses, such as for a value of another type.
    pub async fn lock(&mut self, key: &[u8]) -> Result<Option<Lock>, Failure> {
        let answer = self.ask_about(key, redis::cmd("RLOCK.INFO").arg(key)).await?;
        Ok(lock_of(key, &answer))
    }

    /// The first `count` waiters of a lock.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub async fn waiters(&mut self, key: &[u8], count: usize) -> Result<Vec<Waiter>, Failure> {
        let answer = self.ask_about(key, redis::cmd("RLOCK.WAITERS").arg(key).arg("COUNT").arg(count)).await?;
        Ok(items(&answer).iter().map(waiter_of).collect())
    }

    /// One step of a scan over the keys of all servers. Returns the locks that it found and the
    /// next position; `None` is the end.
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

    /// The locks of all servers with the most waiters, the most contended first. A lock in another
    /// database than that of the address has the number of the database before its key, and at most
    /// one holder.
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
        // All details of the locks in the database of these connections.
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
                // The lock has been released meanwhile, and has no waiters.
                None => None,
            }
        };
        Ok(found.into_iter().filter_map(complete).collect())
    }

    /// The locks under keys that [`step`](Self::step) found at a position. Leaves out keys that are
    /// no locks any longer, and those that the server refuses: see
    /// [`check_complete`](Self::check_complete).
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
                // The second command identifies a fair lock, whose value is large because of its
                // queue and not because of its holders.
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

    /// Adds the time that the first waiter of each lock has waited, for locks that
    /// [`step`](Self::step) found at a position.
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

    /// Fails if the server has not loaded the module, where an empty list would be misleading.
    ///
    /// # Errors
    ///
    /// If the module is missing.
    pub async fn expect_module(&mut self) -> Result<(), Failure> {
        match self.lock(b"").await {
            Err(failure) if failure.is_about_missing_module() => Err(failure),
            // Any other error, such as a missing permission for that key, comes from the module.
            _ => Ok(()),
        }
    }

    /// The fields of a section of INFO, of each server.
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

/// A lock in the reply of RLOCK.TOP.
struct Contended {
    /// The index of the server.
    node: usize,
    database: i64,
    lock: Lock,
}

fn contended_lock_of(node: usize, map: &Value) -> Contended {
    let key = field(map, "key").map(bytes).unwrap_or_default();
    let holder = field(map, "owner").map(|owner| Holder {
        owner: printable(bytes(owner)),
        token: number(map, "token").unwrap_or(0),
        held_ms: number(map, "held-ms").unwrap_or(0),
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
        held_ms: number(map, "held-ms").unwrap_or(0),
        session: number(map, "session") == Some(1),
        clients: field(map, "clients").map(items).unwrap_or_default().iter().filter_map(integer).collect(),
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

/// A lock whose holders were not requested, because it has too many.
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
        client: number(map, "client").unwrap_or(0),
        note: note_of(map),
    }
}

fn note_of(map: &Value) -> Option<String> {
    field(map, "note").map(|note| printable(bytes(note)))
}
