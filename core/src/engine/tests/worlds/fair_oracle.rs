//! What a fair lock does, as plainly as it can be said: a holder, and a line of places, some of which have no connection.
//!
//! `fuzz/` uses this file too.

use std::vec::Vec;

use super::oracle::Told;

/// How long a place outlives its connection, and a free lock is kept for the head of its queue.
pub(super) const GRACE_MS: u64 = 20;

/// How ACQUIRE asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct FairWish {
    pub(super) lease_ms: u64,
    pub(super) stay: Stay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stay {
    No,
    /// It waits so long for a grant.
    Connected(u64),
    /// It wants a place without a connection, which lives so long.
    Polled(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) owner: u8,
    pub(super) is_connected: bool,
    /// When a connected one is answered nil, or the life of another is over.
    pub(super) until_ms: u64,
    is_polled: bool,
    /// The lease of a connected one that is granted.
    lease_ms: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FairOracle {
    pub(super) holder: Option<(u8, u32, u64)>,
    pub(super) line: Vec<Place>,
    pub(super) reserved_ms: Option<u64>,
    unheard: Option<u8>,
    undone: Option<u8>,
    /// Whoever was granted after a wait and has neither heard of it nor used it, also if that hold is over by now.
    untold: Vec<u8>,
    /// Owners whose connected place has lost its connection, which was not acted upon.
    gone: Vec<u8>,
    moved: bool,
    is_told: bool,
    /// A command of the server's has removed the value, and the lock was not looked at since: those in line are in no value.
    is_gone: bool,
    pub(super) answers: Vec<(u8, Told)>,
}

impl FairOracle {
    fn is_held(&self, now_ms: u64) -> bool {
        self.holder.is_some_and(|(_, _, until_ms)| until_ms > now_ms)
    }

    fn place(&mut self, owner: u8) -> Option<&mut Place> {
        self.line.iter_mut().find(|place| place.owner == owner)
    }

    fn remove_first(&mut self) -> u8 {
        self.reserved_ms = None;
        self.line.remove(0).owner
    }

    fn is_over(place: &Place, now_ms: u64) -> bool {
        place.until_ms <= now_ms
    }

    /// What is due when the timer goes off: also waits whose time is over.
    pub(super) fn run_timer(&mut self, now_ms: u64) {
        self.do_what_is_due(now_ms, true);
    }

    fn settle(&mut self, now_ms: u64) {
        self.do_what_is_due(now_ms, false);
    }

    /// A wait whose time is over ends when the timer goes off, or when it would be granted. Until then it is there: its owner may take
    /// the place over, or give it up.
    fn do_what_is_due(&mut self, now_ms: u64, is_timer: bool) {
        (self.is_told, self.is_gone) = (false, false);
        if std::mem::take(&mut self.moved) {
            self.reserved_ms = None;
            for place in &mut self.line {
                let least_ms = now_ms + GRACE_MS;
                place.until_ms = if place.is_polled { place.until_ms.max(least_ms) } else { least_ms };
                place.is_connected = false;
            }
        }
        // The place of who never heard of its grant is kept, also if the lease has ended by now.
        if let Some(owner) = self.undone.take()
            && self.holder.is_some_and(|(of, ..)| of == owner)
        {
            self.holder = None;
            let until_ms = now_ms + GRACE_MS;
            self.line.insert(0, Place { owner, is_connected: false, until_ms, is_polled: false, lease_ms: 0 });
        }
        for owner in std::mem::take(&mut self.gone) {
            if let Some(place) = self.place(owner) {
                (place.is_connected, place.until_ms, place.is_polled) = (false, now_ms + GRACE_MS, false);
            }
        }
        self.holder = self.holder.filter(|(_, _, until_ms)| *until_ms > now_ms);
        if self.holder.is_none() {
            self.unheard = None;
        }
        let first = self.line.first().map(|place| place.owner);
        let ends = |place: &mut Place| Self::is_over(place, now_ms) && (is_timer || !place.is_connected);
        let over: Vec<Place> = self.line.extract_if(.., ends).collect();
        self.answers.extend(over.iter().filter(|place| place.is_connected).map(|place| (place.owner, Told::Nil)));
        if first != self.line.first().map(|place| place.owner) {
            self.reserved_ms = None;
        }
        while self.holder.is_none()
            && let Some(first) = self.line.first().cloned()
        {
            match self.reserved_ms {
                _ if first.is_connected && Self::is_over(&first, now_ms) => {
                    let owner = self.remove_first();
                    self.answers.push((owner, Told::Nil));
                }
                _ if first.is_connected => {
                    let owner = self.remove_first();
                    self.holder = Some((owner, 1, now_ms + first.lease_ms));
                    self.unheard = Some(owner);
                    self.untold.push(owner);
                    self.answers.push((owner, Told::Granted));
                }
                Some(until_ms) if until_ms > now_ms => return,
                Some(_) => {
                    self.remove_first();
                }
                None => self.reserved_ms = Some(first.until_ms.min(now_ms + GRACE_MS)),
            }
        }
    }

    pub(super) fn acquire(&mut self, owner: u8, FairWish { lease_ms, stay }: FairWish, now_ms: u64) -> Told {
        self.settle(now_ms);
        match &mut self.holder {
            Some((of, count, until_ms)) if *of == owner => {
                *count += 1;
                *until_ms = (*until_ms).max(now_ms + lease_ms);
                self.hear();
                return Told::Granted;
            }
            None if self.line.first().is_none_or(|first| first.owner == owner) => {
                if !self.line.is_empty() {
                    self.remove_first();
                }
                self.holder = Some((owner, 1, now_ms + lease_ms));
                return Told::Granted;
            }
            _ => {}
        }
        let (is_connected, stay_ms) = match stay {
            Stay::No => return Told::Nil,
            Stay::Connected(wait_ms) => (true, wait_ms),
            Stay::Polled(life_ms) => (false, life_ms),
        };
        let mine = Place { owner, is_connected, until_ms: now_ms + stay_ms, is_polled: !is_connected, lease_ms };
        match self.place(owner) {
            Some(place) => {
                let was_connected = std::mem::replace(place, mine).is_connected;
                if was_connected {
                    self.answers.push((owner, Told::TakenOver));
                }
            }
            None => self.line.push(mine),
        }
        if is_connected { Told::Waits } else { Told::Nil }
    }

    /// The holder uses its hold, and so knows of it.
    fn hear(&mut self) {
        let heard = self.unheard.take().and_then(|owner| self.untold.iter().rposition(|untold| *untold == owner));
        if let Some(at) = heard {
            self.untold.remove(at);
        }
    }

    /// With a token that is not that of the hold (not `is_meant`), it is as if there were none.
    fn use_hold(&mut self, owner: u8, is_meant: bool, now_ms: u64) -> Option<&mut (u8, u32, u64)> {
        if self.is_told {
            self.settle(now_ms);
        }
        if !is_meant {
            return None;
        }
        if self.holder.is_some_and(|(of, ..)| of == owner) && self.is_held(now_ms) {
            self.hear();
        }
        self.holder.as_mut().filter(|(of, _, until_ms)| *of == owner && *until_ms > now_ms)
    }

    pub(super) fn release(&mut self, owner: u8, is_meant: bool, now_ms: u64) -> Told {
        let Some((_, count, _)) = self.use_hold(owner, is_meant, now_ms) else { return Told::NotOwner };
        *count -= 1;
        let left = *count;
        if left == 0 {
            self.holder = None;
        }
        self.settle(now_ms);
        Told::Left(left)
    }

    pub(super) fn renew(&mut self, owner: u8, is_meant: bool, lease_ms: u64, now_ms: u64) -> Told {
        let Some((_, count, until_ms)) = self.use_hold(owner, is_meant, now_ms) else { return Told::NotOwner };
        *until_ms = (*until_ms).max(now_ms + lease_ms);
        Told::Left(*count)
    }

    pub(super) fn force(&mut self, now_ms: u64) {
        if self.is_told {
            self.settle(now_ms);
        }
        if self.is_held(now_ms) {
            self.holder = None;
            self.settle(now_ms);
        }
    }

    /// A place is given up. CANCEL says how many requests it has ended, so it does first what is due: a place whose life is over by
    /// then is gone for good, and no failover that comes later gives it a new grace.
    pub(super) fn cancel(&mut self, owner: u8, now_ms: u64) {
        self.settle(now_ms);
        let Some(at) = self.line.iter().position(|place| place.owner == owner) else {
            return;
        };
        if self.line[at].is_connected {
            self.answers.push((owner, Told::Cancelled));
        }
        if at == 0 {
            self.reserved_ms = None;
        }
        self.line.remove(at);
        self.settle(now_ms);
    }

    /// The connection of a waiter, or of a grant that was not heard of, is gone. Of the end of any other one the lock is told nothing.
    pub(super) fn leave(&mut self, owner: u8) {
        if self.place(owner).is_some_and(|place| place.is_connected) {
            if self.is_gone {
                self.line.retain(|place| place.owner != owner);
            } else {
                self.gone.push(owner);
            }
            self.is_told = true;
        }
        if self.unheard == Some(owner) {
            self.undone = self.unheard.take();
        }
        self.is_told |= self.untold.contains(&owner);
        self.untold.retain(|untold| *untold != owner);
    }

    /// The value is gone, and who waits with a connection is in line as before.
    pub(super) fn delete(&mut self) {
        (self.holder, self.reserved_ms) = (None, None);
        let (gone, moved) = (std::mem::take(&mut self.gone), std::mem::take(&mut self.moved));
        self.line.retain(|place| place.is_connected && !moved && !gone.contains(&place.owner));
        (self.is_told, self.is_gone) = (true, true);
    }

    pub(super) fn hear_all(&mut self) {
        self.unheard = None;
        self.untold.clear();
    }

    pub(super) fn fail_over(&mut self) {
        (self.unheard, self.undone) = (None, None);
        self.untold.clear();
        self.gone.clear();
        if self.is_gone {
            self.line.clear();
        }
        self.moved = true;
        self.is_told = true;
    }

    pub(super) fn next_ms(&self) -> Option<u64> {
        let places = self.line.iter().map(|place| place.until_ms);
        let reserved = if self.holder.is_none() { self.reserved_ms } else { None };
        places.chain(self.holder.map(|(_, _, until_ms)| until_ms)).chain(reserved).min()
    }
}
