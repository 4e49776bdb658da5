//! Grants of who has waited. Until it is known that an owner has heard of its grant its connection may close, or nobody may listen on its
//! channel: then the grant is taken back, as if it had not been. An owner that uses the hold knows of it.

use super::Oracle;
use super::holds::Held;
use super::wish::Wish;
use crate::kind::Mode;

/// What a hold got, to be taken back.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) owner: u8,
    /// What was asked for.
    pub(super) wish: Wish,
    /// How many it got: none, if its owner had what it asked for.
    pub(super) count: u32,
    /// The grant has bound the hold to the connection of its owner.
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
    /// What is left of the hold without the last of its grants: what that has said goes. It lasts as long as it did with it, unless that was for a
    /// connection.
    fn take_back(&mut self, Grant { wish, has_bound, before, .. }: &Grant, now_ms: u64) {
        if *has_bound {
            self.unbind();
        }
        if wish.id.is_some() {
            self.mark = before.as_ref().and_then(|before| before.mark);
        }
        let mut is_longer = false;
        if wish.session_ms.is_some() {
            let before_ms = before.as_ref().map_or(0, |before| before.until_ms);
            is_longer = before_ms > self.until_ms;
            self.until_ms = self.until_ms.max(before_ms);
            self.set_session_ms(before.as_ref().and_then(Self::session_ms));
        }
        if (*has_bound || is_longer) && !self.is_bound() {
            self.end_session(now_ms);
        }
    }
}

impl Oracle {
    /// An owner uses its hold, and so knows of it.
    pub(super) fn hear(&mut self, owner: u8, mode: Mode) {
        self.unheard.retain(|one| !one.is_of(owner, mode));
    }

    /// What was granted has reached everybody.
    pub(crate) fn hear_all(&mut self) {
        self.unheard.clear();
        self.over.clear();
    }

    /// Nobody has listened to what was published in this turn.
    pub(crate) fn nobody_hears(&mut self) {
        self.is_told |= !self.unheard.is_empty() || !self.over.is_empty();
        self.undone.append(&mut self.unheard);
        self.over.clear();
    }

    /// An owner holds anew: what it was granted before is over, and nothing of that is taken back.
    pub(super) fn forget_earlier(&mut self, owner: u8, mode: Mode) {
        let earlier = self.unheard.extract_if(.., |one| one.is_of(owner, mode));
        self.over.extend(earlier.map(|one| one.owner));
    }

    /// Takes back what nobody will hear of, the last first. A hold that is over by then is over.
    pub(super) fn take_back(&mut self, now_ms: u64) {
        for grant in std::mem::take(&mut self.undone).into_iter().rev() {
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
