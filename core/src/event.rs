//! Facts: what a decision changes, with absolute times and the token given.
//!
//! One event type serves replication, the append-only file, keyspace events, statistics and tests. An event names a
//! hold by its fencing token, which is unique on a server, so only the grant itself carries the owner.

use alloc::boxed::Box;

use crate::bytes::Owner;
use crate::kind::{Kind, Mode};
use crate::named::named;
use crate::place::Stay;
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
    /// The phase of the hold.
    pub phase: Phase,
    /// `NOTE text`.
    pub note: Option<Note>,
}

#[cfg(test)]
impl Terms {
    /// Terms with a lease of a second and nothing else.
    pub(crate) fn plain(count: u32, deadline_us: u64) -> Self {
        Self { count, deadline_us, lease_ms: 1000, request: None, session_ms: None, phase: Phase::Held, note: None }
    }
}

/// A text of 1 to 256 bytes for people, stored with a hold.
pub type Note = Box<[u8]>;

/// The note of a hold after a request: without `NOTE` it stays, an empty text removes it.
pub(crate) fn note_after(before: Option<Note>, given: Option<&[u8]>) -> Option<Note> {
    match given {
        None => before,
        Some(text) => Some(text).filter(|text| !text.is_empty()).map(Into::into),
    }
}

/// The phase of a hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The owner holds the lock.
    #[default]
    Held,
    /// Granted after a wait with `CLAIM`, and not claimed yet. The deadline is that of the claim.
    Unclaimed,
    /// Released with `KEEP`: no owner holds the lock, and no request is granted before the deadline.
    Kept,
}

named! {
    /// Why a hold that goes on changed its terms.
    pub enum ChangeCause {
        /// The owner acquired once more.
        Reentered => "reentered",
        /// The owner renewed the lease, or repeated an ACQUIRE.
        Renewed => "renewed",
        /// The owner released, and has holds left.
        Released => "partly-released",
        /// The last connection that the hold was bound to has closed.
        SessionEnded => "session-ended",
        /// The owner released with KEEP: the lock stays closed.
        Kept => "released-kept",
    }
}

named! {
    /// Why a hold ended.
    pub enum EndCause {
        /// The owner released its last hold.
        Released => "released",
        /// The lease ended.
        Expired => "expired",
        /// FORCERELEASE.
        Forced => "forced",
        /// The waiter that was granted it was gone before it could hear of it.
        Undone => "undone",
    }
}

named! {
    /// Why an owner lost its place in the queue of a fair lock without being granted it.
    pub enum LeaveCause {
        /// CANCEL.
        Cancelled => "cancelled",
        /// Its BLOCK ended in nil.
        TimedOut => "timed-out",
        /// The life of the place was over.
        Expired => "lapsed",
        /// The lock was reserved for it, and it did not come in time.
        Missed => "missed",
    }
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
    /// Every hold is over, all at once: more than are told one by one.
    Cleared {
        /// Why.
        cause: EndCause,
        /// But those of this owner.
        except: Option<Owner>,
    },
    /// A semaphore has so many permits, which this creates if need be.
    Sized {
        /// The permits, at least 1.
        permits: u32,
    },
    /// A semaphore stays for so long without holders and waiters. Told when it is made, and when the last holder has left.
    Unused {
        /// `IDLE ms`; 0 if it is never removed.
        idle_ms: u64,
        /// When it is over, if there is no holder until then.
        until_us: u64,
    },
    /// The idle time of a semaphore was over, and it is removed.
    Removed,
    /// An owner took a place in the queue of a fair lock, which this creates if need be.
    Queued {
        /// Who.
        owner: Owner,
        /// How it waits.
        stay: Stay,
        /// Its arrival number.
        arrival: u64,
        /// The id of the numbered request that it stands for.
        request_id: Option<u64>,
        /// `GRACE ms`: how long it is kept without a connection, if not as long as the server says.
        grace_ms: Option<u64>,
        /// Whether the place is at the head of the queue: one that was given back.
        at_head: bool,
    },
    /// A place is kept in another way.
    Kept {
        /// Whose it is.
        owner: Owner,
        /// How it waits from now on.
        stay: Stay,
        /// The id of the numbered request that it stands for from now on.
        request_id: Option<u64>,
        /// Its `GRACE ms` from now on.
        grace_ms: Option<u64>,
    },
    /// A place was given up.
    Left {
        /// Whose it was.
        owner: Owner,
        /// Why.
        cause: LeaveCause,
    },
    /// The life of every place was over.
    QueueExpired,
    /// The lock is free, and reserved for the head of the queue until then.
    Reserved {
        /// For whom.
        owner: Owner,
        /// Until when.
        until_us: u64,
    },
    /// Every place was cut off from its connection: a restart, a promotion, a rename.
    Detached {
        /// The least that each has from now on that has no `GRACE` of its own.
        until_us: u64,
        /// When it happened, from which a `GRACE` counts; missing if no place has one.
        at_us: Option<u64>,
    },
}

impl Event {
    /// The number that this is about, from the sequence of tokens and arrival numbers.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Granted { token, .. } | Self::Changed { token, .. } | Self::Ended { token, .. } => Some(*token),
            Self::Queued { arrival, .. } => Some(*arrival),
            _ => None,
        }
    }

    /// The kind of the lock that it creates if there is none.
    #[must_use]
    pub fn creates(&self) -> Option<Kind> {
        match self {
            Self::Granted { kind, .. } => Some(*kind),
            Self::Queued { .. } => Some(Kind::Fair),
            Self::Sized { .. } => Some(Kind::Semaphore),
            _ => None,
        }
    }

    /// The keyspace event that tells of it: one per change of holder, none for a change of terms.
    #[inline]
    #[must_use]
    pub fn keyspace_event(&self) -> Option<&'static core::ffi::CStr> {
        match self {
            Self::Granted { .. } => Some(c"rlock.acquire"),
            Self::Reserved { .. } => Some(c"rlock.turn"),
            Self::Changed { cause: ChangeCause::Kept, .. } => Some(c"rlock.keep"),
            Self::Removed => Some(c"rlock.unused"),
            Self::Changed { .. }
            | Self::Sized { .. }
            | Self::Unused { .. }
            | Self::Queued { .. }
            | Self::Kept { .. }
            | Self::Left { .. }
            | Self::QueueExpired
            | Self::Detached { .. } => None,
            Self::Ended { cause, .. } | Self::Cleared { cause, .. } => Some(match cause {
                EndCause::Released | EndCause::Undone => c"rlock.release",
                EndCause::Expired => c"rlock.expire",
                EndCause::Forced => c"rlock.force",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_holder_is_told_by_its_name() {
        let cleared = |cause| Event::Cleared { cause, except: None }.keyspace_event();
        let causes = [EndCause::Released, EndCause::Undone, EndCause::Expired, EndCause::Forced];
        let names = [c"rlock.release", c"rlock.release", c"rlock.expire", c"rlock.force"];
        assert_eq!(causes.map(cleared), names.map(Some));
        assert_eq!(Event::QueueExpired.keyspace_event(), None);
    }
}
