//! A read-write lock: many owners hold READ, or one holds WRITE. An owner may have both, which are
//! two holds.

use std::vec::Vec;

use super::holds::Held;
use super::line::InLine;
use crate::kind::Mode;

/// READ excludes a writer, WRITE excludes all other owners.
pub(super) fn has_room(holds: &[Held], owner: u8, mode: Mode) -> bool {
    holds.iter().filter(|held| held.owner != owner).all(|held| !is_in_the_way(mode, held.mode))
}

fn is_in_the_way(mode: Mode, held: Mode) -> bool {
    mode == Mode::Write || held == Mode::Write
}

/// A reader may acquire READ again, and a writer WRITE or READ, ahead of all waiters.
pub(super) fn passes(holds: &[Held], owner: u8, mode: Mode) -> bool {
    has(holds, owner, mode) || (mode == Mode::Read && has(holds, owner, Mode::Write))
}

/// An upgrading reader is ahead of all other waiters, since they wait for its READ hold.
pub(super) fn upgrades(holds: &[Held], owner: u8, mode: Mode) -> bool {
    mode == Mode::Write && has(holds, owner, Mode::Read)
}

/// The position of an upgrading reader: behind other upgrading readers.
pub(super) fn place_of_upgrade(line: &[InLine]) -> usize {
    line.iter().filter(|one| one.upgrades).count()
}

/// A waiter waits for all conflicting holders, and for all waiters ahead: a reader even for another
/// reader.
pub(super) fn waits_for(mode: Mode, holds: &[&Held], ahead: &[u8]) -> Vec<u8> {
    let in_the_way = holds.iter().filter(|held| is_in_the_way(mode, held.mode));
    in_the_way.map(|held| held.owner).chain(ahead.iter().copied()).collect()
}

fn has(holds: &[Held], owner: u8, mode: Mode) -> bool {
    holds.iter().any(|held| (held.owner, held.mode) == (owner, mode))
}
