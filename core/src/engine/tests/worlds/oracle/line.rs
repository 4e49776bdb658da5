//! The queue of waiters, and the one loop that serves it from its head: only the first waiter may
//! be granted, so no waiter is overtaken.
//!
//! A timed-out wait ends with the timer, or when it is first in the queue; until then its owner may
//! retry or cancel it.

use std::vec::Vec;

use super::circles::NOT_NUMBERED;
use super::kept::Kept;
use super::repeats::{Again, Verdict};
use super::wish::Wish;
use super::{Oracle, Told, read_write};

#[derive(Clone, Debug)]
pub(crate) struct InLine {
    pub(crate) owner: u8,
    pub(crate) wish: Wish,
    pub(crate) until_ms: u64,
    /// A reader that waits for WRITE.
    pub(super) upgrades: bool,
    /// It was checked for cycles before it entered, because it took over the position of its
    /// owner's earlier request, or ended that request.
    pub(super) was_asked: bool,
    /// Set if the timer checks it again, see [`super::circles`]: its number in the order of these
    /// checks.
    pub(super) suspect: Option<u64>,
}

impl Oracle {
    /// Work of the timer, including timed-out waits anywhere in the queue.
    pub(super) fn run_timer(&mut self, now_ms: u64) {
        self.refuse_if_missing(now_ms);
        let over: Vec<InLine> = self.line.extract_if(.., |one| one.until_ms <= now_ms).collect();
        self.answers.extend(over.iter().map(|one| (one.owner, Told::Nil)));
        self.settle(now_ms);
        self.remove_unused(now_ms);
    }

    /// Does due work: ends holds, and serves waiters.
    pub(super) fn settle(&mut self, now_ms: u64) {
        (self.is_told, self.is_gone) = (false, false);
        self.take_back(now_ms);
        self.end_sessions(now_ms);
        if self.holds.extract_if(.., |held| held.until_ms <= now_ms).count() > 0 {
            self.begin_idle_time(now_ms);
        }
        self.kept = Kept::at(self.kept, now_ms);
        self.refuse_if_missing(now_ms);
        while let Some(InLine { owner, wish, until_ms, .. }) = self.line.first().cloned() {
            let verdict = self.verdict(owner, &wish);
            let told = match verdict {
                _ if until_ms <= now_ms => Told::Nil,
                Verdict::Wait => return,
                Verdict::Refuse(told) => told,
                Verdict::Grant | Verdict::Repeat | Verdict::Has => {
                    self.settle_earlier(owner, wish.mode, now_ms);
                    let grant = self.give(owner, &wish, verdict, true, now_ms);
                    self.unheard.push(grant);
                    Told::Granted
                }
            };
            self.line.remove(0);
            self.answers.push((owner, told));
        }
    }

    pub(crate) fn acquire(&mut self, owner: u8, wish: Wish, now_ms: u64) -> Told {
        self.settle(now_ms);
        if let Some(told) = self.repeated(owner, &wish, now_ms) {
            return told;
        }
        let waits_anew = self.waits_anew(owner, &wish);
        match self.again(owner, &wish) {
            Again::Stale => return Told::Stale,
            Again::TakesOver(at) => return self.take_over(at, owner, &wish, now_ms),
            Again::Ends(at) if waits_anew => {
                self.supersede(at, &wish);
                self.stand(owner, wish, waits_anew, now_ms);
                // The next request for the lock, or the timer, serves the queue.
                self.is_told = true;
                return Told::Waits;
            }
            Again::Ends(_) | Again::Unrelated => {}
        }
        let verdict = self.verdict(owner, &wish);
        let is_next = self.end_of_line(owner, &wish) == 0 && verdict == Verdict::Grant;
        if let Again::Ends(at) = self.again(owner, &wish) {
            self.supersede(at, &wish);
            self.is_told = true;
        }
        if verdict == Verdict::Has || self.passes(owner, &wish) || is_next {
            self.give_at_once(owner, &wish, verdict, now_ms);
            return Told::Granted;
        }
        if wish.wait_ms.is_none() {
            return Told::Nil;
        }
        self.stand(owner, wish, waits_anew, now_ms);
        Told::Waits
    }

    /// The position at which a request enters the queue.
    fn end_of_line(&self, owner: u8, wish: &Wish) -> usize {
        if self.upgrades(owner, wish) { read_write::place_of_upgrade(&self.line) } else { self.line.len() }
    }

    /// A waiter enters the queue.
    pub(super) fn stand(&mut self, owner: u8, wish: Wish, was_asked: bool, now_ms: u64) {
        let (at, upgrades) = (self.end_of_line(owner, &wish), self.upgrades(owner, &wish));
        let until_ms = now_ms.saturating_add(wish.wait_ms.unwrap_or(0));
        let suspect = was_asked.then_some(NOT_NUMBERED);
        self.line.insert(at, InLine { owner, wish, until_ms, upgrades, was_asked, suspect });
    }

    /// An owner gives up its request, or the one with this id.
    pub(crate) fn cancel(&mut self, owner: u8, id: Option<u64>, now_ms: u64) {
        self.settle(now_ms);
        if self.line.iter().any(|one| one.owner == owner && (id.is_none() || one.wish.id == id)) {
            self.leave_line(owner);
            self.answers.push((owner, Told::Cancelled));
        }
        self.cancel_holds(owner, id, now_ms);
        self.settle(now_ms);
    }

    /// A waiter leaves without an answer.
    pub(crate) fn leave_line(&mut self, owner: u8) {
        self.line.retain(|one| one.owner != owner);
    }

    /// When something is due next.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        let ends = self.holds.iter().map(|held| held.until_ms);
        let opens = self.kept.map(|kept| kept.until_ms);
        ends.chain(opens).chain(self.idle_until_ms()).chain(self.line.iter().map(|one| one.until_ms)).min()
    }
}
