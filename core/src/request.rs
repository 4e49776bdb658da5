//! What is asked of a lock, and why it may be refused.

use alloc::boxed::Box;
use core::num::NonZeroU32;

use crate::bytes::{Key, Owner};
use crate::kind::{Kind, Mode};

/// Which command a numbered request was.
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
}

/// The last numbered request of an owner on a hold; it makes retries safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestMark {
    /// 1 to 2^63 - 1, rising.
    pub id: u64,
    /// The command that carried it.
    pub verb: Verb,
}

/// What to do if the lock cannot be granted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Nothing: one attempt.
    Try,
    /// `BLOCK`: wait.
    Wait {
        /// When the waiter gives up, on the clock that never steps; `None` waits for ever.
        until_us: Option<u64>,
    },
    /// `QUEUE`, on a fair lock: keep a place.
    Queue {
        /// The life of the place from now.
        life_ms: u64,
    },
}

/// What the server allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many connections may wait at once.
    pub max_waiters: usize,
    /// How many places one fair lock may have.
    pub max_places: usize,
    /// How long a fair lock keeps the place of a waiter that lost its connection, and reserves itself for its head.
    pub fair_grace_ms: u64,
    /// The data set may lack holds that this server has granted, so no idle semaphore is removed.
    pub is_quarantined: bool,
}

/// The number that the module has given to a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(pub NonZeroU32);

/// ACQUIRE or MACQUIRE, but for the owner and the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// ACQUIRE or MACQUIRE.
    pub verb: Verb,
    /// The family of the command; a lock of another kind is `WRONGTYPE`.
    pub kind: Kind,
    /// For which mode.
    pub mode: Mode,
    /// How many holds at once: 1, or the permits asked of a semaphore.
    pub count: u32,
    /// The lease from the moment of the grant.
    pub lease_ms: u64,
    /// `REQ id`.
    pub request_id: Option<u64>,
    /// `SESSION ms`.
    pub session_ms: Option<u64>,
    /// `CLAIM ms`: the lease of a new hold that is granted after a wait, until the owner claims it.
    pub claim_ms: Option<u64>,
    /// `GRACE ms`, on a fair lock: how long the place is kept without a connection.
    pub grace_ms: Option<u64>,
    /// `ONCE`: an owner that holds already in this mode is answered its token, and nothing is counted.
    pub is_once: bool,
    /// `NOTIFY channel`: where the answer is published if the request has to wait. It needs an id, and a connection.
    pub notify: Option<Channel>,
    /// `BLOCK ms` where blocking is possible, or `QUEUE ms`.
    pub ask: Ask,
}

impl Request {
    /// How long a hold lasts that begins after a wait, unless its owner claims it: `CLAIM`, or else the lease.
    #[must_use]
    pub fn unclaimed_ms(&self) -> u64 {
        self.claim_ms.unwrap_or(self.lease_ms).min(self.lease_ms)
    }
}

/// RELEASE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release<'a> {
    /// RELEASE or MRELEASE.
    pub verb: Verb,
    /// The family of the command.
    pub kind: Kind,
    /// Who releases.
    pub owner: &'a [u8],
    /// Which mode.
    pub mode: Mode,
    /// How many holds at once: 1, or the permits given back to a semaphore.
    pub count: u32,
    /// `REQ id`.
    pub request_id: Option<u64>,
    /// `TOKEN t`, or `TOKENS t …` with one for each key: a hold with another token is none. Empty: any token will do.
    pub tokens: &'a [u64],
    /// `KEEP ms`: how long the lock stays closed after the release.
    pub keep_ms: Option<u64>,
}

/// CANCEL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancel<'a> {
    /// The family of the command.
    pub kind: Kind,
    /// Whose request.
    pub owner: &'a [u8],
    /// `REQ id`: only if it has that id.
    pub request_id: Option<u64>,
}

/// RENEW.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew<'a> {
    /// The family of the command.
    pub kind: Kind,
    /// Who renews.
    pub owner: &'a [u8],
    /// Which mode.
    pub mode: Mode,
    /// The lease from now; `None` is the lease that the hold was last given.
    pub lease_ms: Option<u64>,
    /// As in [`Release`].
    pub tokens: &'a [u64],
}

/// One owner waits for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitEdge {
    /// Who waits.
    pub waiter: Owner,
    /// For which key.
    pub key: Key,
    /// For whom.
    pub ahead: Owner,
    /// That one holds it; otherwise it asked earlier.
    pub is_held: bool,
}

/// Why a request changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key holds something else, or a lock of another kind.
    WrongType {
        /// The kind of the lock that is there; `None` if it is something else.
        found: Option<Kind>,
    },
    /// The owner holds nothing here, or its lease has lapsed.
    NotOwner {
        /// Which of the keys of the request, counted from 0.
        position: usize,
    },
    /// The request id is below the last one, or was used for another command.
    Stale {
        /// The last id seen.
        last_id: u64,
    },
    /// The owner holds as often as can be counted.
    CountOverflow,
    /// More was given back than is held.
    CountUnderflow {
        /// What the owner holds.
        held: u32,
    },
    /// `ONCE` asks for another number of permits than the owner holds.
    HoldsOther {
        /// What the owner holds.
        held: u32,
    },
    /// `KEEP` on a hold that the owner has acquired several times.
    KeepsReentered {
        /// How many times.
        held: u32,
    },
    /// `CLAIM` on a MACQUIRE whose owner already holds one of the keys.
    ClaimsHeld {
        /// Which of the keys of the request, counted from 0.
        position: usize,
    },
    /// More permits were asked for than the semaphore has.
    TooManyPermits {
        /// What it has.
        permits: u32,
    },
    /// A semaphore has to be made before it is used, and there is none here.
    NoSemaphore,
    /// The owner would wait for itself.
    Deadlock(
        /// The cycle from that owner on, cut after a few edges.
        Box<[WaitEdge]>,
    ),
    /// The server has as many waiters as it may have.
    MaxWaiters {
        /// The limit.
        limit: usize,
    },
    /// The rights of the user were taken away while it waited.
    NoPermission,
    /// The fencing tokens of this server are used up: see [`crate::MAX_TOKEN`].
    NoTokens,
    /// The lock has as many places as it may have.
    MaxPlaces {
        /// The limit.
        limit: usize,
    },
}

impl Request {
    /// Whether the request need not wait any longer once its owner holds in mode `held`.
    pub(crate) fn is_met_by(&self, held: Mode) -> bool {
        held.covers().contains(&self.mode) || (self.is_once && held == self.mode)
    }
}

/// Whether a hold with `token` is the one that a command means by its `TOKEN` or `TOKENS`, for its key number `position`.
pub(crate) fn is_meant(tokens: &[u64], position: usize, token: u64) -> bool {
    tokens.is_empty() || tokens.get(position) == Some(&token)
}

/// What a numbered request is to the hold that it meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbered {
    /// Not seen before, or not numbered.
    New,
    /// The last one once more.
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

    /// The mark after a request: a request without a number leaves the last one in place.
    pub(crate) fn after(last: Option<Self>, id: Option<u64>, verb: Verb) -> Option<Self> {
        id.map(|id| Self { id, verb }).or(last)
    }
}
