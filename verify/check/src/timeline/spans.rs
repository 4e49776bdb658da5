//! What is told of one key: spans of time, and what was asked for in vain.

use crate::history::Mode;

/// A span of time in which an owner surely held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belief {
    /// Who.
    pub owner: u64,
    /// How.
    pub mode: Mode,
    /// How many holds or permits.
    pub count: u32,
    /// From when.
    pub from_us: u64,
    /// Until when, exclusive.
    pub until_us: u64,
    /// The token of the hold.
    pub token: u64,
}

/// A span of time in which somebody may have held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Possible {
    /// From when.
    pub from_us: u64,
    /// Until when, exclusive.
    pub until_us: u64,
}

/// A new hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Who.
    pub owner: u64,
    /// How.
    pub mode: Mode,
    /// How many holds or permits.
    pub count: u32,
    /// Its token.
    pub token: u64,
    /// When it was asked for.
    pub sent_us: u64,
    /// When it was known.
    pub answered_us: u64,
    /// How long it lasts at least, if nobody ends it.
    pub lease_us: u64,
    /// The request's place in the server's order; 0 if unknown.
    pub order: u64,
    /// Whether the owner held in another mode, and so passed the queue.
    pub passes_queue: bool,
}

/// A request that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Who.
    pub owner: u64,
    /// From when.
    pub sent_us: u64,
    /// Until when.
    pub answered_us: u64,
}

/// A request that did not want to wait, and was answered nil.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// Whose.
    pub owner: u64,
    /// When it was sent.
    pub sent_us: u64,
    /// When it was answered.
    pub answered_us: u64,
    /// How many holds or permits were asked for.
    pub count: u32,
}

/// Permits that an owner was given beside those that it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addition {
    /// When it was known.
    pub answered_us: u64,
    /// The request's place in the server's order; 0 if unknown.
    pub order: u64,
}

/// A request that waited, and was answered nil.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Whose.
    pub owner: u64,
    /// The request's place in the server's order; 0 if unknown.
    pub order: u64,
    /// It waited until then at least.
    pub until_us: u64,
}

/// A request that the server said would wait, and then not to know when it was asked to end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlooked {
    /// Whose.
    pub owner: u64,
    /// When it was sent.
    pub sent_us: u64,
    /// When CANCEL was answered.
    pub until_us: u64,
}
