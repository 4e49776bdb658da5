//! Grants of who has waited. Until it is known that an owner has heard of its grant its connection may close, or nobody may listen on its
//! channel: then the grant is taken back, as if it had not been. An owner that uses the hold knows of it.

use super::Oracle;
use super::repeats::Mark;
use crate::kind::Mode;

/// What a hold got, to be taken back.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) owner: u8,
    pub(super) mode: Mode,
    pub(super) count: u32,
    /// The number it came with.
    pub(super) mark: Mark,
    /// The last number of the hold before it.
    pub(super) before: Mark,
}

impl Oracle {
    /// An owner uses its hold, and so knows of it.
    pub(super) fn hear(&mut self, owner: u8, mode: Mode) {
        self.unheard.retain(|one| (one.owner, one.mode) != (owner, mode));
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
        let earlier = self.unheard.extract_if(.., |one| (one.owner, one.mode) == (owner, mode));
        self.over.extend(earlier.map(|one| one.owner));
    }

    /// Takes back what nobody will hear of, the last first.
    pub(super) fn take_back(&mut self) {
        for Grant { owner, mode, count, mark, before } in std::mem::take(&mut self.undone).into_iter().rev() {
            let Some(at) = self.position(owner, mode) else { continue };
            let held = &mut self.holds[at];
            held.count = held.count.saturating_sub(count);
            if mark.is_some() && held.mark == mark {
                held.mark = before;
            }
        }
        self.holds.retain(|held| held.count > 0);
    }
}
