//! Events: what a decision changes, with absolute times and the granted token.
//!
//! One event type serves replication, the append-only file, keyspace events, statistics and tests.
//! An event refers to a hold by its fencing token, which is unique on a server. So of the events of
//! a hold only the grant carries the owner.

use alloc::boxed::Box;

use crate::bytes::Owner;
use crate::kind::{Kind, Mode};
use crate::named::named;
use crate::place::Stay;
use crate::request::RequestMark;
use crate::time::{MAX_LEASE_MS, Now};

/// The part of a hold that can change during its lifetime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Re-entries, or permits of a semaphore. At least 1.
    pub count: u32,
    /// When the lease expires, on the steady clock.
    pub deadline_us: u64,
    /// The last granted lease; RENEW without a lease uses it again.
    pub lease_ms: u64,
    /// The last numbered request of the owner on this hold.
    pub request: Option<RequestMark>,
    /// How long the hold outlives the last connection that it is bound to, if it has a session.
    pub session_ms: Option<u64>,
    /// The phase of the hold.
    pub phase: Phase,
    /// `NOTE text`.
    pub note: Option<Note>,
}

#[cfg(test)]
impl Terms {
    /// Terms with a lease of one second and no options.
    pub(crate) fn plain(count: u32, deadline_us: u64) -> Self {
        Self { count, deadline_us, lease_ms: 1000, request: None, session_ms: None, phase: Phase::Held, note: None }
    }
}

/// A human-readable text of 1 to 256 bytes, stored with a hold.
pub type Note = Box<[u8]>;

/// The note of a hold after a request: unchanged without `NOTE`, removed by an empty text.
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
    /// Granted with `CLAIM`, and not claimed yet: the deadline is the end of the claim.
    Unclaimed,
    /// Released with `KEEP`: no owner holds the lock, and no request is granted before the
    /// deadline.
    Kept,
}

impl Phase {
    /// How long a hold in this phase may still last: `longest_lease_ms`, but a kept lock stays
    /// closed for as long as its owner has asked.
    pub(crate) fn longest_ms(self, longest_lease_ms: u64) -> u64 {
        if self == Self::Kept { MAX_LEASE_MS } else { longest_lease_ms }
    }
}

named! {
    /// Why the terms of a hold changed.
    pub enum ChangeCause {
        /// The owner acquired again.
        Reentered => "reentered",
        /// The owner renewed the lease, or repeated an ACQUIRE.
        Renewed => "renewed",
        /// The owner released some of its count.
        Released => "partly-released",
        /// The last of the hold's connections has closed.
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
        /// The lease expired.
        Expired => "expired",
        /// FORCERELEASE.
        Forced => "forced",
        /// The answer could not reach the waiter.
        Undone => "undone",
    }
}

named! {
    /// Why an owner lost its place in the queue of a fair lock without a grant.
    pub enum LeaveCause {
        /// CANCEL.
        Cancelled => "cancelled",
        /// Its BLOCK timed out.
        TimedOut => "timed-out",
        /// The place expired.
        Expired => "lapsed",
        /// The lock was reserved for the owner, which did not ask in time.
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
        /// The owner.
        owner: Owner,
        /// The mode.
        mode: Mode,
        /// The fencing token.
        token: u64,
        /// Its terms.
        terms: Terms,
    },
    /// The terms of a hold changed.
    Changed {
        /// The fencing token of the hold.
        token: u64,
        /// The cause.
        cause: ChangeCause,
        /// The terms from now on.
        terms: Terms,
    },
    /// A hold ended.
    Ended {
        /// The fencing token of the hold.
        token: u64,
        /// The cause.
        cause: EndCause,
    },
    /// All holds ended in one step, because they are too many for single events.
    Cleared {
        /// The cause.
        cause: EndCause,
        /// The owner whose holds stay.
        except: Option<Owner>,
    },
    /// A semaphore has this number of permits from now on. Creates it if missing.
    Sized {
        /// The permits, at least 1.
        permits: u32,
    },
    /// The idle time of a semaphore began, began again, or got another length.
    Unused {
        /// `IDLE ms`; 0 if it is never removed.
        idle_ms: u64,
        /// When it ends, unless a hold begins before.
        until_us: u64,
    },
    /// The idle time of a semaphore ended, and it is removed.
    Removed,
    /// An owner took a place in the queue of a fair lock. Creates the lock if missing.
    Queued {
        /// The owner.
        owner: Owner,
        /// How it waits.
        stay: Stay,
        /// Its arrival number.
        arrival: u64,
        /// The id of its numbered request.
        request_id: Option<u64>,
        /// `GRACE ms`: how long it is kept without a connection; `None` for the server's default.
        grace_ms: Option<u64>,
        /// Whether the place is at the head of the queue, after an undone grant.
        at_head: bool,
    },
    /// A place changed.
    Kept {
        /// Its owner.
        owner: Owner,
        /// How it waits from now on.
        stay: Stay,
        /// The id of its numbered request from now on.
        request_id: Option<u64>,
        /// Its `GRACE ms` from now on.
        grace_ms: Option<u64>,
    },
    /// A place was removed.
    Left {
        /// Its owner.
        owner: Owner,
        /// The cause.
        cause: LeaveCause,
    },
    /// All places expired.
    QueueExpired,
    /// The lock is free, and reserved for the head of the queue.
    Reserved {
        /// The owner of the head.
        owner: Owner,
        /// When the reservation expires.
        until_us: u64,
    },
    /// All places were detached from their connections by a restart, a promotion or a rename.
    Detached {
        /// Places without their own `GRACE` expire at this time or later.
        until_us: u64,
        /// When it happened: a `GRACE` counts from here. `None` if no place has one.
        at_us: Option<u64>,
    },
}

impl Event {
    /// Shortens what is left of the hold to the longest lease that may run: see
    /// [`Lock::shorten_leases`](crate::Lock::shorten_leases).
    pub fn shorten_lease(&mut self, now: Now, longest_lease_ms: u64) {
        if let Self::Granted { terms, .. } | Self::Changed { terms, .. } = self {
            terms.deadline_us = now.within(terms.deadline_us, terms.phase.longest_ms(longest_lease_ms));
        }
    }

    /// Its token or arrival number, which come from one sequence.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Granted { token, .. } | Self::Changed { token, .. } | Self::Ended { token, .. } => Some(*token),
            Self::Queued { arrival, .. } => Some(*arrival),
            _ => None,
        }
    }

    /// The kind of the lock that it creates if missing.
    #[must_use]
    pub fn creates(&self) -> Option<Kind> {
        match self {
            Self::Granted { kind, .. } => Some(*kind),
            Self::Queued { .. } => Some(Kind::Fair),
            Self::Sized { .. } => Some(Kind::Semaphore),
            _ => None,
        }
    }

    /// The keyspace event to publish: for a change of holder, a reservation, and the removal of an
    /// idle semaphore. `None` for any other event.
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
    fn keyspace_events_of_a_change_of_holder() {
        let cleared = |cause| Event::Cleared { cause, except: None }.keyspace_event();
        let causes = [EndCause::Released, EndCause::Undone, EndCause::Expired, EndCause::Forced];
        let names = [c"rlock.release", c"rlock.release", c"rlock.expire", c"rlock.force"];
        assert_eq!(causes.map(cleared), names.map(Some));
        assert_eq!(Event::QueueExpired.keyspace_event(), None);
    }
}
