//! Decides whether a server may grant: not in a *quarantine*, and not while too few replicas follow
//! (`right_to_grant.rs`).
//!
//! A server may have lost holds that it, or the master before it, has acknowledged. It then grants
//! nothing until each of them must have expired. [`QuarantineAfter`] says which events begin a
//! quarantine. If a later load brings keys, a quarantine that began with an empty data set ends.
//! FLUSHALL begins none, because a user asked for it.

use core::mem;

use crate::limits::MayGrant;
use crate::right_to_grant::{Readings, RightToGrant};
use crate::time::US_PER_MS;

/// The events that begin a quarantine (`rlock.quarantine-after`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuarantineAfter {
    /// When a start, or a load of a master's data set, finds no key at all.
    Empty,
    /// Also at each start.
    Restart,
    /// Also at each promotion, and again when enough replicas follow the new master.
    Failover,
}

/// The settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantRules {
    /// Which events begin a quarantine.
    pub quarantine_after: QuarantineAfter,
    /// How long one lasts.
    pub quarantine_ms: u64,
    /// How many replicas must follow a master so that it may grant.
    pub min_replicas: u64,
    /// How long a master may grant after the last moment at which enough replicas followed.
    pub max_replica_lag_ms: u64,
}

impl GrantRules {
    fn lag_us(&self) -> u64 {
        self.max_replica_lag_ms.saturating_mul(US_PER_MS)
    }
}

/// Why a quarantine began, ordered by strength: a stronger reason forbids more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The server has no data.
    Empty,
    /// It was restarted.
    Restart,
    /// It was promoted.
    Failover,
}

/// The changes in a tick, for the log and the timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticked {
    /// A quarantine began, or began anew.
    pub has_begun: bool,
    /// Holds may begin again: the queues have to be served, see [`crate::Engine::grants_resumed`].
    pub has_resumed: bool,
    /// Too few replicas follow. Set only in the first such tick; not again before holds may begin
    /// again.
    pub lacks_replicas: bool,
}

/// See the documentation of the file. Times are in microseconds of the steady clock.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub struct Quarantine {
    /// The beginning of the quarantine; `None` without one.
    pub(crate) since_us: Option<u64>,
    pub(crate) reason: Reason,
    pub(crate) right: RightToGrant,
    /// A data set was loaded, or is about to be, and was not examined yet.
    pub(crate) is_undecided: bool,
    /// The first data set of this process was examined.
    has_started: bool,
    /// This server was promoted, and too few replicas have followed it since: the quarantine begins
    /// again when enough do.
    pub(crate) awaits_replicas: bool,
    /// Grants were paused since the last tick that found them allowed.
    pub(crate) was_paused: bool,
    has_warned: bool,
}

impl Quarantine {
    /// The state of a process that has not examined its data yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            since_us: None,
            reason: Reason::Empty,
            right: RightToGrant::new(),
            is_undecided: true,
            has_started: false,
            awaits_replicas: false,
            was_paused: false,
            has_warned: false,
        }
    }

    /// Begins the quarantine, or begins it anew. Within one the stronger reason stays.
    fn begin(&mut self, rules: &GrantRules, reason: Reason, now_us: u64) {
        self.reason = if self.left_ms(rules, now_us) > 0 { reason.max(self.reason) } else { reason };
        self.since_us = Some(now_us);
    }

    /// A load of a master's data set begins.
    pub fn on_load_from_master(&mut self) {
        self.is_undecided = true;
    }

    /// This server became a master. Returns whether a quarantine began.
    pub fn on_promoted(&mut self, rules: &GrantRules, now_us: u64) -> bool {
        self.right.begin_term();
        let begins = rules.quarantine_after == QuarantineAfter::Failover;
        if begins {
            self.awaits_replicas = rules.min_replicas > 0;
            self.begin(rules, Reason::Failover, now_us);
        }
        begins
    }

    /// Whether a data set has to be examined: see [`Self::look`].
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        self.is_undecided
    }

    /// Examines the data set after a start or a load, before a client adds to it. Returns whether a
    /// quarantine began.
    pub fn look(&mut self, rules: &GrantRules, has_keys: bool, now_us: u64) -> bool {
        self.is_undecided = false;
        let is_start = !self.has_started;
        self.has_started = true;
        if !has_keys {
            self.begin(rules, Reason::Empty, now_us);
        } else if is_start && rules.quarantine_after != QuarantineAfter::Empty {
            self.begin(rules, Reason::Restart, now_us);
        } else {
            if self.reason == Reason::Empty {
                self.since_us = None;
            }
            return false;
        }
        true
    }

    /// The server's regular tick: the right to grant may have begun or ended, and a quarantine may
    /// have ended.
    pub fn on_tick(&mut self, rules: &GrantRules, is_master: bool, server: &mut impl Readings) -> Ticked {
        if rules.min_replicas == 0 || !is_master {
            self.right.begin_term();
        } else {
            self.right.on_tick(rules.min_replicas, rules.lag_us(), server);
        }
        let now_us = server.clock_us();
        let mut ticked = Ticked::default();
        if self.awaits_replicas && !self.lacks_replicas(rules, now_us) {
            self.awaits_replicas = false;
            self.begin(rules, Reason::Failover, now_us);
            ticked.has_begun = true;
        }
        if !is_master {
            return ticked;
        }
        let was_paused = mem::take(&mut self.was_paused);
        match self.may_grant(rules, now_us) {
            MayGrant::Yes if was_paused => {
                self.has_warned = false;
                ticked.has_resumed = true;
            }
            MayGrant::NoReplicas if !self.has_warned => {
                self.has_warned = true;
                ticked.lacks_replicas = true;
            }
            _ => {}
        }
        ticked
    }

    /// Whether holds may begin and be renewed at a moment. A pause begins at once, and ends at a
    /// tick, so that the engine has learnt of its end before it grants.
    #[inline]
    pub fn may_grant(&mut self, rules: &GrantRules, now_us: u64) -> MayGrant {
        let may_grant = if self.lacks_replicas(rules, now_us) {
            MayGrant::NoReplicas
        } else {
            let left_ms = self.left_ms(rules, now_us).max(u64::from(self.was_paused));
            if left_ms == 0 {
                return MayGrant::Yes;
            }
            MayGrant::Quarantine { left_ms, renews: self.renews(rules, now_us) }
        };
        self.was_paused = true;
        may_grant
    }

    /// Whether replicas are needed, and too few follow.
    #[inline]
    fn lacks_replicas(&self, rules: &GrantRules, now_us: u64) -> bool {
        rules.min_replicas > 0 && !self.right.lasts_at(now_us)
    }

    /// Whether holds are renewed in the quarantine. After a promotion only once the lag has passed,
    /// because the former master may renew them until then.
    fn renews(&self, rules: &GrantRules, now_us: u64) -> bool {
        let waits_us = if self.reason == Reason::Failover { rules.lag_us() } else { 0 };
        self.since_us.is_none_or(|since_us| now_us >= since_us.saturating_add(waits_us))
    }

    /// For how many milliseconds the quarantine lasts from a moment on; 0 outside of one.
    #[inline]
    #[must_use]
    pub fn left_ms(&self, rules: &GrantRules, now_us: u64) -> u64 {
        self.since_us.map_or(0, |since_us| {
            let end_us = since_us.saturating_add(rules.quarantine_ms.saturating_mul(US_PER_MS));
            end_us.saturating_sub(now_us).div_ceil(US_PER_MS)
        })
    }

    /// Why the quarantine began.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// How many replicas followed at the last tick.
    #[must_use]
    pub fn following(&self) -> usize {
        self.right.following()
    }
}

impl Default for Quarantine {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::right_to_grant::Replication;

    const RULES: GrantRules = GrantRules {
        quarantine_after: QuarantineAfter::Failover,
        quarantine_ms: 10,
        min_replicas: 1,
        max_replica_lag_ms: 3,
    };

    /// A server at a moment, with one replica.
    struct Server {
        now_ms: u64,
        offset: u64,
        acknowledged: u64,
    }

    impl Readings for Server {
        fn clock_us(&mut self) -> u64 {
            self.now_ms * US_PER_MS
        }

        fn replication(&mut self) -> Option<Replication> {
            Some(Replication { offset: self.offset, acknowledged: [self.acknowledged].into() })
        }
    }

    /// A tick of a master.
    fn tick(quarantine: &mut Quarantine, now_ms: u64, offset: u64, acknowledged: u64) -> Ticked {
        quarantine.on_tick(&RULES, true, &mut Server { now_ms, offset, acknowledged })
    }

    #[test]
    fn each_change_is_reported_once() {
        let mut quarantine = Quarantine::new();
        assert!(quarantine.is_undecided() && quarantine.look(&RULES, true, 0), "the start begins a quarantine");
        assert!(!quarantine.is_undecided());
        assert!(quarantine.on_promoted(&RULES, US_PER_MS));
        let lacks = Ticked { lacks_replicas: true, ..Ticked::default() };
        assert_eq!(tick(&mut quarantine, 1, 100, 0), lacks);
        assert_eq!(tick(&mut quarantine, 2, 100, 0), Ticked::default());
        let begins = Ticked { has_begun: true, ..Ticked::default() };
        assert_eq!(tick(&mut quarantine, 3, 200, 101), begins, "the replica follows");
        assert_eq!((quarantine.following(), quarantine.left_ms(&RULES, 3 * US_PER_MS)), (1, 10));
        let mut replica = quarantine.clone();
        assert_eq!(tick(&mut quarantine, 12, 300, 201), Ticked::default());
        let resumes = Ticked { has_resumed: true, ..Ticked::default() };
        assert_eq!(tick(&mut quarantine, 13, 300, 301), resumes);
        assert_eq!(tick(&mut quarantine, 14, 400, 301), Ticked::default());
        let mut server = Server { now_ms: 13, offset: 300, acknowledged: 301 };
        assert_eq!(replica.on_tick(&RULES, false, &mut server), Ticked::default(), "a replica reports nothing");
    }

    #[test]
    fn keys_from_a_master_end_a_quarantine_of_a_server_without_data() {
        let mut quarantine = Quarantine::new();
        assert!(quarantine.look(&RULES, false, 0));
        assert_eq!((quarantine.reason(), quarantine.left_ms(&RULES, 0)), (Reason::Empty, 10));
        quarantine.on_load_from_master();
        assert!(quarantine.is_undecided());
        assert!(!quarantine.look(&RULES, true, US_PER_MS));
        assert_eq!(quarantine.left_ms(&RULES, US_PER_MS), 0);
        quarantine.on_promoted(&RULES, US_PER_MS);
        assert!(quarantine.look(&RULES, false, 2 * US_PER_MS));
        assert_eq!(quarantine.reason(), Reason::Failover, "the stronger reason stays");
        assert!(!quarantine.look(&RULES, true, 3 * US_PER_MS));
        assert_eq!(quarantine.left_ms(&RULES, 3 * US_PER_MS), 9);
    }
}
