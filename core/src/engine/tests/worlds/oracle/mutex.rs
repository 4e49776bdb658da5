//! A mutex: one owner holds it, with a count.

use std::vec::Vec;

use super::holds::Held;

/// Whether the lock is free, or held by the owner itself.
pub(super) fn has_room(holds: &[Held], owner: u8) -> bool {
    holds.iter().all(|held| held.owner == owner)
}

/// The holder acquires again, ahead of waiters.
pub(super) fn passes(holds: &[Held], owner: u8) -> bool {
    holds.iter().any(|held| held.owner == owner)
}

/// A waiter waits for the holder, and for all waiters ahead.
pub(super) fn waits_for(holds: &[&Held], ahead: &[u8]) -> Vec<u8> {
    holds.iter().map(|held| held.owner).chain(ahead.iter().copied()).collect()
}
