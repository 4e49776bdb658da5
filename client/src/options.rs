//! The options that every kind of lock takes.

use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::identity::{check_note, check_owner};

/// The lease of a lock for which none was given; such a lock renews itself.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// The shortest lease that the module takes.
pub(crate) const SHORTEST: Duration = Duration::from_millis(1);

/// The longest lease and session grace that the module takes.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Checks a span of time that the server would refuse.
pub(crate) fn check_span(name: &str, span: Duration, shortest: Duration) -> Result<(), Error> {
    if (shortest..=LONGEST).contains(&span) {
        return Ok(());
    }
    Err(Error::Argument(format!("{name} is {span:?}, and may be {shortest:?} to 365 days")))
}

/// What a user may say about an acquisition.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) lease: Option<Duration>,
    pub(crate) renews: Option<bool>,
    pub(crate) session_grace: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) owner: Option<Arc<[u8]>>,
    pub(crate) note: Option<Arc<[u8]>>,
    pub(crate) replicas: Option<(u32, Duration)>,
}

impl Options {
    /// Checks what the server would refuse.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let spans = [
            ("lease", self.lease, SHORTEST),
            ("max_hold", self.max_hold, SHORTEST),
            ("session_grace", self.session_grace, Duration::ZERO),
        ];
        for (name, span, shortest) in spans {
            span.map_or(Ok(()), |span| check_span(name, span, shortest))?;
        }
        self.note.as_deref().map_or(Ok(()), check_note)?;
        self.owner.as_deref().map_or(Ok(()), check_owner)
    }

    /// What to ask for. Nothing is held for longer than `max_hold`, so nothing longer is asked for.
    pub(crate) fn lease(&self) -> Duration {
        let lease = self.lease.unwrap_or(DEFAULT_LEASE);
        self.max_hold.map_or(lease, |most| lease.min(most))
    }

    /// Whether the hold renews itself: if no lease was given, or if asked for.
    pub(crate) fn renews(&self) -> bool {
        self.renews.unwrap_or(self.lease.is_none())
    }
}

/// Adds the options about how long to hold to a builder with a field `options`.
macro_rules! holding_methods {
    () => {
        /// How long a hold lives without renewal, 1 ms to 365 days, in whole milliseconds. Without this option it is 30 s, and renewed
        /// every third of it for as long as the guard lives. With it, the hold is not renewed unless
        /// [`renewing`](Self::renewing) says so.
        #[must_use]
        pub fn lease(mut self, lease: std::time::Duration) -> Self {
            self.options.lease = Some(lease);
            self
        }

        /// Whether the guard renews the hold every third of its lease. Default: if no lease is given.
        #[must_use]
        pub fn renewing(mut self, renews: bool) -> Self {
            self.options.renews = Some(renews);
            self
        }

        /// Ends the hold this long after it was granted, whatever renewals there are.
        #[must_use]
        pub fn max_hold(mut self, most: std::time::Duration) -> Self {
            self.options.max_hold = Some(most);
            self
        }
    };
}
pub(crate) use holding_methods;

/// Adds the options to a builder with a field `options`.
macro_rules! option_methods {
    () => {
        crate::options::holding_methods!();

        /// Ends the hold this long after its connection has closed, 0 to 365 days: a crash of this process is felt at once and not at
        /// the end of the lease. A lost connection that is replaced within this time does no harm.
        ///
        /// The hold is bound anew every third of this time, so that the guard knows of a loss before the server acts on
        /// it, and a server that takes the lock over hears of the connection in time. With 0 it cannot know before.
        ///
        /// A connection that is silent for a third of what is left of the hold, and for at least 250 ms, is given up, so that there is time for
        /// another one. All of the client share it, so what others hold with a grace of 0 ends with it: short graces are for servers that are never
        /// busy for so long.
        ///
        /// All that one [`owner`](Self::owner) holds of a lock at a time ends together, so its guards of one client have one grace, or none: that of the
        /// first of them, whether it was taken alone or among the keys of a [`MultiLock`](crate::MultiLock). Another one that a later handle names counts
        /// when all of these have ended.
        #[must_use]
        pub fn session_grace(mut self, grace: std::time::Duration) -> Self {
            self.options.session_grace = Some(grace);
            self
        }

        /// The owner, 1 to 512 bytes, in whose name to hold. Default: one that nobody else has, for each acquisition. Locks are re-entrant by
        /// owner: who shares an owner shares its holds.
        ///
        /// The server refuses to let owners wait for each other in a circle ([`Error::Deadlock`](crate::Error::Deadlock)). It knows them by
        /// name: give all that one thread of control holds the same owner, and it is told instead of waiting for ever.
        ///
        /// An owner stands for one thread of control. It has one request at a time for a lock: a second one waits
        /// for the first to be answered, and that may be the end of a wait. So while one task waits in the name of an owner, what
        /// another one releases or drops in that name is released only when the wait has ended: an owner that waits for
        /// more permits does not give back those that it has. Tasks that go on beside each other take different owners.
        #[must_use]
        pub fn owner(mut self, owner: impl AsRef<[u8]>) -> Self {
            self.options.owner = Some(owner.as_ref().into());
            self
        }

        /// A text for people, up to 256 bytes, that the server stores with the hold: the host and process, or the URL of a build. It is shown with the
        /// [holder](crate::Holder::note) and, while it waits, with the [waiter](crate::Waiter::note), and nothing else depends on it.
        ///
        /// A re-entry with a note replaces that of the hold, and an empty note removes it. Default: none is sent.
        #[must_use]
        pub fn note(mut self, note: impl AsRef<[u8]>) -> Self {
            self.options.note = Some(note.as_ref().into());
            self
        }

        /// Reports a grant only when this many replicas have acknowledged it within `timeout`. Otherwise it is given back, and the
        /// error is [`Error::Replicas`](crate::Error::Replicas).
        #[must_use]
        pub fn replicas(mut self, replicas: u32, timeout: std::time::Duration) -> Self {
            self.options.replicas = Some((replicas, timeout));
            self
        }
    };
}
pub(crate) use option_methods;
