//! Retries. With a number (REQ), a repeat of a hold's last request gets the same answer and has no
//! other effect, and an earlier request is refused. With ONCE an owner that already holds the lock
//! gets nothing further. An owner waits with at most one request. A later request that waits, or
//! has the same number, ends it, and takes over its place if it asks for the same.

use super::circles::NOT_NUMBERED;
use super::line::InLine;
use super::wish::Wish;
use super::{Oracle, Told};
use crate::request::Verb;

/// The last numbered request of a hold, and the count that an ACQUIRE has added to it: 0 if it found
/// what it asked for with ONCE.
pub(crate) type Mark = Option<(u64, Verb, u32)>;

/// The lock's answer to a wish, regardless of waiters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Grant,
    /// This very request was granted before.
    Repeat,
    /// The owner already has what it asks for with ONCE.
    Has,
    Wait,
    /// With this answer.
    Refuse(Told),
}

/// The relation of a new request to its owner's waiting request, and the position of that one in
/// the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// None: the waiting request continues.
    Unrelated,
    /// It has a lower number, or the same number but asks for something else.
    Stale,
    /// It asks for the same.
    TakesOver(usize),
    /// It asks for something else.
    Ends(usize),
}

/// Whether a numbered request repeats the last one of a hold; an error if it is an earlier one.
pub(super) fn is_repeat(last: Mark, id: Option<u64>, verb: Verb) -> Result<bool, Told> {
    match (last, id) {
        (Some((last, by, _)), Some(id)) if id < last || (id == last && by != verb) => Err(Told::Stale),
        (Some((last, ..)), Some(id)) => Ok(id == last),
        _ => Ok(false),
    }
}

/// The mark after an ACQUIRE that has added a count. A repeat leaves what its request has added.
pub(super) fn mark_after(last: Mark, id: Option<u64>, added: u32) -> Mark {
    match (last, id) {
        (Some((last_id, ..)), Some(id)) if last_id == id => last,
        (_, Some(id)) => Some((id, Verb::Acquire, added)),
        (_, None) => last,
    }
}

/// The count of a hold after a CANCEL. `None`: the last request of the hold was another one.
pub(super) fn left_after_cancel(last: Mark, id: Option<u64>, count: u32) -> Option<u32> {
    match last {
        Some((last_id, Verb::Acquire, added)) if Some(last_id) == id => {
            Some(if added == 0 { 0 } else { count.saturating_sub(added) })
        }
        _ => None,
    }
}

impl Oracle {
    pub(super) fn verdict(&self, owner: u8, wish: &Wish) -> Verdict {
        if self.is_missing() {
            return Verdict::Refuse(Told::Refused);
        }
        if let Some(at) = self.position(owner, wish.mode) {
            let held = &self.holds[at];
            match is_repeat(held.mark, wish.id, Verb::Acquire) {
                Err(stale) => return Verdict::Refuse(stale),
                Ok(true) => return Verdict::Repeat,
                Ok(false) => {}
            }
            if wish.is_once {
                return if self.is_the_same(held, wish) { Verdict::Has } else { Verdict::Refuse(Told::Refused) };
            }
        }
        if !self.is_possible(wish) {
            return Verdict::Refuse(Told::Refused);
        }
        if self.has_room(owner, wish) { Verdict::Grant } else { Verdict::Wait }
    }

    /// The answer to a request that was granted before, or cannot be granted.
    pub(super) fn repeated(&mut self, owner: u8, wish: &Wish, now_ms: u64) -> Option<Told> {
        match self.verdict(owner, wish) {
            Verdict::Refuse(told) => Some(told),
            Verdict::Repeat => {
                self.give_at_once(owner, wish, Verdict::Repeat, now_ms);
                Some(Told::Granted)
            }
            Verdict::Grant | Verdict::Has | Verdict::Wait => None,
        }
    }

    /// The relation of a new request to its owner's waiting request.
    pub(super) fn again(&self, owner: u8, wish: &Wish) -> Again {
        let Some(at) = self.line.iter().position(|one| one.owner == owner) else { return Again::Unrelated };
        let earlier = &self.line[at].wish;
        let is_same = (earlier.mode, earlier.count) == (wish.mode, wish.count);
        let ids = wish.id.zip(earlier.id);
        if ids.is_some_and(|(id, waiting)| id < waiting || (id == waiting && !is_same)) {
            return Again::Stale;
        }
        let is_repeat = ids.is_some_and(|(id, waiting)| id == waiting);
        match wish.wait_ms {
            None if !is_repeat => Again::Unrelated,
            _ if is_same => Again::TakesOver(at),
            _ => Again::Ends(at),
        }
    }

    /// Whether a request that waits ends one of its owner that waits for something else.
    pub(super) fn waits_anew(&self, owner: u8, wish: &Wish) -> bool {
        let is_settled = matches!(self.verdict(owner, wish), Verdict::Refuse(_) | Verdict::Repeat | Verdict::Has);
        matches!(self.again(owner, wish), Again::Ends(_)) && !is_settled && !self.passes(owner, wish)
    }

    /// Ends a waiting request because of a later one.
    pub(super) fn supersede(&mut self, at: usize, wish: &Wish) -> InLine {
        let earlier = self.line.remove(at);
        let is_same_channel = wish.is_notified && earlier.wish.is_notified;
        if !(is_same_channel && wish.id == earlier.wish.id) {
            self.answers.push((earlier.owner, Told::Superseded));
        }
        earlier
    }

    /// A request takes over the place of its owner's waiting request.
    pub(super) fn take_over(&mut self, at: usize, owner: u8, wish: &Wish, now_ms: u64) -> Told {
        let verdict = self.verdict(owner, wish);
        if verdict == Verdict::Has || self.passes(owner, wish) {
            self.supersede(at, wish);
            self.give_at_once(owner, wish, verdict, now_ms);
            return Told::Granted;
        }
        let earlier = self.supersede(at, wish);
        let Some(wait_ms) = wish.wait_ms else {
            self.settle(now_ms);
            return Told::Nil;
        };
        // It keeps the position.
        let is_suspect = earlier.suspect.is_some() || earlier.until_ms <= now_ms;
        let suspect = is_suspect.then_some(NOT_NUMBERED);
        let until_ms = now_ms.saturating_add(wait_ms);
        self.line.insert(at, InLine { wish: *wish, until_ms, was_asked: true, suspect, ..earlier });
        Told::Waits
    }
}
