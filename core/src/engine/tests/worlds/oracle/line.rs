//! The line of those who wait, and the one loop that serves it from its head: only who is first may be granted, so nobody is overtaken.
//!
//! A wait whose time is over ends with the timer, or when it is first in line; until then its owner may send it again, or take it back.

use std::vec::Vec;

use super::circles::NOT_NUMBERED;
use super::repeats::Verdict;
use super::{Oracle, Told, read_write};
use crate::kind::Mode;

/// How long a wait lasts that has no end (BLOCK 0), and until when.
pub(crate) const FOR_EVER: u64 = u64::MAX;

/// What ACQUIRE asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) mode: Mode,
    pub(crate) count: u32,
    pub(crate) lease_ms: u64,
    /// How long it waits, if it does; [`FOR_EVER`] without an end.
    pub(crate) wait_ms: Option<u64>,
    /// SESSION.
    pub(crate) session_ms: Option<u64>,
    /// REQ.
    pub(crate) id: Option<u64>,
    /// An owner that holds already gets no more.
    pub(crate) is_once: bool,
    /// Who waits is answered on a channel: sent again, it is the same wait.
    pub(crate) is_notified: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct InLine {
    pub(crate) owner: u8,
    pub(crate) wish: Wish,
    pub(crate) until_ms: u64,
    /// A reader that wants to write.
    pub(super) upgrades: bool,
    /// It stands where the same request stood before.
    pub(super) is_repeated: bool,
    /// Another one of its owner waited before. It is asked for circles when the timer goes off, see [`super::circles`]: if it stands behind that one's
    /// place; or if it stands there, and the time of the other one was over, which was in nobody's way any more.
    pub(super) suspect: Option<u64>,
}

impl Oracle {
    /// What is due when the timer goes off: also waits whose time is over, wherever they stand.
    pub(super) fn run_timer(&mut self, now_ms: u64) {
        self.refuse_if_missing(now_ms);
        let over: Vec<InLine> = self.line.extract_if(.., |one| one.until_ms <= now_ms).collect();
        self.answers.extend(over.iter().map(|one| (one.owner, Told::Nil)));
        self.settle(now_ms);
    }

    /// Does what is due: holds end, and who waits is served.
    pub(super) fn settle(&mut self, now_ms: u64) {
        (self.is_told, self.is_gone) = (false, false);
        self.take_back();
        self.end_sessions(now_ms);
        self.holds.retain(|held| held.until_ms > now_ms);
        self.refuse_if_missing(now_ms);
        while let Some(InLine { owner, wish, until_ms, .. }) = self.line.first().cloned() {
            let verdict = self.verdict(owner, &wish);
            let told = match verdict {
                _ if until_ms <= now_ms => Told::Nil,
                Verdict::Wait => return,
                Verdict::Refuse(told) => told,
                Verdict::Grant | Verdict::Repeat | Verdict::Has => {
                    let grant = self.give(owner, &wish, verdict, now_ms);
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
        let suspect = self.numbered_in_line(owner, &wish).map(|_| NOT_NUMBERED);
        if let Some(told) = self.sent_again(owner, &wish, now_ms) {
            return told;
        }
        let verdict = self.verdict(owner, &wish);
        let upgrades = self.upgrades(owner, &wish);
        let at = if upgrades { read_write::place_of_upgrade(&self.line) } else { self.line.len() };
        let is_next = at == 0 && verdict == Verdict::Grant;
        if verdict == Verdict::Has || self.passes(owner, &wish) || is_next {
            self.give_at_once(owner, &wish, verdict, now_ms);
            return Told::Granted;
        }
        let Some(wait_ms) = wish.wait_ms else { return Told::Nil };
        let until_ms = now_ms.saturating_add(wait_ms);
        self.line.insert(at, InLine { owner, wish, until_ms, upgrades, is_repeated: false, suspect });
        Told::Waits
    }

    /// Who waits gives up.
    pub(crate) fn cancel(&mut self, owner: u8, now_ms: u64) {
        self.settle(now_ms);
        if self.line.iter().any(|one| one.owner == owner) {
            self.leave_line(owner);
            self.answers.push((owner, Told::Cancelled));
            self.settle(now_ms);
        }
    }

    /// Somebody waits no more, and is not answered here.
    pub(crate) fn leave_line(&mut self, owner: u8) {
        self.line.retain(|one| one.owner != owner);
    }

    /// When something is due next.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        let ends = self.holds.iter().map(|held| held.until_ms);
        ends.chain(self.line.iter().map(|one| one.until_ms)).min()
    }
}
