//! The options that every kind of lock accepts.

use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::clock::Moment;

/// The lease if the caller gives none.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// The shortest lease and session grace. Of a shorter one the margin for the clocks would leave no
/// time in which the hold is valid and a renewal can be answered.
pub(crate) const SHORTEST: Duration = Duration::from_millis(10);

/// The longest lease and session grace that the module accepts.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The length of an owner, in bytes.
const OWNER_BYTES: std::ops::RangeInclusive<usize> = 1..=512;

/// The maximum length of a note, in bytes.
const NOTE_BYTES: usize = 256;

/// Refuses a duration that the server would refuse.
pub(crate) fn check_span(name: &str, span: Duration, shortest: Duration) -> Result<(), Error> {
    if (shortest..=LONGEST).contains(&span) {
        return Ok(());
    }
    Err(Error::Argument(format!("{name} is {span:?}; expected {shortest:?} to 365 days")))
}

/// The options of an acquisition.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) lease: Duration,
    pub(crate) renews: bool,
    pub(crate) session_grace: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    /// The end of `max_hold` of the guard that this acquisition upgrades or downgrades.
    pub(crate) ends_by: Option<Moment>,
    pub(crate) owner: Option<Arc<[u8]>>,
    /// Whether other clients use the owner too.
    pub(crate) is_owner_shared: bool,
    pub(crate) note: Option<Arc<[u8]>>,
    pub(crate) replicas: Option<(u32, Duration)>,
    /// How long a fair lock keeps the place of a waiter whose connection has closed.
    pub(crate) place_grace: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lease: DEFAULT_LEASE,
            renews: true,
            session_grace: None,
            max_hold: None,
            ends_by: None,
            owner: None,
            is_owner_shared: false,
            note: None,
            replicas: None,
            place_grace: None,
        }
    }
}

impl Options {
    /// Refuses options that the server would refuse, and a session that could end unnoticed.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_span("lease", self.lease, SHORTEST)?;
        let spans = [
            ("max_hold", self.max_hold, SHORTEST),
            ("session_grace", self.session_grace, SHORTEST),
            ("grace", self.place_grace, Duration::ZERO),
            ("replicas timeout", self.replicas.map(|(_, timeout)| timeout), Duration::ZERO),
        ];
        for (name, span, shortest) in spans {
            span.map_or(Ok(()), |span| check_span(name, span, shortest))?;
        }
        if let Some(note) = self.note.as_deref().filter(|note| note.len() > NOTE_BYTES) {
            return Err(Error::Argument(format!("note has {} bytes; expected 0 to {NOTE_BYTES}", note.len())));
        }
        if let Some(owner) = self.owner.as_deref().filter(|owner| !OWNER_BYTES.contains(&owner.len())) {
            return Err(Error::Argument(format!("owner has {} bytes; expected 1 to 512", owner.len())));
        }
        Ok(())
    }

    /// The lease to request: at most `max_hold`.
    pub(crate) fn lease(&self) -> Duration {
        self.lease.min(self.max_hold.unwrap_or(LONGEST))
    }
}

/// Adds the options to a builder that implements `options_mut`.
macro_rules! option_methods {
    () => {
        /// How long the hold lives without renewal, 10 ms to 365 days. The guard renews it every
        /// third of this time. After a crash of the holder the lock stays held for up to this time.
        /// Default: 30 s.
        #[must_use]
        pub fn lease(mut self, lease: std::time::Duration) -> Self {
            let options = self.options_mut();
            (options.lease, options.renews) = (lease, true);
            self
        }

        /// As [`lease`](Self::lease), but the guard does not renew the hold: it is lost after this
        /// time.
        #[must_use]
        pub fn fixed_lease(mut self, lease: std::time::Duration) -> Self {
            let options = self.options_mut();
            (options.lease, options.renews) = (lease, false);
            self
        }

        /// Ends the hold this long after its grant, 10 ms to 365 days, even if it is renewed.
        #[must_use]
        pub fn max_hold(mut self, most: std::time::Duration) -> Self {
            self.options_mut().max_hold = Some(most);
            self
        }

        /// Ends the hold this long after its connection closes, 10 ms to 365 days, so that the server
        /// notices a crash of this process sooner than by the lease. The client binds the hold to a
        /// new connection as soon as one is lost, and renews it every third of this time.
        #[must_use]
        pub fn session_grace(mut self, grace: std::time::Duration) -> Self {
            self.options_mut().session_grace = Some(grace);
            self
        }

        /// The owner of the hold, 1 to 512 bytes. By default each acquisition has its own owner.
        ///
        /// If this owner already holds the lock through the same client, acquiring it again is a
        /// re-entry: the last of the guards releases the lock. If owners would wait for each other
        /// in a cycle, the server refuses with [`Error::Deadlock`](crate::Error::Deadlock).
        ///
        /// An owner stands for one thread of control, with one request at a time per key: while it
        /// waits, its releases of that key wait too. Several clients must not use an owner at the
        /// same time: they would share one hold, and the first release, or an acquisition that is
        /// given up, would end it. A newer request ends one that waits, with
        /// [`Error::Superseded`](crate::Error::Superseded). For such owners there is
        /// [`shared_owner`](Self::shared_owner).
        #[must_use]
        pub fn owner(mut self, owner: impl AsRef<[u8]>) -> Self {
            let options = self.options_mut();
            (options.owner, options.is_owner_shared) = (Some(owner.as_ref().into()), false);
            self
        }

        /// As [`owner`](Self::owner), for an owner that several clients use at the same time: a
        /// program that holds the lock passes the owner to the programs that it starts. The server
        /// counts their holds, and the lock is free when each of them has released it. They must not
        /// wait at the same time: a newer request for a key ends an older one with
        /// [`Error::Superseded`](crate::Error::Superseded).
        ///
        /// After a lost connection the server may have counted a hold that no client has. It lasts
        /// until the lease ends.
        #[must_use]
        pub fn shared_owner(mut self, owner: impl AsRef<[u8]>) -> Self {
            let options = self.options_mut();
            (options.owner, options.is_owner_shared) = (Some(owner.as_ref().into()), true);
            self
        }

        /// A text for people, up to 256 bytes, that the server stores with the hold, such as the
        /// host and process, or the URL of a build. See [`Holder::note`](crate::Holder::note) and
        /// [`Waiter::note`](crate::Waiter::note).
        #[must_use]
        pub fn note(mut self, note: impl AsRef<[u8]>) -> Self {
            self.options_mut().note = Some(note.as_ref().into());
            self
        }

        /// Reports a grant only after this many replicas have acknowledged it within `timeout`, 0 to
        /// 365 days. Otherwise the client releases the lock and fails with
        /// [`Error::Replicas`](crate::Error::Replicas). Each acquisition opens a connection for
        /// this.
        #[must_use]
        pub fn replicas(mut self, replicas: u32, timeout: std::time::Duration) -> Self {
            self.options_mut().replicas = Some((replicas, timeout));
            self
        }
    };
}
pub(crate) use option_methods;
