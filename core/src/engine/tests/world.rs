//! A world for the engine: a keyspace in memory, a clock that jumps, and clients that remember what they were told.
//!
//! Every step checks what must hold in any history; see [`World::check`].

use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

use crate::bytes::{Key, KeyRef};
use crate::engine::{Engine, Turn};
use crate::event::Event;
use crate::keyspace::{KeyId, Keyspace, Slot, Stored};
use crate::lock::{Kind, Lock, Mode};
use crate::outbox::{Answer, Outbox, Output};
use crate::places::{Places, Stay};
use crate::request::Limits;
use crate::time::{Now, US_PER_MS};

pub(super) const KEY: KeyId = KeyId(0);

pub(super) const LIMITS: Limits = Limits { max_waiters: 6, max_places: 8, fair_grace_ms: 20 };

/// What lies under a key.
pub(super) enum Value {
    Lock(Stored),
    Foreign,
}

/// The keyspace with one key open.
pub(super) struct Open<'w> {
    key: Key,
    values: &'w mut BTreeMap<(u32, Vec<u8>), Value>,
}

impl Open<'_> {
    fn id(&self) -> (u32, Vec<u8>) {
        (self.key.db, self.key.name.as_slice().to_vec())
    }
}

impl Keyspace for Open<'_> {
    fn key(&self, _id: KeyId) -> KeyRef<'_> {
        self.key.borrow()
    }

    fn slot(&mut self, _id: KeyId) -> Slot<'_> {
        let id = self.id();
        match self.values.get_mut(&id) {
            None => Slot::Vacant,
            Some(Value::Foreign) => Slot::Foreign,
            Some(Value::Lock(stored)) => Slot::Lock(stored),
        }
    }

    fn insert(&mut self, _id: KeyId, stored: Stored) {
        let before = self.values.insert(self.id(), Value::Lock(stored));
        assert!(before.is_none(), "the engine inserts under vacant keys only");
    }

    fn remove(&mut self, _id: KeyId) {
        let before = self.values.remove(&self.id());
        assert!(matches!(before, Some(Value::Lock(_))), "the engine removes locks only");
    }
}

pub(super) struct World {
    pub(super) engine: Engine,
    pub(super) values: BTreeMap<(u32, Vec<u8>), Value>,
    pub(super) now: Now,
    /// Everything that left the engine and was not looked at yet, with the moment.
    pub(super) outputs: Vec<(u64, Key, Output)>,
    tokens: BTreeSet<u64>,
    waiting: BTreeSet<u64>,
}

pub(super) fn key(name: &str) -> Key {
    Key { name: name.as_bytes().into(), db: 0 }
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            engine: Engine::new([1, 2, 3, 4]),
            values: BTreeMap::new(),
            now: Now { mono_us: 0, wall_us: 1_000_000 },
            outputs: Vec::new(),
            tokens: BTreeSet::new(),
            waiting: BTreeSet::new(),
        }
    }

    pub(super) fn lock(&self, key: &Key) -> Option<&Lock> {
        match self.values.get(&(key.db, key.name.as_slice().to_vec()))? {
            Value::Lock(stored) => Some(&stored.lock),
            Value::Foreign => None,
        }
    }

    /// Runs one request on a key.
    pub(super) fn on_key<R>(
        &mut self,
        key: &Key,
        request: impl FnOnce(&mut Engine, &mut Turn<'_, Open<'_>>) -> R,
    ) -> R {
        let mut out = Outbox::default();
        let mut open = Open { key: key.clone(), values: &mut self.values };
        let mut turn = Turn { now: self.now, limits: LIMITS, keys: &mut open, out: &mut out };
        let result = request(&mut self.engine, &mut turn);
        self.take(key, &mut out);
        self.check();
        result
    }

    /// Notes that the engine has let a request wait.
    pub(super) fn expect_answer(&mut self, ticket: u64) {
        assert!(self.waiting.insert(ticket), "a ticket is given once");
    }

    /// A waiter that went away is told nothing.
    pub(super) fn waiter_left(&mut self, ticket: u64, gave_up: bool) {
        self.waiting.remove(&ticket);
        self.engine.waiter_left(ticket, gave_up);
    }

    pub(super) fn is_waiting(&self, ticket: u64) -> bool {
        self.waiting.contains(&ticket)
    }

    fn take(&mut self, key: &Key, out: &mut Outbox) {
        for output in out.drain() {
            match &output {
                Output::Effect { event: Event::Granted { token, .. }, .. } => {
                    let last = self.tokens.last().copied().unwrap_or(0);
                    assert!(*token > last, "tokens rise");
                    self.tokens.insert(*token);
                }
                Output::Effect { .. } => {}
                Output::Answer { ticket, answer } => {
                    assert!(self.waiting.remove(ticket), "{ticket} is answered once: {answer:?}");
                    if let Answer::Granted(token) = answer {
                        assert!(self.tokens.contains(token), "an answer has a token that was given");
                    }
                }
            }
            self.outputs.push((self.now.mono_us, key.clone(), output));
        }
    }

    /// Lets time pass; every deadline is met at its moment.
    pub(super) fn advance(&mut self, ms: u64) {
        let end_us = self.now.mono_us + ms * US_PER_MS;
        while let Some(due_us) = self.engine.next_deadline_us()
            && due_us <= end_us
        {
            self.jump_to(due_us.max(self.now.mono_us));
            self.run_timer();
        }
        self.jump_to(end_us);
    }

    /// Lets time pass while nothing may be decided.
    pub(super) fn pause(&mut self, ms: u64) {
        self.jump_to(self.now.mono_us + ms * US_PER_MS);
    }

    fn jump_to(&mut self, mono_us: u64) {
        self.now.wall_us += mono_us - self.now.mono_us;
        self.now.mono_us = mono_us;
    }

    /// What the module's timer does.
    pub(super) fn run_timer(&mut self) {
        loop {
            let mut out = Outbox::default();
            let next = self.engine.next_due(self.now, &mut out);
            self.take(&key("(none)"), &mut out);
            let Some(key) = next else { break };
            self.on_key(&key, |engine, turn| engine.settle_key(turn, KEY));
        }
        self.check_settled();
    }

    /// A value goes away by a command of the server's, as DEL does it.
    pub(super) fn unlink(&mut self, key: &Key) -> Option<Value> {
        let mut value = self.values.remove(&(key.db, key.name.as_slice().to_vec()))?;
        if let Value::Lock(stored) = &mut value {
            let alarm = core::mem::replace(&mut stored.alarm, crate::Alarm::NONE);
            let bound: Vec<u64> =
                stored.lock.holds().iter().filter(|hold| hold.session_ms().is_some()).map(crate::Hold::token).collect();
            self.engine.note_unlink(key.clone(), alarm, &bound);
        }
        Some(value)
    }

    /// A value comes by a command of the server's.
    pub(super) fn arrive(&mut self, key: &Key, value: Value) {
        self.unlink(key);
        let is_lock = matches!(value, Value::Lock(_));
        self.values.insert((key.db, key.name.as_slice().to_vec()), value);
        if is_lock {
            self.engine.note_arrival(key.clone());
        } else {
            self.engine.note(key.clone());
        }
    }

    /// What must hold after every step: exclusion, capacity, and the engine's own books.
    pub(super) fn check(&self) {
        self.engine.waiters.assert_consistent();
        for value in self.values.values() {
            if let Value::Lock(stored) = value {
                check_exclusion(&stored.lock, self.now);
            }
        }
    }

    /// What must hold once everything that was due is settled: whoever can hold does, and nothing is left behind.
    fn check_settled(&self) {
        let mut alarms = 0;
        for ((db, name), value) in &self.values {
            let key = KeyRef { name, db: *db };
            let Value::Lock(stored) = value else {
                assert_eq!(self.engine.waiting_on(key), 0, "nobody waits for a foreign value");
                continue;
            };
            assert!(!stored.lock.is_disposable(), "no key is left behind");
            assert!(stored.lock.lapsed_hold(self.now).is_none(), "no lapsed hold is left");
            if let Some(due_us) = stored.lock.next_deadline_us() {
                let (at_us, owner) = self.engine.leases.get(stored.alarm).expect("an alarm");
                assert_eq!(owner.borrow(), key);
                assert!(at_us <= due_us, "an alarm is not later than what it is for");
                alarms += 1;
            }
            if stored.lock.kind() == Kind::Fair {
                self.check_queue_settled(key, &stored.lock);
            } else if let Some((_, head)) = self.engine.waiters.first(key) {
                let request = &head.request;
                let owner = request.owner.as_slice();
                assert!(
                    !stored.lock.admits(owner, request.mode, request.count, self.now),
                    "the head of the queue waits although it could hold"
                );
            }
        }
        assert_eq!(self.engine.leases.len(), alarms, "no alarm is left behind");
    }

    /// A fair lock that is free is reserved for its head, which is not there; and connected places are those of the
    /// connections that wait, in the same order.
    fn check_queue_settled(&self, key: KeyRef<'_>, lock: &Lock) {
        let places = lock.places();
        if lock.live_holds(self.now).next().is_none() {
            let places = places.expect("a fair lock that is neither held nor waited for is gone");
            let head = places.first().unwrap();
            assert_ne!(head.stay, Stay::Connected, "a free lock is not kept from a head that is there");
            assert!(
                places.turn_until_us().is_some_and(|until_us| until_us > self.now.mono_us),
                "it is the head's turn"
            );
        }
        let places: Vec<_> = places.into_iter().flat_map(Places::iter).collect();
        assert!(
            places.iter().all(|place| place.stay.until_us().is_none_or(|until_us| until_us > self.now.mono_us)),
            "a place whose life is over is gone"
        );
        let connected: Vec<_> =
            places.iter().filter(|place| place.stay == Stay::Connected).map(|place| place.owner.to_vec()).collect();
        let mut waiting: Vec<_> =
            self.engine.waiters.in_order(key).map(|waiter| waiter.request.owner.as_slice().to_vec()).collect();
        let mut sorted = connected.clone();
        sorted.sort();
        waiting.sort();
        assert_eq!(sorted, waiting, "connected places are those of connections that wait");
    }
}

fn check_exclusion(lock: &Lock, now: Now) {
    let live: Vec<_> = lock.live_holds(now).collect();
    match lock.kind() {
        Kind::Mutex | Kind::Fair => assert!(live.len() <= 1, "one owner at a time"),
        Kind::RwLock => {
            for writer in live.iter().filter(|hold| hold.mode() == Mode::Write) {
                let alone = live.iter().all(|hold| hold.owner() == writer.owner());
                assert!(alone, "a writer is alone");
            }
        }
        Kind::Semaphore => {
            let used: u64 = live.iter().map(|hold| u64::from(hold.count())).sum();
            assert!(used <= u64::from(lock.permits()), "no more than the permits");
        }
    }
}
