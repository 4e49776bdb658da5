//! A fair lock: one owner holds it, as many times as it has asked, and the others have places in a line.
//!
//! A place with a connection is granted when it is first and the lock is free. One without a connection has to ask again: the free lock is
//! reserved for it for a while, and then it loses its place. So a place has a life, and a connection that is lost leaves a grace to come back.

use std::vec::Vec;

use super::Told;
use super::fair_asking::FairWish;
use super::fair_leaving::Left;
use super::fair_places::Place;
use super::kept::Kept;
use super::repeats::{Mark, is_repeat};
use crate::request::Verb;

#[derive(Default)]
pub(crate) struct FairOracle {
    /// Who holds it, how many times, and until when.
    pub(crate) holder: Option<(u8, u32, u64)>,
    pub(crate) kept: Option<Kept>,
    /// The holder's last numbered request.
    pub(crate) mark: Mark,
    pub(crate) line: Vec<Place>,
    /// Until when the free lock is kept for the first in line.
    pub(crate) reserved_ms: Option<u64>,
    /// The holder, if it was granted after a wait and it is not known that it has heard of it.
    pub(super) unheard: Option<u8>,
    /// The grace of its own that its place had.
    pub(super) unheard_grace_ms: Option<u64>,
    /// What is to be done about connections, see [`super::fair_leaving`].
    pub(super) left: Left,
    /// What waiters were answered.
    pub(crate) answers: Vec<(u8, Told)>,
}

impl FairOracle {
    /// What is due when the timer goes off: also waits whose time is over.
    pub(crate) fn run_timer(&mut self, now_ms: u64) {
        self.do_what_is_due(now_ms, true);
    }

    pub(super) fn settle(&mut self, now_ms: u64) {
        self.do_what_is_due(now_ms, false);
    }

    fn do_what_is_due(&mut self, now_ms: u64, is_timer: bool) {
        self.act_on_what_was_told(now_ms);
        self.holder = self.holder.filter(|(_, _, until_ms)| *until_ms > now_ms);
        self.kept = Kept::at(self.kept, now_ms);
        if self.holder.is_none() {
            (self.unheard, self.mark) = (None, None);
        }
        self.end_places(now_ms, is_timer);
        self.serve(now_ms);
    }

    /// A free lock goes to the first in line, or is kept for it.
    fn serve(&mut self, now_ms: u64) {
        while self.is_free()
            && let Some(first) = self.line.first().cloned()
        {
            match self.reserved_ms {
                _ if first.is_connected => {
                    let owner = self.remove_first();
                    let is_over = first.until_ms <= now_ms;
                    if !is_over {
                        let lasts_ms = first.claim_ms.unwrap_or(first.lease_ms).min(first.lease_ms);
                        self.hold_anew(owner, lasts_ms, first.asked, now_ms);
                        self.unheard_grace_ms = first.grace_ms;
                        self.expect_to_be_heard(owner);
                    }
                    self.answers.push((owner, if is_over { Told::Nil } else { Told::Granted }));
                }
                Some(until_ms) if until_ms > now_ms => return,
                Some(_) => {
                    self.remove_first();
                }
                None => self.reserved_ms = Some(first.until_ms.min(now_ms + first.reserved_for_ms())),
            }
        }
    }

    pub(crate) fn acquire(&mut self, owner: u8, wish: FairWish, now_ms: u64) -> Told {
        self.settle(now_ms);
        if let Some((of, count, until_ms)) = &mut self.holder
            && *of == owner
        {
            // Its holder gets it once more, whoever waits; but not by a request that it has sent before.
            match is_repeat(self.mark, wish.id, Verb::Acquire) {
                Err(stale) => return stale,
                Ok(true) => {}
                Ok(false) => *count += 1,
            }
            *until_ms = (*until_ms).max(now_ms + wish.lease_ms);
            self.mark = wish.id.map(|id| (id, Verb::Acquire)).or(self.mark);
            self.hear();
            return Told::Granted;
        }
        if self.is_earlier(owner, wish.id) {
            return Told::Stale;
        }
        if self.is_free() && self.line.first().is_none_or(|first| first.owner == owner) {
            if !self.line.is_empty() {
                self.remove_first();
            }
            self.hold_anew(owner, wish.lease_ms, wish.id, now_ms);
            return Told::Granted;
        }
        self.stand_in_line(owner, wish, now_ms)
    }

    fn is_free(&self) -> bool {
        self.holder.is_none() && self.kept.is_none()
    }

    fn hold_anew(&mut self, owner: u8, lease_ms: u64, id: Option<u64>, now_ms: u64) {
        self.holder = Some((owner, 1, now_ms + lease_ms));
        self.mark = id.map(|id| (id, Verb::Acquire));
    }

    /// For whom an owner waits: for the holder, and for the connected places ahead. A place without a connection waits for nobody, nobody waits
    /// for it, and who is in no value, because it was removed, waits for nobody either.
    pub(super) fn waits_for(&self, owner: u8, now_ms: u64) -> Vec<u8> {
        let waits = |place: &&Place| place.until_ms > now_ms && self.left.is_connected(place);
        let Some(at) = self.line.iter().position(|place| place.owner == owner && waits(&place)) else {
            return Vec::new();
        };
        if self.left.is_gone || self.left.promoted {
            return Vec::new();
        }
        let holder = self.holder.filter(|(_, _, until_ms)| *until_ms > now_ms).map(|(holder, ..)| holder);
        holder.into_iter().chain(self.line[..at].iter().filter(waits).map(|place| place.owner)).collect()
    }
}
