//! What is counted, and how long waits have taken: for INFO.
//!
//! Counters rise from the start of the server. The times of waits tell of the last one to two minutes: two windows of a minute, of which
//! the older one is dropped when the newer one is over. A time goes into one of a few hundred buckets, each at most an eighth wider than
//! the one below, so noting one costs nothing that grows, and a percentile is at most an eighth too high.

use alloc::boxed::Box;

use crate::kind::{Kind, PerKind};
use crate::request::Refusal;
use crate::time::Now;

/// What happened to locks of one kind since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindStats {
    /// Requests granted without waiting, re-entries included.
    pub granted_at_once: u64,
    /// Requests granted after waiting.
    pub granted_after_waiting: u64,
    /// New holds given to a waiter in the very step that ended another hold.
    pub handed_over: u64,
    /// Requests of one attempt that were answered nil.
    pub denied: u64,
    /// Requests and waiters that were answered with an error, but for those that are counted as deadlocks.
    pub refused: u64,
    /// Requests and waiters that would have waited for themselves.
    pub deadlocks: u64,
    /// Waiters that were answered nil because their time was over.
    pub timed_out: u64,
    /// Waiters that left because their connection closed or was unblocked.
    pub disconnected: u64,
    /// Grants taken back, because the connection closed before it could hear of them.
    pub undone: u64,
    /// Holds whose lease ended.
    pub expired: u64,
    /// Expired holds that were granted after a wait with CLAIM and never claimed.
    pub unclaimed: u64,
    /// Holds ended by FORCERELEASE.
    pub forced: u64,
}

impl KindStats {
    /// Every count, by its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 12] {
        [
            ("granted_at_once", self.granted_at_once),
            ("granted_after_waiting", self.granted_after_waiting),
            ("handed_over", self.handed_over),
            ("denied", self.denied),
            ("refused", self.refused),
            ("deadlocks", self.deadlocks),
            ("timed_out", self.timed_out),
            ("disconnected", self.disconnected),
            ("undone", self.undone),
            ("expired", self.expired),
            ("unclaimed", self.unclaimed),
            ("forced", self.forced),
        ]
    }
}

/// One more of what is counted.
pub(crate) fn count(counter: &mut u64) {
    *counter = counter.saturating_add(1);
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Statistics {
    kinds: PerKind<KindStats>,
    waits: WaitTimes,
    /// Grants taken back because nobody listened to the channel on which they were to be published.
    unheard: u64,
}

impl Statistics {
    pub(crate) fn of(&mut self, kind: Kind) -> &mut KindStats {
        self.kinds.of_mut(kind)
    }

    /// Nobody listened to the channel on which a grant was published.
    pub(crate) fn count_unheard(&mut self) {
        count(&mut self.unheard);
    }

    pub(crate) fn unheard(&self) -> u64 {
        self.unheard
    }

    /// How long waits took.
    pub(crate) fn wait_summary(&mut self, now: Now) -> WaitSummary {
        self.waits.summary(now)
    }

    /// A request or a waiter is answered with an error.
    pub(crate) fn count_refusal(&mut self, kind: Kind, refusal: &Refusal) {
        let stats = self.of(kind);
        count(if matches!(refusal, Refusal::Deadlock(_)) { &mut stats.deadlocks } else { &mut stats.refused });
    }

    /// A waiter was granted.
    pub(crate) fn count_wait(&mut self, kind: Kind, since_us: u64, now: Now) {
        count(&mut self.of(kind).granted_after_waiting);
        self.waits.note(now.mono_us.saturating_sub(since_us), now);
    }
}

/// How long the waits took that ended in a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitSummary {
    /// All of them since the start, together.
    pub total_us: u64,
    /// Half of those of the last one to two minutes were not longer.
    pub p50_us: u64,
    /// 99 of 100 were not longer.
    pub p99_us: u64,
    /// The longest of them.
    pub max_us: u64,
}

const WINDOW_US: u64 = 60_000_000;

/// Each power of two has so many buckets, in bits.
const SHARES: u32 = 3;
/// Longer waits count as so long: more than a year.
const LONGEST_US: u64 = (1 << 45) - 1;
const BUCKETS: usize = 344;

struct Window {
    counts: [u32; BUCKETS],
    max_us: u64,
}

const EMPTY: Window = Window { counts: [0; BUCKETS], max_us: 0 };

/// The buckets of two minutes.
struct WaitTimes {
    /// The current minute and the one before.
    windows: Box<[Window; 2]>,
    ends_us: u64,
    total_us: u64,
}

impl Default for WaitTimes {
    fn default() -> Self {
        Self { windows: Box::new([EMPTY; 2]), ends_us: 0, total_us: 0 }
    }
}

impl WaitTimes {
    fn note(&mut self, waited_us: u64, now: Now) {
        self.begin_window(now);
        self.total_us = self.total_us.saturating_add(waited_us);
        let [current, _] = &mut *self.windows;
        current.max_us = current.max_us.max(waited_us);
        if let Some(count) = current.counts.get_mut(bucket(waited_us)) {
            *count = count.saturating_add(1);
        }
    }

    fn begin_window(&mut self, now: Now) {
        if now.mono_us < self.ends_us {
            return;
        }
        let [current, before] = &mut *self.windows;
        let was_just_now = now.mono_us < self.ends_us.saturating_add(WINDOW_US);
        *before = core::mem::replace(current, EMPTY);
        if !was_just_now {
            *before = EMPTY;
        }
        self.ends_us = now.mono_us.saturating_add(WINDOW_US);
    }

    fn summary(&mut self, now: Now) -> WaitSummary {
        self.begin_window(now);
        let [current, before] = &*self.windows;
        let max_us = current.max_us.max(before.max_us);
        let counts =
            || current.counts.iter().zip(&before.counts).map(|(a, b)| u64::from(*a).saturating_add(u64::from(*b)));
        let all: u64 = counts().sum();
        let percentile = |percent: u64| {
            let rank = all.saturating_mul(percent).div_ceil(100);
            let mut seen = 0_u64;
            let at = counts().position(|count| {
                seen = seen.saturating_add(count);
                seen >= rank
            });
            if all == 0 { 0 } else { at.map_or(max_us, highest_of).min(max_us) }
        };
        WaitSummary { total_us: self.total_us, p50_us: percentile(50), p99_us: percentile(99), max_us }
    }
}

/// The bucket of a time: the position of its highest bit, and the bits after it.
fn bucket(us: u64) -> usize {
    let us = us.min(LONGEST_US);
    let Some(shift) = us.checked_ilog2().and_then(|highest| highest.checked_sub(SHARES)) else {
        return usize::try_from(us).unwrap_or(0);
    };
    // From 8 to 15: the highest bit and the three after it.
    let share = us >> shift;
    usize::try_from((u64::from(shift) << SHARES).saturating_add(share)).unwrap_or(0)
}

/// The longest time that a bucket takes.
fn highest_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let power = 1_u64 << SHARES;
    if bucket < power {
        return bucket;
    }
    let (shift, share) =
        ((bucket >> SHARES).saturating_sub(1), (bucket & power.saturating_sub(1)).saturating_add(power));
    (share.saturating_add(1) << shift).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mono_us: u64) -> Now {
        Now { mono_us, wall_us: mono_us }
    }

    #[test]
    fn a_bucket_takes_what_is_between_the_one_below_and_its_own_highest() {
        for us in (0..5000).chain([1 << 20, (1 << 30) + 12345, LONGEST_US]) {
            let of_it = bucket(us);
            assert!(of_it < BUCKETS && us <= highest_of(of_it), "{us}");
            assert!(of_it == 0 || us > highest_of(of_it - 1), "{us}");
            assert!(highest_of(of_it) - us <= us / 8, "{us} counts as {}", highest_of(of_it));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of entries")]
    fn percentiles_are_at_most_an_eighth_too_high() {
        let mut waits = WaitTimes::default();
        assert_eq!(waits.summary(at(5)), WaitSummary::default());
        for us in 1..=1000 {
            waits.note(us * 100, at(10));
        }
        let summary = waits.summary(at(20));
        assert!((50_000..=56_250).contains(&summary.p50_us), "{summary:?}");
        assert!((99_000..=100_000).contains(&summary.p99_us), "{summary:?}");
        assert_eq!((summary.max_us, summary.total_us), (100_000, 50_050_000));
    }

    #[test]
    fn what_is_more_than_two_minutes_ago_is_forgotten_but_for_the_total() {
        let mut waits = WaitTimes::default();
        waits.note(7, at(1_000_000));
        assert_eq!(waits.summary(at(1_000_000 + WINDOW_US)).max_us, 7);
        waits.note(3, at(1_000_000 + WINDOW_US + 1));
        let later = waits.summary(at(1_000_000 + 2 * WINDOW_US + 1));
        assert_eq!((later.max_us, later.total_us), (3, 10));
        waits.note(5, at(1_000_000 + 9 * WINDOW_US));
        assert_eq!(waits.summary(at(1_000_000 + 9 * WINDOW_US)).max_us, 5);
    }
}
