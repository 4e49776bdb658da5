//! The recorded operations of clients on locks. All times are microseconds on the steady clock of
//! the machine that records.

use crate::timeline::{Grant, Possible};

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One owner at a time.
    Mutex,
    /// One owner at a time, with a queue that is stored in the key's value.
    Fair,
    /// Many readers or one writer.
    RwLock,
    /// A limited number of permits.
    Semaphore,
}

/// How a hold shares the lock with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Excludes all other owners.
    Exclusive,
    /// Shared with other readers.
    Read,
    /// Excludes all other owners. The same owner may also hold READ.
    Write,
    /// Shared while permits are left.
    Permits,
}

/// A key that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name on the server.
    pub name: String,
    /// The kind of lock that it holds.
    pub kind: Kind,
    /// How many permits a semaphore has; 1 for other kinds.
    pub permits: u32,
}

/// The request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// ACQUIRE, or the part of one key in a MACQUIRE.
    Acquire {
        /// Number of holds or permits.
        count: u32,
        /// The requested lease.
        lease_ms: u64,
        /// `BLOCK ms`; 0 waits without a limit.
        block_ms: Option<u64>,
        /// `REQ id`.
        request_id: Option<u64>,
        /// Whether the request keeps a place in the queue without a connection (`QUEUE`).
        keeps_place: bool,
        /// `ONCE`: an owner that already holds the lock gets no second hold.
        is_once: bool,
    },
    /// RELEASE.
    Release {
        /// Number of holds or permits.
        count: u32,
        /// `TOKEN t`: applies only to the hold with this token.
        token: Option<u64>,
        /// `REQ id`.
        request_id: Option<u64>,
    },
    /// `RELEASE … KEEP ms`: the hold ends, and the lock stays closed to every owner.
    Keep {
        /// How long the lock stays closed.
        keep_ms: u64,
    },
    /// A command of the server removed or moved the key, without asking the module.
    Remove,
    /// RENEW.
    Renew {
        /// The new lease.
        lease_ms: u64,
        /// `TOKEN t`: applies only to the hold with this token.
        token: Option<u64>,
    },
    /// CANCEL: the owner withdraws its waiting requests. The answer is how many it ended.
    Cancel {
        /// Whether the server had already reported that a request of this owner was waiting.
        is_waiting: bool,
    },
    /// The only connection of the owner's session was closed.
    Close {
        /// How long the hold outlives the connection.
        grace_ms: u64,
    },
    /// HOLDS: reads the holds and changes nothing.
    Look,
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Granted, with this token.
    Granted(u64),
    /// Nil.
    Nil,
    /// A number: the holds that are left, the holds that exist, or the milliseconds of lease that
    /// are left. For a request that acquires many keys: the number of tokens received, if it
    /// differs from the number of keys.
    Number(u64),
    /// WAITING: the answer will arrive on a channel.
    Waiting,
    /// NOTOWNER.
    NotOwner,
    /// The same owner ended the wait: a later request took its place, or CANCEL withdrew it.
    Unblocked,
    /// An error that says that nothing was changed.
    Refused,
    /// No answer: the effect is unknown.
    Unknown,
    /// A second answer to a waiting request, on its channel.
    AnsweredTwice,
    /// The grant could not be delivered: the connection closed before it or in the same turn, or
    /// nothing listens to the channel. The server undoes such a grant, unless the lock moved to
    /// another server in that turn.
    Undone,
}

/// One call of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Index into the history's keys.
    pub key: u32,
    /// The owner that calls. An owner makes one call at a time, except that a request may take over
    /// its earlier one.
    pub owner: u64,
    /// The mode of the hold that the call is about.
    pub mode: Mode,
    /// When it was sent.
    pub sent_us: u64,
    /// When the answer arrived, or when the client knew that none would.
    pub answered_us: u64,
    /// The call's position in the order in which the server began to execute requests; 0 if
    /// unknown.
    pub order: u64,
    /// The request.
    pub call: Call,
    /// Its result.
    pub outcome: Outcome,
}

/// Everything that clients did on one server.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The locks.
    pub keys: Vec<Key>,
    /// The operations, in any order.
    pub operations: Vec<Operation>,
    /// Grants after a takeover to owners whose other calls no longer count: only the tokens are
    /// checked.
    pub grants_of_forgotten: Vec<(u32, Grant)>,
    /// When the server granted nothing, as it does before it lets a replica take over.
    pub pauses: Vec<Possible>,
    /// When the server was a replica, in the order of time.
    pub demotions: Vec<Possible>,
    /// Several servers granted locks at the same time, each those of its own keys. Tokens are then
    /// compared per key, because servers promise nothing about each other's tokens.
    pub is_of_several_servers: bool,
    /// Nothing but the server's wall clock was disturbed: no connection was lost, and no request
    /// was refused.
    pub is_undisturbed: bool,
    /// The server was always up, a master, and able to write, so it accepted every release, renewal
    /// and cancellation whose connection survived.
    pub accepts_releases: bool,
    /// At times the server refused to acquire, although it accepted releases.
    pub refuses_acquisitions: bool,
    /// The difference between the clocks of servers that take over from each other. A lease may end
    /// that much earlier.
    pub clocks_differ_us: u64,
    /// The takeovers by a server that may lack the latest changes, such as a release shortly
    /// before. A hold whose release was lost still ends with its lease.
    pub takeovers: Vec<Possible>,
    /// How much longer than requested a lease may last, because the clock of the server that
    /// continues it is behind.
    pub leases_outlast_us: u64,
    /// The server is up during its pauses, and answers waiters whose time is over.
    pub waits_end_in_pauses: bool,
}

impl Operation {
    /// The token that the call was granted.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        match self.outcome {
            Outcome::Granted(token) => Some(token),
            _ => None,
        }
    }
}

/// A contradiction between a history and a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The broken rule.
    pub rule: Rule,
    /// A description for a person.
    pub story: String,
}

/// A property of every correct history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Two owners never believe at the same time that they hold what only one can hold.
    Exclusion,
    /// The permits that owners believe to hold never exceed the semaphore's permits.
    Permits,
    /// A hold ends when its owner ends it or its lease expires, and not before.
    HoldIsKept,
    /// No answer treats an owner as a holder after its lease expired.
    LeaseEnds,
    /// Tokens rise, and no token is given twice.
    TokensRise,
    /// Requests are served in the order in which the server received them.
    FirstComeFirstServed,
    /// An owner that got nil does not hold, and nil arrives in time.
    NilIsFinal,
    /// Each wait gets exactly one answer.
    AnsweredOnce,
    /// A request that does not wait is granted a free lock.
    FreeIsGranted,
    /// No request waits for a free lock.
    NoLostWakeUp,
    /// CANCEL ends the waiting request, and a request that CANCEL reported as ended is never
    /// granted.
    CancelEndsWaits,
    /// A command with TOKEN does not change a hold that has another token.
    TokenIsMeant,
    /// A hold that its owner gave up, or lost with the connection of its session, does not come
    /// back.
    GivenUpIsGone,
    /// A working server accepts releases, renewals and cancellations, and serves requests that
    /// already wait, even with full memory. It refuses to acquire only while something is wrong.
    GivingUpIsTaken,
    /// A repeated request counts once, and each answer has the number that its owner expects.
    CountsAreRight,
    /// A replica has the same locks as its master.
    ReplicaAgrees,
    /// A replica grants nothing.
    ReplicaDecidesNothing,
    /// Nothing is held after all clients have left.
    NothingIsLeftOver,
    /// The server answers.
    ServerLives,
}

impl Rule {
    /// All rules.
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

    /// The name in tables and patches.
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
            Self::GivingUpIsTaken => "releases are accepted",
            Self::CountsAreRight => "counts are right",
            Self::ReplicaAgrees => "replica agrees",
            Self::ReplicaDecidesNothing => "replica decides nothing",
            Self::NothingIsLeftOver => "nothing is left over",
            Self::ServerLives => "server lives",
        }
    }
}
