//! Decides whether a server may grant (`rlock.exclusion`).
//!
//! A master grants only while it has the right to: `right.rs`. Each beginning of the right starts
//! one *quarantine*, in which RENEW works and nothing is granted. It lasts for the longest lease and
//! a second more, so that each hold that another master may have granted has expired. A server that
//! needs no replicas has the right from its start on.

mod right;
mod settings;

pub use self::right::Replication;
pub use self::settings::{Contradiction, Mode, Settings};

use core::mem;

use self::right::RightToGrant;
use self::settings::{InForce, Terms};
use crate::limits::MayGrant;
use crate::time::US_PER_MS;

/// How much longer than the longest lease a quarantine lasts: for clocks that drift, and for leases
/// that are rounded up.
const MARGIN_US: u64 = 1_000_000;

/// The readings of a tick. [`Exclusion::on_tick`] decides in which order.
pub trait Readings {
    /// The steady clock, in microseconds.
    fn clock_us(&mut self) -> u64;
    /// The state of the replication.
    fn replication(&mut self) -> Replication;
}

/// See the documentation of the file. Times are in microseconds of the steady clock.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub struct Exclusion {
    pub(crate) settings: InForce,
    /// The values of the settings that count, as of the last tick or change.
    pub(crate) terms: Terms,
    pub(crate) right: RightToGrant,
    pub(crate) quarantine_until_us: u64,
    /// Since when nothing is granted; `None` if the last tick found grants allowed.
    pub(crate) paused_since_us: Option<u64>,
    has_started: bool,
    /// What [`Exclusion::on_tick`] has last returned.
    reported: MayGrant,
    margin_us: u64,
}

impl Exclusion {
    /// The state of a process that has not read its settings and its data yet.
    #[must_use]
    pub const fn new() -> Self {
        let settings = Settings { mode: Mode::Off, replicas: 0, max_lease_ms: u64::MAX, max_lag_ms: 0 };
        Self {
            settings: InForce::new(settings),
            terms: settings.terms(),
            right: RightToGrant::new(),
            quarantine_until_us: 0,
            paused_since_us: None,
            has_started: false,
            reported: MayGrant::Yes,
            margin_us: MARGIN_US,
        }
    }

    /// A state whose quarantines have no margin.
    #[cfg(test)]
    pub(crate) fn without_margin() -> Self {
        Self { margin_us: 0, ..Self::new() }
    }

    /// The settings were read, or have changed.
    pub fn on_settings(&mut self, new: Settings, now_us: u64) {
        let before = self.settings.current().mode;
        self.settings.change(new, self.margin_us, now_us);
        self.update_terms(now_us);
        if new.mode != before {
            // The promise is new. Nothing was noted of the replicas while none was needed, so votes
            // begin anew. `off` also ends a quarantine.
            self.right = RightToGrant::new();
            self.quarantine_until_us = if new.mode == Mode::Off { 0 } else { self.quarantine_until_us };
        }
        self.count(now_us);
    }

    fn update_terms(&mut self, now_us: u64) {
        self.terms = self.settings.terms(now_us);
    }

    fn count(&mut self, now_us: u64) {
        if self.terms.needed == 0 {
            self.right.until_us = u64::MAX;
        } else if self.right.count(&self.terms, now_us) {
            self.begin_quarantine(now_us);
        }
    }

    fn begin_quarantine(&mut self, now_us: u64) {
        let lease_us = self.terms.longest_lease_ms.saturating_mul(US_PER_MS);
        self.quarantine_until_us = now_us.saturating_add(lease_us).saturating_add(self.margin_us);
    }

    /// Whether [`Exclusion::on_started`] was called.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.has_started
    }

    /// The data set of this process was loaded. Later loads come from a master.
    pub fn on_started(&mut self, is_master: bool, has_keys: bool, now_us: u64) {
        self.has_started = true;
        if is_master {
            self.begin_reign(self.settings.current().mode == Mode::Restart, has_keys, now_us);
        }
    }

    /// This server became a master.
    pub fn on_promoted(&mut self, has_keys: bool, now_us: u64) {
        self.begin_reign(false, has_keys, now_us);
    }

    /// A server without data may have lost it. With `off` it waits nevertheless, if it knows how
    /// long leases may be.
    fn begin_reign(&mut self, is_restart: bool, has_keys: bool, now_us: u64) {
        self.begin_term(now_us);
        let settings = self.settings.current();
        if is_restart || (settings.mode == Mode::Off && settings.limits_leases() && !has_keys) {
            self.begin_quarantine(now_us);
        }
    }

    fn begin_term(&mut self, now_us: u64) {
        self.right = RightToGrant::new();
        self.count(now_us);
    }

    /// The connection of a replica came online (`has_new`) or closed.
    pub fn on_replicas(&mut self, has_new: bool, server: &mut impl Readings) {
        if self.terms.needed > 0 {
            let replicas = server.replication().replicas;
            self.right.on_replicas(&replicas, has_new, server.clock_us());
        }
    }

    /// The server's regular tick: the right to grant may have begun or ended, and a quarantine or a
    /// change of settings may have. Returns whether the server may grant, if that has changed since
    /// the last tick of a master. If it may again, the queues have to be served, see
    /// [`crate::Engine::grants_resumed`].
    pub fn on_tick(&mut self, is_master: bool, server: &mut impl Readings) -> Option<MayGrant> {
        let at_us = server.clock_us();
        self.update_terms(at_us);
        if !is_master {
            self.begin_term(at_us);
            return None;
        }
        if self.terms.needed > 0 {
            self.right.on_tick(at_us, server.replication());
        }
        let now_us = server.clock_us();
        self.count(now_us);
        let was_paused = self.paused_since_us.take();
        let may_grant = self.may_grant(now_us);
        if let Some(since_us) = &mut self.paused_since_us {
            *since_us = was_paused.unwrap_or(*since_us);
        }
        let has_resumed = was_paused.is_some() && may_grant == MayGrant::Yes;
        let has_changed = mem::discriminant(&may_grant) != mem::discriminant(&self.reported);
        self.reported = may_grant;
        (has_changed || has_resumed).then_some(may_grant)
    }

    /// Whether holds may begin and be renewed at a moment. A pause begins at once, and ends at a
    /// tick, so that the engine has learnt of its end before it grants.
    #[inline]
    pub fn may_grant(&mut self, now_us: u64) -> MayGrant {
        let may_grant = if !self.right.lasts_at(now_us) {
            MayGrant::NoReplicas
        } else if self.has_too_many_replicas() {
            MayGrant::TooManyReplicas
        } else {
            let left_us = self.quarantine_until_us.saturating_sub(now_us);
            if left_us == 0 && self.paused_since_us.is_none() {
                return MayGrant::Yes;
            }
            MayGrant::Quarantine { left_ms: left_us.div_ceil(US_PER_MS).max(1) }
        };
        self.paused_since_us.get_or_insert(now_us);
        may_grant
    }

    /// Whether more replicas follow than the settings allow for. Two masters could then have enough
    /// of them at the same time.
    fn has_too_many_replicas(&self) -> bool {
        self.terms.needed > 0 && self.right.acknowledging() > self.settings.current().replicas
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        self.settings.current()
    }

    /// The longest lease that may begin now, in milliseconds.
    #[inline]
    #[must_use]
    pub fn max_lease_ms(&self) -> u64 {
        self.terms.shortest_lease_ms
    }

    /// The longest lease that may still run, in milliseconds. No hold from a file or from another
    /// server lasts longer.
    #[must_use]
    pub fn longest_lease_ms(&self) -> u64 {
        self.terms.longest_lease_ms
    }

    /// For how many milliseconds a change of the settings has not settled.
    #[must_use]
    pub fn settles_in_ms(&self, now_us: u64) -> u64 {
        self.settings.settles_in_us(now_us).div_ceil(US_PER_MS)
    }

    /// For how many milliseconds nothing has been granted.
    #[must_use]
    pub fn paused_ms(&self, now_us: u64) -> u64 {
        self.paused_since_us.map_or(0, |since_us| now_us.saturating_sub(since_us) / US_PER_MS)
    }

    /// How many replicas this master needs.
    #[must_use]
    pub fn needed(&self) -> u64 {
        self.terms.needed
    }

    /// How many replicas had a vote that counted at the last tick.
    #[must_use]
    pub fn following(&self) -> u64 {
        self.right.following()
    }

    /// How many replicas had acknowledged within the lag at the last tick.
    #[must_use]
    pub fn acknowledging(&self) -> u64 {
        self.right.acknowledging()
    }
}

impl Default for Exclusion {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
