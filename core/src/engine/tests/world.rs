//! A world for the engine: a keyspace in memory, a clock that jumps, and clients that remember
//! their answers.
//!
//! Every step checks the invariants of any history; see [`World::check`].

use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

use super::keyspace::{Open, Value};
use crate::bytes::Key;
use crate::engine::{Engine, Job, Transaction};
use crate::event::Event;
use crate::keyspace::KeyId;
use crate::kind::{Kind, Mode};
use crate::limits::Limits;
use crate::lock::{Hold, Lock};
use crate::outbox::{Answer, Grant, Notice, Outbox, Told};
use crate::request::{Ask, Release, Request, Verb};
use crate::time::{Now, US_PER_MS};

pub(super) const LIMITS: Limits = Limits { max_waiters: 6, max_places: 8, fair_grace_ms: 20, ..Limits::NONE };

/// An output of the engine.
pub(super) enum Output {
    Effect { key: Key, event: Event },
    Answer { ticket: u64, answer: Answer, notice: Option<Notice> },
}

pub(super) struct World {
    pub(super) engine: Engine,
    pub(super) values: BTreeMap<(u32, Vec<u8>), Value>,
    pub(super) now: Now,
    pub(super) limits: Limits,
    /// All unprocessed outputs, with their time.
    pub(super) outputs: Vec<(u64, Output)>,
    /// The connection of the next request.
    pub(super) client: Option<u64>,
    /// Connections without the right to acquire.
    pub(super) barred: BTreeSet<u64>,
    tokens: BTreeSet<u64>,
    /// Tickets by number: the first waiter is 1.
    tickets: Vec<u64>,
    waiting: BTreeSet<u64>,
    answered_early: BTreeSet<u64>,
    /// Granted tickets whose answer is to be published.
    pub(super) unpublished: Vec<(u64, Notice)>,
    /// The permits in use, and their total, of each semaphore after the last step. Forgotten when
    /// values move.
    pub(super) used: BTreeMap<(u32, Vec<u8>), (u64, u64)>,
    /// A replica: it receives only effects, and the server's own operations.
    pub(super) replica: Engine,
    pub(super) replica_values: BTreeMap<(u32, Vec<u8>), Value>,
    /// Whether consecutive commands share the budget of a turn.
    pub(super) shares_turns: bool,
    /// This world replays a history that was checked before.
    pub(super) is_repeated: bool,
}

/// RELEASE of one hold without options.
pub(super) fn releasing(kind: Kind, mode: Mode, owner: &[u8]) -> Release<'_> {
    let verb = Verb::Release;
    Release { verb, kind, owner, mode, count: 1, request_id: None, tokens: &[], keep_ms: None, is_each: false }
}

/// ACQUIRE of one hold with a lease of one second and no options.
pub(super) fn asking(kind: Kind, mode: Mode, ask: Ask) -> Request {
    Request {
        verb: Verb::Acquire,
        kind,
        mode,
        count: 1,
        lease_ms: 1000,
        request_id: None,
        session_ms: None,
        claim_ms: None,
        grace_ms: None,
        is_once: false,
        is_timed: false,
        notify: None,
        ask,
    }
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
            client: None,
            barred: BTreeSet::new(),
            tickets: Vec::new(),
            tokens: BTreeSet::new(),
            waiting: BTreeSet::new(),
            answered_early: BTreeSet::new(),
            unpublished: Vec::new(),
            used: BTreeMap::new(),
            replica: Engine::new([1, 2, 3, 4]),
            replica_values: BTreeMap::new(),
            shares_turns: false,
            is_repeated: false,
        }
    }

    pub(super) fn lock(&self, key: &Key) -> Option<&Lock> {
        match self.values.get(&(key.db, key.name.as_slice().to_vec()))? {
            Value::Lock(lock) => Some(lock),
            Value::Foreign => None,
        }
    }

    /// Runs one request on a key.
    pub(super) fn on_key<R>(
        &mut self,
        key: &Key,
        request: impl FnOnce(&mut Engine, &mut Transaction<'_, Open<'_>>) -> R,
    ) -> R {
        self.on_keys(core::slice::from_ref(key), request)
    }

    /// Runs one request on several keys, and takes its offers.
    pub(super) fn on_keys<R>(
        &mut self,
        keys: &[Key],
        request: impl FnOnce(&mut Engine, &mut Transaction<'_, Open<'_>>) -> R,
    ) -> R {
        if !self.shares_turns {
            self.engine.begin_turn();
        }
        self.within_turn(keys, request)
    }

    fn within_turn<R>(
        &mut self,
        keys: &[Key],
        request: impl FnOnce(&mut Engine, &mut Transaction<'_, Open<'_>>) -> R,
    ) -> R {
        let result = self.transact(keys, request);
        self.client = None;
        self.take_offers();
        self.check();
        result
    }

    fn take_offers(&mut self) {
        while let Some((offer, keys)) = self.engine.next_offer(|_| true) {
            self.transact(&keys, |engine, tx| engine.take_offer(tx, offer));
        }
    }

    pub(super) fn transact<R>(
        &mut self,
        keys: &[Key],
        request: impl FnOnce(&mut Engine, &mut Transaction<'_, Open<'_>>) -> R,
    ) -> R {
        let mut out = Outbox::new(true);
        let mut open =
            Open { open: keys.to_vec(), client: self.client, barred: &self.barred, values: &mut self.values };
        let mut tx = Transaction::new(self.now, self.limits, &mut open, &mut out);
        let result = request(&mut self.engine, &mut tx);
        self.take(keys, &out);
        result
    }

    /// Records a new waiter. Returns the number that stories use for it.
    pub(super) fn expect_answer(&mut self, ticket: u64) -> usize {
        assert!(!self.tickets.contains(&ticket), "tickets are unique");
        // A later reconciliation in the same step may have granted it already.
        if !self.answered_early.remove(&ticket) {
            self.waiting.insert(ticket);
        }
        self.tickets.push(ticket);
        self.tickets.len()
    }

    /// The number that stories use for a ticket.
    pub(super) fn number_of(&self, ticket: u64) -> usize {
        self.tickets.iter().position(|known| *known == ticket).expect("a known ticket") + 1
    }

    /// The ticket with a number.
    pub(super) fn ticket(&self, number: usize) -> Option<u64> {
        self.tickets.get(number.checked_sub(1)?).copied()
    }

    /// A waiter that has left gets no answer.
    pub(super) fn waiter_left(&mut self, number: usize, timed_out: bool) {
        let ticket = self.ticket(number).expect("a known ticket");
        self.waiting.remove(&ticket);
        self.engine.waiter_left(ticket, timed_out);
    }

    pub(super) fn waiting_numbers(&self) -> Vec<usize> {
        self.waiting.iter().map(|ticket| self.number_of(*ticket)).collect()
    }

    pub(super) fn is_waiting(&self, number: usize) -> bool {
        self.ticket(number).is_some_and(|ticket| self.waiting.contains(&ticket))
    }

    pub(super) fn take(&mut self, open: &[Key], out: &Outbox) {
        let mut answers = out.answers().iter().peekable();
        for index in 0..=out.effects().len() {
            while let Some(told) = answers.next_if(|told| told.after <= index) {
                self.take_answer(told);
            }
            let Some(effect) = out.effects().get(index) else {
                break;
            };
            let event = out.event(index).cloned().expect("a world keeps all events");
            if let Event::Granted { token, .. } = &event {
                let last = self.tokens.last().copied().unwrap_or(0);
                assert!(*token > last, "tokens rise");
                self.tokens.insert(*token);
            }
            let mut copy = Open {
                open: [open[effect.key.0].clone()].into(),
                client: None,
                barred: &self.barred,
                values: &mut self.replica_values,
            };
            let applied = self.replica.apply_effect(&mut copy, KeyId(0), &event);
            assert_eq!(applied, Ok(()), "a replica can apply {event:?} to {:?}", open[effect.key.0]);
            self.outputs.push((self.now.mono_us, Output::Effect { key: open[effect.key.0].clone(), event }));
        }
    }

    fn take_answer(&mut self, Told { ticket, answer, notice, .. }: &Told) {
        self.keep_to_publish(*ticket, *notice, answer);
        let is_first =
            self.waiting.remove(ticket) || (!self.tickets.contains(ticket) && self.answered_early.insert(*ticket));
        assert!(is_first, "{ticket} gets one answer: {answer:?}");
        if let Answer::Granted(Grant { tokens, belief, .. }) = answer {
            assert!(tokens.iter().all(|token| self.tokens.contains(token)), "an answer has granted tokens");
            let holds = || {
                self.values.values().filter_map(|value| if let Value::Lock(lock) = value { Some(lock) } else { None })
            };
            let deadline_us =
                |token: &u64| holds().find_map(|lock| lock.hold_with_token(*token)).map(Hold::deadline_us);
            let ends_us = tokens.iter().filter_map(deadline_us).min();
            if let Some((belief, ends_us)) = belief.zip(ends_us) {
                // The same command may have prolonged the hold after the grant.
                assert!(belief.until_us <= ends_us, "a belief ends with the first of the holds");
                assert!(belief.from_us <= self.now.mono_us, "a belief counts from the receipt of the request");
            }
        }
        self.outputs
            .push((self.now.mono_us, Output::Answer { ticket: *ticket, answer: answer.clone(), notice: *notice }));
    }

    /// Observes a key on the replica without deciding anything.
    pub(super) fn observe(&mut self, job: &Job) {
        let mut open =
            Open { open: [job.key.clone()].into(), client: None, barred: &self.barred, values: &mut self.values };
        self.engine.observe(&mut open, KeyId(0), job);
    }

    /// Runs the timer of the replica until it has no work.
    pub(super) fn observe_on_replica(&mut self) {
        while self.replica.has_to_observe() {
            self.replica.begin_turn();
            while let Some(job) = self.replica.next_to_observe() {
                let mut open = Open {
                    open: [job.key.clone()].into(),
                    client: None,
                    barred: &self.barred,
                    values: &mut self.replica_values,
                };
                self.replica.observe(&mut open, KeyId(0), &job);
            }
        }
        assert!(!self.replica.has_retired(), "and freed all retired memory");
    }

    /// Swaps the first two databases.
    pub(super) fn swap(&mut self) {
        self.forget_used();
        let swapped = |db: u32| if db < 2 { 1 - db } else { db };
        for values in [&mut self.values, &mut self.replica_values] {
            for ((db, name), value) in std::mem::take(values) {
                values.insert((swapped(db), name), value);
            }
        }
        self.engine.swapped(0, 1);
        self.replica.swapped(0, 1);
    }

    /// Flushes a database.
    pub(super) fn flush_db(&mut self, db: u32) {
        self.forget_used();
        for values in [&mut self.values, &mut self.replica_values] {
            values.retain(|(of, _), _| *of != db);
        }
        self.engine.flushed(Some(db));
        self.replica.flushed(Some(db));
    }

    /// Flushes all databases.
    pub(super) fn flush(&mut self) {
        self.forget_used();
        self.values.clear();
        self.replica_values.clear();
        self.engine.flushed(None);
        self.replica.flushed(None);
    }

    /// Promotes the replica, and makes the master a server that has loaded its data. All waiters
    /// and connections are gone.
    pub(super) fn fail_over(&mut self) {
        let work = self.engine.budget;
        std::mem::swap(&mut self.engine, &mut self.replica);
        std::mem::swap(&mut self.values, &mut self.replica_values);
        self.replica = Engine::new([1, 2, 3, 4]);
        self.replica.raise_token(self.engine.last_token());
        self.replica_values.clear();
        for (at, value) in &self.values {
            let copy = match value {
                Value::Lock(lock) => Value::Lock(lock.clone()),
                Value::Foreign => Value::Foreign,
            };
            self.replica_values.insert(at.clone(), copy);
            self.replica.value_loaded(Key { db: at.0, name: at.1.as_slice().into() });
        }
        self.engine.budget = work;
        self.tickets.clear();
        self.waiting.clear();
        self.answered_early.clear();
        self.unpublished.clear();
        self.outputs.clear();
        self.engine.promoted();
    }

    /// Advances the clock, stopping at each deadline.
    pub(super) fn advance(&mut self, ms: u64) {
        let end_us = self.now.mono_us + ms * US_PER_MS;
        while let Some(due_us) = self.engine.next_timeout_us()
            && due_us <= end_us
        {
            self.jump_to(due_us.max(self.now.mono_us));
            self.run_timer();
        }
        self.jump_to(end_us);
    }

    /// Advances the clock while the engine may decide nothing.
    pub(super) fn pause(&mut self, ms: u64) {
        self.jump_to(self.now.mono_us + ms * US_PER_MS);
    }

    fn jump_to(&mut self, mono_us: u64) {
        self.now.wall_us += mono_us - self.now.mono_us;
        self.now.mono_us = mono_us;
    }

    /// Runs the module's timer until no work is due.
    pub(super) fn run_timer(&mut self) {
        for turn in 0.. {
            assert!(turn < 100_000, "the timer finishes");
            self.run_timer_once();
            if self.engine.next_timeout_us().is_none_or(|at_us| at_us > self.now.mono_us) {
                break;
            }
        }
        self.check_at_rest();
    }

    /// Runs the timer while the server takes no writes.
    pub(super) fn end_waits(&mut self) -> bool {
        self.engine.begin_turn();
        let mut out = Outbox::new(true);
        let has_more = self.engine.end_waits(self.now, &mut out);
        assert!(out.effects().is_empty(), "nothing is written");
        self.take(&[], &out);
        has_more
    }

    /// Runs one turn of the timer, which may do only a part.
    pub(super) fn run_timer_once(&mut self) {
        self.engine.begin_turn();
        for step in 0.. {
            assert!(step < 100_000, "the turn finishes");
            self.take_offers();
            let mut out = Outbox::new(true);
            let next = self.engine.next_job(self.now, &mut out);
            self.take(&[], &out);
            let Some(job) = next else { break };
            self.within_turn(core::slice::from_ref(&job.key), |engine, tx| engine.run_job(tx, &job));
        }
    }

    /// A server command such as DEL removes a value.
    pub(super) fn unlink(&mut self, key: &Key) -> Option<Value> {
        self.forget_used();
        if let Some(Value::Lock(mut lock)) = self.replica_values.remove(&(key.db, key.name.as_slice().to_vec())) {
            let alarm = lock.take_alarm();
            self.replica.value_unlinked(key.borrow(), alarm, &lock);
        }
        let mut value = self.values.remove(&(key.db, key.name.as_slice().to_vec()))?;
        if let Value::Lock(lock) = &mut value {
            let alarm = lock.alarm();
            lock.set_alarm(crate::Alarm::NONE);
            self.engine.value_unlinked(key.borrow(), alarm, lock);
        }
        Some(value)
    }

    /// A server command imports a value.
    pub(super) fn arrive(&mut self, key: &Key, value: Value) {
        self.unlink(key);
        let is_lock = matches!(value, Value::Lock(_));
        let copy = match &value {
            Value::Lock(lock) => Value::Lock(lock.clone()),
            Value::Foreign => Value::Foreign,
        };
        self.replica_values.insert((key.db, key.name.as_slice().to_vec()), copy);
        if is_lock {
            self.replica.value_arrived(key.borrow());
        }
        self.values.insert((key.db, key.name.as_slice().to_vec()), value);
        if is_lock {
            self.engine.value_arrived(key.borrow());
        } else {
            self.engine.value_changed(key.borrow());
        }
    }

    /// Values were moved or removed without one of our commands.
    pub(super) fn forget_used(&mut self) {
        self.used.clear();
    }
}
