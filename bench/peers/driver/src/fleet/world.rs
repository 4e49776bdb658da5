//! The engine with a keyspace in memory and a clock that jumps. Measures the time spent in the
//! engine.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rlock_core::{
    Acquired, Answer, Ask, Channel, Engine, Facts, Key, KeyId, KeyRef, Keyspace, Kind, Limits, Lock, Mode, Now, Outbox,
    Refusal, Release, Request, Transaction, Value, Verb, write_effect,
};

const LIMITS: Limits = Limits { max_waiters: usize::MAX, max_places: usize::MAX, fair_grace_ms: 5000, ..Limits::NONE };
/// A day in 2026. Only the number of digits matters.
const START_WALL_US: u64 = 1_790_000_000_000_000;

/// The locks, by number.
struct Table {
    keys: Vec<Key>,
    numbers: HashMap<Vec<u8>, usize>,
    locks: Vec<Option<Lock>>,
}

/// One lock of the table, opened for a request.
struct Open<'w> {
    table: &'w mut Table,
    lock: usize,
    client: Option<u64>,
}

impl Keyspace for Open<'_> {
    fn count(&self) -> usize {
        1
    }

    fn key(&self, _: KeyId) -> KeyRef<'_> {
        self.table.keys[self.lock].borrow()
    }

    fn value(&self, _: KeyId) -> Value<'_> {
        self.table.locks[self.lock].as_ref().map_or(Value::Vacant, Value::Lock)
    }

    fn lock_mut(&mut self, _: KeyId) -> Option<&mut Lock> {
        self.table.locks[self.lock].as_mut()
    }

    fn insert(&mut self, _: KeyId, lock: Lock) {
        self.table.locks[self.lock] = Some(lock);
    }

    fn remove(&mut self, _: KeyId) {
        self.table.locks[self.lock] = None;
    }

    fn expire_left_ms(&self, _: KeyId) -> Option<u64> {
        None
    }

    fn client(&self) -> Option<u64> {
        self.client
    }

    fn is_permitted(&self, _: u64, _: &Request) -> bool {
        true
    }
}

/// The costs of the engine, and the bytes that it sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Costs {
    /// The time in the engine.
    pub engine: Duration,
    /// The longest single call.
    pub longest: Duration,
    pub calls: u64,
    /// The size of the commands in the replication stream.
    pub replicated_bytes: u64,
}

pub struct World {
    pub engine: Engine,
    table: Table,
    pub now_us: u64,
    pub costs: Costs,
    /// Answers to waiters, not yet processed.
    pub answers: Vec<(u64, Answer)>,
}

impl World {
    pub fn new(locks: usize) -> Self {
        let name = |number: usize| format!("fleet:job:{number:09}").into_bytes();
        let keys = (0..locks).map(|number| Key { name: name(number).as_slice().into(), db: 0 }).collect();
        let numbers = (0..locks).map(|number| (name(number), number)).collect();
        Self {
            engine: Engine::new([1, 2, 3, 4]),
            table: Table { keys, numbers, locks: (0..locks).map(|_| None).collect() },
            now_us: 0,
            costs: Costs::default(),
            answers: Vec::new(),
        }
    }

    /// ACQUIRE with a session and NOTIFY, over the connection of a node.
    pub fn acquire(
        &mut self,
        lock: usize,
        owner: &[u8],
        (node, request_id): (u64, u64),
        (lease_ms, wait_ms): (u64, u64),
    ) -> Result<Acquired, Refusal> {
        let channel = u32::try_from(node).ok().and_then(|node| (node + 1).try_into().ok()).map(Channel);
        let request = Request {
            verb: Verb::Acquire,
            kind: Kind::Mutex,
            mode: Mode::Exclusive,
            count: 1,
            lease_ms,
            request_id: Some(request_id),
            session_ms: Some(0),
            claim_ms: None,
            grace_ms: None,
            is_once: false,
            is_timed: false,
            notify: channel,
            ask: Ask::Wait { until_us: Some(self.now_us + wait_ms * 1000) },
        };
        self.transact(lock, Some(node), |engine, tx| engine.acquire(tx, owner, &request))
    }

    pub fn release(&mut self, lock: usize, owner: &[u8], node: u64, token: u64) -> Result<(), Refusal> {
        let release = Release {
            verb: Verb::Release,
            kind: Kind::Mutex,
            owner,
            mode: Mode::Exclusive,
            count: 1,
            request_id: None,
            tokens: &[token],
            keep_ms: None,
            is_each: false,
        };
        self.transact(lock, Some(node), |engine, tx| engine.release(tx, &release).map(drop))
    }

    pub fn close(&mut self, node: u64) {
        self.engine.begin_turn();
        let started = Instant::now();
        self.engine.client_closed(node, |_| false);
        self.spent(started.elapsed());
    }

    /// Advances the time, and runs each timer when it is due. Stops early if a waiter got an
    /// answer.
    pub fn advance_to(&mut self, at_us: u64) {
        while let Some(due_us) = self.engine.next_timeout_us().filter(|due_us| *due_us <= at_us) {
            self.now_us = self.now_us.max(due_us);
            self.run_timer();
            if !self.answers.is_empty() {
                return;
            }
        }
        self.now_us = self.now_us.max(at_us);
    }

    fn run_timer(&mut self) {
        self.engine.begin_turn();
        loop {
            let mut out = Outbox::new(true);
            let now = self.now();
            let started = Instant::now();
            let job = self.engine.next_job(now, &mut out);
            self.spent(started.elapsed());
            self.take(None, &mut out);
            let Some(job) = job else { return };
            let lock = self.table.numbers[job.key.name.as_slice()];
            self.transact_in_turn(lock, None, |engine, tx| engine.run_job(tx, &job));
        }
    }

    fn transact<R>(
        &mut self,
        lock: usize,
        client: Option<u64>,
        request: impl FnOnce(&mut Engine, &mut Transaction<'_, Open<'_>>) -> R,
    ) -> R {
        self.engine.begin_turn();
        self.transact_in_turn(lock, client, request)
    }

    fn transact_in_turn<R>(
        &mut self,
        lock: usize,
        client: Option<u64>,
        request: impl FnOnce(&mut Engine, &mut Transaction<'_, Open<'_>>) -> R,
    ) -> R {
        let mut out = Outbox::new(true);
        let now = self.now();
        let mut open = Open { table: &mut self.table, lock, client };
        let mut tx = Transaction::new(now, LIMITS, &mut open, &mut out);
        let started = Instant::now();
        let result = request(&mut self.engine, &mut tx);
        let elapsed = started.elapsed();
        self.spent(elapsed);
        self.take(Some(lock), &mut out);
        result
    }

    fn take(&mut self, lock: Option<usize>, out: &mut Outbox) {
        let now = self.now();
        if let Some(lock) = lock {
            let key = self.table.keys[lock].name.as_slice().len();
            for number in 0..out.effects().len() {
                let Some(event) = out.event(number) else { continue };
                let mut facts = Facts::default();
                let owner = write_effect(event, now, &mut facts).owner.map(<[u8]>::len);
                self.costs.replicated_bytes += command_bytes(["RLOCK.APPLY".len(), key, facts.len()], owner);
            }
        }
        for told in out.take_answers() {
            self.engine.confirm_ticket(told.ticket);
            self.answers.push((told.ticket, told.answer));
        }
    }

    fn now(&self) -> Now {
        Now { mono_us: self.now_us, wall_us: START_WALL_US + self.now_us }
    }

    fn spent(&mut self, elapsed: Duration) {
        self.costs.engine += elapsed;
        self.costs.longest = self.costs.longest.max(elapsed);
        self.costs.calls += 1;
    }

    /// The memory of the values, without the server's own table of keys.
    pub fn value_bytes(&self) -> usize {
        let locks = self.table.locks.iter().flatten();
        locks.map(|lock| size_of::<Lock>() + lock.heap_bytes()).sum()
    }
}

/// The size of a command in the protocol: `*4 $11 RLOCK.APPLY $…`.
fn command_bytes(words: [usize; 3], last: Option<usize>) -> u64 {
    let digits = |number: usize| number.checked_ilog10().unwrap_or(0) as usize + 1;
    let bytes: usize = words.into_iter().chain(last).map(|length| 1 + digits(length) + 2 + length + 2).sum();
    (4 + bytes) as u64
}
