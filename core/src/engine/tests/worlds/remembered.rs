//! The owners' memory of their own numbered requests (REQ), so that a world without an oracle knows
//! the required answer to a retry. The memory consists of their answers; the token and the count of
//! a hold are visible to all.

use std::vec::Vec;

use super::oracle::Told;
use super::small_world::name;
use crate::engine::tests::world::World;
use crate::kind::Mode;
use crate::lock::{Hold, Lock};
use crate::request::Verb;

/// A key, an owner, and the mode of its hold.
pub(super) type Whose = (usize, u8, Mode);

#[derive(Default)]
pub(super) struct Remembered {
    /// The last numbered request of each hold that its owner knows of.
    last: Vec<Last>,
    /// Tokens of holds that exist in several copies of a lock. A request to one copy is unknown to
    /// the others.
    copied: Vec<u64>,
}

#[derive(Clone, Copy)]
struct Last {
    whose: Whose,
    token: u64,
    request: (u64, Verb),
}

/// The required result of a numbered request.
pub(super) struct Known {
    whose: Whose,
    token: u64,
    count: u32,
    /// The request repeats the last one. Otherwise it is an earlier request, or another one with
    /// the same number.
    is_repeat: bool,
}

impl Remembered {
    /// A request was completed, and its owner received the answer.
    pub(super) fn keep(&mut self, world: &World, whose: Whose, id: Option<u64>, verb: Verb) {
        let Some((id, hold)) = id.zip(hold(world, whose)) else { return };
        let is_before = |last: &Last| last.whose == whose && last.token == hold.token() && last.request.0 > id;
        if !self.last.iter().any(is_before) && !self.copied.contains(&hold.token()) {
            self.forget(whose);
            self.last.push(Last { whose, token: hold.token(), request: (id, verb) });
        }
    }

    /// A lock is copied.
    pub(super) fn copy(&mut self, lock: &Lock) {
        self.copied.extend(lock.holds().iter().map(Hold::token));
        self.last.retain(|last| !self.copied.contains(&last.token));
    }

    /// Another request is under way, and its completion is not known.
    pub(super) fn forget(&mut self, whose: Whose) {
        self.last.retain(|last| last.whose != whose);
    }

    /// Before a request: its required result. `None` if the request is new, its owner does not hold
    /// the lock, or no request of the hold was numbered.
    pub(super) fn expect(&self, world: &World, whose: Whose, id: Option<u64>, verb: Verb) -> Option<Known> {
        let (id, hold) = id.zip(hold(world, whose))?;
        // The next command on the key undoes unconfirmed grants.
        let record = world.engine.registry.view(name(whose.0).borrow());
        let undone = record.and_then(|record| record.dirty).map_or(&[][..], |dirty| &dirty.undone);
        if undone.iter().any(|(token, _)| *token == hold.token()) {
            return None;
        }
        let last = self.last.iter().find(|last| last.whose == whose && last.token == hold.token())?;
        let is_repeat = last.request == (id, verb);
        let (token, count) = (hold.token(), hold.count());
        (id <= last.request.0).then_some(Known { whose, token, count, is_repeat })
    }
}

impl Known {
    /// After a request with this answer.
    pub(super) fn check(&self, world: &World, told: Told) {
        let is_as_before =
            if self.is_repeat { told == Told::Granted || told == Told::Left(self.count) } else { told == Told::Stale };
        assert!(is_as_before, "a repeated numbered request gets {told:?}");
        let left = hold(world, self.whose).map(|hold| (hold.token(), hold.count()));
        assert_eq!(left, Some((self.token, self.count)), "a repeated request counts once");
    }
}

/// The visible hold of an owner.
pub(super) fn hold(world: &World, (key, owner, mode): Whose) -> Option<&Hold> {
    world.lock(&name(key))?.live_hold(&[owner], mode, world.now)
}
