//! A semaphore: so many permits, which owners take and give back. What an owner has taken is one hold.
//!
//! A holder that asks for more stands in line like any other. Nobody waits for anybody in particular, since any holder may give permits back:
//! so there are no circles.
//!
//! It can be given another number of permits. Nobody loses any by that; but if more are in use than there are then, none is granted until enough came
//! back, and who waits for more than there are is refused.
//!
//! It has to be made, and a command of the server's may remove it: then whoever asks is refused, and so is whoever waits.

use super::holds::Held;
use super::line::InLine;
use super::{Kind, Oracle, Told};

/// So many are left.
pub(super) fn has_room(holds: &[Held], permits: u32, count: u32) -> bool {
    holds.iter().map(|held| held.count).sum::<u32>() + count <= permits
}

/// Asked with ONCE, an owner has what it wants if it has just as many; with another number of permits it is refused.
pub(super) fn is_the_same(held: &Held, count: u32) -> bool {
    held.count == count
}

impl Oracle {
    /// INIT: one that is there stays as it is.
    pub(crate) fn init(&mut self, permits: u32, now_ms: u64) {
        self.settle(now_ms);
        if self.is_missing() {
            self.kind = Kind::Semaphore(Some(permits));
        }
    }

    /// RESIZE.
    pub(crate) fn resize(&mut self, permits: u32, now_ms: u64) -> Told {
        self.act_on_what_was_told(now_ms);
        if self.is_missing() {
            return Told::Refused;
        }
        self.kind = Kind::Semaphore(Some(permits));
        if !self.line.is_empty() {
            let too_much = self.line.extract_if(.., |one| one.wish.count > permits);
            self.answers.extend(too_much.map(|one| (one.owner, Told::Refused)));
            self.settle(now_ms);
        }
        let in_use: i64 = self.live(now_ms).map(|held| i64::from(held.count)).sum();
        Told::Free(i64::from(permits) - in_use)
    }

    /// The value is gone: a lock of another kind is free then, and this is none.
    pub(super) fn unmake(&mut self) {
        if let Kind::Semaphore(permits) = &mut self.kind {
            *permits = None;
        }
    }

    pub(super) fn is_missing(&self) -> bool {
        self.kind == Kind::Semaphore(None)
    }

    /// Nobody can wait for what is not there. The server may say so or nil, if the time is over too: it does both when it comes to it.
    pub(super) fn refuse_if_missing(&mut self, now_ms: u64) {
        if self.is_missing() {
            let told = |one: &InLine| if one.until_ms <= now_ms { Told::NilOrRefused } else { Told::Refused };
            self.answers.extend(self.line.drain(..).map(|one| (one.owner, told(&one))));
        }
    }
}
