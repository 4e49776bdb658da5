//! Grants of waiters. Until an owner has confirmed its grant, its connection may close, or its
//! channel may have no subscriber: then the grant is undone, as if it had not happened. An owner
//! that uses the hold confirms it. If a waiter is granted a hold again before that, the earlier
//! grant keeps its count and its number, and its session only if it prolongs an earlier one.

use super::Oracle;
use super::holds::Held;
use super::wish::Wish;
use crate::kind::Mode;

/// The effect of a grant on a hold, to undo it.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) owner: u8,
    /// The request.
    pub(super) wish: Wish,
    /// The count it added: 0 if its owner already had what it asked for.
    pub(super) count: u32,
    /// The grant bound the hold to its owner's connection.
    pub(super) has_bound: bool,
    /// The hold before, if there was one.
    pub(super) before: Option<Held>,
}

impl Grant {
    fn is_of(&self, owner: u8, mode: Mode) -> bool {
        (self.owner, self.wish.mode) == (owner, mode)
    }
}

impl Held {
    /// Removes the options that a grant set. The deadline changes only with a session, and if the
    /// hold is unclaimed.
    fn take_back(&mut self, Grant { wish, has_bound, before, .. }: &Grant, now_ms: u64) {
        if *has_bound {
            self.unbind();
        }
        if wish.id.is_some() {
            self.mark = before.as_ref().and_then(|before| before.mark);
        }
        if let Some(before) = before.as_ref().filter(|_| self.is_unclaimed) {
            self.until_ms = before.until_ms;
        }
        self.take_back_session(wish, *has_bound, before.as_ref(), now_ms);
    }

    fn take_back_session(&mut self, wish: &Wish, has_bound: bool, before: Option<&Self>, now_ms: u64) {
        let mut is_longer = false;
        if wish.session_ms.is_some() {
            let before_ms = before.map_or(0, |before| before.until_ms);
            is_longer = before_ms > self.until_ms;
            self.until_ms = self.until_ms.max(before_ms);
            self.set_session_ms(before.and_then(Self::session_ms));
        }
        if (has_bound || is_longer) && !self.is_bound() {
            self.end_session(now_ms);
        }
    }
}

impl Oracle {
    /// An owner uses its hold, which confirms the grant.
    pub(super) fn hear(&mut self, owner: u8, mode: Mode) {
        self.unheard.retain(|one| !one.is_of(owner, mode));
    }

    /// A waiter is about to be granted its owner's hold, perhaps again.
    pub(super) fn settle_earlier(&mut self, owner: u8, mode: Mode, now_ms: u64) {
        let Some(at) = self.position(owner, mode) else { return };
        let held = &mut self.holds[at];
        for Grant { wish, mut before, .. } in self.unheard.extract_if(.., |one| one.is_of(owner, mode)) {
            if let Some(before) = &mut before {
                let sessions = before.session_ms().zip(held.session_ms());
                before.set_session_ms(sessions.map(|(before, set)| before.max(set)));
            }
            held.take_back_session(&wish, false, before.as_ref(), now_ms);
        }
    }

    /// All grants were received.
    pub(crate) fn hear_all(&mut self) {
        self.unheard.clear();
        self.over.clear();
    }

    /// The answers published in this turn had no subscriber.
    pub(crate) fn nobody_hears(&mut self) {
        self.is_told |= !self.unheard.is_empty() || !self.over.is_empty();
        self.undone.append(&mut self.unheard);
        self.over.clear();
    }

    /// An owner holds again: its earlier grants have ended, and are not undone.
    pub(super) fn forget_earlier(&mut self, owner: u8, mode: Mode) {
        let earlier = self.unheard.extract_if(.., |one| one.is_of(owner, mode));
        self.over.extend(earlier.map(|one| one.owner));
    }

    /// Undoes the grants whose answers will not arrive. A hold that has expired by
    /// then has ended.
    pub(super) fn take_back(&mut self, now_ms: u64) {
        for grant in std::mem::take(&mut self.undone) {
            let Some(at) = self.position(grant.owner, grant.wish.mode) else { continue };
            let held = &mut self.holds[at];
            held.count = held.count.saturating_sub(grant.count);
            if held.count == 0 {
                self.holds.remove(at);
                self.begin_idle_time(now_ms);
            } else if held.until_ms > now_ms {
                held.take_back(&grant, now_ms);
            }
        }
    }
}
