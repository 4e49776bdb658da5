//! Kinds of locks, and the modes in which they are held.

use crate::named::named;

named! {
    /// The kinds of locks.
    pub enum Kind {
        /// One owner at a time.
        Mutex => "mutex",
        /// One owner at a time, with a queue in the value.
        Fair => "fair",
        /// Many readers or one writer.
        RwLock => "rwlock",
        /// A number of permits.
        Semaphore => "semaphore",
    }
}

impl Kind {
    /// Whether a hold of this kind can be in `mode`.
    #[must_use]
    pub fn has_mode(self, mode: Mode) -> bool {
        match self {
            Self::Mutex | Self::Fair => mode == Mode::Exclusive,
            Self::RwLock => matches!(mode, Mode::Read | Mode::Write),
            Self::Semaphore => mode == Mode::Permits,
        }
    }
}

/// One `T` for each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PerKind<T> {
    mutex: T,
    fair: T,
    rwlock: T,
    semaphore: T,
}

impl<T> PerKind<T> {
    /// The value for a kind.
    pub(crate) fn of(&self, kind: Kind) -> &T {
        match kind {
            Kind::Mutex => &self.mutex,
            Kind::Fair => &self.fair,
            Kind::RwLock => &self.rwlock,
            Kind::Semaphore => &self.semaphore,
        }
    }

    /// The value for a kind, to change it.
    pub(crate) fn of_mut(&mut self, kind: Kind) -> &mut T {
        match kind {
            Kind::Mutex => &mut self.mutex,
            Kind::Fair => &mut self.fair,
            Kind::RwLock => &mut self.rwlock,
            Kind::Semaphore => &mut self.semaphore,
        }
    }
}

named! {
    /// How a hold shares the lock with others.
    pub enum Mode {
        /// Exclusive (mutex, fair).
        Exclusive => "exclusive",
        /// Shared with other readers (rwlock).
        Read => "read",
        /// Exclusive, except READ of the same owner (rwlock).
        Write => "write",
        /// Shared while permits are free (semaphore).
        Permits => "permits",
    }
}

impl Mode {
    /// Whether a hold in this mode excludes holds of other owners in any mode.
    #[must_use]
    pub fn is_exclusive(self) -> bool {
        matches!(self, Self::Exclusive | Self::Write)
    }

    /// The modes of waiting requests that are granted as soon as their owner holds the lock in this
    /// mode: a re-entry, or READ for a writer. Requests on a semaphore are independent.
    #[must_use]
    pub fn covers(self) -> &'static [Self] {
        match self {
            Self::Exclusive => &[Self::Exclusive],
            Self::Read => &[Self::Read],
            Self::Write => &[Self::Write, Self::Read],
            Self::Permits => &[],
        }
    }
}
