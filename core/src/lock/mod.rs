//! The value of a key: a kind, a capacity, the holds, and the queue of a fair lock.
//!
//! Invariants, kept by [`Lock::apply`] and checked before it by [`Lock::check`], wherever an event comes from outside:
//! 1. No two holds have the same owner and mode, nor the same token.
//! 2. Each hold has a count of at least 1 and a deadline: no lock is immortal.
//! 3. Who holds in a mode that leaves no room for others holds alone, but for holds of its own.
//! 4. A semaphore is [`Body::Wide`]; another lock only while it has more than one hold, or a queue.
//!
//! What a kind admits is in [`admission`]. The value is plain data: the server may free it on another thread.

pub(crate) mod admission;
mod fair_queue;
mod hold;
mod hold_index;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::{fmt, mem, slice};

use smallvec::SmallVec;

use crate::bytes::Owner;
use crate::collections::Alarm;
use crate::event::{Event, Terms};
use crate::kind::{Kind, Mode};
use crate::place::Place;
use crate::time::Now;

pub use fair_queue::{FairQueue, seed_hashing};
pub use hold::Hold;
pub(crate) use hold_index::HoldIndex;
use hold_index::{MAX_FEW, MIN_INDEXED};

/// A lock of any kind.
pub struct Lock {
    body: Body,
    /// The engine's timer for the next deadline. Not part of the value: a copy starts without one.
    alarm: Alarm,
    kind: Kind,
}

/// Most locks have one hold and nothing else, and take no further allocation.
enum Body {
    Free,
    Held(Hold),
    Wide(Box<Wide>),
}

/// What few locks have.
#[derive(Clone, Default)]
struct Wide {
    holds: Vec<Hold>,
    /// Over the holds of a lock that many hold.
    index: Option<HoldIndex>,
    /// The places of a fair lock that is waited for.
    queue: Option<FairQueue>,
    permits: u32,
    /// The generation of the bindings of holds to connections: see [`Lock::unbind_all`].
    bindings: u32,
}

/// Bindings of one hold to connections.
type Bindings = SmallVec<[(u64, u64); 1]>;

/// What left a lock in one step and is too much to be cleaned up in one: holds with their ties to connections, and places.
#[derive(Default)]
pub(crate) struct Leftovers {
    pub(crate) holds: Vec<Hold>,
    /// The generation in which their bindings count.
    pub(crate) bindings: u32,
    pub(crate) index: Option<HoldIndex>,
    pub(crate) queue: Option<FairQueue>,
}

impl Clone for Lock {
    fn clone(&self) -> Self {
        let body = match &self.body {
            Body::Free => Body::Free,
            Body::Held(hold) => Body::Held(hold.clone()),
            Body::Wide(wide) => Body::Wide(wide.clone()),
        };
        Self { body, alarm: Alarm::NONE, kind: self.kind }
    }
}

/// The index is part of the list that it is made from, and the alarm is not part of the value.
impl PartialEq for Lock {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, self.permits(), self.holds()) == (other.kind, other.permits(), other.holds())
            && self.queue() == other.queue()
    }
}

impl Eq for Lock {}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("kind", &self.kind)
            .field("permits", &self.permits())
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
            Kind::Semaphore => Body::Wide(Box::new(Wide { permits, ..Wide::default() })),
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

    /// A semaphore's capacity; 1 for the other kinds.
    #[must_use]
    pub fn permits(&self) -> u32 {
        match &self.body {
            Body::Wide(wide) if self.kind == Kind::Semaphore => wide.permits,
            _ => 1,
        }
    }

    /// Every hold, also one whose lease has ended and was not removed yet.
    #[must_use]
    pub fn holds(&self) -> &[Hold] {
        match &self.body {
            Body::Free => &[],
            Body::Held(hold) => slice::from_ref(hold),
            Body::Wide(wide) => &wide.holds,
        }
    }

    fn holds_mut(&mut self) -> &mut [Hold] {
        match &mut self.body {
            Body::Free => &mut [],
            Body::Held(hold) => slice::from_mut(hold),
            Body::Wide(wide) => &mut wide.holds,
        }
    }

    /// The holds whose lease has not ended.
    pub fn live_holds(&self, now: Now) -> impl Iterator<Item = &Hold> {
        self.holds().iter().filter(move |hold| hold.is_live(now))
    }

    /// The live hold of `owner` in `mode`.
    #[must_use]
    pub fn live_hold(&self, owner: &[u8], mode: Mode, now: Now) -> Option<&Hold> {
        self.hold(owner, mode).filter(|hold| hold.is_live(now))
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
            Some(index) => index.find_token(token),
            None => self.holds().iter().position(|hold| hold.token() == token),
        }
    }

    /// A hold whose lease has ended.
    #[must_use]
    pub fn lapsed_hold(&self, now: Now) -> Option<&Hold> {
        match self.index() {
            Some(index) => self.hold_with_token(index.first_lapsed(now.mono_us)?),
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

    /// When the next lease, the life of a place, or a reservation ends. At once, if it is free and reserved for nobody, and
    /// its head is yet to be served: whoever comes upon such a lock after its master crashed has to be told.
    #[inline]
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        match &self.body {
            Body::Free => None,
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

    /// Whether the key can go: nobody holds, and nobody has a place. A semaphore stays, it is configuration.
    #[must_use]
    pub fn is_disposable(&self) -> bool {
        self.kind != Kind::Semaphore && self.holds().is_empty() && self.queue().is_none()
    }

    /// Whether anybody holds it.
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

    /// Whether an owner other than `owner` has a live hold.
    fn is_held_by_another(&self, owner: &[u8], now: Now) -> bool {
        match self.index() {
            // An owner has few holds, so another one's is soon found.
            Some(index) => {
                let mut live = index.latest_first(now.mono_us).filter_map(|token| self.hold_with_token(token));
                live.any(|hold| hold.owner().as_slice() != owner)
            }
            None => self.live_holds(now).any(|hold| hold.owner().as_slice() != owner),
        }
    }

    /// The hold for writing, live or not.
    pub(crate) fn writer(&self) -> Option<&Hold> {
        match self.index() {
            Some(index) => index.writer().and_then(|token| self.hold_with_token(token)),
            None => self.holds().iter().find(|hold| hold.mode() == Mode::Write),
        }
    }

    /// Whether an owner other than `owner` has a live hold for writing.
    fn is_written_by_another(&self, owner: &[u8], now: Now) -> bool {
        self.writer().is_some_and(|hold| hold.is_live(now) && hold.owner().as_slice() != owner)
    }

    /// Whether [`Lock::apply`] can make an event true here, that comes from outside: from a payload or from a master. The
    /// one check for both. What is not a matter of this lock was checked when the event was read.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn check(&self, event: &Event) -> Result<(), &'static str> {
        let fits = match event {
            Event::Granted { kind, mode, .. } => *kind == self.kind && kind.has_mode(*mode),
            Event::Queued { .. } | Event::Kept { .. } | Event::Left { .. } | Event::QueueLapsed => {
                self.kind == Kind::Fair
            }
            Event::Reserved { .. } | Event::Detached { .. } => self.kind == Kind::Fair,
            Event::Sized { .. } => self.kind == Kind::Semaphore,
            Event::Changed { .. } | Event::Ended { .. } | Event::Cleared { .. } => true,
        };
        if !fits {
            return Err("the lock is of another kind");
        }
        match event {
            Event::Granted { owner, mode, token, .. } => match self.hold_with_token(*token) {
                Some(hold) if hold.owner() != owner || hold.mode() != *mode => Err("another hold has this token"),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Makes `event` true. Total: an event about a hold that is not here changes nothing. Returns what is left to be cleaned
    /// up, if that is a lot.
    #[inline(always)]
    pub(crate) fn apply(&mut self, event: Event) -> Option<Leftovers> {
        match event {
            Event::Granted { owner, mode, token, terms, .. } => {
                if matches!(self.body, Body::Free) {
                    self.body = Body::Held(Hold::new(owner, mode, token, &terms));
                    return None;
                }
                let leftovers = self.displace(&owner, mode);
                self.leave(&owner);
                self.push_hold(Hold::new(owner, mode, token, &terms));
                return leftovers;
            }
            Event::Changed { token, terms, .. } => {
                if let Some(at) = self.position_of_token(token) {
                    self.change_hold(at, |hold| hold.set_terms(&terms));
                }
            }
            Event::Ended { token, .. } => {
                if let Some(at) = self.position_of_token(token) {
                    self.remove_hold(at);
                }
            }
            Event::Cleared { except, .. } => return Some(self.clear_holds(except.as_ref())),
            Event::Sized { permits } => {
                if let (Kind::Semaphore, Body::Wide(wide)) = (self.kind, &mut self.body) {
                    wide.permits = permits;
                }
            }
            Event::Queued { owner, stay, arrival, request_id, at_head } if self.kind == Kind::Fair => {
                let place = Place { owner: owner.as_slice(), stay, arrival, request_id };
                self.widened(|wide| wide.queue.get_or_insert_default().push(place, at_head));
            }
            Event::Queued { .. } => {}
            Event::Kept { owner, stay, request_id } => {
                self.change_queue(|queue| queue.set_stay(owner.as_slice(), stay, request_id));
            }
            Event::Left { owner, .. } => self.leave(&owner),
            Event::QueueLapsed => {
                let queue = self.widened(|wide| wide.queue.take());
                self.narrow();
                return Some(Leftovers { queue, ..Leftovers::default() });
            }
            Event::Reserved { until_us, .. } => self.change_queue(|queue| queue.reserve(until_us)),
            Event::Detached { until_us } => self.change_queue(|queue| queue.detach_all(until_us)),
        }
        None
    }

    /// Makes room for a hold: of the same owner and mode, and of whoever a new holder in this mode is not beside. The latter
    /// matters only on a copy that has missed something.
    fn displace(&mut self, owner: &Owner, mode: Mode) -> Option<Leftovers> {
        if let Some(at) = self.position(owner.as_slice(), mode) {
            self.remove_hold(at);
        }
        let is_in_the_way = |hold: &Hold| hold.owner() != owner && (mode.is_alone() || hold.mode().is_alone());
        if self.holds().len() <= MIN_INDEXED || self.index().is_some_and(|index| index.writer().is_some()) {
            while let Some(at) = self.holds().iter().position(is_in_the_way) {
                self.remove_hold(at);
            }
        } else if mode.is_alone() {
            return Some(self.clear_holds(Some(owner)));
        }
        None
    }

    /// Takes out every hold, but those of one owner.
    fn clear_holds(&mut self, except: Option<&Owner>) -> Leftovers {
        let own = except.map(|owner| self.take_holds_of(owner)).unwrap_or_default();
        let mut leftovers = Leftovers::default();
        match mem::replace(&mut self.body, Body::Free) {
            Body::Free => {}
            Body::Held(hold) => leftovers.holds.push(hold),
            Body::Wide(mut wide) => {
                leftovers.holds = mem::take(&mut wide.holds);
                leftovers.bindings = wide.bindings;
                leftovers.index = wide.index.take();
                self.body = Body::Wide(wide);
            }
        }
        own.into_iter().for_each(|hold| self.push_hold(hold));
        self.narrow();
        leftovers
    }

    /// Takes out the holds of one owner. What is left may be narrower than it is, see invariant 4.
    fn take_holds_of(&mut self, owner: &Owner) -> SmallVec<[Hold; 2]> {
        let mut taken = SmallVec::new();
        for mode in Mode::ALL {
            if let Some(at) = self.position(owner.as_slice(), mode) {
                taken.extend(self.take_hold(at));
            }
        }
        taken
    }

    fn push_hold(&mut self, hold: Hold) {
        if matches!(self.body, Body::Free) {
            self.body = Body::Held(hold);
            return;
        }
        self.widened(|wide| {
            wide.holds.push(hold);
            match &mut wide.index {
                Some(index) => index.add(&wide.holds, wide.holds.len().saturating_sub(1)),
                None if wide.holds.len() >= MIN_INDEXED => wide.index = Some(HoldIndex::of(&wide.holds)),
                None => {}
            }
        });
    }

    fn change_hold(&mut self, at: usize, change: impl FnOnce(&mut Hold)) {
        if let Body::Wide(wide) = &mut self.body
            && let Wide { holds, index: Some(index), .. } = wide.as_mut()
        {
            if let Some(hold) = holds.get_mut(at) {
                index.count_out(hold);
                change(hold);
                index.count_in(hold);
            }
        } else if let Some(hold) = self.holds_mut().get_mut(at) {
            change(hold);
        }
    }

    #[inline]
    fn remove_hold(&mut self, at: usize) {
        if let Body::Held(_) = self.body {
            self.body = Body::Free;
            return;
        }
        self.take_hold(at);
        if let Body::Wide(wide) = &mut self.body {
            if wide.holds.len() <= MAX_FEW && wide.index.is_some() {
                wide.index = None;
                wide.holds.shrink_to_fit();
            }
            self.narrow();
        }
    }

    /// The last hold takes the place of the one that goes: the same on every server that applies the same events.
    fn take_hold(&mut self, at: usize) -> Option<Hold> {
        match &mut self.body {
            Body::Free => None,
            Body::Held(_) => match mem::replace(&mut self.body, Body::Free) {
                Body::Held(hold) => Some(hold),
                _ => None,
            },
            Body::Wide(wide) => {
                if let Some(index) = &mut wide.index {
                    index.remove(&wide.holds, at);
                }
                Some(wide.holds.swap_remove(at))
            }
        }
    }

    /// Changes the part that few locks have, which is made if need be.
    fn widened<R>(&mut self, change: impl FnOnce(&mut Wide) -> R) -> R {
        let mut wide = match mem::replace(&mut self.body, Body::Free) {
            Body::Free => Box::default(),
            Body::Held(hold) => Box::new(Wide { holds: [hold].into(), ..Wide::default() }),
            Body::Wide(wide) => wide,
        };
        let changed = change(&mut wide);
        self.body = Body::Wide(wide);
        changed
    }

    /// Keeps invariant 4.
    fn narrow(&mut self) {
        let Body::Wide(wide) = &mut self.body else {
            return;
        };
        if self.kind == Kind::Semaphore || wide.queue.is_some() || wide.holds.len() > 1 {
            return;
        }
        let bindings = wide.bindings;
        self.body = match wide.holds.pop() {
            Some(mut hold) => {
                hold.rebase(bindings);
                Body::Held(hold)
            }
            None => Body::Free,
        };
    }

    fn change_queue(&mut self, change: impl FnOnce(&mut FairQueue)) {
        if let Body::Wide(wide) = &mut self.body
            && let Some(queue) = &mut wide.queue
        {
            change(queue);
        }
    }

    /// Goes on with the places of a queue that was detached, see [`FairQueue::settle_some`]. Returns whether there are more.
    pub(crate) fn settle_places(&mut self, count: usize) -> bool {
        match &mut self.body {
            Body::Wide(wide) => wide.queue.as_mut().is_some_and(|queue| queue.settle_some(count)),
            Body::Free | Body::Held(_) => false,
        }
    }

    fn leave(&mut self, owner: &Owner) {
        if let Body::Wide(wide) = &mut self.body
            && let Some(queue) = &mut wide.queue
        {
            queue.remove(owner.as_slice());
            if queue.is_empty() {
                wide.queue = None;
                self.narrow();
            }
        }
    }

    /// The connections that the hold with `token` is bound to.
    #[must_use]
    pub fn clients(&self, token: u64) -> &[u64] {
        self.hold_with_token(token).map_or(&[], |hold| hold.clients(self.generation()))
    }

    fn generation(&self) -> u32 {
        match &self.body {
            Body::Wide(wide) => wide.bindings,
            Body::Free | Body::Held(_) => 0,
        }
    }

    /// Every binding of a hold to a connection: the connection, and the token.
    pub fn bindings(&self) -> impl Iterator<Item = (u64, u64)> {
        let generation = self.generation();
        let of_hold = move |hold: &Hold| -> Bindings {
            hold.clients(generation).iter().map(|client| (*client, hold.token())).collect()
        };
        self.holds().iter().flat_map(of_hold)
    }

    /// Binds the hold with `token` to one more connection, see [`Hold::bind`].
    pub(crate) fn bind(&mut self, token: u64, client: u64) -> (bool, Option<u64>) {
        let bindings = self.generation();
        let at = self.position_of_token(token);
        let hold = at.and_then(|at| self.holds_mut().get_mut(at));
        hold.map_or((false, None), |hold| hold.bind(client, bindings))
    }

    /// Unbinds the hold with `token` from a connection.
    pub(crate) fn unbind(&mut self, token: u64, client: u64) {
        let at = self.position_of_token(token);
        if let Some(hold) = at.and_then(|at| self.holds_mut().get_mut(at)) {
            hold.unbind(client);
        }
    }

    /// Unbinds every hold from its connections, in one step, however many there are: bindings of an earlier generation do not
    /// count.
    pub(crate) fn unbind_all(&mut self) {
        match &mut self.body {
            Body::Free => {}
            Body::Held(hold) => hold.rebase(u32::MAX),
            Body::Wide(wide) => wide.bindings = wide.bindings.wrapping_add(1) & (u32::MAX >> 1),
        }
    }

    /// Brings leases nearer that end further ahead than a lease may last: of a file that somebody made by hand, or that a server
    /// with a wrong clock has written. No lock is immortal.
    pub fn shorten_leases(&mut self, now: Now) {
        let is_far = |deadline_us: u64| now.within_limits(deadline_us) != deadline_us;
        if !self.last_deadline_us().is_some_and(is_far) {
            return;
        }
        for at in 0..self.holds().len() {
            self.change_hold(at, |hold| {
                let terms = hold.terms();
                hold.set_terms(&Terms { deadline_us: now.within_limits(terms.deadline_us), ..terms });
            });
        }
    }

    /// Bytes on the heap behind this value, for MEMORY USAGE. Of many holds a few are looked at, and the rest taken for alike.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        const SAMPLES: usize = 64;
        let holds = self.holds();
        let sample: usize = holds.iter().take(SAMPLES).map(Hold::heap_bytes).sum();
        let behind_holds = sample.saturating_mul(holds.len()).checked_div(holds.len().min(SAMPLES)).unwrap_or(0);
        let wide = match &self.body {
            Body::Free | Body::Held(_) => 0,
            Body::Wide(wide) => size_of::<Wide>()
                .saturating_add(wide.holds.capacity().saturating_mul(size_of::<Hold>()))
                .saturating_add(wide.index.as_ref().map_or(0, HoldIndex::heap_bytes))
                .saturating_add(wide.queue.as_ref().map_or(0, FairQueue::heap_bytes)),
        };
        behind_holds.saturating_add(wide)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EndCause;
    use std::format;
    use std::string::String;

    const NOW: Now = Now { mono_us: 1_000_000, wall_us: 1_700_000_000_000_000 };

    fn terms(count: u32, deadline_us: u64) -> Terms {
        Terms { count, deadline_us, lease_ms: 1000, request: None, session_ms: None }
    }

    fn with(kind: Kind, permits: u32, holds: &[(&str, Mode, u32)]) -> Lock {
        let mut lock = Lock::new(kind, permits);
        for (token, (owner, mode, count)) in (1..).zip(holds) {
            lock.apply(Event::Granted {
                kind,
                owner: owner.as_bytes().into(),
                mode: *mode,
                token,
                terms: terms(*count, NOW.mono_us + 1),
            });
        }
        lock
    }

    #[test]
    fn from_its_deadline_on_a_lease_has_no_effect() {
        let lock = with(Kind::Mutex, 1, &[("a", Mode::Exclusive, 1)]);
        let later = Now { mono_us: NOW.mono_us + 1, ..NOW };
        assert!(lock.live_hold(b"a", Mode::Exclusive, NOW).is_some());
        assert!(lock.is_held_by_another(b"b", NOW) && lock.is_live(NOW));
        assert!(lock.live_hold(b"a", Mode::Exclusive, later).is_none());
        assert!(!lock.is_held_by_another(b"b", later) && !lock.is_live(later));
        assert!(lock.lapsed_hold(NOW).is_none() && lock.lapsed_hold(later).is_some());
    }

    #[test]
    fn events_about_a_hold_that_is_not_here_change_nothing() {
        let mut lock = with(Kind::Mutex, 1, &[("a", Mode::Exclusive, 1)]);
        let before = lock.clone();
        lock.apply(Event::Ended { token: 99, cause: EndCause::Expired });
        lock.apply(Event::Changed { token: 99, cause: crate::event::ChangeCause::Renewed, terms: terms(5, 7) });
        assert_eq!(lock, before);
    }

    use proptest::prelude::*;

    proptest! {
        /// A lock that many hold answers as the plain list of its holds does, while it grows and shrinks.
        #[test]
        fn an_indexed_lock_is_as_the_list_of_its_holds(
            is_semaphore: bool,
            steps in prop::collection::vec((0..40u8, any::<bool>(), 0..5u8, 0..50u64), 1..300),
            jumps in prop::collection::vec(0..3u64, 300),
        ) {
            let (kind, mode) = if is_semaphore { (Kind::Semaphore, Mode::Permits) } else { (Kind::RwLock, Mode::Read) };
            let mut lock = Lock::new(kind, 60);
            let mut list: Vec<(u8, u64, u32, u64)> = Vec::new();
            let mut now = NOW;
            for ((token, (owner, grows, what, deadline)), jump_us) in (1..).zip(steps).zip(jumps) {
                now.mono_us += jump_us;
                let deadline_us = now.mono_us - 20 + deadline;
                let count = u32::from(what) + 1;
                let at = list.iter().position(|entry| entry.0 == owner);
                match (at, grows || what > 2) {
                    (None, _) => {
                        let terms = terms(count, deadline_us);
                        lock.apply(Event::Granted { kind, owner: (&[owner][..]).into(), mode, token, terms });
                        list.push((owner, token, count, deadline_us));
                    }
                    (Some(at), true) => {
                        let cause = crate::event::ChangeCause::Renewed;
                        lock.apply(Event::Changed { token: list[at].1, cause, terms: terms(count, deadline_us) });
                        (list[at].2, list[at].3) = (count, deadline_us);
                    }
                    (Some(at), false) => {
                        lock.apply(Event::Ended { token: list[at].1, cause: EndCause::Released });
                        list.remove(at);
                    }
                }
                let live = || list.iter().filter(|entry| entry.3 > now.mono_us);
                prop_assert_eq!(lock.holds().len(), list.len());
                for owner in 0..40 {
                    let held = live().find(|entry| entry.0 == owner).map(|entry| entry.1);
                    prop_assert_eq!(lock.live_hold(&[owner], mode, now).map(Hold::token), held);
                }
                for entry in &list {
                    let hold = lock.hold_with_token(entry.1).unwrap();
                    prop_assert_eq!((hold.owner().as_slice(), hold.count()), (&[entry.0][..], entry.2));
                }
                prop_assert_eq!(lock.next_deadline_us(), list.iter().map(|entry| entry.3).min());
                prop_assert_eq!(lock.lapsed_hold(now).is_some(), list.iter().any(|entry| entry.3 <= now.mono_us));
                let used: i64 = live().map(|entry| i64::from(entry.2)).sum();
                prop_assert!(!is_semaphore || lock.available(now) == 60 - used);
                for owner in 0..41 {
                    let by_another = live().any(|entry| entry.0 != owner);
                    prop_assert_eq!(lock.is_held_by_another(&[owner], now), by_another);
                }
                let last = list.iter().map(|entry| entry.3).max();
                prop_assert_eq!(lock.last_deadline_us(), last);
            }
        }
    }

    #[test]
    fn on_a_copy_that_has_missed_something_there_is_one_holder_all_the_same() {
        let mutex = with(Kind::Mutex, 1, &[("a", Mode::Exclusive, 1), ("b", Mode::Exclusive, 1)]);
        assert_eq!(mutex.holds().iter().map(Hold::token).collect::<Vec<_>>(), [2]);
        let holds = [("a", Mode::Read, 1), ("b", Mode::Read, 1), ("a", Mode::Write, 1)];
        let rwlock = with(Kind::RwLock, 1, &holds);
        assert_eq!(rwlock.holds().iter().map(Hold::token).collect::<Vec<_>>(), [1, 3]);
        let holds = [("a", Mode::Write, 1), ("b", Mode::Read, 1), ("c", Mode::Read, 1)];
        let rwlock = with(Kind::RwLock, 1, &holds);
        assert_eq!(rwlock.holds().iter().map(Hold::token).collect::<Vec<_>>(), [2, 3]);
        let readers: Vec<String> = (0..100).map(|number| format!("r{number}")).collect();
        let mut holds: Vec<_> = readers.iter().map(|owner| (owner.as_str(), Mode::Read, 1)).collect();
        holds.push(("r7", Mode::Write, 1));
        let rwlock = with(Kind::RwLock, 1, &holds);
        assert_eq!(rwlock.holds().iter().map(Hold::token).collect::<Vec<_>>(), [8, 101]);
    }

    #[test]
    fn a_lock_has_an_index_while_many_hold_it() {
        let mut lock = Lock::new(Kind::Semaphore, 100);
        let grant = |lock: &mut Lock, number: u8| {
            let (kind, mode, token) = (Kind::Semaphore, Mode::Permits, u64::from(number) + 1);
            lock.apply(Event::Granted { kind, owner: (&[number][..]).into(), mode, token, terms: terms(1, 7) });
        };
        for number in 0..100 {
            grant(&mut lock, number);
            assert_eq!(lock.index().is_some(), lock.holds().len() >= MIN_INDEXED);
        }
        for token in 1..=100 {
            lock.apply(Event::Ended { token, cause: EndCause::Expired });
            assert_eq!(lock.index().is_some(), lock.holds().len() > MAX_FEW);
        }
    }

    #[test]
    fn the_value_has_the_size_that_the_memory_figures_rest_on() {
        assert_eq!(size_of::<Hold>(), 72);
        assert_eq!(size_of::<Lock>(), 80);
    }
}
