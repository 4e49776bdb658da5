//! A mutex: one owner holds it, as many times as it has asked.

use std::vec::Vec;

use super::holds::Held;

/// It is free, or the owner's own.
pub(super) fn has_room(holds: &[Held], owner: u8) -> bool {
    holds.iter().all(|held| held.owner == owner)
}

/// Its holder gets it once more, whoever waits.
pub(super) fn passes(holds: &[Held], owner: u8) -> bool {
    holds.iter().any(|held| held.owner == owner)
}

/// Who waits does so for the holder, and for everybody ahead.
pub(super) fn waits_for(holds: &[&Held], ahead: &[u8]) -> Vec<u8> {
    holds.iter().map(|held| held.owner).chain(ahead.iter().copied()).collect()
}
