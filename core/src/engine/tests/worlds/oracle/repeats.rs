//! Requests that are sent again. With a number (REQ) the last one of a hold is answered as before and done once, and an earlier one is refused;
//! with ONCE an owner that holds gets no more. A number that waits is the same wait, and a higher one takes its place.

use super::circles::NOT_NUMBERED;
use super::line::InLine;
use super::wish::Wish;
use super::{Oracle, Told};
use crate::request::Verb;

/// The last numbered request of a hold.
pub(crate) type Mark = Option<(u64, Verb)>;

/// What a lock says to a wish, whoever waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Grant,
    /// This very request was granted before.
    Repeat,
    /// The owner has what it asks for once.
    Has,
    Wait,
    /// With this answer.
    Refuse(Told),
}

/// Whether a numbered request is the last one of a hold once more; an error if it is an earlier one.
pub(super) fn is_repeat(last: Mark, id: Option<u64>, verb: Verb) -> Result<bool, Told> {
    match (last, id) {
        (Some((last, by)), Some(id)) if id < last || (id == last && by != verb) => Err(Told::Stale),
        (Some((last, _)), Some(id)) => Ok(id == last),
        _ => Ok(false),
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

    /// What a request is answered that was granted before, or cannot be.
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

    /// Where a numbered request finds one of its owner that waits.
    fn numbered_in_line(&self, owner: u8, wish: &Wish) -> Option<usize> {
        let is_earlier = |one: &InLine| one.owner == owner && one.wish.mode == wish.mode && one.wish.id.is_some();
        wish.id.and_then(|_| self.line.iter().position(is_earlier))
    }

    /// Whether a request ends one of its owner that waits with a lower number, to wait itself.
    pub(super) fn waits_anew(&self, owner: u8, wish: &Wish) -> bool {
        let is_settled = matches!(self.verdict(owner, wish), Verdict::Refuse(_) | Verdict::Repeat);
        let at = self.numbered_in_line(owner, wish).filter(|_| wish.wait_ms.is_some() && !is_settled);
        at.is_some_and(|at| self.line[at].wish.id < wish.id)
    }

    /// What a numbered request is answered whose owner has one that waits already. Nothing if it is another one, which is new.
    pub(super) fn sent_again(&mut self, owner: u8, wish: &Wish, now_ms: u64) -> Option<Told> {
        let id = wish.id?;
        let at = self.numbered_in_line(owner, wish)?;
        let earlier = self.line[at].clone();
        let is_same = earlier.wish.id == Some(id);
        if Some(id) < earlier.wish.id || (is_same && wish.count != earlier.wish.count) {
            return Some(Told::Stale);
        }
        self.line.remove(at);
        if !(is_same && wish.is_notified && earlier.wish.is_notified) {
            self.answers.push((owner, Told::TakenOver));
        }
        if let (true, Some(wait_ms)) = (is_same, wish.wait_ms) {
            // It stands where it stood.
            let is_suspect = earlier.suspect.is_some() || earlier.until_ms <= now_ms;
            let suspect = is_suspect.then_some(NOT_NUMBERED);
            let until_ms = now_ms.saturating_add(wait_ms);
            self.line.insert(at, InLine { wish: *wish, until_ms, was_asked: true, suspect, ..earlier });
            return Some(Told::Waits);
        }
        self.settle(now_ms);
        if is_same { Some(Told::Nil) } else { self.repeated(owner, wish, now_ms) }
    }
}
