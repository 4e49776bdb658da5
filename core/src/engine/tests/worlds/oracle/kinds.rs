//! The interface of a kind, implemented in [`mutex`], [`read_write`] and [`semaphore`].

use std::vec::Vec;

use super::holds::Held;
use super::wish::Wish;
use super::{Oracle, mutex, read_write, semaphore};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutex,
    ReadWrite,
    /// With this number of permits, if it exists.
    Semaphore(Option<u32>),
}

impl Oracle {
    /// Whether a request can be granted beside all current holds.
    pub(super) fn has_room(&self, owner: u8, wish: &Wish) -> bool {
        match self.kind {
            Kind::Mutex => self.kept.is_none() && mutex::has_room(&self.holds, owner),
            Kind::ReadWrite => read_write::has_room(&self.holds, owner, wish.mode),
            Kind::Semaphore(permits) => semaphore::has_room(&self.holds, permits.unwrap_or(0), wish.count),
        }
    }

    /// Whether a request can ever be granted, whichever holds end.
    pub(super) fn is_possible(&self, wish: &Wish) -> bool {
        match self.kind {
            Kind::Mutex | Kind::ReadWrite => true,
            Kind::Semaphore(permits) => wish.count <= permits.unwrap_or(0),
        }
    }

    /// Whether a request is granted ahead of all waiters.
    pub(super) fn passes(&self, owner: u8, wish: &Wish) -> bool {
        match self.kind {
            Kind::Mutex => mutex::passes(&self.holds, owner),
            Kind::ReadWrite => read_write::passes(&self.holds, owner, wish.mode),
            Kind::Semaphore(_) => false,
        }
    }

    /// Whether a waiter is ahead of all waiters that do not upgrade.
    pub(super) fn upgrades(&self, owner: u8, wish: &Wish) -> bool {
        self.kind == Kind::ReadWrite && read_write::upgrades(&self.holds, owner, wish.mode)
    }

    /// Whether a hold satisfies its owner's request with ONCE.
    pub(super) fn is_the_same(&self, held: &Held, wish: &Wish) -> bool {
        match self.kind {
            Kind::Mutex | Kind::ReadWrite => true,
            Kind::Semaphore(_) => semaphore::is_the_same(held, wish.count),
        }
    }

    /// Whether waiters wait for particular owners.
    pub(super) fn makes_cycles(&self) -> bool {
        !matches!(self.kind, Kind::Semaphore(_))
    }

    /// The owners that a waiter waits for, among the live holders and the waiters ahead.
    pub(super) fn in_its_way(&self, wish: &Wish, holds: &[&Held], ahead: &[u8]) -> Vec<u8> {
        match self.kind {
            Kind::Mutex => mutex::waits_for(holds, ahead),
            Kind::ReadWrite => read_write::waits_for(wish.mode, holds, ahead),
            Kind::Semaphore(_) => Vec::new(),
        }
    }
}
