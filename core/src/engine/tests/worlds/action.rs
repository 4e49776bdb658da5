//! What can happen in a small world.

use crate::kind::Mode;

/// How ACQUIRE asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    Try,
    /// With BLOCK.
    Wait,
    /// With BLOCK and CLAIM.
    Claim,
    /// With BLOCK and GRACE: none for one owner, a short one for the others.
    Grace,
    /// With BLOCK 0.
    WaitForEver,
    /// With QUEUE.
    Queue,
    /// With BLOCK and SESSION.
    Bound,
    /// With ONCE, without BLOCK.
    Once,
    /// With BLOCK, NOTIFY and ONCE. It has a number, and so is the same request when it is sent again.
    Notified,
}

/// Which hold RELEASE and RENEW mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// Whatever the owner holds.
    Any,
    /// The hold with the TOKEN that the owner has now.
    Own,
    /// A hold with a TOKEN from before.
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
    /// The turn ends, and what was granted to who waits on a channel is published; it is lost if nobody listens.
    Publish {
        is_heard: bool,
    },
    /// The connection of an owner closes: that of its sessions, of its waits, and of grants that were not published yet.
    Disconnect {
        owner: u8,
    },
    /// The channel of an owner goes to another node of a cluster.
    ChannelGone {
        owner: u8,
    },
    /// The server is a replica for a moment.
    Demote,
    Cancel {
        owner: u8,
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
    /// The connection of a waiter, or of one that was granted in this turn, closes.
    Leave {
        key: usize,
        owner: u8,
    },
    /// The answers of this turn are written.
    Hear,
    /// The connection that holds of an owner are bound to closes.
    Close {
        owner: u8,
    },
    Delete {
        key: usize,
    },
    /// A semaphore is made, if there is none.
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
    /// The timer goes off for one turn, which may leave something to the next one.
    Part,
    /// Time passes, and the timer goes off late.
    Pause,
    /// The timer goes off.
    Timer,
    /// Time passes, and the timer goes off whenever something is due.
    Tick,
}
