//! The settings for exclusion, and which of their values count while a change of them settles.
//!
//! Masters that follow one another may have different settings, and holds of both lengths may run.
//! So after a change, until the old longest lease, the old lag and a second have passed:
//!
//! - grants and renewals obey the stricter one of the old and the new value: the shorter lease, the
//!   shorter lag, the larger number of replicas;
//! - quarantines, and the time until the connection of a replica counts, obey the longer one.

use core::fmt;

use crate::time::{MAX_LEASE_MS, US_PER_MS};

/// `rlock.exclusion`: what no two owners of a lock survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is promised beyond one running server.
    Off,
    /// Restarts of a server without replicas.
    Restart,
    /// Failovers too.
    Failover,
}

/// The settings of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `rlock.exclusion`.
    pub mode: Mode,
    /// `rlock.replicas`: how many servers, besides the master, may follow it or be promoted.
    pub replicas: u64,
    /// `rlock.max-lease-ms`.
    pub max_lease_ms: u64,
    /// `rlock.max-replica-lag-ms`: for how long the acknowledgement of a replica counts.
    pub max_lag_ms: u64,
}

/// Why settings are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contradiction {
    /// `failover` without replicas.
    NoReplicas,
    /// `restart` or `failover` without a longest lease, so each quarantine would last a year.
    NoMaxLease,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoReplicas => {
                "rlock.exclusion failover needs rlock.replicas: the number of servers, besides the master, that may \
                 follow it or be promoted"
            }
            Self::NoMaxLease => {
                "rlock.exclusion restart and failover need rlock.max-lease-ms, because nothing is granted for that \
                 time after a restart or failover"
            }
        })
    }
}

impl Settings {
    /// Checks that the settings agree.
    ///
    /// # Errors
    ///
    /// The contradiction.
    pub fn check(&self) -> Result<(), Contradiction> {
        match self.mode {
            Mode::Failover if self.replicas == 0 => Err(Contradiction::NoReplicas),
            Mode::Failover | Mode::Restart if !self.limits_leases() => Err(Contradiction::NoMaxLease),
            _ => Ok(()),
        }
    }

    /// Whether leases are limited to less than the longest possible one.
    pub(crate) fn limits_leases(&self) -> bool {
        self.max_lease_ms < MAX_LEASE_MS
    }

    /// The values that count if no change is settling.
    pub(super) const fn terms(&self) -> Terms {
        let is_failover = matches!(self.mode, Mode::Failover);
        let lag_us = if is_failover { self.max_lag_ms.saturating_mul(US_PER_MS) } else { 0 };
        Terms {
            needed: if is_failover { self.replicas.div_ceil(2) } else { 0 },
            shortest_lag_us: lag_us,
            longest_lag_us: lag_us,
            shortest_lease_ms: self.max_lease_ms,
            longest_lease_ms: self.max_lease_ms,
        }
    }
}

/// The values in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// How many replicas a master needs: half of those that there may be, rounded up.
    pub(crate) needed: u64,
    /// For how long a vote counts.
    pub(crate) shortest_lag_us: u64,
    /// How old the connection of a replica must be so that its vote counts.
    pub(crate) longest_lag_us: u64,
    /// The limit of leases that begin now.
    pub(crate) shortest_lease_ms: u64,
    /// The longest lease that may still run.
    pub(crate) longest_lease_ms: u64,
}

impl Terms {
    fn and(self, other: Self) -> Self {
        Self {
            needed: self.needed.max(other.needed),
            shortest_lag_us: self.shortest_lag_us.min(other.shortest_lag_us),
            longest_lag_us: self.longest_lag_us.max(other.longest_lag_us),
            shortest_lease_ms: self.shortest_lease_ms.min(other.shortest_lease_ms),
            longest_lease_ms: self.longest_lease_ms.max(other.longest_lease_ms),
        }
    }
}

/// Settings, and those before a change that has not settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InForce {
    current: Settings,
    earlier: Option<Earlier>,
}

#[derive(Clone, Copy, Debug)]
struct Earlier {
    terms: Terms,
    until_us: u64,
}

impl InForce {
    pub(crate) const fn new(current: Settings) -> Self {
        Self { current, earlier: None }
    }

    pub(crate) fn current(&self) -> &Settings {
        &self.current
    }

    /// The settings change. A server that promised nothing leaves nothing to settle.
    pub(crate) fn change(&mut self, new: Settings, margin_us: u64, now_us: u64) {
        if self.current.mode != Mode::Off {
            let terms = self.earlier(now_us).map_or(self.current.terms(), |earlier| earlier.and(self.current.terms()));
            let lasts_us = terms.longest_lease_ms.saturating_mul(US_PER_MS).saturating_add(terms.longest_lag_us);
            let until_us = now_us.saturating_add(lasts_us).saturating_add(margin_us);
            self.earlier = Some(Earlier { terms, until_us });
        }
        self.current = new;
    }

    fn earlier(&self, now_us: u64) -> Option<Terms> {
        self.earlier.filter(|earlier| now_us < earlier.until_us).map(|earlier| earlier.terms)
    }

    /// The values in force. With `off` nothing is promised, so the current ones count at once.
    pub(crate) fn terms(&self, now_us: u64) -> Terms {
        let current = self.current.terms();
        match self.earlier(now_us) {
            Some(earlier) if self.current.mode != Mode::Off => current.and(earlier),
            _ => current,
        }
    }

    /// For how many microseconds a change has not settled.
    pub(crate) fn settles_in_us(&self, now_us: u64) -> u64 {
        self.earlier.map_or(0, |earlier| earlier.until_us.saturating_sub(now_us))
    }

    #[cfg(test)]
    pub(crate) fn forget_earlier(&mut self) {
        self.earlier = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILOVER: Settings = Settings { mode: Mode::Failover, replicas: 3, max_lease_ms: 10_000, max_lag_ms: 3000 };

    #[test]
    fn contradictions_are_refused() {
        assert_eq!(FAILOVER.check(), Ok(()));
        assert_eq!(Settings { replicas: 0, ..FAILOVER }.check(), Err(Contradiction::NoReplicas));
        let endless = Settings { max_lease_ms: MAX_LEASE_MS, ..FAILOVER };
        assert_eq!(endless.check(), Err(Contradiction::NoMaxLease));
        assert_eq!(Settings { mode: Mode::Restart, ..endless }.check(), Err(Contradiction::NoMaxLease));
        assert_eq!(Settings { mode: Mode::Off, replicas: 0, ..endless }.check(), Ok(()));
    }

    #[test]
    fn needed_replicas_are_half_of_those_that_there_may_be() {
        let needed = |replicas| Settings { replicas, ..FAILOVER }.terms().needed;
        assert_eq!([1, 2, 3, 4, 5].map(needed), [1, 1, 2, 2, 3]);
        assert_eq!(Settings { mode: Mode::Restart, ..FAILOVER }.terms().needed, 0);
    }

    #[test]
    fn the_stricter_and_the_longer_values_count_until_a_change_has_settled() {
        let mut settings = InForce::new(FAILOVER);
        let lowered = Settings { max_lease_ms: 5000, max_lag_ms: 4000, replicas: 1, ..FAILOVER };
        settings.change(lowered, 1_000_000, 7);
        let unsettled = Terms {
            needed: 2,
            shortest_lag_us: 3_000_000,
            longest_lag_us: 4_000_000,
            shortest_lease_ms: 5000,
            longest_lease_ms: 10_000,
        };
        assert_eq!((settings.terms(7), settings.settles_in_us(7)), (unsettled, 14_000_000));
        assert_eq!(settings.terms(14_000_006), unsettled);
        assert_eq!((settings.terms(14_000_007), settings.settles_in_us(14_000_007)), (lowered.terms(), 0));
        // A second change keeps what the first one has not settled.
        let mut settings = InForce::new(FAILOVER);
        settings.change(lowered, 0, 0);
        settings.change(Settings { max_lease_ms: 7000, ..lowered }, 0, 1);
        assert_eq!(settings.terms(1), Terms { longest_lag_us: 4_000_000, ..unsettled });
        settings.change(Settings { mode: Mode::Off, ..lowered }, 0, 2);
        assert_eq!(settings.terms(2).needed, 0, "`off` counts at once");
        settings.change(lowered, 0, 3);
        assert_eq!(settings.terms(3).longest_lease_ms, 10_000, "and forgets nothing that has not settled");
    }
}
