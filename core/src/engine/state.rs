//! The state of the engine, what a request is decided with, and what is noted to be acted upon later.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use ahash::RandomState;

use super::backlog::{Postponed, Sweep};
use super::connections::Connections;
use super::databases::Databases;
use super::dirty::Dirty;
use super::leases::Leases;
use super::pending_grants::PendingTickets;
use super::positions::NameId;
use super::statistics::Statistics;
use super::transaction::At;
use super::wait_queues::WaitQueues;
use super::work::Work;
use crate::bytes::{Key, KeyRef};
use crate::collections::{Alarm, Chunked};
use crate::keyspace::Keyspace;
use crate::lock::Leftovers;
use crate::request::Refusal;
use crate::time::{MAX_TOKEN, Now, TOKEN_CLOCK_END_US};

/// The state of one server's locks beyond their values: who waits, what is due, which connections matter.
pub struct Engine {
    pub(super) leases: Leases,
    pub(super) databases: Databases,
    pub(super) queues: WaitQueues,
    pub(super) connections: Connections,
    /// Names with something to act upon, in the order in which they became so.
    pub(super) dirty: VecDeque<NameId>,
    /// Keys that were loaded and have no alarm yet, with the stable id of their database in its place.
    pub(super) loaded: Chunked<Key>,
    pub(super) postponed: Postponed,
    pub(super) sweep: Option<Sweep>,
    /// Waiters for many keys that can have all of them, to be granted with all of them open; and whether a hold has just ended.
    pub(super) grantable: VecDeque<(u64, bool)>,
    /// Waiters that may close a circle, to be searched by the timer.
    pub(super) suspects: VecDeque<u64>,
    pub(super) pending: PendingTickets,
    pub(super) leftovers: Vec<(Key, Leftovers)>,
    /// Which source of work the timer asks first.
    pub(super) next_timer: usize,
    /// The alarm that has gone off and is being worked on.
    pub(super) ringing: Option<Alarm>,
    pub(super) work: Work,
    pub(super) hasher: RandomState,
    pub(super) last_token: u64,
    pub(super) stats: Statistics,
    /// Where the next look at the names that are waited for begins.
    pub(super) next_look: u32,
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
            loaded: Chunked::default(),
            postponed: Postponed::default(),
            sweep: None,
            grantable: VecDeque::new(),
            suspects: VecDeque::new(),
            pending: PendingTickets::default(),
            leftovers: Vec::new(),
            next_timer: 0,
            ringing: None,
            work: Work::default(),
            hasher,
            last_token: 0,
            stats: Statistics::default(),
            next_look: 0,
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
    pub(super) fn name(&self, at: &mut At<'_, '_, impl Keyspace>) -> Option<NameId> {
        if self.queues.names.is_empty() { None } else { at.name(&self.queues.names) }
    }

    /// Whether anybody waits under the name of a key.
    pub(super) fn is_waited_for(&self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        self.name(at).is_some_and(|name| self.queues.len_under(name) > 0)
    }

    /// The record of a key's name, made if need be.
    pub(super) fn intern(&mut self, key: KeyRef<'_>) -> NameId {
        let generation = self.databases.generation(key.db);
        self.queues.names.intern(key, generation)
    }

    /// Notes something under a name, to be acted upon.
    pub(super) fn mark(&mut self, name: NameId, note: impl FnOnce(&mut Dirty)) {
        if let Some(record) = self.queues.names.get_mut(name) {
            note(record.dirty.get_or_insert_default());
            if !record.is_listed {
                record.is_listed = true;
                self.dirty.push_back(name);
            }
        }
    }

    /// Nothing more is done for a queue now: the timer goes on.
    pub(super) fn leave_to_timer(&mut self, key: KeyRef<'_>) {
        let name = self.intern(key);
        self.mark(name, |_| {});
    }

    /// Remembers that a waiter may close a circle.
    pub(super) fn suspect(&mut self, ticket: u64) {
        if let Some(waiter) = self.queues.get_mut(ticket)
            && !waiter.is_suspected
        {
            waiter.is_suspected = true;
            self.suspects.push_back(ticket);
        }
    }

    pub(super) fn is_alarm_of(&self, alarm: Alarm, key: KeyRef<'_>) -> bool {
        self.leases.is_of(alarm, key, &self.databases)
    }
}
