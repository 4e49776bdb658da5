//! Read-only views of the engine.

use super::Engine;
use crate::bytes::KeyRef;
use crate::kind::{Kind, Mode};
use crate::registry::Waiter;
use crate::statistics::{KindStats, WaitSummary};
use crate::time::{MAX_TOKEN, Now, US_PER_MS};

/// How many ended waits a listing skips to find others.
const MAX_SKIPPED: usize = 1000;

/// A waiter, as WAITERS shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterView<'a> {
    /// The owner that waits.
    pub owner: &'a [u8],
    /// For which mode.
    pub mode: Mode,
    /// How many holds or permits it asks for.
    pub count: u32,
    /// How long it has waited.
    pub waited_ms: u64,
    /// The answer is published; no connection is blocked.
    pub is_notified: bool,
    /// The connection that sent the request; `None` for a place without a connection.
    pub client: Option<u64>,
    /// The note of the request.
    pub note: Option<&'a [u8]>,
}

impl Engine {
    /// The statistics of a kind since the start.
    pub fn stats(&mut self, kind: Kind) -> KindStats {
        *self.stats.of(kind)
    }

    /// How many grants were undone because no client was subscribed to the channel of their answer.
    #[must_use]
    pub fn unheard_grants(&self) -> u64 {
        self.stats.unheard()
    }

    /// How long waits took.
    pub fn wait_summary(&mut self, now: Now) -> WaitSummary {
        self.stats.wait_summary(now)
    }

    /// How many values have a deadline: held and kept locks, fair locks with places, and semaphores
    /// with an idle time.
    #[must_use]
    pub fn held(&self) -> usize {
        self.alarms.len()
    }

    /// How many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.registry.waiting()
    }

    /// The approximate bytes that the records of waiters take.
    #[must_use]
    pub fn waiters_bytes(&self) -> usize {
        self.registry.heap_bytes()
    }

    /// How many requests wait for locks of a kind.
    #[must_use]
    pub fn waiting_for(&self, kind: Kind) -> usize {
        self.registry.waiting_for(kind)
    }

    /// How many requests wait without a blocked connection.
    #[must_use]
    pub fn waiting_notified(&self) -> usize {
        self.registry.notified().len()
    }

    /// How many requests wait under `key`.
    #[must_use]
    pub fn waiting_on(&self, key: KeyRef<'_>) -> usize {
        self.registry.find(key).map_or(0, |name| self.registry.len_under(name))
    }

    /// Whether the request with a ticket waits.
    #[must_use]
    pub fn is_waiting(&self, ticket: u64) -> bool {
        self.registry.get(ticket).is_some()
    }

    /// The kind of lock that the first waiter under `key` waits for.
    #[must_use]
    pub fn kind_waited_for(&self, key: KeyRef<'_>) -> Option<Kind> {
        let (_, waiter) = self.registry.first(self.registry.find(key)?)?;
        Some(waiter.request().kind)
    }

    /// The waiter at an owner's place on a fair lock.
    #[must_use]
    pub fn waiter_at_place(&self, key: KeyRef<'_>, owner: &[u8], now: Now) -> Option<WaiterView<'_>> {
        let ticket = self.registry.own_place(owner, self.registry.find(key)?)?;
        Some(self.view(self.registry.get(ticket)?, now))
    }

    fn view<'a>(&'a self, waiter: &'a Waiter, now: Now) -> WaiterView<'a> {
        let request = waiter.request();
        WaiterView {
            owner: self.registry.owner_of(waiter),
            mode: request.mode,
            count: request.count,
            is_notified: request.notify.is_some(),
            waited_ms: now.mono_us.saturating_sub(waiter.since_us()) / US_PER_MS,
            client: waiter.client(),
            note: waiter.note().filter(|note| !note.is_empty()),
        }
    }

    /// The waiters under `key`, in order.
    #[cfg(test)]
    pub(crate) fn waiters(&self, key: KeyRef<'_>, now: Now) -> impl Iterator<Item = WaiterView<'_>> {
        self.waiters_among(key, now, usize::MAX)
    }

    /// The waiters among the first `requests` of the queue of `key`.
    fn waiters_among(&self, key: KeyRef<'_>, now: Now, requests: usize) -> impl Iterator<Item = WaiterView<'_>> {
        let name = self.registry.find(key);
        let waiters = name.into_iter().flat_map(|name| self.registry.in_order(name)).take(requests);
        let waits = move |waiter: &Waiter| !self.registry.has_wait_ended(waiter, now);
        waiters.filter(move |(_, waiter)| waits(waiter)).map(move |(_, waiter)| self.view(waiter, now))
    }

    /// The first waiters under `key`, in order, at most `limit`. Skips at most 1000 others
    /// (`MAX_SKIPPED`), so it may return fewer if more waits have just ended and are not answered
    /// yet.
    pub fn first_waiters(&self, key: KeyRef<'_>, now: Now, limit: usize) -> impl Iterator<Item = WaiterView<'_>> {
        self.waiters_among(key, now, limit.saturating_add(MAX_SKIPPED)).take(limit)
    }

    /// How many more fencing tokens this server can give.
    #[must_use]
    pub fn tokens_left(&self) -> u64 {
        MAX_TOKEN.saturating_sub(self.last_token)
    }
}
