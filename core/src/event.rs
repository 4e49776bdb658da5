//! Facts: what a decision changes, with absolute times and the token given.
//!
//! One event type serves replication, the append-only file, keyspace events, statistics and tests. An event names a
//! hold by its fencing token, which is unique on a server, so only the grant itself carries the owner.

use crate::bytes::Owner;
use crate::lock::{Kind, Mode};
use crate::request::RequestMark;

/// The part of a hold that may change during its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Re-entries, or permits of a semaphore. At least 1.
    pub count: u32,
    /// When the lease ends, on the clock that never steps.
    pub deadline_us: u64,
    /// The lease that was last given; RENEW without a lease uses it again.
    pub lease_ms: u64,
    /// The last numbered request of the owner on this hold.
    pub request: Option<RequestMark>,
    /// How long the hold outlives the last connection that it is bound to, if it is bound to connections.
    pub session_ms: Option<u64>,
}

/// Why a hold that goes on changed its terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeCause {
    /// The owner acquired once more.
    Reentered,
    /// The owner renewed the lease, or repeated an ACQUIRE.
    Renewed,
    /// The owner released, and has holds left.
    Released,
    /// The last connection that the hold was bound to has closed.
    SessionEnded,
}

/// Why a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// The owner released its last hold.
    Released,
    /// The lease ended.
    Expired,
    /// FORCERELEASE.
    Forced,
    /// The waiter that was granted it was gone before it could hear of it.
    Undone,
}

/// A fact about one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new hold.
    Granted {
        /// The kind of the lock, which the first grant creates.
        kind: Kind,
        /// Who holds.
        owner: Owner,
        /// In which mode.
        mode: Mode,
        /// The fencing token.
        token: u64,
        /// Count, lease, request and session.
        terms: Terms,
    },
    /// A hold goes on under other terms.
    Changed {
        /// The fencing token of the hold.
        token: u64,
        /// Why.
        cause: ChangeCause,
        /// The terms from now on.
        terms: Terms,
    },
    /// A hold is over.
    Ended {
        /// The fencing token of the hold.
        token: u64,
        /// Why.
        cause: EndCause,
    },
}

impl Event {
    /// The fencing token of the hold that this is about.
    #[must_use]
    pub fn token(&self) -> u64 {
        match self {
            Self::Granted { token, .. } | Self::Changed { token, .. } | Self::Ended { token, .. } => *token,
        }
    }

    /// The keyspace event that tells of it: one per change of holder, none for a change of terms.
    #[must_use]
    pub fn keyspace_event(&self) -> Option<&'static core::ffi::CStr> {
        match self {
            Self::Granted { .. } => Some(c"rlock.acquire"),
            Self::Changed { .. } => None,
            Self::Ended { cause, .. } => Some(match cause {
                EndCause::Released | EndCause::Undone => c"rlock.release",
                EndCause::Expired => c"rlock.expire",
                EndCause::Forced => c"rlock.force",
            }),
        }
    }
}
