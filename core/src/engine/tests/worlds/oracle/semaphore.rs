//! A semaphore: permits, which owners acquire and release. All permits of an owner are one hold.
//!
//! A holder that asks for more waits like any other owner. A waiter waits for no particular owner,
//! since any holder may release permits: so there are no cycles.
//!
//! RESIZE changes the number of permits. No owner loses permits by that. But if more are in use
//! than there are now, none is granted until enough were released. Waiters that ask for more
//! permits than there are get an error.
//!
//! With an idle time, the timer removes the semaphore after that time without holders and waiters.
//!
//! INIT must create the semaphore, and a server command may remove it. While it is missing,
//! requests and waiters are refused.

use super::holds::Held;
use super::line::InLine;
use super::repeats::Verdict;
use super::wish::Wish;
use super::{Kind, Oracle, Told};
use crate::kind::Mode;

/// The idle time: how long it stays without holders and waiters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    idle_ms: u64,
    until_ms: u64,
}

/// Whether enough permits are left.
pub(super) fn has_room(holds: &[Held], permits: u32, count: u32) -> bool {
    holds.iter().map(|held| held.count).sum::<u32>() + count <= permits
}

/// With ONCE, an owner has what it asks for if it has exactly that number of permits; with another
/// number it is refused.
pub(super) fn is_the_same(held: &Held, count: u32) -> bool {
    held.count == count
}

impl Oracle {
    /// INIT: an existing semaphore keeps its permits, and its idle time begins again.
    pub(crate) fn init(&mut self, permits: u32, idle_ms: Option<u64>, now_ms: u64) {
        self.settle(now_ms);
        if self.is_missing() {
            self.kind = Kind::Semaphore(Some(permits));
        }
        let idle_ms = idle_ms.or(self.idle.map(|idle| idle.idle_ms)).filter(|idle_ms| *idle_ms != 0);
        self.idle = idle_ms.map(|idle_ms| Idle { idle_ms, until_ms: now_ms + idle_ms });
    }

    /// A hold ended.
    pub(super) fn begin_idle_time(&mut self, now_ms: u64) {
        if let Some(idle) = self.idle.as_mut().filter(|_| self.holds.is_empty()) {
            idle.until_ms = now_ms + idle.idle_ms;
        }
    }

    /// When the idle time ends, if there are no holds.
    pub(crate) fn idle_until_ms(&self) -> Option<u64> {
        self.idle.map(|idle| idle.until_ms).filter(|_| self.holds.is_empty())
    }

    pub(super) fn remove_unused(&mut self, now_ms: u64) {
        if self.idle_until_ms().is_some_and(|until_ms| until_ms <= now_ms) {
            let Some(idle) = self.idle.as_mut().filter(|_| !self.line.is_empty()) else { return self.unmake() };
            idle.until_ms = now_ms + idle.idle_ms.max(1000);
        }
    }

    /// The number of permits, if the semaphore exists.
    pub(crate) fn permits(&self) -> Option<u32> {
        if let Kind::Semaphore(permits) = self.kind { permits } else { None }
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

    /// DRAIN: an owner gets all free permits, unless a request waits.
    pub(crate) fn drain(&mut self, owner: u8, lease_ms: u64, now_ms: u64) -> Told {
        self.settle(now_ms);
        let Kind::Semaphore(Some(permits)) = self.kind else { return Told::Refused };
        let in_use: u32 = self.live(now_ms).map(|held| held.count).sum();
        let count = permits.saturating_sub(in_use);
        if count == 0 || !self.line.is_empty() {
            return Told::Free(0);
        }
        let (mode, is_once, is_notified) = (Mode::Permits, false, false);
        let wish = Wish {
            mode,
            count,
            lease_ms,
            wait_ms: None,
            claim_ms: None,
            session_ms: None,
            id: None,
            is_once,
            is_notified,
        };
        self.give_at_once(owner, &wish, Verdict::Grant, now_ms);
        Told::Free(count.into())
    }

    /// The value was removed: the lock is free, or the semaphore is missing.
    pub(super) fn unmake(&mut self) {
        if let Kind::Semaphore(permits) = &mut self.kind {
            *permits = None;
            self.idle = None;
        }
    }

    pub(super) fn is_missing(&self) -> bool {
        self.kind == Kind::Semaphore(None)
    }

    /// Refuses the waiters of a missing semaphore. The server may answer nil instead if the wait
    /// has timed out too: it does both at the same time.
    pub(super) fn refuse_if_missing(&mut self, now_ms: u64) {
        if self.is_missing() {
            let told = |one: &InLine| if one.until_ms <= now_ms { Told::NilOrRefused } else { Told::Refused };
            self.answers.extend(self.line.drain(..).map(|one| (one.owner, told(&one))));
        }
    }
}
