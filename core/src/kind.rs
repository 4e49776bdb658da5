//! Kinds of locks, and the modes in which they are held.

/// What a lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One owner at a time.
    Mutex,
    /// One owner at a time, and a queue that lives in the value.
    Fair,
    /// Many readers or one writer.
    RwLock,
    /// A number of permits.
    Semaphore,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Mutex, Self::Fair, Self::RwLock, Self::Semaphore];

    /// The name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Fair => "fair",
            Self::RwLock => "rwlock",
            Self::Semaphore => "semaphore",
        }
    }

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

/// How a hold shares the lock with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Alone (mutex, fair).
    Exclusive,
    /// With other readers (rwlock).
    Read,
    /// Alone, but for the owner's own READ (rwlock).
    Write,
    /// With others, as long as the permits last (semaphore).
    Permits,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Exclusive, Self::Read, Self::Write, Self::Permits];

    /// The name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Read => "read",
            Self::Write => "write",
            Self::Permits => "permits",
        }
    }

    /// Whether a hold in this mode leaves no room for another owner's hold in any mode.
    #[must_use]
    pub fn is_alone(self) -> bool {
        matches!(self, Self::Exclusive | Self::Write)
    }

    /// The modes in which an owner's other requests are granted as soon as it holds in this one: they would be re-entries,
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
