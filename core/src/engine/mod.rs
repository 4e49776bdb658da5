//! The one write path: every change of every lock goes through here.
//!
//! Order of each writing command: settle what is pending on the key, decide, apply, serve those who wait, keep the
//! key's alarm right. What has to happen outside (propagate, notify, answer a waiter) is left in the [`Outbox`], in the
//! order in which it must be done, and is done after the engine returned: other modules may react to an event by
//! calling commands of ours.
//!
//! Files: this one has the parts and what they share; `commands` what a client asks; `line` how a request comes to wait;
//! `settle` how a key's queue is served; `fair` the same for a queue that is data; `semaphore` and `many` what only those
//! are asked; `deadlock` who waits for whom; `notes` what the server tells; `pending` what that owes to keys, and `owed`
//! what it comes to; `fresh` grants that nobody may have heard of; `databases` what concerns all locks of a database; `due`
//! what is to be done next.
//!
//! Invariants:
//! 1. Holds are granted in [`Engine::grant`] and nowhere else.
//! 2. Values change in [`Engine::commit`] and nowhere else, each time with an event in the outbox.
//! 3. After a command, a key whose value has holds has an alarm in `leases` that is due not later than the earliest of
//!    their deadlines. It may be due earlier: a renewal does not move it, it finds the new deadline when it goes off.

mod commands;
mod databases;
mod deadlock;
mod due;
mod fair;
mod fresh;
mod line;
mod many;
mod notes;
mod owed;
mod pending;
mod semaphore;
mod settle;
#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use ahash::RandomState;
use hashbrown::HashMap;

use self::databases::{Databases, Sweep};
use self::fresh::FreshGrants;
use self::pending::Pending;
use crate::bytes::{Key, KeyRef, Owner};
use crate::deadlines::{Alarm, Deadlines};
use crate::event::{ChangeCause, EndCause, Event, Terms};
use crate::keyspace::{KeyId, Keyspace, Slot, Stored};
use crate::lock::{Kind, Lock, Mode};
use crate::outbox::Outbox;
use crate::queue::{Holder, Waiters};
use crate::request::{Acquire, Limits, Refusal, RequestMark};
use crate::sessions::Sessions;
use crate::time::{MAX_TOKEN, Now};

/// The answer to ACQUIRE; to MACQUIRE with the tokens of its keys, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired<T = u64> {
    /// The owner holds, with this token.
    Granted(T),
    /// Not granted, and the request does not wait.
    Denied,
    /// The request waits under this ticket.
    Waiting(u64),
}

/// A waiter, as WAITERS shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterView<'a> {
    /// Who waits.
    pub owner: &'a Owner,
    /// For which mode.
    pub mode: Mode,
    /// How many holds or permits it wants.
    pub count: u32,
    /// For how long it has been waiting.
    pub waited_ms: u64,
}

/// The holders of how many holds are kept beside a queue, for the search for deadlocks: it does not see through a lock that
/// more hold, because copying them would take milliseconds.
const MAX_HOLDERS_BESIDE_QUEUE: usize = 1024;

fn holders_of<'l>(lock: &'l Lock, owner: &'l Owner) -> impl Iterator<Item = (u64, Holder)> + 'l {
    [Mode::Read, Mode::Write].into_iter().filter_map(|mode| lock.hold(owner.as_slice(), mode)).map(Holder::of)
}

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

/// What one request is decided with: the time, the open keys, and a place for what it leaves to be done.
pub struct Turn<'t, K> {
    /// The time, read once.
    pub now: Now,
    /// What the server allows.
    pub limits: Limits,
    /// The open keys.
    pub keys: &'t mut K,
    /// What is left to be done.
    pub out: &'t mut Outbox,
}

/// The state of one server's locks beyond their values: who waits, what is due, which connections matter.
pub struct Engine {
    /// The alarms of values, by keys as [`Databases`] names them.
    leases: Deadlines<Key>,
    databases: Databases,
    sweep: Option<Sweep>,
    waiters: Waiters,
    sessions: Sessions,
    pending: Pending,
    fresh: FreshGrants,
    hasher: RandomState,
    last_token: u64,
    stats: Stats,
}

impl Engine {
    /// An engine with nothing in it. The seeds make the hashing of client-chosen names unpredictable.
    #[must_use]
    pub fn new(seeds: [u64; 4]) -> Self {
        let [a, b, c, d] = seeds;
        let hasher = RandomState::with_seeds(a, b, c, d);
        Self {
            leases: Deadlines::default(),
            databases: Databases::new(hasher.clone()),
            sweep: None,
            waiters: Waiters::new(hasher.clone()),
            sessions: Sessions::new(),
            pending: Pending { owed: HashMap::with_hasher(hasher.clone()), order: VecDeque::new() },
            fresh: FreshGrants::new(hasher.clone()),
            hasher,
            last_token: 0,
            stats: Stats::default(),
        }
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// How many locks are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.leases.len()
    }

    /// How many connections wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// How many wait under `key`.
    #[must_use]
    pub fn waiting_on(&self, key: KeyRef<'_>) -> usize {
        self.waiters.len_on(key)
    }

    /// Whether a ticket waits.
    #[must_use]
    pub fn is_waiting(&self, ticket: u64) -> bool {
        self.waiters.get(ticket).is_some()
    }

    /// Who waits under `key`, in order.
    pub fn waiters(&self, key: KeyRef<'_>, now: Now) -> impl Iterator<Item = WaiterView<'_>> {
        self.waiters.in_order(key).filter(move |waiter| !waiter.is_over(now)).map(move |waiter| WaiterView {
            owner: &waiter.request.owner,
            mode: waiter.request.mode,
            count: waiter.request.count,
            waited_ms: now.mono_us.saturating_sub(waiter.since_us) / crate::time::US_PER_MS,
        })
    }

    /// Whether the hold with `token` under `key` is bound to a connection.
    #[must_use]
    pub fn is_bound(&self, token: u64, key: KeyRef<'_>) -> bool {
        self.sessions.is_bound(token, key)
    }

    /// Whether the closing of a connection would change anything.
    #[must_use]
    pub fn minds_client(&self, client: u64) -> bool {
        self.sessions.has_client(client) || self.fresh.has_client(client)
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
    fn next_number(&mut self, now: Now) -> u64 {
        self.last_token = self.last_token.saturating_add(1).max(now.wall_us);
        self.last_token
    }

    /// The only place that gives a hold: a new one, or one more count of the one that the owner has. The caller has
    /// made sure that the lock admits it.
    fn grant(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, request: &Acquire) -> Result<u64, Refusal> {
        // Who writes is alone in the value, too.
        while request.mode == Mode::Write && self.expire_one(turn, id) {}
        let held = match turn.keys.slot(id) {
            Slot::Lock(stored) => stored
                .lock
                .live_hold(request.owner.as_slice(), request.mode, turn.now)
                .map(|hold| (hold.token(), hold.terms())),
            _ => None,
        };
        let deadline_us = turn.now.after_ms(request.lease_ms);
        let event = match held {
            Some((token, terms)) => Event::Changed {
                token,
                cause: ChangeCause::Reentered,
                terms: Terms {
                    count: terms.count.checked_add(request.count).ok_or(Refusal::CountOverflow)?,
                    deadline_us: terms.deadline_us.max(deadline_us),
                    lease_ms: request.lease_ms,
                    request: RequestMark::after(terms.request, request.request_id, request.verb),
                    session_ms: request.session_ms.or(terms.session_ms),
                },
            },
            None => Event::Granted {
                kind: request.kind,
                owner: request.owner.clone(),
                mode: request.mode,
                token: self.next_number(turn.now),
                terms: Terms {
                    count: request.count,
                    deadline_us,
                    lease_ms: request.lease_ms,
                    request: RequestMark::after(None, request.request_id, request.verb),
                    session_ms: request.session_ms,
                },
            },
        };
        let (Event::Changed { token, terms, .. } | Event::Granted { token, terms, .. }) = &event else {
            return Err(Refusal::NotOwner);
        };
        let token = *token;
        self.bind(turn.keys.key(id), request.client, token, terms);
        self.commit(turn, id, event);
        Ok(token)
    }

    fn bind(&mut self, key: KeyRef<'_>, client: Option<u64>, token: u64, terms: &Terms) {
        if let (Some(client), Some(_)) = (client, terms.session_ms) {
            self.sessions.bind(client, token, key);
        }
    }

    /// Makes an event true here and leaves it in the outbox for everywhere else.
    fn commit(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, event: Event) {
        self.apply(turn.keys, id, &event);
        if let Event::Ended { cause, .. } = &event {
            match cause {
                EndCause::Expired => self.stats.expired = self.stats.expired.saturating_add(1),
                EndCause::Forced => self.stats.forced = self.stats.forced.saturating_add(1),
                EndCause::Released | EndCause::Undone => {}
            }
        }
        turn.out.effect(id, event);
    }

    fn apply(&mut self, keys: &mut impl Keyspace, id: KeyId, event: &Event) {
        let creates = match event {
            Event::Granted { kind, .. } => Some(*kind),
            Event::Queued { .. } => Some(Kind::Fair),
            Event::Sized { .. } => Some(Kind::Semaphore),
            _ => None,
        };
        if let Some(kind) = creates
            && matches!(keys.slot(id), Slot::Vacant)
        {
            let generation = self.databases.generation(keys.key(id).db);
            keys.insert(id, Stored { generation, ..Stored::new(Lock::new(kind, 1)) });
            if self.waiters.has_other_kind(keys.key(id), kind) {
                // Those who wait under this name for a lock of another kind are told.
                self.pending.entry(keys.key(id).to_key()).replaced = true;
            }
        }
        if let Slot::Lock(stored) = keys.slot(id) {
            stored.lock.apply(event);
        }
        self.note_holder(keys.key(id), event);
        if let Event::Ended { token, .. } = event {
            self.sessions.forget_at(keys.key(id), *token);
        }
    }

    /// Keeps the copy of the holders beside a queue.
    fn note_holder(&mut self, key: KeyRef<'_>, event: &Event) {
        if !self.is_waited_for(key) {
            return;
        }
        match event {
            // Nobody is in anybody's way by name on a semaphore.
            Event::Granted { kind: Kind::Semaphore, .. } => {}
            Event::Granted { owner, mode, token, terms, .. } => {
                let holder = Holder { owner: owner.clone(), mode: *mode, deadline_us: terms.deadline_us };
                self.waiters.set_holder(key, *token, holder);
            }
            Event::Changed { token, terms, .. } => self.waiters.set_holder_deadline(key, *token, terms.deadline_us),
            Event::Ended { token, .. } => {
                let Some(owner) = self.waiters.remove_holder(key, *token) else {
                    return;
                };
                // A request for many keys that had this one already waits for it from now on.
                if let Some(next) = self.waiters.of_owner(key, &owner, Mode::Exclusive).first() {
                    self.pending.entry(key.to_key()).details().bereft.push(*next);
                }
            }
            _ => {}
        }
    }

    /// Adds to the copy of the holders beside a queue what an owner holds that has come to wait there: for a lock of which the
    /// copy is not complete.
    fn note_own_holds(&mut self, keys: &mut impl Keyspace, id: KeyId, owner: &Owner) {
        if let Slot::Lock(stored) = keys.slot(id)
            && stored.lock.kind() == Kind::RwLock
            && stored.lock.holds().len() > MAX_HOLDERS_BESIDE_QUEUE
        {
            let own: Vec<(u64, Holder)> = holders_of(&stored.lock, owner).collect();
            for (token, holder) in own {
                self.waiters.set_holder(keys.key(id), token, holder);
            }
        }
    }

    /// Takes the copy of the holders beside a queue from the value. Of a lock that very many hold, only those that wait there
    /// themselves.
    fn note_holders(&mut self, keys: &mut impl Keyspace, id: KeyId) {
        if !self.is_waited_for(keys.key(id)) {
            return;
        }
        let Self { waiters, .. } = self;
        let waiting: Vec<Owner> = match keys.slot(id) {
            Slot::Lock(stored) if stored.lock.holds().len() > MAX_HOLDERS_BESIDE_QUEUE => {
                let waiting = waiters.in_order(keys.key(id)).map(|waiter| waiter.request.owner.clone());
                waiting.collect()
            }
            _ => Vec::new(),
        };
        let holders: Vec<(u64, Holder)> = match keys.slot(id) {
            Slot::Lock(stored) if stored.lock.kind() == Kind::Semaphore => Vec::new(),
            Slot::Lock(stored) if stored.lock.holds().len() <= MAX_HOLDERS_BESIDE_QUEUE => {
                stored.lock.holds().iter().map(Holder::of).collect()
            }
            Slot::Lock(stored) => waiting.iter().flat_map(|owner| holders_of(&stored.lock, owner)).collect(),
            _ => Vec::new(),
        };
        self.waiters.set_holders(keys.key(id), holders);
    }

    /// Leaves every key of a request as it has to be between requests.
    fn finish_all(&mut self, keys: &mut impl Keyspace) {
        for index in 0..keys.open_count() {
            self.finish(keys, KeyId(index));
        }
    }

    /// Removes a lock that nobody holds and nobody has a place in; keeps the alarm of any other.
    fn finish(&mut self, keys: &mut impl Keyspace, id: KeyId) {
        if let Slot::Lock(stored) = keys.slot(id)
            && stored.lock.is_disposable()
        {
            let alarm = stored.alarm;
            if self.is_alarm_of(alarm, keys.key(id)) {
                self.leases.remove(alarm);
            }
            keys.remove(id);
            return;
        }
        self.set_alarm(keys, id);
    }

    /// Keeps invariant 3.
    fn set_alarm(&mut self, keys: &mut impl Keyspace, id: KeyId) {
        let Slot::Lock(stored) = keys.slot(id) else {
            return;
        };
        let (alarm, due_us) = (stored.alarm, stored.lock.next_deadline_us());
        let key = keys.key(id);
        let set_to_us =
            if self.is_alarm_of(alarm, key) { self.leases.get(alarm).map(|(at_us, _)| at_us) } else { None };
        let alarm = match (set_to_us, due_us) {
            (Some(set_to_us), Some(due_us)) => {
                if due_us < set_to_us {
                    self.leases.set(alarm, due_us);
                }
                alarm
            }
            (Some(_), None) => {
                self.leases.remove(alarm);
                Alarm::NONE
            }
            (None, Some(due_us)) => self.leases.insert(due_us, self.databases.to_lasting(key)),
            (None, None) => Alarm::NONE,
        };
        if let Slot::Lock(stored) = keys.slot(id) {
            stored.alarm = alarm;
        }
    }

    fn is_alarm_of(&self, alarm: Alarm, key: KeyRef<'_>) -> bool {
        self.leases
            .get(alarm)
            .is_some_and(|(_, of)| of.name.as_slice() == key.name && self.databases.current(of.db) == key.db)
    }

    /// The kind check of every command: the lock under `id` if there is one. A semaphore has to be there; a lock of
    /// another kind whose leases are all over is not there any more.
    fn lock_of_kind<'k>(
        turn: &'k mut Turn<'_, impl Keyspace>,
        id: KeyId,
        kind: Kind,
    ) -> Result<Option<&'k Lock>, Refusal> {
        match turn.keys.slot(id) {
            Slot::Foreign => Err(Refusal::WrongType),
            Slot::Lock(stored) if stored.lock.kind() == kind => Ok(Some(&stored.lock)),
            Slot::Lock(stored) if stored.lock.is_live(turn.now) => Err(Refusal::WrongType),
            Slot::Lock(_) | Slot::Vacant if kind == Kind::Semaphore => Err(Refusal::NoSemaphore),
            Slot::Lock(_) | Slot::Vacant => Ok(None),
        }
    }
}
