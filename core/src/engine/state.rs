//! The state of the engine, and the one write path.
//!
//! Invariants:
//! 1. Holds are granted in [`Engine::grant`] and nowhere else.
//! 2. Values change in [`Engine::commit`] and nowhere else (grants and releases have it compiled in, as
//!    [`Engine::commit_inline`]), each time with an event in the outbox. (What a master decided, or
//!    a file has, is applied in [`Engine::apply_effect`], through the same [`Engine::apply`].)
//! 3. After a command, a key whose value has a deadline has an alarm in `leases` that is due not later than that. It may be due
//!    earlier: a renewal does not move it, it finds the new deadline when it goes off.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use ahash::RandomState;
use smallvec::SmallVec;

use super::connections::{Binding, Connections};
use super::databases::Databases;
use super::leases::Leases;
use super::names::NameId;
use super::timers::{Postponed, Sweep};
use super::wait_queues::WaitQueues;
use super::work::Work;
use crate::bytes::{Key, KeyRef};
use crate::collections::Alarm;
use crate::event::{ChangeCause, EndCause, Event, Terms};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::{Kind, Mode};
use crate::lock::admission::Value;
use crate::lock::{Leftovers, Lock};
use crate::outbox::Outbox;
use crate::request::{Limits, Refusal, Request, RequestMark};
use crate::time::{MAX_TOKEN, Now, TOKEN_CLOCK_END_US};

/// What happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests granted without waiting, re-entries included.
    pub granted_at_once: u64,
    /// Requests granted after waiting.
    pub granted_after_waiting: u64,
    /// Waiters that were answered nil because their time was over.
    pub timed_out: u64,
    /// Holds whose lease ended.
    pub expired: u64,
    /// Holds ended by FORCERELEASE.
    pub forced: u64,
    /// New holds given to a waiter in the very step that ended another hold.
    pub handed_over: u64,
    /// Waiters that left because their connection closed or was unblocked.
    pub disconnected: u64,
}

/// One more of what is counted.
pub(super) fn count(counter: &mut u64) {
    *counter = counter.saturating_add(1);
}

/// What one request is decided with: the time, the open keys, and a place for what it leaves to be done.
pub struct Transaction<'t, K> {
    /// The time, read once.
    pub now: Now,
    /// What the server allows.
    pub limits: Limits,
    /// The open keys.
    pub keys: &'t mut K,
    /// What is left to be done.
    pub out: &'t mut Outbox,
    /// The records of the keys' names, as they were found at a state of the table of names.
    names: SmallVec<[(u64, Option<NameId>); 1]>,
}

impl<'t, K: Keyspace> Transaction<'t, K> {
    /// A transaction that has done nothing yet.
    pub fn new(now: Now, limits: Limits, keys: &'t mut K, out: &'t mut Outbox) -> Self {
        Self { now, limits, keys, out, names: SmallVec::new() }
    }

    /// Every open key.
    pub(super) fn ids(&self) -> impl Iterator<Item = KeyId> + use<K> {
        (0..self.keys.count()).map(KeyId)
    }
}

/// The state of one server's locks beyond their values: who waits, what is due, which connections matter.
pub struct Engine {
    pub(super) leases: Leases,
    pub(super) databases: Databases,
    pub(super) queues: WaitQueues,
    pub(super) connections: Connections,
    /// Names with something to act upon, in the order in which they became so.
    pub(super) dirty: VecDeque<NameId>,
    /// Keys that were loaded and have no alarm yet, with the stable id of their database in its place.
    pub(super) loaded: Vec<Key>,
    pub(super) postponed: Postponed,
    pub(super) sweep: Option<Sweep>,
    /// Waiters for many keys that can have all of them, to be granted with all of them open; and whether a hold has just ended.
    pub(super) grantable: VecDeque<(u64, bool)>,
    /// Waiters that may close a circle since somebody else of their owner has left.
    pub(super) suspects: VecDeque<u64>,
    /// Grants that may not have been heard of.
    pub(super) undelivered: Vec<u64>,
    pub(super) leftovers: Vec<(Key, Leftovers)>,
    /// The alarm that has gone off and is being worked on.
    pub(super) ringing: Option<Alarm>,
    pub(super) work: Work,
    pub(super) hasher: RandomState,
    pub(super) last_token: u64,
    pub(super) stats: Stats,
}

impl Engine {
    /// An engine with nothing in it. The seeds make the hashing of client-chosen names unpredictable.
    #[must_use]
    pub fn new(seeds: [u64; 4]) -> Self {
        let [a, b, c, d] = seeds;
        let hasher = RandomState::with_seeds(a, b, c, d);
        Self {
            leases: Leases::default(),
            databases: Databases::new(&hasher),
            queues: WaitQueues::new(&hasher),
            connections: Connections::default(),
            dirty: VecDeque::new(),
            loaded: Vec::new(),
            postponed: Postponed::default(),
            sweep: None,
            grantable: VecDeque::new(),
            suspects: VecDeque::new(),
            undelivered: Vec::new(),
            leftovers: Vec::new(),
            ringing: None,
            work: Work::default(),
            hasher,
            last_token: 0,
            stats: Stats::default(),
        }
    }

    /// The last token given or seen.
    #[must_use]
    pub fn last_token(&self) -> u64 {
        self.last_token
    }

    /// Makes sure that every later token is above `token`.
    pub fn raise_token(&mut self, token: u64) {
        self.last_token = self.last_token.max(token.min(MAX_TOKEN));
    }

    /// The next fencing token, or arrival number: both come from one sequence, so that both keep rising over a restart
    /// and a failover.
    pub(super) fn next_number(&mut self, now: Now) -> Result<u64, Refusal> {
        if self.last_token >= MAX_TOKEN {
            return Err(Refusal::NoTokens);
        }
        self.last_token = self.last_token.saturating_add(1).max(now.wall_us.min(TOKEN_CLOCK_END_US));
        Ok(self.last_token)
    }

    /// The record of a key's name, if there is one.
    #[inline]
    pub(super) fn name<K: Keyspace>(&self, tx: &mut Transaction<'_, K>, id: KeyId) -> Option<NameId> {
        if self.queues.names.is_empty() { None } else { self.find_name(tx, id) }
    }

    fn find_name<K: Keyspace>(&self, tx: &mut Transaction<'_, K>, id: KeyId) -> Option<NameId> {
        let state = self.queues.names.state();
        if let Some((found_at, name)) = tx.names.get(id.0)
            && *found_at == state
        {
            return *name;
        }
        let name = self.queues.names.find(tx.keys.key(id));
        if tx.names.len() <= id.0 {
            tx.names.resize(id.0.saturating_add(1), (0, None));
        }
        if let Some(known) = tx.names.get_mut(id.0) {
            *known = (state, name);
        }
        name
    }

    /// Whether anybody waits under the name of a key.
    pub(super) fn is_waited_for(&self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId) -> bool {
        self.name(tx, id).is_some_and(|name| self.queues.len_under(name) > 0)
    }

    /// The only place that gives a hold: a new one, or one more count of the one that the owner has. The caller has
    /// made sure that the lock admits it. `client` is the connection that the hold is bound to, if it has a session.
    pub(super) fn grant(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        owner: &[u8],
        request: &Request,
        client: Option<u64>,
    ) -> Result<u64, Refusal> {
        let is_vacant = matches!(tx.keys.value(id), Value::Vacant);
        if request.mode.is_alone() && !is_vacant {
            // Who holds alone is alone in the value, too.
            self.clear_lapsed(tx, id, Some(owner));
        } else if request.mode == Mode::Read {
            self.end_lapsed_writer(tx, id, owner);
        }
        let held = if is_vacant { None } else { Self::live_terms(tx, id, request.kind, owner, request.mode)? };
        let deadline_us = tx.now.after_ms(request.lease_ms);
        // Each event is committed where it is made: the compiler then knows which one it is.
        let token = match held {
            Some((token, terms)) => {
                let terms = Terms {
                    count: terms.count.checked_add(request.count).ok_or(Refusal::CountOverflow)?,
                    deadline_us: terms.deadline_us.max(deadline_us),
                    lease_ms: request.lease_ms,
                    request: RequestMark::after(terms.request, request.request_id, request.verb),
                    session_ms: request.session_ms.or(terms.session_ms),
                };
                self.commit_inline(tx, id, Event::Changed { token, cause: ChangeCause::Reentered, terms });
                token
            }
            None => {
                let token = self.next_number(tx.now)?;
                let terms = Terms {
                    count: request.count,
                    deadline_us,
                    lease_ms: request.lease_ms,
                    request: RequestMark::after(None, request.request_id, request.verb),
                    session_ms: request.session_ms,
                };
                let (kind, mode, owner) = (request.kind, request.mode, owner.into());
                self.commit_inline(tx, id, Event::Granted { kind, owner, mode, token, terms });
                token
            }
        };
        if let Some(client) = client {
            self.bind(tx, id, token, client);
        }
        Ok(token)
    }

    /// Binds a hold to a connection, if it has a session.
    pub(super) fn bind(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, token: u64, client: u64) {
        let Some(lock) = tx.keys.lock_mut(id) else {
            return;
        };
        let (is_new, gives_way) = lock.bind(token, client);
        if is_new {
            self.connections.bind(Binding { client, token, key: tx.keys.key(id).to_key() });
        }
        if let Some(client) = gives_way {
            self.connections.unbind(&Binding { client, token, key: tx.keys.key(id).to_key() });
        }
    }

    /// Unbinds a hold from a connection.
    pub(super) fn unbind(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, token: u64, client: u64) {
        if let Some(lock) = tx.keys.lock_mut(id) {
            lock.unbind(token, client);
        }
        self.connections.unbind(&Binding { client, token, key: tx.keys.key(id).to_key() });
    }

    /// The token and the terms of the live hold of an owner.
    pub(super) fn live_terms(
        tx: &Transaction<'_, impl Keyspace>,
        id: KeyId,
        kind: Kind,
        owner: &[u8],
        mode: Mode,
    ) -> Result<Option<(u64, Terms)>, Refusal> {
        let hold = tx.keys.value(id).hold(kind, owner, mode, tx.now)?;
        Ok(hold.map(|hold| (hold.token(), hold.terms())))
    }

    /// Makes an event true here and leaves it in the outbox for everywhere else.
    #[inline(never)]
    pub(super) fn commit(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, event: Event) {
        self.commit_inline(tx, id, event);
    }

    /// The body of [`Engine::commit`], compiled into its caller. Grants and releases are most of all commits, and the compiler
    /// drops what is not about their kind of event.
    #[inline(always)]
    pub(super) fn commit_inline(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, event: Event) {
        match &event {
            Event::Ended { token, cause } => {
                self.count_end(*cause, 1);
                self.forget_bindings(tx, id, *token);
            }
            Event::Cleared { cause, .. } => {
                let holds = tx.keys.lock_mut(id).map_or(0, |lock| lock.holds().len());
                self.count_end(*cause, holds as u64);
            }
            _ => {}
        }
        let name = self.name(tx, id);
        tx.out.effect(id, &event);
        self.apply(tx.keys, id, name, event);
    }

    fn count_end(&mut self, cause: EndCause, holds: u64) {
        match cause {
            EndCause::Expired => self.stats.expired = self.stats.expired.saturating_add(holds),
            EndCause::Forced => self.stats.forced = self.stats.forced.saturating_add(holds),
            EndCause::Released | EndCause::Undone => {}
        }
    }

    #[inline(always)]
    fn forget_bindings(&mut self, tx: &Transaction<'_, impl Keyspace>, id: KeyId, token: u64) {
        if let Value::Lock(lock) = tx.keys.value(id) {
            for client in lock.clients(token) {
                self.connections.unbind(&Binding { client: *client, token, key: tx.keys.key(id).to_key() });
            }
        }
    }

    /// Makes an event true, in the value and in the copy of its holders.
    #[inline(always)]
    fn apply(&mut self, keys: &mut impl Keyspace, id: KeyId, name: Option<NameId>, event: Event) {
        match name.filter(|name| self.queues.len_under(*name) > 0) {
            None => self.change_value(keys, id, name, event),
            Some(waited_for) => self.change_and_note(keys, id, waited_for, event),
        }
    }

    #[inline(never)]
    fn change_and_note(&mut self, keys: &mut impl Keyspace, id: KeyId, name: NameId, event: Event) {
        self.change_value(keys, id, Some(name), event.clone());
        self.note_holder(keys, id, name, &event);
    }

    #[inline(always)]
    fn change_value(&mut self, keys: &mut impl Keyspace, id: KeyId, name: Option<NameId>, event: Event) {
        match keys.lock_mut(id) {
            Some(lock) => {
                if let Some(leftovers) = lock.apply(event) {
                    self.leftovers.push((keys.key(id).to_key(), leftovers));
                }
            }
            None => {
                if let (Some(kind), Value::Vacant) = (event.creates(), keys.value(id)) {
                    let mut lock = Lock::new(kind, 1);
                    lock.apply(event);
                    keys.insert(id, lock);
                    self.note_kind(name, kind);
                }
            }
        }
    }

    /// A lock came under a name: those who wait there for a lock of another kind are told.
    pub(super) fn note_kind(&mut self, name: Option<NameId>, kind: Kind) {
        if let Some(name) = name
            && self.queues.names.get(name).is_some_and(|record| record.has_other_kind(kind))
        {
            self.mark(name, |dirty| dirty.replaced = true);
        }
    }

    /// Leaves every key of a request as it has to be between requests.
    pub(super) fn close(&mut self, tx: &mut Transaction<'_, impl Keyspace>) {
        for id in tx.ids() {
            self.close_key(tx.keys, id);
            if let Some(name) = self.name(tx, id) {
                self.queues.names.tidy(name);
            }
        }
    }

    /// Removes a lock that nobody holds and nobody has a place in; keeps the alarm of any other.
    pub(super) fn close_key(&mut self, keys: &mut impl Keyspace, id: KeyId) {
        match keys.value(id) {
            Value::Lock(lock) if lock.is_disposable() => {
                self.leases.remove_of(lock.alarm(), keys.key(id), &self.databases);
                keys.remove(id);
            }
            Value::Lock(_) => self.set_alarm(keys, id),
            Value::Vacant | Value::Foreign => {}
        }
    }

    /// Keeps invariant 3.
    pub(super) fn set_alarm(&mut self, keys: &mut impl Keyspace, id: KeyId) {
        let Value::Lock(lock) = keys.value(id) else {
            return;
        };
        let (alarm, due_us, key) = (lock.alarm(), lock.next_deadline_us(), keys.key(id));
        let is_set = self.is_alarm_of(alarm, key);
        let alarm = match due_us {
            Some(due_us) if is_set => return self.leases.hasten(alarm, due_us),
            Some(due_us) => self.leases.insert(due_us, key, &self.databases),
            None => {
                if is_set {
                    self.leases.remove(alarm, &self.databases);
                }
                Alarm::NONE
            }
        };
        if let Some(lock) = keys.lock_mut(id) {
            lock.set_alarm(alarm);
        }
    }

    pub(super) fn is_alarm_of(&self, alarm: Alarm, key: KeyRef<'_>) -> bool {
        self.leases.is_of(alarm, key, &self.databases)
    }

    /// Applies an effect that a master decided, or that the append-only file has. Decides nothing.
    ///
    /// # Errors
    ///
    /// What is wrong, if it cannot be applied to what lies under the key. Nothing was changed.
    pub fn apply_effect(&mut self, keys: &mut impl Keyspace, id: KeyId, event: &Event) -> Result<(), &'static str> {
        match keys.value(id) {
            Value::Foreign => return Err("the key holds something else than a lock"),
            Value::Lock(lock) => lock.check(event)?,
            Value::Vacant if event.creates().is_some() => {}
            Value::Vacant => return Err("there is no lock"),
        }
        if let Some(number) = event.number() {
            self.raise_token(number);
        }
        let name = self.queues.names.find(keys.key(id));
        self.apply(keys, id, name, event.clone());
        self.close_key(keys, id);
        Ok(())
    }
}
