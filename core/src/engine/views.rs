//! What can be seen of the engine without changing it.

use super::Engine;
use crate::bytes::KeyRef;
use crate::kind::{Kind, Mode};
use crate::lock::PASSED_OVER;
use crate::registry::Waiter;
use crate::statistics::{KindStats, WaitSummary};
use crate::time::{MAX_TOKEN, Now, US_PER_MS};

/// A waiter, as WAITERS shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterView<'a> {
    /// Who waits.
    pub owner: &'a [u8],
    /// For which mode.
    pub mode: Mode,
    /// How many holds or permits it wants.
    pub count: u32,
    /// For how long it has been waiting.
    pub waited_ms: u64,
    /// No connection is blocked for it: its answer is published.
    pub is_notified: bool,
    /// The connection that asked, if it is one that can close.
    pub client: Option<u64>,
    /// The note of the request.
    pub note: Option<&'a [u8]>,
}

impl Engine {
    /// What happened to locks of a kind since the start.
    pub fn stats(&mut self, kind: Kind) -> KindStats {
        *self.stats.of(kind)
    }

    /// How many grants were taken back because nobody listened to the channel on which they were to be published.
    #[must_use]
    pub fn unheard_grants(&self) -> u64 {
        self.stats.unheard()
    }

    /// How long waits took.
    pub fn wait_summary(&mut self, now: Now) -> WaitSummary {
        self.stats.wait_summary(now)
    }

    /// How many locks are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.alarms.len()
    }

    /// How many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.registry.waiting()
    }

    /// How many bytes the engine's records of them take, about.
    #[must_use]
    pub fn waiters_bytes(&self) -> usize {
        self.registry.heap_bytes()
    }

    /// How many wait for locks of a kind.
    #[must_use]
    pub fn waiting_for(&self, kind: Kind) -> usize {
        self.registry.waiting_for(kind)
    }

    /// How many of them have no blocked connection.
    #[must_use]
    pub fn waiting_notified(&self) -> usize {
        self.registry.notified().len()
    }

    /// How many wait under `key`.
    #[must_use]
    pub fn waiting_on(&self, key: KeyRef<'_>) -> usize {
        self.registry.find(key).map_or(0, |name| self.registry.len_under(name))
    }

    /// Whether a ticket waits.
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

    /// Who waits under `key`, in order.
    #[cfg(test)]
    pub(crate) fn waiters(&self, key: KeyRef<'_>, now: Now) -> impl Iterator<Item = WaiterView<'_>> {
        self.waiters_among(key, now, usize::MAX)
    }

    /// Who waits under `key`, of the first so many requests of the queue.
    fn waiters_among(&self, key: KeyRef<'_>, now: Now, requests: usize) -> impl Iterator<Item = WaiterView<'_>> {
        let name = self.registry.find(key);
        let waiters = name.into_iter().flat_map(|name| self.registry.in_order(name)).take(requests);
        let waits = move |waiter: &Waiter| !self.registry.is_wait_over(waiter, now);
        waiters.filter(move |(_, waiter)| waits(waiter)).map(move |(_, waiter)| self.view(waiter, now))
    }

    /// The first who wait under `key`, in order, `limit` at most. Looks at not many more than that: where a
    /// great many waits have ended together, and are yet to be answered, there may be fewer.
    pub fn first_waiters(&self, key: KeyRef<'_>, now: Now, limit: usize) -> impl Iterator<Item = WaiterView<'_>> {
        self.waiters_among(key, now, limit.saturating_add(PASSED_OVER)).take(limit)
    }

    /// How many more fencing tokens this server can give.
    #[must_use]
    pub fn tokens_left(&self) -> u64 {
        MAX_TOKEN.saturating_sub(self.last_token)
    }
}
