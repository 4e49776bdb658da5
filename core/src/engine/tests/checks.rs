//! Invariants of any history: of the values, of the engine's records, and of the replica.

use std::collections::BTreeMap;
use std::vec::Vec;

use super::keyspace::Value;
use super::world::World;
use crate::bytes::{Key, KeyRef};
use crate::event::Phase;
use crate::kind::{Kind, Mode};
use crate::limits::MayGrant;
use crate::lock::admission::{self, Ahead, Decision, Value as Lies};
use crate::lock::{FairQueue, Lock};
use crate::place::Stay;
use crate::registry::Holder;
use crate::time::Now;

impl World {
    /// Checks the invariants after each step: exclusion, capacity, and the engine's records.
    pub(super) fn check(&mut self) {
        if self.is_repeated {
            return;
        }
        self.engine.registry.assert_consistent();
        for key in self.waited_for() {
            if !self.is_dirty(&key) {
                self.check_holders(&key);
            }
        }
        for (name, value) in &self.values {
            let Value::Lock(lock) = value else { continue };
            check_exclusion(lock, self.now);
            if lock.kind() == Kind::Semaphore {
                let (used, permits) = used(lock, self.now);
                let (used_before, permits_before) = self.used.insert(name.clone(), (used, permits)).unwrap_or_default();
                // Only RESIZE may leave more permits in use than there are: those that were in use
                // before it, or were granted in the same step before it.
                let is_known = permits_before != 0;
                let most = permits.max(used_before).max(permits_before);
                assert!(!is_known || used <= most, "more permits are in use than there are");
            }
        }
        self.check_bindings();
        self.check_replica();
        let is_woken = self.engine.next_timeout_us().is_some_and(|at_us| at_us <= self.now.mono_us);
        assert!(is_woken || self.engine.backlog.suspects().is_empty(), "the timer is due for suspects");
    }

    /// Sets the permits in use after steps without checks.
    pub(super) fn note_used(&mut self) {
        let locks = self.values.iter().filter_map(|(name, value)| match value {
            Value::Lock(lock) if lock.kind() == Kind::Semaphore => Some((name.clone(), used(lock, self.now))),
            Value::Lock(_) | Value::Foreign => None,
        });
        self.used = locks.collect();
    }

    /// Checks that the replica has the master's values.
    fn check_replica(&self) {
        let seen = |values: &BTreeMap<(u32, Vec<u8>), Value>| {
            let all = values.iter().map(|(at, value)| match value {
                Value::Lock(lock) => (at.clone(), Some(lock.clone())),
                Value::Foreign => (at.clone(), None),
            });
            all.collect::<Vec<_>>()
        };
        assert_eq!(seen(&self.replica_values), seen(&self.values), "the replica has the values of its master");
    }

    /// Checks that each connection of a hold has a binding to it.
    fn check_bindings(&self) {
        for ((db, name), value) in &self.values {
            let Value::Lock(lock) = value else { continue };
            for (client, token) in lock.bindings() {
                let key = Key { db: *db, name: name.as_slice().into() };
                let is_known = self
                    .engine
                    .sessions
                    .bindings()
                    .any(|binding| (binding.client, binding.token) == (client, token) && binding.key == key);
                let is_dirty = self.engine.registry.view(key.borrow()).is_some_and(|name| name.dirty.is_some());
                let is_behind = self.engine.backlog.sweep().is_some();
                assert!(is_known || is_dirty || is_behind, "connection {client} has a binding to hold {token}");
            }
        }
    }

    /// The names with waiters.
    fn waited_for(&self) -> Vec<Key> {
        let records = self.engine.registry.views().filter(|name| !name.queue.is_empty());
        records.map(|name| name.key.to_key()).collect()
    }

    /// Whether a name is dirty.
    pub(super) fn is_dirty(&self, key: &Key) -> bool {
        let name = self.engine.registry.find(key.borrow());
        name.is_some_and(|name| self.engine.registry.dirty(name).is_some() || self.engine.registry.is_behind(name))
    }

    /// Whether any name is dirty.
    pub(super) fn has_dirty(&self) -> bool {
        let is_dirty = self.engine.registry.views().any(|name| self.is_dirty(&name.key.to_key()));
        is_dirty || !self.engine.backlog.suspects().is_empty()
    }

    /// Checks the state after all due work: no waiter waits that could be granted, and nothing
    /// remains that should have been removed.
    pub(super) fn check_at_rest(&self) {
        if self.is_repeated {
            return;
        }
        let mut alarms = 0;
        for ((db, name), value) in &self.values {
            let key = KeyRef { name, db: *db };
            let Value::Lock(lock) = value else {
                assert_eq!(self.engine.waiting_on(key), 0, "no request waits for a foreign value");
                continue;
            };
            assert!(!lock.is_disposable(), "no disposable key remains");
            assert!(lock.expired_hold(self.now).is_none(), "no expired hold remains");
            if let Some(due_us) = lock.next_deadline_us() {
                assert!(self.engine.alarms.is_of(lock.alarm(), key), "the lock has its own alarm");
                let at_us = self.engine.alarms.at_us(lock.alarm()).expect("an alarm");
                let is_paused = self.limits.may_grant != MayGrant::Yes;
                assert!(is_paused || at_us <= due_us, "the alarm is due no later than its lock");
                alarms += 1;
            }
            if lock.kind() == Kind::Fair && self.limits.may_grant == MayGrant::Yes {
                self.check_places_at_rest(key, lock);
            }
        }
        for key in self.waited_for() {
            let may_grant = self.limits.may_grant == MayGrant::Yes;
            if may_grant && self.lock(&key).is_none_or(|lock| lock.kind() != Kind::Fair) {
                self.check_head_waits(&key);
            }
        }
        assert_eq!((self.engine.alarms.len(), self.engine.alarms.all()), (alarms, alarms), "no stale alarm remains");
        for name in self.engine.registry.views() {
            assert_eq!(name.has_pending, self.engine.pending.has(name.id), "pending grants under {:?}", name.key);
            let is_needed = !name.queue.is_empty() || name.has_pending;
            assert!(is_needed, "no idle record remains: {:?}", name.key);
        }
        for binding in self.engine.sessions.bindings() {
            let is_bound =
                self.lock(&binding.key).is_some_and(|lock| lock.clients(binding.token).contains(&binding.client));
            assert!(is_bound, "no stale binding remains: {binding:?}");
        }
    }

    /// Checks that the copy of the holders beside a queue matches the value.
    fn check_holders(&self, key: &Key) {
        let lock = self.lock(key).filter(|lock| lock.kind() != Kind::Semaphore);
        let holds = lock.into_iter().flat_map(|lock| lock.holds().iter()).filter(|hold| hold.phase() != Phase::Kept);
        let mut held: Vec<_> =
            holds.map(|hold| (hold.token(), hold.owner().as_slice(), hold.mode(), hold.deadline_us())).collect();
        held.sort_by_key(|(token, ..)| *token);
        let registry = &self.engine.registry;
        let holders = registry.view(key.borrow()).unwrap().holders.iter();
        let seen = |holder: &Holder| (holder.token, registry.owner_of_holder(holder), holder.mode, holder.deadline_us);
        let holders: Vec<_> = holders.map(seen).collect();
        assert_eq!(holders, held, "the holders beside the queue of {key:?}");
    }

    /// Checks that the head of a queue waits for something unavailable.
    fn check_head_waits(&self, key: &Key) {
        let name = self.engine.registry.find(key.borrow()).unwrap();
        let (ticket, head) = self.engine.registry.first(name).unwrap();
        let owner = self.engine.registry.owner_of(head);
        let can_have = head.names().iter().all(|name| {
            let is_first = self.engine.registry.first_position(*name).is_some_and(|first| first.ticket == ticket);
            let key = self.engine.registry.key(*name).unwrap().to_key();
            let value = self.lock(&key).map_or(Lies::Vacant, Lies::Lock);
            let ahead = Ahead { any: !is_first, upgrade: !is_first, other_kind: false };
            admission::decide(value, ahead, owner, &head.request(), self.now) == Decision::Grant
        });
        assert!(!can_have, "the head of the queue waits although it could be granted: {:?}", head.request());
    }

    /// Checks that a free fair lock is reserved for its absent head, and that its connected places
    /// are those of the waiters, in order.
    fn check_places_at_rest(&self, key: KeyRef<'_>, lock: &Lock) {
        let places = lock.queue();
        if !lock.is_held(self.now) {
            let places = places.expect("a fair lock without holds and places is removed");
            let head = places.first().unwrap();
            assert_ne!(head.stay, Stay::Connected, "a connected head does not wait for a free lock");
            assert!(
                places.reserved_until_us().is_some_and(|until_us| until_us > self.now.mono_us),
                "the lock is reserved for the head"
            );
        }
        let places: Vec<_> = places.into_iter().flat_map(FairQueue::iter).collect();
        assert!(places.iter().all(|place| place.is_live(self.now)), "expired places are removed");
        let connected: Vec<_> =
            places.iter().filter(|place| place.stay == Stay::Connected).map(|place| place.owner.to_vec()).collect();
        let mut waiting: Vec<_> = self.engine.waiters(key, self.now).map(|waiter| waiter.owner.to_vec()).collect();
        let mut sorted = connected.clone();
        sorted.sort();
        waiting.sort();
        assert_eq!(sorted, waiting, "connected places are those of waiters");
    }
}

/// The permits of a semaphore in use, and their total.
fn used(lock: &Lock, now: Now) -> (u64, u64) {
    (lock.live_holds(now).map(|hold| u64::from(hold.count())).sum(), lock.permits().into())
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
