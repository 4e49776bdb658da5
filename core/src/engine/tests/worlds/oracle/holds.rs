//! The holds of owners: granted with a lease, released in parts, renewed, released by force. An
//! owner has one hold in each mode.

use super::kept::Kept;
use super::repeats::{Mark, Verdict, is_repeat, left_after_cancel, mark_after};
use super::sessions::Session;
use super::unheard::Grant;
use super::wish::Wish;
use super::{Oracle, Told};
use crate::kind::Mode;
use crate::request::Verb;

#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) owner: u8,
    pub(crate) mode: Mode,
    pub(crate) count: u32,
    pub(crate) until_ms: u64,
    /// Its last numbered request.
    pub(crate) mark: Mark,
    pub(super) session: Option<Session>,
    /// Granted with CLAIM, and not claimed yet.
    pub(super) is_unclaimed: bool,
}

/// The options of RELEASE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Back {
    pub(crate) mode: Mode,
    pub(crate) count: u32,
    pub(crate) id: Option<u64>,
    /// Whether TOKEN, if given, is that of the hold. With another one it is as if there were no hold.
    pub(crate) names_token: Option<bool>,
    /// KEEP.
    pub(crate) keep_ms: Option<u64>,
}

impl Oracle {
    pub(crate) fn live(&self, now_ms: u64) -> impl Iterator<Item = &Held> {
        self.holds.iter().filter(move |held| held.until_ms > now_ms)
    }

    pub(super) fn position(&self, owner: u8, mode: Mode) -> Option<usize> {
        self.holds.iter().position(|held| (held.owner, held.mode) == (owner, mode))
    }

    /// Grants a request, or renews the hold of an owner that already has it. Returns the data to
    /// undo it.
    pub(super) fn give(&mut self, owner: u8, wish: &Wish, verdict: Verdict, waited: bool, now_ms: u64) -> Grant {
        let Wish { mode, lease_ms, id, session_ms, .. } = *wish;
        let count = if verdict == Verdict::Grant { wish.count } else { 0 };
        let at = self.position(owner, mode);
        let is_unclaimed = verdict == Verdict::Grant && wish.claim_ms.is_some() && (waited || at.is_none());
        let lasts_ms = if is_unclaimed { wish.claim_ms.unwrap_or(lease_ms).min(lease_ms) } else { lease_ms };
        let until_ms = now_ms + lasts_ms;
        let before = at.map(|at| self.holds[at].clone());
        let held = match at {
            Some(at) => &mut self.holds[at],
            None => {
                self.forget_earlier(owner, mode);
                self.holds.push(Held { owner, mode, count: 0, until_ms, mark: None, session: None, is_unclaimed });
                self.holds.last_mut().expect("it was added")
            }
        };
        held.count += count;
        held.until_ms = held.until_ms.max(until_ms);
        held.mark = mark_after(held.mark, id, count);
        held.bind(session_ms);
        held.is_unclaimed &= verdict == Verdict::Grant && (waited || is_unclaimed);
        let has_bound = held.is_bound() && !before.as_ref().is_some_and(Held::is_bound);
        Grant { owner, wish: *wish, count, has_bound, before }
    }

    /// Like `give`, for a request that did not wait: its reply confirms it.
    pub(super) fn give_at_once(&mut self, owner: u8, wish: &Wish, verdict: Verdict, now_ms: u64) {
        self.give(owner, wish, verdict, false, now_ms);
        self.hear(owner, wish.mode);
    }

    pub(crate) fn release(&mut self, owner: u8, back: Back, now_ms: u64) -> Told {
        let Back { mode, count, id, names_token, keep_ms } = back;
        self.act_on_what_was_told(now_ms);
        if let Some(told) = Kept::release(&mut self.kept, owner, names_token, (id, keep_ms.is_some()), now_ms) {
            if matches!(told, Told::Left(_)) {
                self.settle(now_ms);
            }
            return told;
        }
        let Some(at) = self.use_hold(owner, mode, now_ms).filter(|_| names_token != Some(false)) else {
            return self.no_hold();
        };
        match is_repeat(self.holds[at].mark, id, Verb::Release) {
            Err(stale) => return stale,
            Ok(true) => {
                let left = self.holds[at].count;
                self.settle(now_ms);
                return Told::Left(left);
            }
            Ok(false) if self.holds[at].count < count => return Told::Refused,
            Ok(false) if keep_ms.is_some() && self.holds[at].count > count => return Told::Refused,
            Ok(false) => {}
        }
        self.hear(owner, mode);
        let held = &mut self.holds[at];
        held.count -= count;
        held.mark = id.map(|id| (id, Verb::Release, 0)).or(held.mark);
        if let Some(keep_ms) = keep_ms {
            self.kept = Some(Kept { owner, until_ms: now_ms + keep_ms, mark: held.mark });
            self.holds.remove(at);
            self.settle(now_ms);
            return Told::Left(1);
        }
        let left = held.count;
        if left == 0 {
            self.holds.remove(at);
            self.begin_idle_time(now_ms);
        }
        self.hand_over(now_ms);
        Told::Left(left)
    }

    /// Takes back what a numbered request has added to the holds of its owner.
    pub(super) fn cancel_holds(&mut self, owner: u8, id: Option<u64>, now_ms: u64) {
        for mode in Mode::ALL {
            let Some(at) = self.position(owner, mode) else { continue };
            let held = &mut self.holds[at];
            let Some(left) = left_after_cancel(held.mark, id, held.count) else { continue };
            (held.count, held.mark) = (left, id.map(|id| (id, Verb::Cancel, 0)));
            if left == 0 {
                self.holds.remove(at);
                self.begin_idle_time(now_ms);
            }
            self.hear(owner, mode);
        }
    }

    pub(crate) fn renew(&mut self, owner: u8, mode: Mode, is_meant: bool, lease_ms: u64, now_ms: u64) -> Told {
        let Some(at) = self.use_hold(owner, mode, now_ms).filter(|_| is_meant) else { return self.no_hold() };
        self.hear(owner, mode);
        let held = &mut self.holds[at];
        held.until_ms = held.until_ms.max(now_ms + lease_ms);
        held.is_unclaimed = false;
        held.bind(None);
        Told::Left(held.count)
    }

    pub(crate) fn force(&mut self, now_ms: u64) {
        self.act_on_what_was_told(now_ms);
        if self.live(now_ms).next().is_some() || Kept::at(self.kept, now_ms).is_some() {
            self.holds.retain(|held| held.until_ms <= now_ms);
            self.kept = None;
            self.begin_idle_time(now_ms);
            self.hand_over(now_ms);
        }
    }

    /// Serves the queue after a hold ended. Without waiters an expired hold stays until the timer
    /// removes it, and the idle time of a semaphore begins then.
    fn hand_over(&mut self, now_ms: u64) {
        if !self.line.is_empty() {
            self.settle(now_ms);
        }
    }

    /// The answer to a command that refers to a missing hold.
    fn no_hold(&self) -> Told {
        if self.is_missing() { Told::Refused } else { Told::NotOwner }
    }

    /// The live hold that a command refers to.
    fn use_hold(&mut self, owner: u8, mode: Mode, now_ms: u64) -> Option<usize> {
        self.act_on_what_was_told(now_ms);
        self.position(owner, mode).filter(|at| self.holds[*at].until_ms > now_ms)
    }
}
