//! The options of ACQUIRE.

use crate::kind::Mode;

/// The duration of a wait without a limit (BLOCK 0), and its end.
pub(crate) const FOR_EVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) mode: Mode,
    pub(crate) count: u32,
    pub(crate) lease_ms: u64,
    /// How long it waits, if it does; [`FOR_EVER`] without a limit.
    pub(crate) wait_ms: Option<u64>,
    /// CLAIM: the lease of a hold that begins, until it is claimed.
    pub(crate) claim_ms: Option<u64>,
    /// SESSION.
    pub(crate) session_ms: Option<u64>,
    /// REQ.
    pub(crate) id: Option<u64>,
    /// An owner that already holds the lock gets nothing further.
    pub(crate) is_once: bool,
    /// The answer is published on a channel: a retry continues the same wait.
    pub(crate) is_notified: bool,
}
