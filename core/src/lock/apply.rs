//! Changes of the value: checks an event from outside, and applies events.

use alloc::boxed::Box;
use core::mem;

use super::fair_queue::FairQueue;
use super::hold::Hold;
use super::hold_index::{HoldIndex, MAX_FEW, MIN_INDEXED};
use super::{Body, Idle, Lock, Wide};
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

    /// Applies `event`. Total: an event about a missing hold changes nothing.
    #[inline(always)]
    pub(crate) fn apply(&mut self, event: Event) {
        match event {
            Event::Granted { owner, mode, token, terms, .. } => {
                if matches!(self.body, Body::Free) {
                    self.body = Body::Held(Hold::new(owner, mode, token, &terms));
                    return;
                }
                self.displace(&owner, mode);
                self.leave(&owner);
                self.push_hold(Hold::new(owner, mode, token, &terms));
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
            Event::Cleared { except, .. } => self.remove_holds(|hold| Some(hold.owner()) != except.as_ref()),
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
            Event::Removed => self.body = Body::Free,
            Event::Queued { owner, stay, arrival, request_id, grace_ms, at_head } if self.kind == Kind::Fair => {
                let place = Place { owner: owner.as_slice(), stay, arrival, request_id, grace_ms };
                self.widened(|wide| wide.queue.get_or_insert_default().push(place, at_head));
            }
            Event::Queued { .. } => {}
            Event::Kept { owner, stay, request_id, grace_ms } => {
                self.change_queue(|queue| queue.set_stay(owner.as_slice(), stay, request_id, grace_ms));
            }
            Event::Left { owner, .. } => self.leave(&owner),
            Event::QueueExpired => {
                self.widened(|wide| wide.queue = None);
                self.narrow();
            }
            Event::Reserved { until_us, .. } => self.change_queue(|queue| queue.reserve(until_us)),
            // `at_us` matters only if a place has its own `GRACE`.
            Event::Detached { until_us, at_us } => {
                self.change_queue(|queue| queue.detach_all(until_us, at_us.unwrap_or(0)));
            }
        }
    }

    /// Makes room for a hold: removes the owner's hold in the same mode, and other owners' holds
    /// that exclude it. Such holds exist only on a replica that has missed an event, and in an
    /// invalid payload.
    fn displace(&mut self, owner: &Owner, mode: Mode) {
        if let Some(at) = self.position(owner.as_slice(), mode) {
            self.remove_hold(at);
        }
        if mode.is_exclusive() || self.writer().is_some() {
            self.remove_holds(|hold| hold.owner() != owner && (mode.is_exclusive() || hold.mode().is_exclusive()));
        }
    }

    /// Removes the holds for which `is_meant` is true.
    fn remove_holds(&mut self, is_meant: impl Fn(&Hold) -> bool) {
        while let Some(at) = self.holds().iter().position(&is_meant) {
            self.remove_hold(at);
        }
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

    /// Removes a hold. The last hold takes its position, on every server that applies the same
    /// events.
    #[inline]
    fn remove_hold(&mut self, at: usize) {
        match &mut self.body {
            Body::Free | Body::Unused(_) => {}
            Body::Held(_) => self.body = Body::Free,
            Body::Wide(wide) => {
                if let Some(index) = &mut wide.index {
                    index.remove(&wide.holds, at);
                }
                if at < wide.holds.len() {
                    wide.holds.swap_remove(at);
                }
                if wide.holds.len() <= MAX_FEW && wide.index.is_some() {
                    wide.index = None;
                    wide.holds.shrink_to_fit();
                }
                self.narrow();
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
        self.body = wide.holds.pop().map_or(Body::Free, Body::Held);
    }

    fn change_queue(&mut self, change: impl FnOnce(&mut FairQueue)) {
        if let Body::Wide(wide) = &mut self.body
            && let Some(queue) = &mut wide.queue
        {
            change(queue);
        }
    }

    /// Removes a place.
    fn leave(&mut self, owner: &Owner) {
        let Body::Wide(wide) = &mut self.body else {
            return;
        };
        let Some(queue) = &mut wide.queue else {
            return;
        };
        queue.remove(owner.as_slice());
        if queue.is_empty() {
            wide.queue = None;
            self.narrow();
        }
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
