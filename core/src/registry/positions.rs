//! Positions of requests in queues, and the ids of records.

/// The id of a name's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameId(pub(super) u32);

/// The rank of a waiter. A smaller rank is served earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// A reader that asks for WRITE. All other waiters wait for its READ hold, so behind them it
    /// would wait for itself. The rank stays if that hold expires.
    Upgrade,
    /// All other requests.
    Newcomer,
}

/// The position of a request in each of its queues. A smaller position is served earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// The rank in the highest bit, and below it the server-wide arrival number, which never uses
    /// that bit. A request that takes over the position of another one keeps that one's number.
    turn: u64,
    pub(crate) ticket: u64,
}

impl Position {
    pub(crate) const FIRST: Self = Self { turn: u64::MIN, ticket: u64::MIN };
    pub(crate) const LAST: Self = Self { turn: u64::MAX, ticket: u64::MAX };

    const NEWCOMER: u64 = 1 << 63;

    pub(crate) fn new(rank: Rank, arrival: u64, ticket: u64) -> Self {
        let arrival = arrival & !Self::NEWCOMER;
        let turn = match rank {
            Rank::Upgrade => arrival,
            Rank::Newcomer => arrival | Self::NEWCOMER,
        };
        Self { turn, ticket }
    }

    pub(crate) fn rank(self) -> Rank {
        if self.turn < Self::NEWCOMER { Rank::Upgrade } else { Rank::Newcomer }
    }

    #[cfg(test)]
    pub(crate) fn arrival(self) -> u64 {
        self.turn & !Self::NEWCOMER
    }
}

/// The id of an owner's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OwnerId(pub(super) u32);
