//! Holds that clients know of: only the end of the lease, or an action that may, ends them.

use std::vec::Vec;

use super::action::Action;
use super::small_world::name;
use crate::engine::tests::world::World;
use crate::kind::Mode;

/// The last answer to each owner over its connection.
#[derive(Default)]
pub(super) struct Kept(Vec<Told>);

struct Told {
    key: usize,
    owner: u8,
    token: u64,
    until_us: u64,
}

impl Kept {
    /// Called before an action that may end holds.
    pub(super) fn forget(&mut self, action: Action) {
        match action {
            Action::Acquire { .. }
            | Action::Renew { .. }
            | Action::RenewToken { .. }
            | Action::Drain { .. }
            | Action::Hear
            | Action::Pause
            | Action::Part
            | Action::Timer
            | Action::Tick => {}
            Action::Release { key, owner, .. } | Action::Keep { key, owner, .. } => {
                self.0.retain(|told| (told.key, told.owner) != (key, owner))
            }
            Action::Close { owner } => self.0.retain(|told| told.owner != owner),
            _ => self.0.clear(),
        }
    }

    /// An owner received an answer about its hold over its connection.
    pub(super) fn keep(&mut self, world: &World, key: usize, owner: u8, mode: Mode) {
        let hold = world.lock(&name(key)).and_then(|lock| lock.live_hold(&[owner], mode, world.now));
        let Some(hold) = hold else { return };
        self.0.retain(|told| (told.key, told.owner) != (key, owner));
        self.0.push(Told { key, owner, token: hold.token(), until_us: hold.deadline_us() });
    }

    /// Checks that each owner has the hold that it knows of until its lease expires.
    pub(super) fn check_kept(&self, world: &World) {
        let now_us = world.now.mono_us;
        for Told { key, owner, token, until_us } in &self.0 {
            let hold = world.lock(&name(*key)).and_then(|lock| lock.hold_with_token(*token));
            let is_held = hold.is_some_and(|hold| hold.deadline_us() >= *until_us);
            assert!(is_held || now_us >= *until_us, "owner {owner} keeps its hold of key {key}");
        }
    }
}
