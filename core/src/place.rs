//! A place in the queue of a fair lock.

use crate::time::Now;

/// How a place waits, and when it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// A blocked or notified request of its owner waits; the place lasts as long as the wait.
    Connected,
    /// Its owner polls; it expires unless the owner asks again in time.
    Polled {
        /// When it expires.
        until_us: u64,
    },
    /// Its owner lost the connection; it is kept for the grace.
    Grace {
        /// When it expires.
        until_us: u64,
    },
}

impl Stay {
    /// When the place expires, if it has a deadline.
    #[must_use]
    pub fn until_us(self) -> Option<u64> {
        match self {
            Self::Connected => None,
            Self::Polled { until_us } | Self::Grace { until_us } => Some(until_us),
        }
    }
}

/// A view of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// Its owner.
    pub owner: &'a [u8],
    /// How it waits.
    pub stay: Stay,
    /// Its arrival number: microseconds of the wall clock when it was taken, made unique on the
    /// server.
    pub arrival: u64,
    /// The id of the numbered request that it stands for.
    pub request_id: Option<u64>,
    /// `GRACE ms`: how long it is kept without a connection; `None` for the server's default.
    pub grace_ms: Option<u64>,
}

impl Place<'_> {
    /// Whether it has not expired.
    #[must_use]
    pub fn is_live(&self, now: Now) -> bool {
        self.stay.until_us().is_none_or(|until_us| until_us > now.mono_us)
    }
}
