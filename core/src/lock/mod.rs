//! The value of a key: a kind, a capacity, the holds, and the queue of a fair lock.
//!
//! [`Lock::apply`] maintains these invariants; [`Lock::check`] checks events from outside first:
//! 1. No two holds have the same owner and mode, nor the same token.
//! 2. Each hold has a count of at least 1 and a deadline: no lock is immortal.
//! 3. The owner of an exclusive or WRITE hold has all holds of the lock.
//! 4. A lock is [`Body::Wide`] while it has more than one hold or a queue; a semaphore while it has
//!    a hold.
//!
//! [`admission`] decides what a kind admits, and `apply.rs` changes the value. The value is plain
//! data: the server may free it on another thread.

pub(crate) mod admission;
mod apply;
mod bindings;
mod fair_queue;
mod hashing;
mod hold;
mod hold_index;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::{fmt, mem, slice};

use crate::collections::Alarm;
use crate::event::Phase;
use crate::kind::{Kind, Mode};
use crate::place::Place;
use crate::time::Now;

pub use fair_queue::FairQueue;
pub use hashing::seed_hashing;
pub use hold::Hold;
use hold_index::HoldIndex;

/// The most holders of a lock: a further one waits as for a lock that is held. So the engine may
/// visit all holds in one step.
pub(crate) const MAX_HOLDERS: usize = 10_000;

/// A lock of any kind.
pub struct Lock {
    body: Body,
    /// The engine's alarm for the next deadline. Not part of the value: a copy starts without one.
    alarm: Alarm,
    kind: Kind,
}

/// Most locks have one hold and nothing else, and need no further allocation.
enum Body {
    /// No holds and no places. A semaphore in this state is about to be removed.
    Free,
    /// A semaphore without holds.
    Unused(Capacity),
    Held(Hold),
    Wide(Box<Wide>),
}

/// The fields that few locks need.
#[derive(Clone, Default)]
struct Wide {
    holds: Vec<Hold>,
    /// An index of the holds, if there are many.
    index: Option<HoldIndex>,
    /// The places of a fair lock with waiters.
    queue: Option<FairQueue>,
    /// The capacity of a semaphore.
    capacity: Capacity,
}

/// The number of permits of a semaphore, and its idle time.
#[derive(Clone, Copy, Default)]
struct Capacity {
    permits: u32,
    idle: Option<Idle>,
}

/// The idle time of a semaphore (`IDLE`), after which it is removed if it has no holders and no
/// waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// Its length in milliseconds.
    pub idle_ms: u64,
    /// When it ends, unless a hold begins before.
    pub until_us: u64,
}

impl Clone for Lock {
    fn clone(&self) -> Self {
        let body = match &self.body {
            Body::Free => Body::Free,
            Body::Unused(capacity) => Body::Unused(*capacity),
            Body::Held(hold) => Body::Held(hold.clone()),
            Body::Wide(wide) => Body::Wide(wide.clone()),
        };
        Self { body, alarm: Alarm::NONE, kind: self.kind }
    }
}

/// The index is derived from the list of holds, and the alarm is not part of the value.
impl PartialEq for Lock {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, self.permits(), self.idle(), self.holds())
            == (other.kind, other.permits(), other.idle(), other.holds())
            && self.queue() == other.queue()
    }
}

impl Eq for Lock {}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("kind", &self.kind)
            .field("permits", &self.permits())
            .field("idle", &self.idle())
            .field("holds", &self.holds())
            .field("queue", &self.queue())
            .finish()
    }
}

impl Lock {
    /// Creates a lock without holds. Only a semaphore has more than one permit.
    #[must_use]
    pub fn new(kind: Kind, permits: u32) -> Self {
        let body = match kind {
            Kind::Semaphore => Body::Unused(Capacity { permits, idle: None }),
            _ => Body::Free,
        };
        Self { body, alarm: Alarm::NONE, kind }
    }

    /// The kind of the lock.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The engine's alarm for the lock.
    #[must_use]
    pub fn alarm(&self) -> Alarm {
        self.alarm
    }

    /// Takes the alarm from a lock that moves to another key or is dropped.
    pub fn take_alarm(&mut self) -> Alarm {
        mem::replace(&mut self.alarm, Alarm::NONE)
    }

    pub(crate) fn set_alarm(&mut self, alarm: Alarm) {
        self.alarm = alarm;
    }

    /// The number of permits of a semaphore; 1 for the other kinds.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.capacity().map_or(1, |capacity| capacity.permits)
    }

    /// The idle time of a semaphore; `None` if it stays until DEL.
    #[must_use]
    pub fn idle(&self) -> Option<Idle> {
        self.capacity()?.idle
    }

    fn capacity(&self) -> Option<&Capacity> {
        match &self.body {
            Body::Unused(capacity) => Some(capacity),
            Body::Wide(wide) if self.kind == Kind::Semaphore => Some(&wide.capacity),
            Body::Free | Body::Held(_) | Body::Wide(_) => None,
        }
    }

    fn capacity_mut(&mut self) -> Option<&mut Capacity> {
        match &mut self.body {
            Body::Unused(capacity) => Some(capacity),
            Body::Wide(wide) if self.kind == Kind::Semaphore => Some(&mut wide.capacity),
            Body::Free | Body::Held(_) | Body::Wide(_) => None,
        }
    }

    /// All holds, including expired ones that were not removed yet. Their order has no meaning, but
    /// is the same on every server.
    #[must_use]
    pub fn holds(&self) -> &[Hold] {
        match &self.body {
            Body::Free | Body::Unused(_) => &[],
            Body::Held(hold) => slice::from_ref(hold),
            Body::Wide(wide) => &wide.holds,
        }
    }

    fn holds_mut(&mut self) -> &mut [Hold] {
        match &mut self.body {
            Body::Free | Body::Unused(_) => &mut [],
            Body::Held(hold) => slice::from_mut(hold),
            Body::Wide(wide) => &mut wide.holds,
        }
    }

    /// The holds that have not expired, except one that only keeps the lock closed (`KEEP`).
    pub fn live_holds(&self, now: Now) -> impl Iterator<Item = &Hold> {
        self.holds().iter().filter(move |hold| hold.is_live(now) && hold.phase() != Phase::Kept)
    }

    /// The live hold of `owner` in `mode`.
    #[must_use]
    pub fn live_hold(&self, owner: &[u8], mode: Mode, now: Now) -> Option<&Hold> {
        self.hold(owner, mode).filter(|hold| hold.is_live(now) && hold.phase() != Phase::Kept)
    }

    /// The hold of `owner` in `mode`, live or not.
    #[must_use]
    pub fn hold(&self, owner: &[u8], mode: Mode) -> Option<&Hold> {
        self.holds().get(self.position(owner, mode)?)
    }

    /// The hold with `token`, live or not.
    #[must_use]
    pub fn hold_with_token(&self, token: u64) -> Option<&Hold> {
        self.holds().get(self.position_of_token(token)?)
    }

    fn index(&self) -> Option<&HoldIndex> {
        match &self.body {
            Body::Wide(wide) => wide.index.as_ref(),
            _ => None,
        }
    }

    #[inline]
    fn position(&self, owner: &[u8], mode: Mode) -> Option<usize> {
        match self.index() {
            Some(index) => index.find(self.holds(), owner, mode),
            None => self.holds().iter().position(|hold| hold.mode() == mode && hold.owner().as_slice() == owner),
        }
    }

    #[inline]
    fn position_of_token(&self, token: u64) -> Option<usize> {
        match self.index() {
            Some(index) => index.find_token(self.holds(), token),
            None => self.holds().iter().position(|hold| hold.token() == token),
        }
    }

    /// An expired hold.
    #[must_use]
    pub fn expired_hold(&self, now: Now) -> Option<&Hold> {
        match self.index() {
            Some(index) => self.hold_with_token(index.first_expired(now.mono_us)?),
            None => self.holds().iter().find(|hold| !hold.is_live(now)),
        }
    }

    /// The queue of a fair lock with waiters.
    #[must_use]
    pub fn queue(&self) -> Option<&FairQueue> {
        match &self.body {
            Body::Wide(wide) => wide.queue.as_ref(),
            _ => None,
        }
    }

    /// The place of `owner` in the queue of a fair lock.
    #[must_use]
    pub fn place(&self, owner: &[u8]) -> Option<Place<'_>> {
        self.queue()?.get(owner)
    }

    /// When the next lease, place, reservation or idle time expires. At once, if the lock is free
    /// and not reserved but has places: after a crash of its master, the server that finds such a
    /// lock must serve the head.
    #[inline]
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        match &self.body {
            Body::Free => None,
            Body::Unused(capacity) => capacity.idle.map(|idle| idle.until_us),
            Body::Held(hold) => Some(hold.deadline_us()),
            Body::Wide(_) => self.next_deadline_of_many_us(),
        }
    }

    fn next_deadline_of_many_us(&self) -> Option<u64> {
        if self.holds().is_empty() && self.queue().is_some_and(|queue| queue.reserved_until_us().is_none()) {
            return Some(0);
        }
        self.next_end_us()
    }

    /// When the next lease, place or reservation ends.
    fn next_end_us(&self) -> Option<u64> {
        let lease_us = match self.index() {
            Some(index) => index.first_deadline_us(),
            None => self.holds().iter().map(Hold::deadline_us).min(),
        };
        let place_us = self.queue().and_then(FairQueue::next_deadline_us);
        [lease_us, place_us].into_iter().flatten().min()
    }

    /// When the last lease expires.
    #[must_use]
    pub fn last_deadline_us(&self) -> Option<u64> {
        match self.index() {
            Some(index) => index.last_deadline_us(),
            None => self.holds().iter().map(Hold::deadline_us).max(),
        }
    }

    /// Whether the key can be removed: no holds and no places. A semaphore stays until an event
    /// removes it.
    #[must_use]
    pub fn is_disposable(&self) -> bool {
        matches!(self.body, Body::Free)
    }

    /// The released hold that keeps the lock closed (`KEEP`). It is then the only hold in the
    /// value.
    #[must_use]
    pub fn kept(&self, now: Now) -> Option<&Hold> {
        let hold = self.holds().first()?;
        (hold.phase() == Phase::Kept && hold.is_live(now)).then_some(hold)
    }

    /// Whether the lock has a live hold or is kept closed.
    #[must_use]
    pub fn is_held(&self, now: Now) -> bool {
        self.last_deadline_us().is_some_and(|deadline_us| deadline_us > now.mono_us)
    }

    /// Whether the lock has any effect now. A lock whose leases and places have all expired has
    /// none.
    #[must_use]
    pub fn is_live(&self, now: Now) -> bool {
        self.kind == Kind::Semaphore || self.is_held(now) || self.queue().is_some_and(|queue| !queue.has_expired(now))
    }

    /// The free permits of a semaphore; negative if a RESIZE left fewer than are in use.
    #[must_use]
    pub fn available(&self, now: Now) -> i64 {
        let used: u64 = match self.index() {
            Some(index) => index.live_total(now.mono_us),
            None => self.live_holds(now).map(|hold| u64::from(hold.count())).sum(),
        };
        i64::from(self.permits()).saturating_sub(i64::try_from(used).unwrap_or(i64::MAX))
    }

    /// Whether an owner other than `owner` has a live hold. A kept lock is closed to all owners.
    fn is_held_by_another(&self, owner: &[u8], now: Now) -> bool {
        self.kept(now).is_some() || self.live_holds(now).any(|hold| hold.owner().as_slice() != owner)
    }

    /// The WRITE hold, live or not. Its owner has all holds (invariant 3), one in each mode at
    /// most.
    pub(crate) fn writer(&self) -> Option<&Hold> {
        self.holds().iter().take(Mode::ALL.len()).find(|hold| hold.mode() == Mode::Write)
    }

    /// Whether there is room for one more holder.
    fn has_room_for_a_holder(&self) -> bool {
        self.holds().len() < MAX_HOLDERS
    }

    /// Whether an owner other than `owner` has a live WRITE hold.
    fn is_written_by_another(&self, owner: &[u8], now: Now) -> bool {
        self.writer().is_some_and(|hold| hold.is_live(now) && hold.owner().as_slice() != owner)
    }

    /// The heap bytes of this value, for MEMORY USAGE. Extrapolates from up to 64 holds.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        const SAMPLES: usize = 64;
        let holds = self.holds();
        let sample: usize = holds.iter().take(SAMPLES).map(Hold::heap_bytes).sum();
        let behind_holds = sample.saturating_mul(holds.len()).checked_div(holds.len().min(SAMPLES)).unwrap_or(0);
        let wide = match &self.body {
            Body::Free | Body::Unused(_) | Body::Held(_) => 0,
            Body::Wide(wide) => size_of::<Wide>()
                .saturating_add(wide.holds.capacity().saturating_mul(size_of::<Hold>()))
                .saturating_add(wide.index.as_ref().map_or(0, HoldIndex::heap_bytes))
                .saturating_add(wide.queue.as_ref().map_or(0, FairQueue::heap_bytes)),
        };
        behind_holds.saturating_add(wide)
    }
}

#[cfg(test)]
mod tests;
