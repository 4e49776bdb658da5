//! The content of the timeline of one key: spans of time, and requests that got nothing.

use crate::history::Mode;

/// A span of time in which an owner surely held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belief {
    /// The holder.
    pub owner: u64,
    /// The mode.
    pub mode: Mode,
    /// Number of holds or permits.
    pub count: u32,
    /// When the request that gave it was sent.
    pub asked_us: u64,
    /// Begin.
    pub from_us: u64,
    /// End, exclusive.
    pub until_us: u64,
    /// The token of the hold.
    pub token: u64,
}

/// A span of time in which an owner may have held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Possible {
    /// Begin.
    pub from_us: u64,
    /// End, exclusive.
    pub until_us: u64,
}

/// A new hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The new holder.
    pub owner: u64,
    /// The mode.
    pub mode: Mode,
    /// Number of holds or permits.
    pub count: u32,
    /// Its token.
    pub token: u64,
    /// When the request was sent.
    pub sent_us: u64,
    /// When the client received the grant.
    pub answered_us: u64,
    /// How long it lasts at least, unless its owner ends it.
    pub lease_us: u64,
    /// The request's place in the server's order; 0 if unknown.
    pub order: u64,
    /// Whether the owner already held in another mode, and so passed the queue.
    pub passes_queue: bool,
}

/// A waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The owner that waited.
    pub owner: u64,
    /// When it was sent.
    pub sent_us: u64,
    /// When its answer arrived.
    pub answered_us: u64,
}

/// A request without a wait that got nil.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The owner that asked.
    pub owner: u64,
    /// When it was sent.
    pub sent_us: u64,
    /// When its answer arrived.
    pub answered_us: u64,
    /// Number of holds or permits requested.
    pub count: u32,
}

/// Permits that an owner received in addition to those that it held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addition {
    /// When the client received them.
    pub answered_us: u64,
    /// The request's place in the server's order; 0 if unknown.
    pub order: u64,
}

/// A waiting request that got nil.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The owner that waited.
    pub owner: u64,
    /// The request's place in the server's order; 0 if unknown.
    pub order: u64,
    /// It waited at least until this time.
    pub until_us: u64,
}

/// A request that the server reported as waiting, and that a later CANCEL did not find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlooked {
    /// The owner that waited.
    pub owner: u64,
    /// When it was sent.
    pub sent_us: u64,
    /// When CANCEL's answer arrived.
    pub until_us: u64,
}
