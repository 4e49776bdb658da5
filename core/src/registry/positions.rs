//! Where requests stand, and the numbers of the records that they are about.

/// The number of a name's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameId(pub(super) u32);

#[cfg(test)]
impl NameId {
    pub(crate) const FIRST: Self = Self(0);
}

/// Which waiters come before which: a smaller rank is served earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// A reader that asks for WRITE. Everybody else in the queue waits for its READ, so behind them it would wait for
    /// itself. The rank stays if the READ lapses.
    Upgrade,
    /// Everybody else.
    Newcomer,
}

/// Where a request stands in every queue that it is in. A smaller one is served earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// The rank in the highest bit, and below it the arrival number, of the whole server, which never has that bit. A request
    /// that takes the place of another one over keeps its number.
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

/// The number of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OwnerId(pub(super) u32);
