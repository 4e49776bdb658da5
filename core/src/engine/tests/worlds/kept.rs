//! Holds that clients were told of: nothing but their leases ends them, as long as nothing happens that may.

use std::vec::Vec;

use super::action::Action;
use super::small_world::name;
use crate::engine::tests::world::World;
use crate::kind::Mode;

/// What was told last of each, over the connection of its owner.
#[derive(Default)]
pub(super) struct Kept(Vec<Told>);

struct Told {
    key: usize,
    owner: u8,
    token: u64,
    until_us: u64,
}

impl Kept {
    /// Before something happens by which holds may end.
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

    /// Somebody was told over its connection what it holds.
    pub(super) fn keep(&mut self, world: &World, key: usize, owner: u8, mode: Mode) {
        let hold = world.lock(&name(key)).and_then(|lock| lock.live_hold(&[owner], mode, world.now));
        let Some(hold) = hold else { return };
        self.0.retain(|told| (told.key, told.owner) != (key, owner));
        self.0.push(Told { key, owner, token: hold.token(), until_us: hold.deadline_us() });
    }

    /// Whoever was told of a hold has it until its lease is over.
    pub(super) fn check_kept(&self, world: &World) {
        let now_us = world.now.mono_us;
        for Told { key, owner, token, until_us } in &self.0 {
            let hold = world.lock(&name(*key)).and_then(|lock| lock.hold_with_token(*token));
            let is_held = hold.is_some_and(|hold| hold.deadline_us() >= *until_us);
            assert!(is_held || now_us >= *until_us, "owner {owner} keeps what it holds of key {key}");
        }
    }
}
