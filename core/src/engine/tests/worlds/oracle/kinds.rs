//! What is asked of a kind. The answers are in [`mutex`], [`read_write`] and [`semaphore`].

use std::vec::Vec;

use super::holds::Held;
use super::wish::Wish;
use super::{Oracle, mutex, read_write, semaphore};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutex,
    ReadWrite,
    /// With so many permits, if there is one.
    Semaphore(Option<u32>),
}

impl Oracle {
    /// Whether what an owner wants can be granted beside all that is held.
    pub(super) fn has_room(&self, owner: u8, wish: &Wish) -> bool {
        match self.kind {
            Kind::Mutex => self.kept.is_none() && mutex::has_room(&self.holds, owner),
            Kind::ReadWrite => read_write::has_room(&self.holds, owner, wish.mode),
            Kind::Semaphore(permits) => semaphore::has_room(&self.holds, permits.unwrap_or(0), wish.count),
        }
    }

    /// Whether it can ever be granted, whoever gives back what.
    pub(super) fn is_possible(&self, wish: &Wish) -> bool {
        match self.kind {
            Kind::Mutex | Kind::ReadWrite => true,
            Kind::Semaphore(permits) => wish.count <= permits.unwrap_or(0),
        }
    }

    /// Whether an owner gets what it wants whoever waits.
    pub(super) fn passes(&self, owner: u8, wish: &Wish) -> bool {
        match self.kind {
            Kind::Mutex => mutex::passes(&self.holds, owner),
            Kind::ReadWrite => read_write::passes(&self.holds, owner, wish.mode),
            Kind::Semaphore(_) => false,
        }
    }

    /// Whether an owner stands ahead of all for whom this does not hold.
    pub(super) fn upgrades(&self, owner: u8, wish: &Wish) -> bool {
        self.kind == Kind::ReadWrite && read_write::upgrades(&self.holds, owner, wish.mode)
    }

    /// Whether a hold is what its owner asks for with ONCE.
    pub(super) fn is_the_same(&self, held: &Held, wish: &Wish) -> bool {
        match self.kind {
            Kind::Mutex | Kind::ReadWrite => true,
            Kind::Semaphore(_) => semaphore::is_the_same(held, wish.count),
        }
    }

    /// Whether those who wait do so for anybody in particular.
    pub(super) fn makes_circles(&self) -> bool {
        !matches!(self.kind, Kind::Semaphore(_))
    }

    /// For whom somebody waits, of the holds that are live and of those who stand ahead.
    pub(super) fn in_its_way(&self, wish: &Wish, holds: &[&Held], ahead: &[u8]) -> Vec<u8> {
        match self.kind {
            Kind::Mutex => mutex::waits_for(holds, ahead),
            Kind::ReadWrite => read_write::waits_for(wish.mode, holds, ahead),
            Kind::Semaphore(_) => Vec::new(),
        }
    }
}
