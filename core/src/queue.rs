//! Connected waiters: who waits under which names, in which order, and until when.
//!
//! Waiters belong to key *names*: they survive the deletion of a key. Each has a position of the whole server, which is
//! the same in the queue of every key that it waits for, so waiters for many keys meet in one order everywhere; and a
//! ticket, which names the blocked connection. A retry of the same numbered request takes the place over: rank and
//! arrival number stay, the ticket changes.
//!
//! Joining, leaving from anywhere and looking at the head are O(log n) in the number of waiters, for each key.
//!
//! Invariants:
//! 1. A ticket is in `by_ticket` exactly if its position is in the line of each of its keys.
//! 2. A queue that is empty is not in `queues`.
//! 3. A waiter has an alarm in `waits` exactly if it does not wait for ever.
//! 4. `by_owner` has each waiter once for each of its keys.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use ahash::RandomState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::bytes::{Key, KeyRef, Owner};
use crate::deadlines::{Alarm, Deadlines};
use crate::lock::Mode;
use crate::request::{Acquire, Ask};
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
    const FIRST: Self = Self { standing: Standing { rank: Rank::Upgrade, arrival: u64::MIN }, ticket: u64::MIN };
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

    /// Whether it waits for several keys at once.
    pub(crate) fn is_many(&self) -> bool {
        self.keys.len() > 1
    }
}

fn until_us(request: &Acquire) -> Option<u64> {
    match request.ask {
        Ask::Wait { until_us } => until_us,
        Ask::Try | Ask::Queue { .. } => None,
    }
}

type Line = BTreeSet<Position>;

pub(crate) struct Waiters {
    by_ticket: HashMap<u64, Waiter, RandomState>,
    queues: HashMap<Key, Line, RandomState>,
    by_owner: BTreeSet<(Owner, Key, Mode, Position)>,
    waits: Deadlines<u64>,
    last_ticket: u64,
}

impl Waiters {
    pub(crate) fn new(hasher: RandomState) -> Self {
        Self {
            by_ticket: HashMap::with_hasher(hasher.clone()),
            queues: HashMap::with_hasher(hasher),
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
        self.queues.get(&key).map_or(0, Line::len)
    }

    /// Puts a request in the line of each of its keys. Returns its ticket.
    pub(crate) fn join(&mut self, keys: RequestKeys, standing: Standing, request: Acquire, now: Now) -> u64 {
        self.last_ticket = self.last_ticket.saturating_add(1);
        let ticket = self.last_ticket;
        let position = Position { standing, ticket };
        for key in &keys {
            self.queues.entry(key.clone()).or_default().insert(position);
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
            if let Some(line) = self.queues.get_mut(key) {
                line.remove(&position);
                if line.is_empty() {
                    self.queues.remove(key);
                }
            }
            self.by_owner.remove(&(waiter.request.owner.clone(), key.clone(), waiter.request.mode, position));
        }
        Some(waiter)
    }

    /// The head of the queue under `key`.
    pub(crate) fn first(&self, key: KeyRef<'_>) -> Option<(u64, &Waiter)> {
        if self.is_empty() {
            return None;
        }
        let ticket = self.queues.get(&key)?.first()?.ticket;
        Some((ticket, self.by_ticket.get(&ticket)?))
    }

    /// The tickets under `key`, in order.
    pub(crate) fn tickets(&self, key: KeyRef<'_>) -> Vec<u64> {
        self.queues.get(&key).map_or_else(Vec::new, |line| line.iter().map(|position| position.ticket).collect())
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
            .flat_map(Line::iter)
            .filter_map(|position| self.by_ticket.get(&position.ticket))
    }

    /// The tickets with which `owner` waits under `key` in `mode`, in order.
    pub(crate) fn of_owner(&self, key: KeyRef<'_>, owner: &Owner, mode: Mode) -> Vec<u64> {
        if self.is_empty() {
            return Vec::new();
        }
        let from = (owner.clone(), key.to_key(), mode, Position::FIRST);
        let to = (owner.clone(), key.to_key(), mode, Position::LAST);
        self.by_owner.range(from..=to).map(|(_, _, _, position)| position.ticket).collect()
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

    /// Checks the invariants.
    #[cfg(test)]
    pub(crate) fn assert_consistent(&self) {
        let in_line: usize = self.queues.values().map(BTreeSet::len).sum();
        let waited_for: usize = self.by_ticket.values().map(|waiter| waiter.keys.len()).sum();
        assert_eq!((in_line, self.by_owner.len()), (waited_for, waited_for));
        let alarms = self.by_ticket.values().filter(|waiter| waiter.alarm != Alarm::NONE).count();
        assert_eq!(alarms, self.waits.len());
        for (key, line) in &self.queues {
            assert!(!line.is_empty());
            for position in line {
                let waiter = &self.by_ticket[&position.ticket];
                assert!(waiter.keys.contains(key) && waiter.standing == position.standing);
            }
        }
    }
}
