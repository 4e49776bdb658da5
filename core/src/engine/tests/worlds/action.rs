//! The actions in a small world.

use crate::kind::Mode;

/// The options of ACQUIRE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    Try,
    /// With BLOCK.
    Wait,
    /// With BLOCK and CLAIM.
    Claim,
    /// With CLAIM, without BLOCK.
    ClaimNow,
    /// With BLOCK and GRACE: 0 for one owner, a short one for the others.
    Grace,
    /// With BLOCK 0.
    WaitForEver,
    /// With QUEUE.
    Queue,
    /// With BLOCK and SESSION.
    Bound,
    /// With ONCE, without BLOCK.
    Once,
    /// With BLOCK, NOTIFY and ONCE. It has a request id, so sending it again is a retry.
    Notified,
}

/// The hold that RELEASE and RENEW refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// Any hold of the owner.
    Any,
    /// The hold with the owner's current TOKEN.
    Own,
    /// A hold with an earlier TOKEN.
    Earlier,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Acquire {
        key: usize,
        owner: u8,
        mode: Mode,
        count: u32,
        ask: Asks,
        /// REQ.
        id: Option<u64>,
    },
    Release {
        key: usize,
        owner: u8,
        mode: Mode,
        /// REQ.
        id: Option<u64>,
    },
    /// RELEASE with KEEP.
    Keep {
        key: usize,
        owner: u8,
        /// REQ.
        id: Option<u64>,
    },
    Renew {
        key: usize,
        owner: u8,
        mode: Mode,
    },
    ReleaseToken {
        key: usize,
        owner: u8,
        mode: Mode,
        means: Means,
    },
    RenewToken {
        key: usize,
        owner: u8,
        mode: Mode,
        means: Means,
    },
    Force {
        key: usize,
    },
    /// Ends the turn and publishes the grants of notified waiters; they are lost without a
    /// subscriber.
    Publish {
        is_heard: bool,
    },
    /// Closes the connection of an owner: that of its sessions, its waits, and its unpublished
    /// grants.
    Disconnect {
        owner: u8,
    },
    /// Another node of the cluster takes over the channel of an owner.
    ChannelGone {
        owner: u8,
    },
    /// The server is a replica for a moment.
    Demote,
    Cancel {
        owner: u8,
        /// REQ.
        id: Option<u64>,
    },
    AcquireMany {
        owner: u8,
        ask: Asks,
    },
    ReleaseMany {
        owner: u8,
    },
    Resize {
        permits: u32,
    },
    Drain {
        owner: u8,
    },
    /// Closes the connection of a waiter, or of a waiter that was granted in this turn.
    Leave {
        key: usize,
        owner: u8,
    },
    /// Writes the answers of this turn.
    Hear,
    /// Closes the connection that an owner's holds are bound to.
    Close {
        owner: u8,
    },
    Delete {
        key: usize,
    },
    /// Creates a semaphore unless it exists.
    Init {
        key: usize,
        /// IDLE.
        idle_ms: Option<u64>,
    },
    Foreign {
        key: usize,
    },
    Rename,
    Copy,
    Swap,
    Flush,
    Promote,
    FailOver,
    /// Runs the timer for one turn, which may leave work to the next one.
    Part,
    /// Advances the clock, then runs the timer late.
    Pause,
    /// Runs the timer.
    Timer,
    /// Advances the clock, running the timer whenever something is due.
    Tick,
}
