//! What ACQUIRE asks for.

use crate::kind::Mode;

/// How long a wait lasts that has no end (BLOCK 0), and until when.
pub(crate) const FOR_EVER: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) mode: Mode,
    pub(crate) count: u32,
    pub(crate) lease_ms: u64,
    /// How long it waits, if it does; [`FOR_EVER`] without an end.
    pub(crate) wait_ms: Option<u64>,
    /// CLAIM: how long a hold lasts that begins after a wait.
    pub(crate) claim_ms: Option<u64>,
    /// SESSION.
    pub(crate) session_ms: Option<u64>,
    /// REQ.
    pub(crate) id: Option<u64>,
    /// An owner that holds already gets no more.
    pub(crate) is_once: bool,
    /// Who waits is answered on a channel: sent again, it is the same wait.
    pub(crate) is_notified: bool,
}
