//! Changes of the value: checks an event from outside, and applies events.

use alloc::boxed::Box;
use core::mem;

use smallvec::SmallVec;

use super::fair_queue::FairQueue;
use super::hold::{Hold, Holds};
use super::hold_index::{HoldIndex, MAX_FEW, MIN_INDEXED};
use super::{Body, Idle, Leftovers, Lock, Wide};
use crate::bytes::Owner;
use crate::event::{Event, Terms};
use crate::kind::{Kind, Mode};
use crate::place::Place;
use crate::time::Now;

impl Lock {
    /// Checks that [`Lock::apply`] can apply an event from a payload or from a master. The code
    /// that read the event has checked everything else.
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub fn check(&self, event: &Event) -> Result<(), &'static str> {
        let fits = match event {
            Event::Granted { kind, mode, .. } => *kind == self.kind && kind.has_mode(*mode),
            Event::Queued { .. } | Event::Kept { .. } | Event::Left { .. } | Event::QueueExpired => {
                self.kind == Kind::Fair
            }
            Event::Reserved { .. } | Event::Detached { .. } => self.kind == Kind::Fair,
            Event::Sized { .. } | Event::Unused { .. } | Event::Removed => self.kind == Kind::Semaphore,
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

    /// Applies `event`. Total: an event about a missing hold changes nothing. Returns the leftovers
    /// if they are too many to clean up in one step.
    #[inline(always)]
    pub(crate) fn apply(&mut self, event: Event) -> Option<Leftovers> {
        match event {
            Event::Granted { owner, mode, token, terms, .. } => {
                if matches!(self.body, Body::Free) {
                    self.body = Body::Held(Hold::new(owner, mode, token, &terms));
                    return None;
                }
                let displaced = self.displace(&owner, mode);
                let left = self.leave(&owner);
                self.push_hold(Hold::new(owner, mode, token, &terms));
                // At most one of them is set: a lock with a queue has at most one hold to displace.
                return displaced.or(left);
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
                if let Some(capacity) = self.capacity_mut() {
                    capacity.permits = permits;
                }
            }
            Event::Unused { idle_ms, until_us } => {
                if let Some(capacity) = self.capacity_mut() {
                    capacity.idle = (idle_ms != 0).then_some(Idle { idle_ms, until_us });
                }
            }
            // Only a replica that has missed an event has holds here.
            Event::Removed => {
                let leftovers = self.clear_holds(None);
                self.body = Body::Free;
                return (!leftovers.holds.is_empty()).then_some(leftovers);
            }
            Event::Queued { owner, stay, arrival, request_id, grace_ms, at_head } if self.kind == Kind::Fair => {
                let place = Place { owner: owner.as_slice(), stay, arrival, request_id, grace_ms };
                self.widened(|wide| wide.queue.get_or_insert_default().push(place, at_head));
            }
            Event::Queued { .. } => {}
            Event::Kept { owner, stay, request_id, grace_ms } => {
                self.change_queue(|queue| queue.set_stay(owner.as_slice(), stay, request_id, grace_ms));
            }
            Event::Left { owner, .. } => return self.leave(&owner),
            Event::QueueExpired => {
                let queue = self.widened(|wide| wide.queue.take());
                self.narrow();
                return Some(Leftovers { queue, ..Leftovers::default() });
            }
            Event::Reserved { until_us, .. } => self.change_queue(|queue| queue.reserve(until_us)),
            // `at_us` matters only if a place has its own `GRACE`.
            Event::Detached { until_us, at_us } => {
                self.change_queue(|queue| queue.detach_all(until_us, at_us.unwrap_or(0)));
            }
        }
        None
    }

    /// Makes room for a hold: removes the owner's hold in the same mode, and other owners' holds
    /// that exclude it. Such holds exist only on a replica that has missed an event, and in an
    /// invalid payload.
    fn displace(&mut self, owner: &Owner, mode: Mode) -> Option<Leftovers> {
        if let Some(at) = self.position(owner.as_slice(), mode) {
            self.remove_hold(at);
        }
        let is_in_the_way = |hold: &Hold| hold.owner() != owner && (mode.is_exclusive() || hold.mode().is_exclusive());
        if self.holds().len() <= MIN_INDEXED {
            let in_the_way = |lock: &Self| lock.holds().iter().position(is_in_the_way);
            while let Some(at) = in_the_way(self) {
                self.remove_hold(at);
            }
        } else if mode.is_exclusive() {
            return Some(self.clear_holds(Some(owner)));
        }
        None
    }

    /// Removes all holds, except those of one owner.
    fn clear_holds(&mut self, except: Option<&Owner>) -> Leftovers {
        let own = except.map(|owner| self.take_holds_of(owner)).unwrap_or_default();
        let mut leftovers = Leftovers::default();
        match mem::replace(&mut self.body, Body::Free) {
            unheld @ (Body::Free | Body::Unused(_)) => self.body = unheld,
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

    /// Removes the holds of one owner. Invariant 4 may not hold afterwards.
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
                Some(index) => index.add(Holds::of_many(&wide.holds), wide.holds.len().saturating_sub(1)),
                None if wide.holds.len() >= MIN_INDEXED => {
                    wide.index = Some(HoldIndex::of(Holds::of_many(&wide.holds)))
                }
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
        } else if let Some(hold) = self.hold_mut(at) {
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

    /// Removes a hold. The last hold takes its position, on every server that applies the same
    /// events.
    fn take_hold(&mut self, at: usize) -> Option<Hold> {
        match &mut self.body {
            Body::Free | Body::Unused(_) => None,
            Body::Held(_) => match mem::replace(&mut self.body, Body::Free) {
                Body::Held(hold) => Some(hold),
                _ => None,
            },
            Body::Wide(wide) => {
                if let Some(index) = &mut wide.index {
                    index.remove(Holds::of_many(&wide.holds), at);
                }
                wide.holds.swap_remove(at)
            }
        }
    }

    /// Changes the fields that few locks need, which are created if missing.
    fn widened<R>(&mut self, change: impl FnOnce(&mut Wide) -> R) -> R {
        let mut wide = match mem::replace(&mut self.body, Body::Free) {
            Body::Free => Box::default(),
            Body::Unused(capacity) => Box::new(Wide { capacity, ..Wide::default() }),
            Body::Held(hold) => {
                let mut wide = Box::<Wide>::default();
                wide.holds.push(hold);
                wide
            }
            Body::Wide(wide) => wide,
        };
        let changed = change(&mut wide);
        self.body = Body::Wide(wide);
        changed
    }

    /// Restores invariant 4.
    fn narrow(&mut self) {
        let Body::Wide(wide) = &mut self.body else {
            return;
        };
        if self.kind == Kind::Semaphore {
            if wide.holds.is_empty() {
                self.body = Body::Unused(wide.capacity);
            }
            return;
        }
        if wide.queue.is_some() || wide.holds.len() > 1 {
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

    /// Stores the deadlines of some detached places, see [`FairQueue::settle_some`]. Returns
    /// whether there are more.
    pub(crate) fn settle_places(&mut self, count: usize) -> bool {
        match &mut self.body {
            Body::Wide(wide) => wide.queue.as_mut().is_some_and(|queue| queue.settle_some(count)),
            Body::Free | Body::Unused(_) | Body::Held(_) => false,
        }
    }

    /// Removes a place. Returns the leftovers of a queue whose last place was removed, if it had
    /// very many.
    fn leave(&mut self, owner: &Owner) -> Option<Leftovers> {
        let Body::Wide(wide) = &mut self.body else {
            return None;
        };
        let queue = wide.queue.as_mut()?;
        queue.remove(owner.as_slice());
        if !queue.is_empty() {
            return None;
        }
        let queue = wide.queue.take().filter(FairQueue::has_retired);
        self.narrow();
        queue.map(|queue| Leftovers { queue: Some(queue), ..Leftovers::default() })
    }

    /// Shortens what is left of each hold to the longest lease that may run. It may be longer in a
    /// hand-made file, or because the clock of another server was ahead. A kept lock has no lease.
    pub fn shorten_leases(&mut self, now: Now, longest_lease_ms: u64) {
        let is_far = |deadline_us: u64| now.within(deadline_us, longest_lease_ms) != deadline_us;
        if !self.last_deadline_us().is_some_and(is_far) {
            return;
        }
        for at in 0..self.holds().len() {
            self.change_hold(at, |hold| {
                let terms = hold.terms();
                let longest_ms = terms.phase.longest_ms(longest_lease_ms);
                hold.set_terms(&Terms { deadline_us: now.within(terms.deadline_us, longest_ms), ..terms });
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::LeaveCause;
    use crate::place::Stay;

    #[test]
    #[cfg_attr(miri, ignore = "thousands of places")]
    fn last_of_many_places_returns_the_queue_as_leftovers() {
        const MANY: u32 = 10_000;
        let mut lock = Lock::new(Kind::Fair, 1);
        let owner = |number: u32| Owner::from(number.to_le_bytes().as_slice());
        for number in 0..MANY {
            let (owner, stay) = (owner(number), Stay::Connected);
            lock.apply(Event::Queued {
                owner,
                stay,
                arrival: u64::from(number),
                request_id: None,
                grace_ms: None,
                at_head: false,
            });
        }
        for number in 0..MANY {
            let leftovers = lock.apply(Event::Left { owner: owner(number), cause: LeaveCause::Expired });
            assert_eq!(leftovers.is_some_and(|left| left.queue.is_some()), number == MANY - 1);
        }
        assert!(lock.is_disposable());
    }
}
