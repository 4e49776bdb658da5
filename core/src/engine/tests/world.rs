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
use crate::queue::Holder;
use crate::request::Limits;
use crate::time::{Now, US_PER_MS};

pub(super) const KEY: KeyId = KeyId(0);

pub(super) const LIMITS: Limits = Limits { max_waiters: 6, max_places: 8, fair_grace_ms: 20 };

/// What lies under a key.
pub(super) enum Value {
    Lock(Stored),
    Foreign,
}

/// The keyspace with some keys open.
pub(super) struct Open<'w> {
    open: Vec<Key>,
    values: &'w mut BTreeMap<(u32, Vec<u8>), Value>,
}

impl Open<'_> {
    fn at(&self, id: KeyId) -> (u32, Vec<u8>) {
        let key = &self.open[id.0];
        (key.db, key.name.as_slice().to_vec())
    }
}

impl Keyspace for Open<'_> {
    fn open_count(&self) -> usize {
        self.open.len()
    }

    fn open(&mut self, key: KeyRef<'_>) -> Option<KeyId> {
        let known = self.open.iter().position(|open| open.borrow() == key);
        Some(KeyId(known.unwrap_or_else(|| {
            assert_eq!(key.db, self.open[0].db, "a request is about one database");
            self.open.push(key.to_key());
            self.open.len() - 1
        })))
    }

    fn key(&self, id: KeyId) -> KeyRef<'_> {
        self.open[id.0].borrow()
    }

    fn slot(&mut self, id: KeyId) -> Slot<'_> {
        let at = self.at(id);
        match self.values.get_mut(&at) {
            None => Slot::Vacant,
            Some(Value::Foreign) => Slot::Foreign,
            Some(Value::Lock(stored)) => Slot::Lock(stored),
        }
    }

    fn insert(&mut self, id: KeyId, stored: Stored) {
        let before = self.values.insert(self.at(id), Value::Lock(stored));
        assert!(before.is_none(), "the engine inserts under vacant keys only");
    }

    fn remove(&mut self, id: KeyId) {
        let before = self.values.remove(&self.at(id));
        assert!(matches!(before, Some(Value::Lock(_))), "the engine removes locks only");
    }
}

pub(super) struct World {
    pub(super) engine: Engine,
    pub(super) values: BTreeMap<(u32, Vec<u8>), Value>,
    pub(super) now: Now,
    pub(super) limits: Limits,
    /// Everything that left the engine and was not looked at yet, with the moment.
    pub(super) outputs: Vec<(u64, Key, Output)>,
    tokens: BTreeSet<u64>,
    waiting: BTreeSet<u64>,
    /// How many permits of each semaphore were in use, and how many there were, after the last step; forgotten when values move.
    used: BTreeMap<(u32, Vec<u8>), (u64, u64)>,
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
            limits: LIMITS,
            outputs: Vec::new(),
            tokens: BTreeSet::new(),
            waiting: BTreeSet::new(),
            used: BTreeMap::new(),
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
        self.on_keys(core::slice::from_ref(key), |engine, turn, _| request(engine, turn))
    }

    /// Runs one request on several keys.
    pub(super) fn on_keys<R>(
        &mut self,
        keys: &[Key],
        request: impl FnOnce(&mut Engine, &mut Turn<'_, Open<'_>>, &[KeyId]) -> R,
    ) -> R {
        let mut out = Outbox::default();
        let mut open = Open { open: keys.to_vec(), values: &mut self.values };
        let ids: Vec<KeyId> = (0..keys.len()).map(KeyId).collect();
        let mut turn = Turn { now: self.now, limits: self.limits, keys: &mut open, out: &mut out };
        let result = request(&mut self.engine, &mut turn, &ids);
        let open = open.open;
        self.take(&open, &mut out);
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

    pub(super) fn waiting_tickets(&self) -> Vec<u64> {
        self.waiting.iter().copied().collect()
    }

    pub(super) fn is_waiting(&self, ticket: u64) -> bool {
        self.waiting.contains(&ticket)
    }

    fn take(&mut self, open: &[Key], out: &mut Outbox) {
        for output in out.drain() {
            let key = match &output {
                Output::Effect { key, .. } => open[key.0].clone(),
                Output::Answer { .. } => key("(none)"),
            };
            match &output {
                Output::Effect { event: Event::Granted { token, .. }, .. } => {
                    let last = self.tokens.last().copied().unwrap_or(0);
                    assert!(*token > last, "tokens rise");
                    self.tokens.insert(*token);
                }
                Output::Effect { .. } => {}
                Output::Answer { ticket, answer } => {
                    assert!(self.waiting.remove(ticket), "{ticket} is answered once: {answer:?}");
                    let tokens: &[u64] = match answer {
                        Answer::Granted(token) => &[*token],
                        Answer::GrantedMany(tokens) => tokens,
                        _ => &[],
                    };
                    let given = tokens.iter().all(|token| self.tokens.contains(token));
                    assert!(given, "an answer has tokens that were given");
                }
            }
            self.outputs.push((self.now.mono_us, key, output));
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
            self.take(&[], &mut out);
            let Some(key) = next else { break };
            self.on_key(&key, |engine, turn| engine.settle_key(turn, KEY));
        }
        self.check_settled();
    }

    /// A value goes away by a command of the server's, as DEL does it.
    pub(super) fn unlink(&mut self, key: &Key) -> Option<Value> {
        self.forget_used();
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

    /// Values came and went without a command of ours.
    pub(super) fn forget_used(&mut self) {
        self.used.clear();
    }

    /// What must hold after every step: exclusion, capacity, and the engine's own books.
    pub(super) fn check(&mut self) {
        self.engine.waiters.assert_consistent();
        for key in self.engine.waiters.keys_in(|_| true) {
            if !self.engine.is_pending(key.borrow()) {
                self.check_holders(&key);
            }
        }
        for (name, value) in &self.values {
            let Value::Lock(stored) = value else { continue };
            check_exclusion(&stored.lock, self.now);
            if stored.lock.kind() == Kind::Semaphore {
                let used: u64 = stored.lock.live_holds(self.now).map(|hold| u64::from(hold.count())).sum();
                let permits = u64::from(stored.lock.permits());
                let (used_before, permits_before) = self.used.insert(name.clone(), (used, permits)).unwrap_or_default();
                // Only RESIZE may leave more in use than there are: what was in use, or was granted by the way before it.
                let is_known = permits_before != 0;
                let most = permits.max(used_before).max(permits_before);
                assert!(!is_known || used <= most, "no more than the permits");
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
                assert_eq!(self.engine.databases.to_current(owner.clone()).borrow(), key);
                assert!(at_us <= due_us, "an alarm is not later than what it is for");
                alarms += 1;
            }
            if stored.lock.kind() == Kind::Fair {
                self.check_queue_settled(key, &stored.lock);
            }
        }
        for key in self.engine.waiters.keys_in(|_| true) {
            if self.lock(&key).is_none_or(|lock| lock.kind() != Kind::Fair) {
                self.check_head_waits(&key);
            }
        }
        assert_eq!(self.engine.leases.len(), alarms, "no alarm is left behind");
    }

    /// The copy of the holders beside a queue is what the value says.
    fn check_holders(&self, key: &Key) {
        let lock = self.lock(key).filter(|lock| lock.kind() != Kind::Semaphore);
        let mut held: Vec<_> = lock
            .into_iter()
            .flat_map(Lock::holds)
            .map(|hold| {
                let (owner, mode, deadline_us) = (hold.owner().clone(), hold.mode(), hold.deadline_us());
                (hold.token(), Holder { owner, mode, deadline_us })
            })
            .collect();
        held.sort_by_key(|(token, _)| *token);
        assert_eq!(self.engine.waiters.holders(key.borrow()), held, "the holders beside the queue of {key:?}");
    }

    /// The head of a queue waits for something that is not to be had.
    fn check_head_waits(&self, key: &Key) {
        let (ticket, head) = self.engine.waiters.first(key.borrow()).unwrap();
        let request = &head.request;
        let can_have = head.keys.iter().all(|key| {
            let lock = self.lock(key);
            let is_own = lock.is_some_and(|lock| {
                lock.kind() == Kind::Mutex && lock.live_holds(self.now).any(|hold| *hold.owner() == request.owner)
            });
            let is_first = self.engine.waiters.first(key.borrow()).is_some_and(|(first, _)| first == ticket);
            let owner = request.owner.as_slice();
            let is_free = lock.is_none_or(|lock| lock.admits(owner, request.mode, request.count, self.now));
            is_own || (is_first && is_free)
        });
        assert!(!can_have, "the head of the queue waits although it could hold: {head:?}");
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
        assert!(places.iter().all(|place| place.is_live(self.now)), "a place whose life is over is gone");
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
        Kind::Semaphore => {}
    }
}
