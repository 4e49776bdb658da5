//! A semaphore: so many permits, which owners take and give back. What an owner has taken is one hold.
//!
//! A holder that asks for more stands in line like any other. Nobody waits for anybody in particular, since any holder may give permits back:
//! so there are no circles.

use super::holds::Held;

/// So many are left.
pub(super) fn has_room(holds: &[Held], permits: u32, count: u32) -> bool {
    holds.iter().map(|held| held.count).sum::<u32>() + count <= permits
}

/// Asked with ONCE, an owner has what it wants if it has just as many; with another number of permits it is refused.
pub(super) fn is_the_same(held: &Held, count: u32) -> bool {
    held.count == count
}
