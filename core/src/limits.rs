//! The server's limits: numbers from its configuration, and whether it may grant now.

use crate::request::Refusal;
use crate::time::MAX_LEASE_MS;

/// The limits of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most waiters on the server.
    pub max_waiters: usize,
    /// The most places on one fair lock.
    pub max_places: usize,
    /// How long a fair lock keeps the place of a waiter that lost its connection, and stays
    /// reserved for its head.
    pub fair_grace_ms: u64,
    /// The longest lease. The module refuses longer leases in arguments; for a RENEW without a
    /// lease, the engine shortens the last lease to it.
    pub max_lease_ms: u64,
    /// Whether holds may begin and be renewed now.
    pub may_grant: MayGrant,
}

impl Limits {
    /// No limits except those of the stored formats.
    pub const NONE: Self = Self {
        max_waiters: usize::MAX,
        max_places: usize::MAX,
        fair_grace_ms: 5000,
        max_lease_ms: MAX_LEASE_MS,
        may_grant: MayGrant::Yes,
    };
}

/// Whether this server may grant now. While it may not, requests that wait keep their order in the
/// queue, and [`crate::Engine::grants_resumed`] serves them afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MayGrant {
    /// Holds begin and are renewed.
    #[default]
    Yes,
    /// Too few replicas follow this master: no hold begins and none is renewed.
    NoReplicas,
    /// More replicas follow this master than the settings allow for: no hold begins.
    TooManyReplicas,
    /// The data set may lack holds that were granted: no hold begins.
    Quarantine {
        /// The milliseconds left.
        left_ms: u64,
    },
}

impl MayGrant {
    /// The error for a request that would begin a hold.
    pub(crate) fn check(self) -> Result<(), Refusal> {
        match self {
            Self::Yes => Ok(()),
            Self::NoReplicas => Err(Refusal::NoReplicas),
            Self::TooManyReplicas => Err(Refusal::TooManyReplicas),
            Self::Quarantine { left_ms } => Err(Refusal::Quarantine { left_ms }),
        }
    }

    /// The error for a RENEW.
    pub(crate) fn check_renewal(self) -> Result<(), Refusal> {
        match self {
            // No other master grants, so an owner that believes in its hold is the only one.
            Self::Quarantine { .. } | Self::TooManyReplicas => Ok(()),
            other => other.check(),
        }
    }
}
