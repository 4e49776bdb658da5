//! Kinds of locks, and the modes in which they are held.

use crate::named::named;

named! {
    /// The kinds of locks.
    pub enum Kind {
        /// One owner at a time.
        Mutex => "mutex",
        /// One owner at a time, and a queue that lives in the value.
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

/// Something for each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PerKind<T> {
    mutex: T,
    fair: T,
    rwlock: T,
    semaphore: T,
}

impl<T> PerKind<T> {
    /// That of a kind.
    pub(crate) fn of(&self, kind: Kind) -> &T {
        match kind {
            Kind::Mutex => &self.mutex,
            Kind::Fair => &self.fair,
            Kind::RwLock => &self.rwlock,
            Kind::Semaphore => &self.semaphore,
        }
    }

    /// That of a kind, to be changed.
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
        /// Alone (mutex, fair).
        Exclusive => "exclusive",
        /// With other readers (rwlock).
        Read => "read",
        /// Alone; the owner may hold READ too (rwlock).
        Write => "write",
        /// With others, as long as the permits last (semaphore).
        Permits => "permits",
    }
}

impl Mode {
    /// Whether a hold in this mode leaves no room for another owner's hold in any mode.
    #[must_use]
    pub fn is_alone(self) -> bool {
        matches!(self, Self::Exclusive | Self::Write)
    }

    /// The modes in which a waiting request of an owner is granted as soon as it holds in this one: it would be a re-entry,
    /// or the READ that a writer may take. On a semaphore each request is one of its own.
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
