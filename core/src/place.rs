//! A place in the queue of a fair lock.

use crate::time::Now;

/// How a place waits, and how long it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// Its owner's connection is blocked; it lives as long as that.
    Connected,
    /// Its owner polls; it lives until then unless the owner asks again.
    Polled {
        /// The end of its life.
        until_us: u64,
    },
    /// Its owner lost the connection; it is kept for a grace.
    Grace {
        /// The end of its life.
        until_us: u64,
    },
}

impl Stay {
    /// The end of the place's life, if it has one by itself.
    #[must_use]
    pub fn until_us(self) -> Option<u64> {
        match self {
            Self::Connected => None,
            Self::Polled { until_us } | Self::Grace { until_us } => Some(until_us),
        }
    }
}

/// A place, as it is seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// Whose it is.
    pub owner: &'a [u8],
    /// How it waits.
    pub stay: Stay,
    /// Its arrival number: microseconds of the wall clock when it was taken, made unique on the server.
    pub arrival: u64,
    /// The id of the numbered request that it stands for.
    pub request_id: Option<u64>,
    /// `GRACE ms`: how long it is kept without a connection, if not as long as the server says.
    pub grace_ms: Option<u64>,
}

impl Place<'_> {
    /// Whether its life is not over.
    #[must_use]
    pub fn is_live(&self, now: Now) -> bool {
        self.stay.until_us().is_none_or(|until_us| until_us > now.mono_us)
    }
}
