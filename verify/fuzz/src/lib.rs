//! An engine on a keyspace in memory, and a replica that applies its effects.
//!
//! After every step, two owners never hold what only one can, no more permits are granted than
//! exist, tokens rise, each waiter gets one answer, and the replica has the same data as the
//! master.

use std::collections::{BTreeMap, BTreeSet};

use rlock_core::{
    Acquired, Answer, Channel, Engine, Event, Hold, Key, KeyId, KeyRef, Keyspace, Kind, Limits, Lock, Mode, Notice,
    Now, Outbox, Phase, Refusal, Request, Told, Transaction, US_PER_MS, Value,
};

pub const NOW: Now = Now { mono_us: 1_000_000_000, wall_us: 1_700_000_000_000_000 };
pub const LIMITS: Limits = Limits { max_waiters: 8, max_places: 8, fair_grace_ms: 20, ..Limits::NONE };

/// The locks of a server.
pub type Values = BTreeMap<Vec<u8>, Lock>;

/// Some of the keys, open for one step.
pub struct Open<'v> {
    keys: Vec<Key>,
    client: Option<u64>,
    values: &'v mut Values,
}

impl<'v> Open<'v> {
    pub fn new(keys: &[Key], client: Option<u64>, values: &'v mut Values) -> Self {
        Self { keys: keys.to_vec(), client, values }
    }

    fn name(&self, id: KeyId) -> Vec<u8> {
        self.keys[id.0].name.as_slice().to_vec()
    }
}

impl Keyspace for Open<'_> {
    fn count(&self) -> usize {
        self.keys.len()
    }

    fn key(&self, id: KeyId) -> KeyRef<'_> {
        self.keys[id.0].borrow()
    }

    fn value(&self, id: KeyId) -> Value<'_> {
        self.values.get(self.keys[id.0].name.as_slice()).map_or(Value::Vacant, Value::Lock)
    }

    fn lock_mut(&mut self, id: KeyId) -> Option<&mut Lock> {
        let name = self.name(id);
        self.values.get_mut(&name)
    }

    fn insert(&mut self, id: KeyId, lock: Lock) {
        let before = self.values.insert(self.name(id), lock);
        assert!(before.is_none(), "the engine inserts only at vacant keys");
    }

    fn remove(&mut self, id: KeyId) {
        self.values.remove(&self.name(id)).expect("the engine removes only values that exist");
    }

    fn expire_left_ms(&self, _: KeyId) -> Option<u64> {
        None
    }

    fn client(&self) -> Option<u64> {
        self.client
    }

    fn is_permitted(&self, _client: u64, _request: &Request) -> bool {
        true
    }
}

pub fn key(number: u8) -> Key {
    Key { name: [b'a' + number % 3].as_slice().into(), db: 0 }
}

/// A master and its replica.
pub struct World {
    pub engine: Engine,
    pub values: Values,
    pub now: Now,
    replica: Engine,
    replica_values: Values,
    last_token: u64,
    /// For each semaphore, the permits in use after the last step, and its number of permits.
    used: BTreeMap<Vec<u8>, (u64, u64)>,
    /// The answers to waiters, by their tickets.
    pub answers: Vec<(u64, Answer)>,
    waiting: BTreeSet<u64>,
    answered_early: BTreeSet<u64>,
    /// Granted requests whose answer has to be published on a channel.
    unpublished: Vec<(u64, Notice)>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            engine: Engine::new([1, 2, 3, 4]),
            values: Values::new(),
            now: NOW,
            replica: Engine::new([1, 2, 3, 4]),
            replica_values: Values::new(),
            last_token: 0,
            used: BTreeMap::new(),
            answers: Vec::new(),
            waiting: BTreeSet::new(),
            answered_early: BTreeSet::new(),
            unpublished: Vec::new(),
        }
    }
}

impl World {
    /// Runs a request, processes the resulting offers, and checks the invariants.
    pub fn on<R>(
        &mut self,
        keys: &[Key],
        client: Option<u64>,
        request: impl FnOnce(&mut Engine, &mut Transaction<'_, Open<'_>>) -> R,
    ) -> R {
        let result = self.transact(keys, client, request);
        self.take_offers();
        self.check();
        result
    }

    fn take_offers(&mut self) {
        while let Some((offer, keys)) = self.engine.next_offer(|_| true) {
            self.transact(&keys, None, |engine, tx| engine.take_offer(tx, offer));
        }
    }

    fn transact<R>(
        &mut self,
        keys: &[Key],
        client: Option<u64>,
        request: impl FnOnce(&mut Engine, &mut Transaction<'_, Open<'_>>) -> R,
    ) -> R {
        let mut out = Outbox::new(true);
        let mut open = Open::new(keys, client, &mut self.values);
        let result = request(&mut self.engine, &mut Transaction::new(self.now, LIMITS, &mut open, &mut out));
        self.take(keys, &out);
        result
    }

    fn take(&mut self, keys: &[Key], out: &Outbox) {
        for (number, effect) in out.effects().iter().enumerate() {
            let event = out.event(number).expect("all events are recorded");
            if let Event::Granted { token, .. } = event {
                assert!(*token > self.last_token, "tokens rise");
                self.last_token = *token;
            }
            let mut open = Open::new(&keys[effect.key.0..=effect.key.0], None, &mut self.replica_values);
            self.replica
                .apply_effect(&mut open, KeyId(0), event)
                .expect("a replica can apply every effect of its master");
        }
        for Told { ticket, answer, notice, .. } in out.answers() {
            if let (Some(notice), Answer::Granted(_)) = (notice, answer) {
                self.unpublished.push((*ticket, *notice));
            }
            self.answers.push((*ticket, answer.clone()));
            let is_first = self.waiting.remove(ticket) || self.answered_early.insert(*ticket);
            assert!(is_first, "a waiter gets two answers");
        }
    }

    /// Notes a request that may wait.
    pub fn note(&mut self, acquired: Result<Acquired, Refusal>) {
        if let Ok(Acquired::Waiting(ticket)) = acquired
            && !self.answered_early.remove(&ticket)
        {
            self.waiting.insert(ticket);
        }
    }

    /// Publishes the grants to waiters on channels. With `is_heard` false, no client listens.
    pub fn publish(&mut self, is_heard: bool) {
        for (ticket, _) in std::mem::take(&mut self.unpublished) {
            if is_heard {
                self.engine.confirm_ticket(ticket);
            } else {
                self.engine.nobody_listened(ticket);
            }
        }
    }

    /// Whether there are grants to publish.
    pub fn has_unpublished(&self) -> bool {
        !self.unpublished.is_empty()
    }

    /// Closes a connection. Its unpublished grants are undone.
    pub fn close(&mut self, client: u64) {
        self.engine.client_closed(client, |_| false);
        for (ticket, _) in self.unpublished.extract_if(.., |(_, notice)| notice.client == client).collect::<Vec<_>>() {
            self.engine.undo_grants(ticket);
        }
        self.end_cut_off();
    }

    /// Demotes the server and promotes it again. Its grants are published, and all waits end.
    pub fn demote(&mut self) {
        self.publish(true);
        self.engine.demoted();
        self.end_cut_off();
        self.engine.promoted();
    }

    /// Moves a channel to another node of the cluster.
    pub fn take_away(&mut self, channel: Channel) {
        self.engine.channel_gone(channel);
        self.end_cut_off();
    }

    fn end_cut_off(&mut self) {
        while self.engine.has_cut_off() {
            self.engine.begin_turn();
            let mut out = Outbox::new(true);
            self.engine.end_cut_off(&mut out);
            self.take(&[], &out);
        }
    }

    /// The token of an owner's hold of a key.
    pub fn token_of(&self, key: &Key, owner: &[u8], mode: Mode) -> Option<u64> {
        Some(self.values.get(key.name.as_slice())?.live_hold(owner, mode, self.now)?.token())
    }

    /// Closes the connection of the longest waiting request.
    pub fn leave(&mut self, gave_up: bool) {
        if let Some(ticket) = self.waiting.pop_first() {
            self.engine.waiter_left(ticket, gave_up);
        }
    }

    /// Closes the connection of a request that waits, or whose grant may not have been received.
    pub fn hang_up(&mut self, ticket: u64) {
        self.waiting.remove(&ticket);
        self.engine.waiter_left(ticket, false);
    }

    pub fn pass(&mut self, ms: u64) {
        self.now.mono_us += ms * US_PER_MS;
        self.now.wall_us += ms * US_PER_MS;
    }

    /// Does all work that is due.
    pub fn run_timer(&mut self) {
        for step in 0.. {
            assert!(step < 100_000, "the timer does not come to an end");
            if step % 16 == 0 {
                self.engine.begin_turn();
            }
            // A closed connection may have left some.
            self.take_offers();
            let mut out = Outbox::new(true);
            let next = self.engine.next_job(self.now, &mut out);
            self.take(&[], &out);
            match next {
                Some(job) => self.on(core::slice::from_ref(&job.key), None, |engine, tx| engine.run_job(tx, &job)),
                None if self.engine.next_timeout_us().is_some_and(|at_us| at_us <= self.now.mono_us) => {}
                None => break,
            }
        }
    }

    /// Removes a value, as DEL does.
    pub fn delete(&mut self, key: &Key) {
        let name = key.name.as_slice();
        self.used.remove(name);
        for (engine, values) in [(&mut self.engine, &mut self.values), (&mut self.replica, &mut self.replica_values)] {
            if let Some(lock) = values.remove(name) {
                engine.value_unlinked(key.borrow(), lock.alarm(), &lock);
            }
        }
    }

    /// Imports a value, as RESTORE does.
    pub fn arrive(&mut self, key: &Key, lock: &Lock) {
        self.delete(key);
        let name = key.name.as_slice().to_vec();
        self.replica_values.insert(name.clone(), lock.clone());
        self.replica.value_arrived(key.borrow());
        self.used.insert(name.clone(), (permits_in_use(lock, self.now), lock.permits().into()));
        self.values.insert(name, lock.clone());
        self.engine.value_arrived(key.borrow());
        let tokens = lock.holds().iter().map(Hold::token);
        let arrivals = lock.queue().into_iter().flat_map(|queue| queue.iter().map(|place| place.arrival));
        let newest = tokens.chain(arrivals).max().unwrap_or(0);
        self.engine.raise_token(newest);
        self.replica.raise_token(newest);
        self.last_token = self.last_token.max(newest);
    }

    fn check(&mut self) {
        for (name, lock) in &self.values {
            check_exclusion(lock, self.now);
            let in_use = permits_in_use(lock, self.now);
            let permits = u64::from(lock.permits());
            let (was_used, were) = self.used.insert(name.clone(), (in_use, permits)).unwrap_or_default();
            // After a reduction, more permits may be in use than exist: those that were in use
            // before, or were granted on the way.
            assert!(in_use <= permits.max(was_used).max(were), "more permits are granted than exist");
        }
        assert_eq!(self.values, self.replica_values, "the replica differs from its master");
    }
}

/// The holds whose leases have not expired. Compares deadlines, because the core's own notion of a
/// live hold is under test.
pub fn live(lock: &Lock, now: Now) -> impl Iterator<Item = &Hold> {
    lock.holds().iter().filter(move |hold| hold.deadline_us() > now.mono_us && hold.phase() != Phase::Kept)
}

fn permits_in_use(lock: &Lock, now: Now) -> u64 {
    live(lock, now).filter(|hold| hold.mode() == Mode::Permits).map(|hold| u64::from(hold.count())).sum()
}

/// Checks that there is at most one owner, or one writer.
pub fn check_exclusion(lock: &Lock, now: Now) {
    let live: Vec<_> = live(lock, now).collect();
    let owner = |hold: &&Hold| hold.owner().as_slice().to_vec();
    match lock.kind() {
        Kind::Mutex | Kind::Fair => assert!(live.len() <= 1, "more than one owner holds"),
        Kind::RwLock => {
            if let Some(writer) = live.iter().find(|hold| hold.mode() == Mode::Write) {
                assert!(live.iter().all(|hold| owner(hold) == owner(writer)), "an owner holds beside a writer");
            }
        }
        // A snapshot or a master may describe a semaphore that was reduced. `World::check` compares
        // the permits before and after a step.
        Kind::Semaphore => {}
    }
}
