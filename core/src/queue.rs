//! Connected waiters: who waits under which names, in which order, and until when.
//!
//! Waiters belong to key *names*: they survive the deletion of a key. Each has a position of the whole server, which is
//! the same in the queue of every key that it waits for, so waiters for many keys meet in one order everywhere; and a
//! ticket, which names the blocked connection. A retry of the same numbered request takes the place over: rank and
//! arrival number stay, the ticket changes.
//!
//! Joining, leaving from anywhere and looking at the head are O(log n) in the number of waiters, for each key.
//!
//! Beside each line stand the holders that it waits for: a copy of what the value says, so that the search for
//! deadlocks (`engine/deadlock.rs`) can walk from owner to owner in both directions without opening keys.
//!
//! Invariants:
//! 1. A ticket is in `by_ticket` exactly if its position is in the line of each of its keys.
//! 2. A queue that is empty is not in `queues`.
//! 3. A waiter has an alarm in `waits` exactly if it does not wait for ever.
//! 4. `by_owner` has each waiter once for each of its keys.
//! 5. The holders of a queue are those of the value under its key, unless something is owed to the key: then there may
//!    be none. `held_by` has the same ones by owner.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Bound;

use ahash::RandomState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::bytes::{Key, KeyRef, Owner};
use crate::deadlines::{Alarm, Deadlines};
use crate::hold::Hold;
use crate::lock::{Kind, Mode};
use crate::request::{Acquire, Ask, Verb};
use crate::time::Now;

/// The keys of a request: nearly always one.
pub(crate) type RequestKeys = SmallVec<[Key; 1]>;

/// Where a request stands among the waiters of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// A reader that asks for WRITE: ahead of all others, because it holds what they wait for.
    Upgrade,
    /// Everybody else, in the order of arrival.
    Newcomer,
}

/// What a request keeps when a retry takes its place over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Standing {
    pub(crate) rank: Rank,
    /// Arrival numbers are unique on a server, but a queue may come from another.
    pub(crate) arrival: u64,
}

/// Where a request stands in every queue that it is in. A smaller one is served earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) standing: Standing,
    pub(crate) ticket: u64,
}

impl Position {
    pub(crate) const FIRST: Self =
        Self { standing: Standing { rank: Rank::Upgrade, arrival: u64::MIN }, ticket: u64::MIN };
    const LAST: Self = Self { standing: Standing { rank: Rank::Newcomer, arrival: u64::MAX }, ticket: u64::MAX };
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    /// In the order in which they were asked for.
    pub(crate) keys: RequestKeys,
    pub(crate) standing: Standing,
    pub(crate) request: Acquire,
    pub(crate) since_us: u64,
    alarm: Alarm,
}

impl Waiter {
    fn until_us(&self) -> Option<u64> {
        until_us(&self.request)
    }

    /// Whether its time is over. What was answered nil is never granted, and what is over is answered nil.
    pub(crate) fn is_over(&self, now: Now) -> bool {
        self.until_us().is_some_and(|until_us| until_us <= now.mono_us)
    }

    /// Whether it is a request for many keys, which may be one.
    pub(crate) fn is_many(&self) -> bool {
        self.request.verb == Verb::AcquireMany
    }
}

fn until_us(request: &Acquire) -> Option<u64> {
    match request.ask {
        Ask::Wait { until_us } => until_us,
        Ask::Try | Ask::Queue { .. } => None,
    }
}

type Line = BTreeSet<Position>;

/// Who holds a key that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
    pub(crate) deadline_us: u64,
}

impl Holder {
    /// The holder of a hold, with its token.
    pub(crate) fn of(hold: &Hold) -> (u64, Self) {
        let (owner, mode, deadline_us) = (hold.owner().clone(), hold.mode(), hold.deadline_us());
        (hold.token(), Self { owner, mode, deadline_us })
    }

    /// Whether a request in `mode` of another owner has to wait for it.
    pub(crate) fn is_in_the_way_of(&self, mode: Mode, now: Now) -> bool {
        let is_shared = mode == Mode::Read && self.mode == Mode::Read;
        !is_shared && self.deadline_us > now.mono_us
    }
}

#[derive(Default)]
struct Queue {
    line: Line,
    /// By token.
    holders: BTreeMap<u64, Holder>,
    /// Something else may lie under the name, and was not looked at yet.
    is_unknown: bool,
    /// How many wait for a lock of each kind.
    kinds: [usize; 4],
}

impl Queue {
    fn count(&mut self, kind: Kind) -> Option<&mut usize> {
        self.kinds.get_mut(kind as usize)
    }
}

pub(crate) struct Waiters {
    by_ticket: HashMap<u64, Waiter, RandomState>,
    queues: HashMap<Key, Queue, RandomState>,
    held_by: BTreeSet<(Owner, Key, u64)>,
    by_owner: BTreeSet<(Owner, Key, Mode, Position)>,
    waits: Deadlines<u64>,
    last_ticket: u64,
}

impl Waiters {
    pub(crate) fn new(hasher: RandomState) -> Self {
        Self {
            by_ticket: HashMap::with_hasher(hasher.clone()),
            queues: HashMap::with_hasher(hasher),
            held_by: BTreeSet::new(),
            by_owner: BTreeSet::new(),
            waits: Deadlines::default(),
            last_ticket: 0,
        }
    }

    /// How many wait on the whole server.
    pub(crate) fn len(&self) -> usize {
        self.by_ticket.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_ticket.is_empty()
    }

    /// How many wait under `key`.
    pub(crate) fn len_on(&self, key: KeyRef<'_>) -> usize {
        if self.is_empty() {
            return 0;
        }
        self.queues.get(&key).map_or(0, |queue| queue.line.len())
    }

    /// Whether anybody waits under `key` for a lock of another kind.
    pub(crate) fn has_other_kind(&self, key: KeyRef<'_>, kind: Kind) -> bool {
        if self.is_empty() {
            return false;
        }
        let queue = self.queues.get(&key);
        queue.is_some_and(|queue| queue.kinds.get(kind as usize).is_some_and(|count| *count < queue.line.len()))
    }

    /// Puts a request in the line of each of its keys. Returns its ticket.
    pub(crate) fn join(&mut self, keys: RequestKeys, standing: Standing, request: Acquire, now: Now) -> u64 {
        self.last_ticket = self.last_ticket.saturating_add(1);
        let ticket = self.last_ticket;
        let position = Position { standing, ticket };
        for key in &keys {
            let queue = self.queues.entry(key.clone()).or_default();
            queue.line.insert(position);
            if let Some(count) = queue.count(request.kind) {
                *count = count.saturating_add(1);
            }
            self.by_owner.insert((request.owner.clone(), key.clone(), request.mode, position));
        }
        let alarm = match until_us(&request) {
            Some(until_us) => self.waits.insert(until_us, ticket),
            None => Alarm::NONE,
        };
        self.by_ticket.insert(ticket, Waiter { keys, standing, request, since_us: now.mono_us, alarm });
        ticket
    }

    /// Takes a waiter out of its queues.
    pub(crate) fn leave(&mut self, ticket: u64) -> Option<Waiter> {
        let waiter = self.by_ticket.remove(&ticket)?;
        if waiter.alarm != Alarm::NONE {
            self.waits.remove(waiter.alarm);
        }
        let position = Position { standing: waiter.standing, ticket };
        for key in &waiter.keys {
            if let Some(queue) = self.queues.get_mut(key) {
                queue.line.remove(&position);
                if let Some(count) = queue.count(waiter.request.kind) {
                    *count = count.saturating_sub(1);
                }
                if queue.line.is_empty() {
                    self.forget_holders(key.borrow());
                    self.queues.remove(key);
                }
            }
            self.by_owner.remove(&(waiter.request.owner.clone(), key.clone(), waiter.request.mode, position));
        }
        Some(waiter)
    }

    /// Takes back the last request that joined, of which nobody was told: its ticket is given again.
    pub(crate) fn withdraw(&mut self, ticket: u64) {
        self.leave(ticket);
        if ticket == self.last_ticket {
            self.last_ticket = ticket.saturating_sub(1);
        }
    }

    /// The head of the queue under `key`.
    pub(crate) fn first(&self, key: KeyRef<'_>) -> Option<(u64, &Waiter)> {
        if self.is_empty() {
            return None;
        }
        let ticket = self.queues.get(&key)?.line.first()?.ticket;
        Some((ticket, self.by_ticket.get(&ticket)?))
    }

    /// The tickets under `key`, in order.
    pub(crate) fn tickets(&self, key: KeyRef<'_>) -> Vec<u64> {
        self.queues.get(&key).map_or_else(Vec::new, |queue| queue.line.iter().map(|position| position.ticket).collect())
    }

    /// The waiter with a ticket.
    pub(crate) fn get(&self, ticket: u64) -> Option<&Waiter> {
        self.by_ticket.get(&ticket)
    }

    /// The waiters under `key`, in order.
    pub(crate) fn in_order(&self, key: KeyRef<'_>) -> impl Iterator<Item = &Waiter> {
        self.queues
            .get(&key)
            .into_iter()
            .flat_map(|queue| queue.line.iter())
            .filter_map(|position| self.by_ticket.get(&position.ticket))
    }

    /// The tickets with which `owner` waits under `key` in `mode`, in order.
    pub(crate) fn of_owner(&self, key: KeyRef<'_>, owner: &Owner, mode: Mode) -> Vec<u64> {
        if self.is_empty() {
            return Vec::new();
        }
        self.positions_of(owner, key, mode).map(|position| position.ticket).collect()
    }

    /// Where `owner` stands under `key` in `mode`, in order.
    pub(crate) fn positions_of(&self, owner: &Owner, key: KeyRef<'_>, mode: Mode) -> impl Iterator<Item = Position> {
        let from = (owner.clone(), key.to_key(), mode, Position::FIRST);
        let to = (owner.clone(), key.to_key(), mode, Position::LAST);
        self.by_owner.range(from..=to).map(|(_, _, _, position)| *position)
    }

    /// The numbered request of `owner` that waits under `key` in `mode`: its ticket and its id.
    pub(crate) fn numbered(&self, key: KeyRef<'_>, owner: &Owner, mode: Mode) -> Option<(u64, u64)> {
        self.of_owner(key, owner, mode).into_iter().find_map(|ticket| {
            let id = self.by_ticket.get(&ticket)?.request.request_id?;
            Some((ticket, id))
        })
    }

    /// A ticket whose time is over.
    pub(crate) fn next_over(&mut self, now: Now) -> Option<u64> {
        let (until_us, alarm) = self.waits.peek()?;
        if until_us > now.mono_us {
            return None;
        }
        self.waits.get(alarm).map(|(_, ticket)| *ticket)
    }

    /// When the next waiter gives up.
    pub(crate) fn next_deadline_us(&self) -> Option<u64> {
        self.waits.peek().map(|(until_us, _)| until_us)
    }

    /// The names with waiters in the databases that `concerned` names.
    pub(crate) fn keys_in(&self, concerned: impl Fn(u32) -> bool) -> Vec<Key> {
        self.queues.keys().filter(|key| concerned(key.db)).cloned().collect()
    }

    /// Notes a holder of a key that is waited for.
    pub(crate) fn set_holder(&mut self, key: KeyRef<'_>, token: u64, holder: Holder) {
        if let Some(queue) = self.queues.get_mut(&key) {
            self.held_by.insert((holder.owner.clone(), key.to_key(), token));
            queue.holders.insert(token, holder);
        }
    }

    /// Notes that a holder has another deadline.
    pub(crate) fn set_holder_deadline(&mut self, key: KeyRef<'_>, token: u64, deadline_us: u64) {
        if let Some(holder) = self.queues.get_mut(&key).and_then(|queue| queue.holders.get_mut(&token)) {
            holder.deadline_us = deadline_us;
        }
    }

    /// Notes that a holder holds no longer. Returns who it was.
    pub(crate) fn remove_holder(&mut self, key: KeyRef<'_>, token: u64) -> Option<Owner> {
        let holder = self.queues.get_mut(&key)?.holders.remove(&token)?;
        self.held_by.remove(&(holder.owner.clone(), key.to_key(), token));
        Some(holder.owner)
    }

    /// Notes who holds a key.
    pub(crate) fn set_holders(&mut self, key: KeyRef<'_>, holders: impl IntoIterator<Item = (u64, Holder)>) {
        self.forget_holders(key);
        for (token, holder) in holders {
            self.set_holder(key, token, holder);
        }
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.is_unknown = false;
        }
    }

    /// Whether it is known who holds a key that is waited for.
    pub(crate) fn knows_holders(&self, key: KeyRef<'_>) -> bool {
        self.queues.get(&key).is_some_and(|queue| !queue.is_unknown)
    }

    /// Notes that it is not known who holds a key.
    pub(crate) fn forget_holders(&mut self, key: KeyRef<'_>) {
        let Some(queue) = self.queues.get_mut(&key) else {
            return;
        };
        queue.is_unknown = true;
        for (token, holder) in core::mem::take(&mut queue.holders) {
            self.held_by.remove(&(holder.owner, key.to_key(), token));
        }
    }

    /// The next holder of a key after a token.
    pub(crate) fn next_holder(&self, key: KeyRef<'_>, after: u64) -> Option<(u64, &Holder)> {
        let holders = &self.queues.get(&key)?.holders;
        holders.range((Bound::Excluded(after), Bound::Unbounded)).next().map(|(token, holder)| (*token, holder))
    }

    /// The next hold of an owner on a key that is waited for, after another one in the order of keys and tokens.
    pub(crate) fn next_held(&self, owner: &Owner, after: Option<(&Key, u64)>) -> Option<(&Key, u64, &Holder)> {
        let from = match after {
            Some((key, token)) => Bound::Excluded((owner.clone(), key.clone(), token)),
            None => Bound::Included((owner.clone(), Key::FIRST, u64::MIN)),
        };
        let (holder, key, token) = self.held_by.range((from, Bound::Unbounded)).next()?;
        let held = self.queues.get(key)?.holders.get(token)?;
        (holder == owner).then_some((key, *token, held))
    }

    /// Whether `owner` holds a key that is waited for, with a lease that is not over.
    pub(crate) fn is_holder(&self, owner: &Owner, key: KeyRef<'_>, now: Now) -> bool {
        let (from, to) = ((owner.clone(), key.to_key(), u64::MIN), (owner.clone(), key.to_key(), u64::MAX));
        let holders = self.queues.get(&key).map(|queue| &queue.holders);
        self.held_by.range(from..=to).any(|(_, _, token)| {
            holders.and_then(|holders| holders.get(token)).is_some_and(|holder| holder.deadline_us > now.mono_us)
        })
    }

    /// The next request of an owner that waits, after another one in the order of keys, modes and positions.
    pub(crate) fn next_wait(
        &self,
        owner: &Owner,
        after: Option<(&Key, Mode, Position)>,
    ) -> Option<(&Key, Mode, Position)> {
        let from = match after {
            Some((key, mode, position)) => Bound::Excluded((owner.clone(), key.clone(), mode, position)),
            None => Bound::Included((owner.clone(), Key::FIRST, Mode::Exclusive, Position::FIRST)),
        };
        let (waiter, key, mode, position) = self.by_owner.range((from, Bound::Unbounded)).next()?;
        (waiter == owner).then_some((key, *mode, *position))
    }

    /// The next request in line after a position.
    pub(crate) fn next_in_line(&self, key: KeyRef<'_>, after: Bound<Position>) -> Option<(Position, &Waiter)> {
        let position = self.queues.get(&key)?.line.range((after, Bound::Unbounded)).next()?;
        Some((*position, self.by_ticket.get(&position.ticket)?))
    }

    /// The holders of a key that is waited for, by token.
    #[cfg(test)]
    pub(crate) fn holders(&self, key: KeyRef<'_>) -> Vec<(u64, Holder)> {
        let queue = self.queues.get(&key);
        queue.into_iter().flat_map(|queue| &queue.holders).map(|(token, holder)| (*token, holder.clone())).collect()
    }

    /// Checks the invariants.
    #[cfg(test)]
    pub(crate) fn assert_consistent(&self) {
        let in_line: usize = self.queues.values().map(|queue| queue.line.len()).sum();
        let holders: usize = self.queues.values().map(|queue| queue.holders.len()).sum();
        assert_eq!(holders, self.held_by.len());
        let waited_for: usize = self.by_ticket.values().map(|waiter| waiter.keys.len()).sum();
        assert_eq!((in_line, self.by_owner.len()), (waited_for, waited_for));
        let alarms = self.by_ticket.values().filter(|waiter| waiter.alarm != Alarm::NONE).count();
        assert_eq!(alarms, self.waits.len());
        for (key, queue) in &self.queues {
            assert!(!queue.line.is_empty());
            for position in &queue.line {
                let waiter = &self.by_ticket[&position.ticket];
                assert!(waiter.keys.contains(key) && waiter.standing == position.standing);
            }
        }
    }
}
