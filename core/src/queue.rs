//! Connected waiters: who waits under which name, in which order, and until when.
//!
//! Waiters belong to a key *name*: they survive the deletion of the key. Each has an arrival number of the whole
//! server, which orders it in its queue, and a ticket, which names the blocked connection. A retry of the same numbered
//! request takes the place over: the arrival number stays, the ticket changes.
//!
//! Joining, leaving from anywhere and looking at the head are O(log n) in the length of the queue.
//!
//! Invariants:
//! 1. A ticket is in `by_ticket` exactly if it is in the line of its key's queue.
//! 2. A queue that is empty is not in `queues`.
//! 3. A waiter has an alarm in `waits` exactly if it does not wait for ever.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use ahash::RandomState;
use hashbrown::HashMap;

use crate::bytes::{Key, KeyRef, Owner};
use crate::deadlines::{Alarm, Deadlines};
use crate::lock::Mode;
use crate::request::{Acquire, Ask};
use crate::time::Now;

/// A request that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) key: Key,
    pub(crate) arrival: u64,
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
}

fn until_us(request: &Acquire) -> Option<u64> {
    match request.ask {
        Ask::Wait { until_us } => until_us,
        Ask::Try | Ask::Queue { .. } => None,
    }
}

#[derive(Default)]
struct Queue {
    /// (arrival number, ticket): numbers are unique on a server, but a queue may come from another.
    line: BTreeSet<(u64, u64)>,
    by_owner: BTreeSet<(Owner, Mode, u64, u64)>,
}

pub(crate) struct Waiters {
    by_ticket: HashMap<u64, Waiter, RandomState>,
    queues: HashMap<Key, Queue, RandomState>,
    waits: Deadlines<u64>,
    last_ticket: u64,
}

impl Waiters {
    pub(crate) fn new(hasher: RandomState) -> Self {
        Self {
            by_ticket: HashMap::with_hasher(hasher.clone()),
            queues: HashMap::with_hasher(hasher),
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

    /// Puts a request in line, by its arrival number. Returns its ticket.
    pub(crate) fn join(&mut self, key: KeyRef<'_>, arrival: u64, request: Acquire, now: Now) -> u64 {
        self.last_ticket = self.last_ticket.saturating_add(1);
        let ticket = self.last_ticket;
        let key = key.to_key();
        let queue = self.queues.entry(key.clone()).or_default();
        queue.line.insert((arrival, ticket));
        queue.by_owner.insert((request.owner.clone(), request.mode, arrival, ticket));
        let alarm = match until_us(&request) {
            Some(until_us) => self.waits.insert(until_us, ticket),
            None => Alarm::NONE,
        };
        self.by_ticket.insert(ticket, Waiter { key, arrival, request, since_us: now.mono_us, alarm });
        ticket
    }

    /// Takes a waiter out of its queue.
    pub(crate) fn leave(&mut self, ticket: u64) -> Option<Waiter> {
        let waiter = self.by_ticket.remove(&ticket)?;
        if waiter.alarm != Alarm::NONE {
            self.waits.remove(waiter.alarm);
        }
        if let Some(queue) = self.queues.get_mut(&waiter.key) {
            queue.line.remove(&(waiter.arrival, ticket));
            let request = &waiter.request;
            queue.by_owner.remove(&(request.owner.clone(), request.mode, waiter.arrival, ticket));
            if queue.line.is_empty() {
                self.queues.remove(&waiter.key);
            }
        }
        Some(waiter)
    }

    /// The head of the queue under `key`.
    pub(crate) fn first(&self, key: KeyRef<'_>) -> Option<(u64, &Waiter)> {
        if self.is_empty() {
            return None;
        }
        let (_, ticket) = self.queues.get(&key)?.line.first()?;
        Some((*ticket, self.by_ticket.get(ticket)?))
    }

    /// The tickets under `key`, in order.
    pub(crate) fn tickets(&self, key: KeyRef<'_>) -> Vec<u64> {
        self.queues.get(&key).map_or_else(Vec::new, |queue| queue.line.iter().map(|(_, ticket)| *ticket).collect())
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
            .filter_map(|(_, ticket)| self.by_ticket.get(ticket))
    }

    /// The tickets with which `owner` waits under `key` in `mode`, in order.
    pub(crate) fn of_owner(&self, key: KeyRef<'_>, owner: &Owner, mode: Mode) -> Vec<u64> {
        let Some(queue) = self.queues.get(&key) else {
            return Vec::new();
        };
        let from = (owner.clone(), mode, u64::MIN, u64::MIN);
        let to = (owner.clone(), mode, u64::MAX, u64::MAX);
        queue.by_owner.range(from..=to).map(|(_, _, _, ticket)| *ticket).collect()
    }

    /// The numbered request of `owner` that waits under `key` in `mode`: its ticket and its id.
    pub(crate) fn numbered(&self, key: KeyRef<'_>, owner: &Owner, mode: Mode) -> Option<(u64, u64)> {
        if self.is_empty() {
            return None;
        }
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
        let in_line: usize = self.queues.values().map(|queue| queue.line.len()).sum();
        assert_eq!(in_line, self.by_ticket.len());
        let alarms = self.by_ticket.values().filter(|waiter| waiter.alarm != Alarm::NONE).count();
        assert_eq!(alarms, self.waits.len());
        for (key, queue) in &self.queues {
            assert!(!queue.line.is_empty());
            assert_eq!(queue.line.len(), queue.by_owner.len());
            for (arrival, ticket) in &queue.line {
                let waiter = &self.by_ticket[ticket];
                assert_eq!((&waiter.key, waiter.arrival), (key, *arrival));
            }
        }
    }
}
