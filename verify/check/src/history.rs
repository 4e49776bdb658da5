//! What is recorded: operations of clients on locks. All times are microseconds on the steady clock of the machine that records.

use crate::timeline::{Grant, Possible};

/// What a lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One owner at a time.
    Mutex,
    /// One owner at a time, and a queue that is data.
    Fair,
    /// Many readers or one writer.
    RwLock,
    /// A number of permits.
    Semaphore,
}

/// How a hold shares the lock with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// With other readers.
    Read,
    /// Alone, but for the owner's own READ.
    Write,
    /// With others, as long as the permits last.
    Permits,
}

/// A key on which there is a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name on the server.
    pub name: String,
    /// What lies there.
    pub kind: Kind,
    /// How many permits a semaphore has; 1 for other kinds.
    pub permits: u32,
}

/// What a client asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// ACQUIRE, or one key's part of MACQUIRE.
    Acquire {
        /// Holds or permits.
        count: u32,
        /// The lease.
        lease_ms: u64,
        /// `BLOCK ms`; 0 waits for ever.
        block_ms: Option<u64>,
        /// `REQ id`.
        request_id: Option<u64>,
        /// Whether a place in a queue is kept without a connection (`QUEUE`).
        keeps_place: bool,
        /// `ONCE`: an owner that holds already gets no more.
        is_once: bool,
    },
    /// RELEASE.
    Release {
        /// Holds or permits.
        count: u32,
        /// `TOKEN t`: only the hold with this token is meant.
        token: Option<u64>,
        /// `REQ id`.
        request_id: Option<u64>,
    },
    /// `RELEASE … KEEP ms`: the hold ends, and the lock stays closed to every owner.
    Keep {
        /// For how long.
        keep_ms: u64,
    },
    /// The key was removed or moved away, by a command of the server's, which asks no module.
    Remove,
    /// RENEW.
    Renew {
        /// The lease.
        lease_ms: u64,
        /// `TOKEN t`: only the hold with this token is meant.
        token: Option<u64>,
    },
    /// CANCEL: the owner takes back what it waits with. Its answer is how many requests that ended.
    Cancel {
        /// Whether the server had said before that a request of this owner waits.
        is_waiting: bool,
    },
    /// The only connection of the owner's session was closed.
    Close {
        /// How long the hold outlives it.
        grace_ms: u64,
    },
    /// HOLDS: a look.
    Look,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A token.
    Granted(u64),
    /// Nil.
    Nil,
    /// A number: holds left, holds there are, or milliseconds of lease left. Of a request for many keys that acquires: so many tokens, which are not as many
    /// as keys.
    Number(u64),
    /// WAITING: the answer comes on a channel.
    Waiting,
    /// NOTOWNER.
    NotOwner,
    /// The wait was ended by the same owner: a later request took its place, or CANCEL took it back.
    Unblocked,
    /// An error that says that nothing was changed.
    Refused,
    /// No answer: what it did is not known.
    Unknown,
    /// A request that waited was answered a second time, on its channel.
    ToldTwice,
    /// Nobody is there to be told of a grant: the connection closed before, or in the very turn of it, or nobody listens. The server takes
    /// it back, if the lock has not left for another one in that turn.
    Undone,
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Which of the history's keys.
    pub key: u32,
    /// Who asks. An owner makes one call at a time, but for a request that takes over an earlier one.
    pub owner: u64,
    /// Which of an owner's holds of the key it is about.
    pub mode: Mode,
    /// When it was sent.
    pub sent_us: u64,
    /// When its answer was there, or it was known that there would be none.
    pub answered_us: u64,
    /// Its place in the order in which the server began to execute requests; 0 if that is not known.
    pub order: u64,
    /// What was asked.
    pub call: Call,
    /// What came of it.
    pub outcome: Outcome,
}

/// Everything that clients did on one server.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The locks.
    pub keys: Vec<Key>,
    /// What was done, in any order.
    pub operations: Vec<Operation>,
    /// What was granted after a takeover to owners whose other calls prove nothing any more: only the tokens count.
    pub grants_of_forgotten: Vec<(u32, Grant)>,
    /// When the server gave nobody anything, as it does before it lets a replica take over.
    pub pauses: Vec<Possible>,
    /// When the server was a replica, in the order of time.
    pub demotions: Vec<Possible>,
    /// Several servers gave locks at the same time, each those keys that it had. Tokens are compared on each key then: servers promise
    /// nothing of each other's.
    pub is_of_several_servers: bool,
    /// Nothing failed meanwhile but the server's wall clock: no connection was lost, and every request was taken.
    pub is_undisturbed: bool,
    /// The server was there all the time, a master, and could write: what gives up, renews or cancels was taken, if its connection lived.
    pub is_always_taken: bool,
    /// At times it took only that: what acquires was refused.
    pub refuses_acquisitions: bool,
    /// By how much the clocks of servers differ that take over from each other: a lease may end so much earlier then.
    pub clocks_differ_us: u64,
    /// When a server took over that had perhaps not heard of all: of a release shortly before, for one. The lease is there still.
    pub takeovers: Vec<Possible>,
    /// By how much a lease may last longer than it was asked for, because the clock of a server that goes on with it is behind.
    pub leases_outlast_us: u64,
    /// In its pauses the server is there, and answers who waits when its time is over.
    pub waits_end_in_pauses: bool,
}

impl Operation {
    /// The token that it was granted.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        match self.outcome {
            Outcome::Granted(token) => Some(token),
            _ => None,
        }
    }
}

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// What happened, for a person.
    pub story: String,
}

/// What must hold in any history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Two owners do not believe at once that they hold what only one can hold.
    Exclusion,
    /// No more permits are believed to be held than there are.
    Permits,
    /// A hold ends by what its owner does, or by its lease, and not before.
    HoldIsKept,
    /// An owner whose lease is over is not answered as if it held.
    LeaseEnds,
    /// Tokens rise, and none is given twice.
    TokensRise,
    /// First come, first served, by the order in which the server took the requests.
    FirstComeFirstServed,
    /// Who was answered nil does not hold; nil comes in time.
    NilIsFinal,
    /// A wait is answered once.
    AnsweredOnce,
    /// Who does not want to wait is granted what is free.
    FreeIsGranted,
    /// Nobody waits for a lock that is free.
    NoLostWakeUp,
    /// What CANCEL says that it has ended is never granted, and it ends what waits.
    CancelEndsWaits,
    /// A command with a TOKEN changes no hold that has another one.
    TokenIsMeant,
    /// What its owner has given up, or lost with the connection of its session, does not come back.
    GivenUpIsGone,
    /// What gives up, renews or cancels is never refused by a server that works, nor is who waits already, also if its memory is full; nor who acquires, if
    /// nothing is wrong with it.
    GivingUpIsTaken,
    /// A repeated request counts once, and each answer has the number that its owner expects.
    CountsAreRight,
    /// A replica has what its master has.
    ReplicaAgrees,
    /// A replica grants nothing.
    ReplicaDecidesNothing,
    /// When everybody has gone, nothing is held.
    NothingIsLeftOver,
    /// The server answers.
    ServerLives,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::Exclusion,
        Self::Permits,
        Self::HoldIsKept,
        Self::LeaseEnds,
        Self::TokensRise,
        Self::FirstComeFirstServed,
        Self::NilIsFinal,
        Self::AnsweredOnce,
        Self::FreeIsGranted,
        Self::NoLostWakeUp,
        Self::CancelEndsWaits,
        Self::TokenIsMeant,
        Self::GivenUpIsGone,
        Self::GivingUpIsTaken,
        Self::CountsAreRight,
        Self::ReplicaAgrees,
        Self::ReplicaDecidesNothing,
        Self::NothingIsLeftOver,
        Self::ServerLives,
    ];

    /// As it is called in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusion => "exclusion",
            Self::Permits => "permits",
            Self::HoldIsKept => "hold is kept",
            Self::LeaseEnds => "a lease ends",
            Self::TokensRise => "tokens rise",
            Self::FirstComeFirstServed => "first come, first served",
            Self::NilIsFinal => "nil is final",
            Self::AnsweredOnce => "a wait is answered once",
            Self::FreeIsGranted => "a free lock is granted",
            Self::NoLostWakeUp => "no lost wake-up",
            Self::CancelEndsWaits => "CANCEL ends waits",
            Self::TokenIsMeant => "TOKEN means one hold",
            Self::GivenUpIsGone => "what was given up is gone",
            Self::GivingUpIsTaken => "giving up is taken",
            Self::CountsAreRight => "counts are right",
            Self::ReplicaAgrees => "replica agrees",
            Self::ReplicaDecidesNothing => "replica decides nothing",
            Self::NothingIsLeftOver => "nothing is left over",
            Self::ServerLives => "server lives",
        }
    }
}
