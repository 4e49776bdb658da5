//! A read-write lock: many owners read, or one writes. An owner may have both a READ and a WRITE, which are two holds.

use std::vec::Vec;

use super::holds::Held;
use super::line::InLine;
use crate::kind::Mode;

/// Nobody else is there to whom it would be a harm: to a reader the writer, to a writer everybody.
pub(super) fn has_room(holds: &[Held], owner: u8, mode: Mode) -> bool {
    holds.iter().filter(|held| held.owner != owner).all(|held| !is_in_the_way(mode, held.mode))
}

fn is_in_the_way(mode: Mode, held: Mode) -> bool {
    mode == Mode::Write || held == Mode::Write
}

/// Who reads may read once more, who writes may write once more or read too, whoever waits.
pub(super) fn passes(holds: &[Held], owner: u8, mode: Mode) -> bool {
    has(holds, owner, mode) || (mode == Mode::Read && has(holds, owner, Mode::Write))
}

/// A reader that wants to write stands ahead of all who do not, since they would wait for its READ.
pub(super) fn upgrades(holds: &[Held], owner: u8, mode: Mode) -> bool {
    mode == Mode::Write && has(holds, owner, Mode::Read)
}

/// Where such a reader stands: behind the others like it.
pub(super) fn place_of_upgrade(line: &[InLine]) -> usize {
    line.iter().filter(|one| one.upgrades).count()
}

/// Who waits does so for whoever holds in its way, and for everybody ahead: a reader also for a reader.
pub(super) fn waits_for(mode: Mode, holds: &[&Held], ahead: &[u8]) -> Vec<u8> {
    let in_the_way = holds.iter().filter(|held| is_in_the_way(mode, held.mode));
    in_the_way.map(|held| held.owner).chain(ahead.iter().copied()).collect()
}

fn has(holds: &[Held], owner: u8, mode: Mode) -> bool {
    holds.iter().any(|held| (held.owner, held.mode) == (owner, mode))
}
