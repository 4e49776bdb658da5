//! Requests to locks, and the reasons for refusals.

use alloc::boxed::Box;
use core::num::NonZeroU32;

use crate::bytes::{Key, Owner};
use crate::kind::{Kind, Mode};

/// The command of a numbered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// ACQUIRE.
    Acquire,
    /// RELEASE.
    Release,
    /// MACQUIRE.
    AcquireMany,
    /// MRELEASE.
    ReleaseMany,
    /// CANCEL or MCANCEL.
    Cancel,
}

impl Verb {
    /// Whether the command acquires.
    pub(crate) fn acquires(self) -> bool {
        matches!(self, Self::Acquire | Self::AcquireMany)
    }
}

/// The last numbered request of an owner on a hold; it makes retries safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestMark {
    /// 1 to 2^63 - 1, increasing.
    pub id: u64,
    /// The command that carried it.
    pub verb: Verb,
    /// The count or the permits that an ACQUIRE added to the hold, for CANCEL. 0 if it found the hold
    /// with `ONCE`, and always for other commands.
    pub added: u32,
}

/// What to do if the lock cannot be granted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A single attempt.
    Try,
    /// `BLOCK`: wait.
    Wait {
        /// When the waiter times out, on the steady clock; `None` for no limit.
        until_us: Option<u64>,
    },
    /// `QUEUE`, on a fair lock: keep a place.
    Queue {
        /// The duration of the place from now.
        life_ms: u64,
    },
}

/// The number that the module has assigned to a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(pub NonZeroU32);

/// ACQUIRE or MACQUIRE, without the owner and the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// ACQUIRE or MACQUIRE.
    pub verb: Verb,
    /// The kind of the command; a lock of another kind is `WRONGTYPE`.
    pub kind: Kind,
    /// The mode.
    pub mode: Mode,
    /// How many holds at once: 1, or the permits requested from a semaphore.
    pub count: u32,
    /// The lease from the grant on.
    pub lease_ms: u64,
    /// `REQ id`.
    pub request_id: Option<u64>,
    /// `SESSION ms`.
    pub session_ms: Option<u64>,
    /// `CLAIM ms`: the lease of a new hold until its owner claims it.
    pub claim_ms: Option<u64>,
    /// `GRACE ms`, on a fair lock: how long the place is kept without a connection.
    pub grace_ms: Option<u64>,
    /// `ONCE`: if the owner already holds in this mode, answer its token without counting again.
    pub is_once: bool,
    /// `TIMED`: the reply to a grant also says for how long it can be believed.
    pub is_timed: bool,
    /// `NOTIFY channel`: where to publish the answer if the request has to wait. Requires a request
    /// id and a connection.
    pub notify: Option<Channel>,
    /// `BLOCK ms` where blocking is possible, or `QUEUE ms`.
    pub ask: Ask,
}

impl Request {
    /// The request with its lease and claim shortened to a limit, which may have been lowered while
    /// the request waited.
    #[must_use]
    pub(crate) fn within(self, max_lease_ms: u64) -> Self {
        let claim_ms = self.claim_ms.map(|claim_ms| claim_ms.min(max_lease_ms));
        Self { lease_ms: self.lease_ms.min(max_lease_ms), claim_ms, ..self }
    }

    /// The mark of this request, which adds a count to a hold.
    pub(crate) fn mark(&self, added: u32) -> Option<RequestMark> {
        self.request_id.map(|id| RequestMark { id, verb: self.verb, added })
    }
}

/// RELEASE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release<'a> {
    /// RELEASE or MRELEASE.
    pub verb: Verb,
    /// The kind of the command.
    pub kind: Kind,
    /// The owner.
    pub owner: &'a [u8],
    /// The mode.
    pub mode: Mode,
    /// How many holds at once: 1, or the permits returned to a semaphore.
    pub count: u32,
    /// `REQ id`.
    pub request_id: Option<u64>,
    /// `TOKEN t`, or `TOKENS t …` with one for each key: a hold with another token does not match.
    /// Empty: any token matches.
    pub tokens: &'a [u64],
    /// `KEEP ms`: how long the lock stays closed after the release.
    pub keep_ms: Option<u64>,
    /// `EACH`: releases the keys that the owner holds, even if it does not hold all of them.
    pub is_each: bool,
}

impl Release<'_> {
    pub(crate) fn mark(&self) -> Option<RequestMark> {
        self.request_id.map(|id| RequestMark { id, verb: self.verb, added: 0 })
    }
}

/// CANCEL, MCANCEL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancel<'a> {
    /// The kind of the command.
    pub kind: Kind,
    /// The owner.
    pub owner: &'a [u8],
    /// `REQ id`: only a request with this id, which waits or was granted. Without, any that waits.
    pub request_id: Option<u64>,
}

/// RENEW.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew<'a> {
    /// The kind of the command.
    pub kind: Kind,
    /// The owner.
    pub owner: &'a [u8],
    /// The mode.
    pub mode: Mode,
    /// The lease from now; `None` repeats the last granted lease of the hold.
    pub lease_ms: Option<u64>,
    /// Like [`Release::tokens`].
    pub tokens: &'a [u64],
    /// `EACH`: renews the keys that the owner holds, even if it does not hold all of them.
    pub is_each: bool,
}

/// An edge of the wait-for graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitEdge {
    /// The owner that waits.
    pub waiter: Owner,
    /// The key that it waits for.
    pub key: Key,
    /// The owner that blocks it.
    pub ahead: Owner,
    /// `ahead` holds the lock; otherwise it is ahead in the queue.
    pub is_held: bool,
}

/// Why a request changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key has another type of value, or a lock of another kind.
    WrongType {
        /// The kind of the lock; `None` if the value is not a lock.
        found: Option<Kind>,
    },
    /// The owner has no live hold here, or none with the given token.
    NotOwner {
        /// The position of the key in the request, counted from 0.
        position: usize,
    },
    /// The request id is below the last one, or was used for another command.
    Stale {
        /// The last id seen.
        last_id: u64,
    },
    /// The count of the hold would overflow.
    CountOverflow,
    /// A release of more than the owner holds.
    CountUnderflow {
        /// The count of the hold.
        held: u32,
    },
    /// `ONCE` asks for another number of permits than the owner holds.
    HoldsOther {
        /// The count of the hold.
        held: u32,
    },
    /// `KEEP` on a hold that the owner has acquired several times.
    KeepsReentered {
        /// The count of the hold.
        held: u32,
    },
    /// A request for more permits than the semaphore has.
    TooManyPermits {
        /// Its permits.
        permits: u32,
    },
    /// There is no semaphore here: INIT must create it first.
    NoSemaphore,
    /// The owner would wait for itself.
    Deadlock(
        /// The cycle from that owner on, cut after a few edges.
        Box<[WaitEdge]>,
    ),
    /// The server has reached its limit of waiters.
    MaxWaiters {
        /// The limit.
        limit: usize,
    },
    /// The data set may lack holds that were granted, so no hold begins.
    Quarantine {
        /// The milliseconds left.
        left_ms: u64,
    },
    /// Too few replicas follow this master.
    NoReplicas,
    /// More replicas follow this master than the settings allow for.
    TooManyReplicas,
    /// The user lost its rights while it waited.
    NoPermission,
    /// The fencing tokens of this server are used up: see [`crate::MAX_TOKEN`].
    NoTokens,
    /// The lock has reached its limit of places.
    MaxPlaces {
        /// The limit.
        limit: usize,
    },
}

impl Request {
    /// Whether the request is granted ahead of the queue once its owner holds in mode `held`.
    pub(crate) fn is_met_by(&self, held: Mode) -> bool {
        held.covers().contains(&self.mode) || (self.is_once && held == self.mode)
    }
}

/// Whether a hold with `token` matches the `TOKEN` or `TOKENS` of a command, for its key at
/// `position`.
pub(crate) fn is_meant(tokens: &[u64], position: usize, token: u64) -> bool {
    tokens.is_empty() || tokens.get(position) == Some(&token)
}

/// How a numbered request relates to its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbered {
    /// New, or not numbered.
    New,
    /// A repeat of the last one.
    Repeat,
}

impl RequestMark {
    /// Compares a request with the last numbered one of its hold.
    pub(crate) fn classify(last: Option<Self>, id: Option<u64>, verb: Verb) -> Result<Numbered, Refusal> {
        let (Some(last), Some(id)) = (last, id) else {
            return Ok(Numbered::New);
        };
        if id > last.id {
            Ok(Numbered::New)
        } else if id == last.id && verb == last.verb {
            Ok(Numbered::Repeat)
        } else {
            Err(Refusal::Stale { last_id: last.id })
        }
    }

    /// Whether CANCEL with this id ends what the request has added.
    pub(crate) fn is_cancelled_by(self, id: u64) -> bool {
        self.id == id && self.verb.acquires()
    }
}
