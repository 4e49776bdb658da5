//! Where requests stand, and the numbers of the records that they are about.

/// The number of a name's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NameId(pub(super) u32);

/// Which waiters come before which: a smaller rank is served earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// A reader that asks for WRITE. Everybody else in the queue waits for its READ, so behind them it would wait for
    /// itself. The rank stays if the READ lapses.
    Upgrade,
    /// Everybody else.
    Newcomer,
}

/// Where a request stands in every queue that it is in. A smaller one is served earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) rank: Rank,
    /// The arrival number, of the whole server. A request that takes the place of another one over keeps its number.
    pub(super) arrival: u64,
    pub(super) ticket: u64,
}

impl Position {
    pub(super) const FIRST: Self = Self { rank: Rank::Upgrade, arrival: u64::MIN, ticket: u64::MIN };
    pub(super) const LAST: Self = Self { rank: Rank::Newcomer, arrival: u64::MAX, ticket: u64::MAX };
}

/// The number of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OwnerId(pub(super) u32);
