//! What owners remember of their own numbered requests (REQ), so that a world without an oracle can say what a request that is sent again has to be
//! answered. It is what they were told, and is never asked of the core: of a hold that is seen its token and its count are known to everybody.

use std::vec::Vec;

use super::oracle::Told;
use super::small_world::name;
use crate::engine::tests::world::World;
use crate::kind::Mode;
use crate::lock::{Hold, Lock};
use crate::request::Verb;

/// A key, an owner, and what it holds it for.
pub(super) type Whose = (usize, u8, Mode);

#[derive(Default)]
pub(super) struct Remembered {
    /// The last numbered request of each hold that its owner was told of.
    last: Vec<Last>,
    /// Holds of which there are copies: what was asked of one of them, another one does not know.
    copied: Vec<u64>,
}

#[derive(Clone, Copy)]
struct Last {
    whose: Whose,
    token: u64,
    request: (u64, Verb),
}

/// What a numbered request has to come to.
pub(super) struct Known {
    whose: Whose,
    token: u64,
    count: u32,
    /// It is the last one once more; otherwise an earlier one, or another one with the same number.
    is_repeat: bool,
}

impl Remembered {
    /// A request was done, and its owner was told so.
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

    /// Another request is under way, and it is not known when it is done.
    pub(super) fn forget(&mut self, whose: Whose) {
        self.last.retain(|last| last.whose != whose);
    }

    /// Before a request is made: what it has to come to, if its owner holds, has numbered a request of that hold, and this is no new one.
    pub(super) fn expect(&self, world: &World, whose: Whose, id: Option<u64>, verb: Verb) -> Option<Known> {
        let (id, hold) = id.zip(hold(world, whose))?;
        // What nobody has heard of is taken back with the next command on the key.
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
    /// After the request, which was answered so.
    pub(super) fn check(&self, world: &World, told: Told) {
        let is_as_before =
            if self.is_repeat { told == Told::Granted || told == Told::Left(self.count) } else { told == Told::Stale };
        assert!(is_as_before, "a request that was numbered before is answered {told:?}");
        let left = hold(world, self.whose).map(|hold| (hold.token(), hold.count()));
        assert_eq!(left, Some((self.token, self.count)), "a repeated request counts once");
    }
}

/// What an owner is seen to hold.
pub(super) fn hold(world: &World, (key, owner, mode): Whose) -> Option<&Hold> {
    world.lock(&name(key))?.live_hold(&[owner], mode, world.now)
}
