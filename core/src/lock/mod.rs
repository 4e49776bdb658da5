//! The value of a key: a kind, a capacity, the holds, and the queue of a fair lock.
//!
//! Invariants, kept by [`Lock::apply`] and checked before it by [`Lock::check`], wherever an event comes from outside:
//! 1. No two holds have the same owner and mode, nor the same token.
//! 2. Each hold has a count of at least 1 and a deadline: no lock is immortal.
//! 3. Who holds in a mode that leaves no room for others holds alone, but for holds of its own.
//! 4. A lock is [`Body::Wide`] while it has more than one hold or a queue; a semaphore while it has a hold.
//!
//! What a kind admits is in [`admission`], how the value changes in `apply.rs`. The value is plain data: the server may free it on another thread.

pub(crate) mod admission;
mod apply;
mod bindings;
mod fair_queue;
mod hashing;
mod hold;
mod hold_index;

use alloc::boxed::Box;
use core::{fmt, mem};

use crate::collections::{Alarm, Chunked};
use crate::event::Phase;
use crate::kind::{Kind, Mode};
use crate::place::Place;
use crate::time::Now;

pub use fair_queue::FairQueue;
pub use hashing::seed_hashing;
pub(crate) use hold::PASSED_OVER;
pub use hold::{Hold, Holds};
pub(crate) use hold_index::HoldIndex;

/// A lock of any kind.
pub struct Lock {
    body: Body,
    /// The engine's timer for the next deadline. Not part of the value: a copy starts without one.
    alarm: Alarm,
    kind: Kind,
}

/// Most locks have one hold and nothing else, and take no further allocation.
enum Body {
    /// Without holds and places. A semaphore in this state is to be removed.
    Free,
    /// A semaphore without holds.
    Unused(Capacity),
    Held(Hold),
    Wide(Box<Wide>),
}

/// What few locks have.
#[derive(Clone, Default)]
struct Wide {
    holds: Chunked<Hold>,
    /// Over the holds of a lock that many hold.
    index: Option<HoldIndex>,
    /// The places of a fair lock that is waited for.
    queue: Option<FairQueue>,
    /// Of a semaphore.
    capacity: Capacity,
    /// The generation of the bindings of holds to connections: see [`Lock::unbind_all`].
    bindings: u32,
}

/// The number of permits of a semaphore, and its idle time.
#[derive(Clone, Copy, Default)]
struct Capacity {
    permits: u32,
    idle: Option<Idle>,
}

/// The idle time of a semaphore (`IDLE`): it is removed after so long without holders and waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// The length of that time, in milliseconds.
    pub idle_ms: u64,
    /// When it ends, unless a hold begins before.
    pub until_us: u64,
}

/// What left a lock in one step and is too much to be cleaned up in one: holds with their ties to connections, and places.
#[derive(Default)]
pub(crate) struct Leftovers {
    pub(crate) holds: Chunked<Hold>,
    /// The generation in which their bindings count.
    pub(crate) bindings: u32,
    pub(crate) index: Option<HoldIndex>,
    pub(crate) queue: Option<FairQueue>,
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

/// The index is part of the list that it is made from, and the alarm is not part of the value.
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
    /// A lock that nobody holds. Only a semaphore has more than one permit.
    #[must_use]
    pub fn new(kind: Kind, permits: u32) -> Self {
        let body = match kind {
            Kind::Semaphore => Body::Unused(Capacity { permits, idle: None }),
            _ => Body::Free,
        };
        Self { body, alarm: Alarm::NONE, kind }
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The engine's timer for it.
    #[must_use]
    pub fn alarm(&self) -> Alarm {
        self.alarm
    }

    /// Takes the timer away from it: the lock is on its way to another key, or to nowhere.
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

    /// Every hold, also one whose lease has ended and was not removed yet.
    #[must_use]
    pub fn holds(&self) -> Holds<'_> {
        match &self.body {
            Body::Free | Body::Unused(_) => Holds::from(None),
            Body::Held(hold) => Holds::from(Some(hold)),
            Body::Wide(wide) => Holds::of_many(&wide.holds),
        }
    }

    fn hold_mut(&mut self, at: usize) -> Option<&mut Hold> {
        match &mut self.body {
            Body::Free | Body::Unused(_) => None,
            Body::Held(hold) => (at == 0).then_some(hold),
            Body::Wide(wide) => wide.holds.get_mut(at),
        }
    }

    /// The holds that have not expired, without one that only keeps the lock closed (`KEEP`).
    pub fn live_holds(&self, now: Now) -> impl Iterator<Item = &Hold> {
        self.holds().iter().filter(move |hold| hold.is_live(now) && hold.phase() != Phase::Kept)
    }

    /// Some of them, `limit` at most. Of a lock that many more hold they are those whose leases end last: nobody has to walk through what is
    /// over.
    pub fn some_live_holds(&self, now: Now, limit: usize) -> impl Iterator<Item = &Hold> {
        let is_short = self.holds().len() <= limit.saturating_add(PASSED_OVER);
        let in_list = is_short.then(|| self.live_holds(now));
        let index = self.index().filter(|_| !is_short);
        let latest = index.into_iter().flat_map(move |index| index.latest_first(now.mono_us));
        let latest = latest.filter_map(|token| self.hold_with_token(token));
        in_list.into_iter().flatten().chain(latest).take(limit)
    }

    /// How many they are.
    #[must_use]
    pub fn live_count(&self, now: Now) -> usize {
        match self.index() {
            Some(index) => index.live(now.mono_us).holds,
            None => self.live_holds(now).count(),
        }
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

    /// A hold whose lease has ended.
    #[must_use]
    pub fn expired_hold(&self, now: Now) -> Option<&Hold> {
        match self.index() {
            Some(index) => self.hold_with_token(index.first_expired(now.mono_us)?),
            None => self.holds().iter().find(|hold| !hold.is_live(now)),
        }
    }

    /// The queue of a fair lock that is waited for.
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

    /// When the next lease, life of a place, reservation or idle time ends. At once, if the lock is free, without a reservation, and
    /// its head is yet to be served: whoever comes upon such a lock after its master crashed has to be told.
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
        let lease_us = match self.index() {
            Some(index) => index.first_deadline_us(),
            None => self.holds().iter().map(Hold::deadline_us).min(),
        };
        let place_us = self.queue().and_then(FairQueue::next_deadline_us);
        [lease_us, place_us].into_iter().flatten().min()
    }

    /// When the last lease ends.
    #[must_use]
    pub fn last_deadline_us(&self) -> Option<u64> {
        match self.index() {
            Some(index) => index.last_deadline_us(),
            None => self.holds().iter().map(Hold::deadline_us).max(),
        }
    }

    /// Whether the key can go: there are no holds and no places. A semaphore stays until an event removes it.
    #[must_use]
    pub fn is_disposable(&self) -> bool {
        matches!(self.body, Body::Free)
    }

    /// The ended hold that keeps the lock closed (`KEEP`). It is then the only hold in the value.
    #[must_use]
    pub fn kept(&self, now: Now) -> Option<&Hold> {
        let hold = self.holds().get(0)?;
        (hold.phase() == Phase::Kept && hold.is_live(now)).then_some(hold)
    }

    /// Whether the lock has a live hold or is kept closed.
    #[must_use]
    pub fn is_held(&self, now: Now) -> bool {
        self.last_deadline_us().is_some_and(|deadline_us| deadline_us > now.mono_us)
    }

    /// Whether there is anything to it at this moment: a lock whose leases and places are all over is as good as gone.
    #[must_use]
    pub fn is_live(&self, now: Now) -> bool {
        self.kind == Kind::Semaphore || self.is_held(now) || self.queue().is_some_and(|queue| !queue.is_over(now))
    }

    /// How many permits of a semaphore are free; negative if it was made smaller than what is in use.
    #[must_use]
    pub fn available(&self, now: Now) -> i64 {
        let used: u64 = match self.index() {
            Some(index) => index.live(now.mono_us).total,
            None => self.live_holds(now).map(|hold| u64::from(hold.count())).sum(),
        };
        i64::from(self.permits()).saturating_sub(i64::try_from(used).unwrap_or(i64::MAX))
    }

    /// Whether an owner other than `owner` has a live hold. A kept lock is closed to all owners.
    fn is_held_by_another(&self, owner: &[u8], now: Now) -> bool {
        match self.index() {
            // An owner has few holds, so another one's is soon found.
            Some(index) => {
                let mut live = index.latest_first(now.mono_us).filter_map(|token| self.hold_with_token(token));
                live.any(|hold| hold.owner().as_slice() != owner)
            }
            None => self.kept(now).is_some() || self.live_holds(now).any(|hold| hold.owner().as_slice() != owner),
        }
    }

    /// The hold for writing, live or not. A lock that is held by many has none (invariant 3).
    pub(crate) fn writer(&self) -> Option<&Hold> {
        match self.index() {
            Some(_) => None,
            None => self.holds().iter().find(|hold| hold.mode() == Mode::Write),
        }
    }

    /// Whether an owner other than `owner` has a live hold for writing.
    fn is_written_by_another(&self, owner: &[u8], now: Now) -> bool {
        self.writer().is_some_and(|hold| hold.is_live(now) && hold.owner().as_slice() != owner)
    }

    /// Bytes on the heap behind this value, for MEMORY USAGE. Of many holds a few are looked at, and the rest taken for alike.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        const SAMPLES: usize = 64;
        let holds = self.holds();
        let sample: usize = holds.iter().take(SAMPLES).map(Hold::heap_bytes).sum();
        let behind_holds = sample.saturating_mul(holds.len()).checked_div(holds.len().min(SAMPLES)).unwrap_or(0);
        let wide = match &self.body {
            Body::Free | Body::Unused(_) | Body::Held(_) => 0,
            Body::Wide(wide) => size_of::<Wide>()
                .saturating_add(wide.holds.heap_bytes())
                .saturating_add(wide.index.as_ref().map_or(0, HoldIndex::heap_bytes))
                .saturating_add(wide.queue.as_ref().map_or(0, FairQueue::heap_bytes)),
        };
        behind_holds.saturating_add(wide)
    }
}

#[cfg(test)]
mod tests;
