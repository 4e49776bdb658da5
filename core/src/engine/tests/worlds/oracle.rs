//! What a mutex, a read-write lock and a semaphore do, as plainly as it can be said: a list of holds, a line of waiters, and one
//! loop that serves it from its head. Two of them know nothing of each other; who waits for whom is looked up over all.
//!
//! Nothing is done by the way: what is due is done when somebody asks for the lock, when somebody uses a hold after the server
//! has told something, and when the timer goes off. A wait whose time is over ends with the timer, or when it is first in line;
//! until then its owner may send it again, or take it back.

use std::vec::Vec;

use super::action::Told;
use crate::kind::Mode;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) owner: u8,
    pub(super) mode: Mode,
    pub(super) count: u32,
    pub(super) until_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InLine {
    pub(super) owner: u8,
    pub(super) mode: Mode,
    pub(super) count: u32,
    pub(super) until_ms: u64,
    /// A reader that wants to write stands ahead of all who do not.
    pub(super) upgrades: bool,
    /// With ONCE: an owner that holds already gets no more.
    pub(super) is_once: bool,
}

/// What ACQUIRE asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) mode: Mode,
    pub(super) count: u32,
    pub(super) waits: bool,
    pub(super) is_once: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Oracle {
    pub(super) permits: u32,
    pub(super) holds: Vec<Held>,
    pub(super) line: Vec<InLine>,
    /// Grants of which it is not known that they were heard: who, in which mode, and how much.
    pub(super) unheard: Vec<(u8, Mode, u32)>,
    /// Whose grants were never heard of and are over, and who holds anew: when they leave, the lock is told something.
    pub(super) over: Vec<u8>,
    /// Of the grants that were not heard of, those that nobody will hear of.
    pub(super) undone: Vec<(u8, Mode, u32)>,
    /// The server has told something that was not acted upon.
    pub(super) is_told: bool,
    /// What waiters were answered.
    pub(super) answers: Vec<(u8, Told)>,
}

pub(super) const LEASE_MS: u64 = 15;
pub(super) const WAIT_MS: u64 = 25;
/// The lease of a renewal: longer than what is left of a hold after a while, and shorter than what is left at first.
pub(super) const RENEW_MS: u64 = 12;

impl Oracle {
    pub(super) fn live(&self, now_ms: u64) -> impl Iterator<Item = &Held> {
        self.holds.iter().filter(move |held| held.until_ms > now_ms)
    }

    fn position(&self, owner: u8, mode: Mode, now_ms: u64) -> Option<usize> {
        self.holds.iter().position(|held| held.owner == owner && held.mode == mode && held.until_ms > now_ms)
    }

    fn has_room(&self, owner: u8, mode: Mode, count: u32, now_ms: u64) -> bool {
        let mut others = self.live(now_ms).filter(|held| held.owner != owner);
        match mode {
            Mode::Exclusive | Mode::Write => others.next().is_none(),
            Mode::Read => !others.any(|held| held.mode == Mode::Write),
            Mode::Permits => self.live(now_ms).map(|held| held.count).sum::<u32>() + count <= self.permits,
        }
    }

    fn give(&mut self, owner: u8, mode: Mode, count: u32, is_once: bool, now_ms: u64) {
        let until_ms = now_ms + LEASE_MS;
        match self.position(owner, mode, now_ms) {
            Some(at) => {
                self.holds[at].count += if is_once { 0 } else { count };
                self.holds[at].until_ms = self.holds[at].until_ms.max(until_ms);
            }
            None => {
                let before = self.unheard.extract_if(.., |(of, in_mode, _)| (*of, *in_mode) == (owner, mode));
                self.over.extend(before.map(|(of, ..)| of));
                self.holds.push(Held { owner, mode, count, until_ms });
            }
        }
    }

    /// What is due when the timer goes off: also waits whose time is over, wherever they stand.
    pub(super) fn run_timer(&mut self, now_ms: u64) {
        let over: Vec<InLine> = self.line.extract_if(.., |one| one.until_ms <= now_ms).collect();
        self.answers.extend(over.iter().map(|one| (one.owner, Told::Nil)));
        self.settle(now_ms);
    }

    /// Does what is due.
    fn settle(&mut self, now_ms: u64) {
        self.is_told = false;
        for (owner, mode, count) in std::mem::take(&mut self.undone) {
            if let Some(at) = self.position(owner, mode, now_ms) {
                self.holds[at].count = self.holds[at].count.saturating_sub(count);
            }
        }
        self.holds.retain(|held| held.count > 0 && held.until_ms > now_ms);
        while let Some(first) = self.line.first().cloned() {
            if first.until_ms <= now_ms {
                self.line.remove(0);
                self.answers.push((first.owner, Told::Nil));
                continue;
            }
            if !self.has_room(first.owner, first.mode, first.count, now_ms) {
                return;
            }
            self.line.remove(0);
            self.give(first.owner, first.mode, first.count, first.is_once, now_ms);
            self.unheard.push((first.owner, first.mode, first.count));
            self.answers.push((first.owner, Told::Granted));
        }
    }

    /// `None` if it has to wait; then it stands in line.
    pub(super) fn acquire(&mut self, owner: u8, wish: Wish, now_ms: u64) -> Told {
        let Wish { mode, count, waits, is_once } = wish;
        self.settle(now_ms);
        let holds = |mode| self.position(owner, mode, now_ms).is_some();
        if is_once
            && mode == Mode::Permits
            && self.position(owner, mode, now_ms).is_some_and(|at| self.holds[at].count != count)
        {
            return Told::Refused;
        }
        let is_reentry = (mode != Mode::Permits || is_once) && holds(mode);
        let is_downgrade = mode == Mode::Read && holds(Mode::Write);
        let upgrades = mode == Mode::Write && holds(Mode::Read);
        let is_next = match upgrades {
            true => !self.line.iter().any(|one| one.upgrades),
            false => self.line.is_empty(),
        };
        if is_reentry || is_downgrade || (is_next && self.has_room(owner, mode, count, now_ms)) {
            self.give(owner, mode, count, is_once, now_ms);
            self.hear(owner, mode);
            return Told::Granted;
        }
        if !waits {
            return Told::Nil;
        }
        let until_ms = now_ms + WAIT_MS;
        if let Some(one) = self.line.iter_mut().find(|one| one.owner == owner && one.is_once) {
            // The same request once more stands where it stood.
            one.until_ms = until_ms;
            return Told::Waits;
        }
        let ahead = self.line.iter().filter(|one| one.upgrades).count();
        let at = if upgrades { ahead } else { self.line.len() };
        self.line.insert(at, InLine { owner, mode, count, until_ms, upgrades, is_once });
        Told::Waits
    }

    /// An owner uses its hold, and so knows of it.
    fn hear(&mut self, owner: u8, mode: Mode) {
        self.unheard.retain(|(of, in_mode, _)| (*of, *in_mode) != (owner, mode));
    }

    fn use_hold(&mut self, owner: u8, mode: Mode, now_ms: u64) -> Option<usize> {
        if self.is_told {
            self.settle(now_ms);
        }
        self.position(owner, mode, now_ms)
    }

    /// With a token that is not that of the hold (`is_meant`), it is as if there were none.
    pub(super) fn release(&mut self, owner: u8, mode: Mode, is_meant: bool, now_ms: u64) -> Told {
        let Some(at) = self.use_hold(owner, mode, now_ms).filter(|_| is_meant) else { return Told::NotOwner };
        self.hear(owner, mode);
        self.holds[at].count -= 1;
        let left = self.holds[at].count;
        self.settle(now_ms);
        Told::Left(left)
    }

    pub(super) fn renew(&mut self, owner: u8, mode: Mode, is_meant: bool, now_ms: u64) -> Told {
        let Some(at) = self.use_hold(owner, mode, now_ms).filter(|_| is_meant) else { return Told::NotOwner };
        self.hear(owner, mode);
        self.holds[at].until_ms = self.holds[at].until_ms.max(now_ms + RENEW_MS);
        Told::Left(self.holds[at].count)
    }

    pub(super) fn force(&mut self, now_ms: u64) {
        if self.is_told {
            self.settle(now_ms);
        }
        if self.live(now_ms).next().is_some() {
            self.holds.clear();
            self.settle(now_ms);
        }
    }

    /// Who waits gives up.
    pub(super) fn cancel(&mut self, owner: u8, now_ms: u64) {
        self.settle(now_ms);
        if self.line.iter().any(|one| one.owner == owner) {
            self.line.retain(|one| one.owner != owner);
            self.answers.push((owner, Told::Cancelled));
            self.settle(now_ms);
        }
    }

    pub(super) fn hear_all(&mut self) {
        self.unheard.clear();
        self.over.clear();
    }

    /// Nobody has listened to what was published in this turn.
    pub(super) fn nobody_hears(&mut self) {
        self.is_told |= !self.unheard.is_empty() || !self.over.is_empty();
        self.undone.append(&mut self.unheard);
        self.over.clear();
    }

    /// The value is gone; who waits stays.
    pub(super) fn delete(&mut self) {
        self.holds.clear();
        self.is_told = true;
    }

    /// The connection of a waiter, or of a grant that was not heard of, is gone. Of the end of any other one the lock is told nothing.
    pub(super) fn leave(&mut self, owner: u8) {
        let is_unheard = self.unheard.iter().any(|(of, ..)| *of == owner) || self.over.contains(&owner);
        if !is_unheard && !self.line.iter().any(|one| one.owner == owner) {
            return;
        }
        self.line.retain(|one| one.owner != owner);
        self.over.retain(|of| *of != owner);
        self.undone.extend(self.unheard.extract_if(.., |(of, ..)| *of == owner));
        self.is_told = true;
    }

    /// Another server takes over: nobody is connected to it.
    pub(super) fn fail_over(&mut self) {
        self.line.clear();
        self.hear_all();
        self.undone.clear();
        self.is_told = true;
    }

    /// When something is due next.
    pub(super) fn next_ms(&self) -> Option<u64> {
        let ends = self.holds.iter().map(|held| held.until_ms);
        ends.chain(self.line.iter().map(|one| one.until_ms)).min()
    }

    /// For whom an owner waits here: who holds in its way, and everybody ahead of it.
    pub(super) fn waits_for(&self, owner: u8, now_ms: u64) -> Vec<u8> {
        let Some(at) = self.line.iter().position(|one| one.owner == owner && one.until_ms > now_ms) else {
            return Vec::new();
        };
        let mode = self.line[at].mode;
        if mode == Mode::Permits {
            return Vec::new();
        }
        let in_the_way = self.live(now_ms).filter(|held| (mode, held.mode) != (Mode::Read, Mode::Read));
        let ahead = self.line[..at].iter().filter(|one| one.until_ms > now_ms);
        in_the_way.map(|held| held.owner).chain(ahead.map(|one| one.owner)).filter(|other| *other != owner).collect()
    }
}

/// Whether an owner waits for itself, over all locks.
pub(super) fn closes_a_circle(oracles: &[Oracle], owner: u8, now_ms: u64) -> bool {
    let mut seen: Vec<u8> = Vec::new();
    let mut next = [owner].to_vec();
    while let Some(one) = next.pop() {
        for other in oracles.iter().flat_map(|oracle| oracle.waits_for(one, now_ms)) {
            if other == owner {
                return true;
            }
            if !seen.contains(&other) {
                seen.push(other);
                next.push(other);
            }
        }
    }
    false
}
