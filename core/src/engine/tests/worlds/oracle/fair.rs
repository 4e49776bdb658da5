//! A fair lock: one owner holds it with a count, and the others have places in a queue.
//!
//! A place with a connection is granted when it is first and the lock is free. The owner of a place
//! without one has to ask again: the free lock is reserved for it for a while, and then it loses
//! its place. So a place can expire. An owner that lost its connection has a grace to return.

use std::vec::Vec;

use super::Told;
use super::fair_asking::FairWish;
use super::fair_leaving::Left;
use super::fair_places::Place;
use super::kept::Kept;
use super::repeats::{Mark, is_repeat, mark_after};
use crate::request::Verb;

#[derive(Default)]
pub(crate) struct FairOracle {
    /// The holder, its count, and its deadline.
    pub(crate) holder: Option<(u8, u32, u64)>,
    pub(crate) kept: Option<Kept>,
    /// The holder's last numbered request.
    pub(crate) mark: Mark,
    pub(crate) line: Vec<Place>,
    /// When the reservation for the head expires.
    pub(crate) reserved_ms: Option<u64>,
    /// The holder, if it was granted after a wait and the grant is not confirmed.
    pub(super) unheard: Option<u8>,
    /// The `GRACE` that its place had.
    pub(super) unheard_grace_ms: Option<u64>,
    /// Unprocessed events, see [`super::fair_leaving`].
    pub(super) left: Left,
    /// The answers to waiters.
    pub(crate) answers: Vec<(u8, Told)>,
}

impl FairOracle {
    /// Work of the timer, including waits that have timed out.
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

    /// Grants a free lock to the head of the queue, or reserves it.
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
            // The holder acquires again, ahead of waiters. A repeat of an earlier request is not
            // granted again.
            match is_repeat(self.mark, wish.id, Verb::Acquire) {
                Err(stale) => return stale,
                Ok(true) => {}
                Ok(false) => *count += 1,
            }
            *until_ms = (*until_ms).max(now_ms + wish.lease_ms);
            self.mark = mark_after(self.mark, wish.id, 1);
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
            let lasts_ms = wish.claim_ms.unwrap_or(wish.lease_ms).min(wish.lease_ms);
            self.hold_anew(owner, lasts_ms, wish.id, now_ms);
            return Told::Granted;
        }
        self.stand_in_line(owner, wish, now_ms)
    }

    fn is_free(&self) -> bool {
        self.holder.is_none() && self.kept.is_none()
    }

    fn hold_anew(&mut self, owner: u8, lease_ms: u64, id: Option<u64>, now_ms: u64) {
        self.holder = Some((owner, 1, now_ms + lease_ms));
        self.mark = mark_after(None, id, 1);
    }

    /// The owners that an owner waits for: the holder, and the connected places ahead. A place
    /// without a connection waits for no owner, and no owner waits for it. An owner without a
    /// place, because the value was removed, waits for no owner either.
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
