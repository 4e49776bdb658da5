//! Counters and wait times for INFO.
//!
//! Counters rise from the start of the server. Wait times cover the last one to two minutes, in two
//! windows of a minute; when the newer one ends, the older one is dropped. A few hundred buckets
//! count the times; the longest time in a bucket is at most an eighth above the shortest. So
//! recording a time takes constant time and memory, and a percentile is at most an eighth too high.

use alloc::boxed::Box;

use crate::kind::{Kind, PerKind};
use crate::request::Refusal;
use crate::time::Now;

/// The counters of one kind since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindStats {
    /// Requests granted without waiting, re-entries included.
    pub granted_at_once: u64,
    /// Requests granted after waiting.
    pub granted_after_waiting: u64,
    /// New holds granted to a waiter in the same step that ended another hold.
    pub handed_over: u64,
    /// Non-waiting requests answered nil.
    pub denied: u64,
    /// Requests and waiters answered with an error, except deadlocks.
    pub refused: u64,
    /// Requests and waiters that would have waited for themselves.
    pub deadlocks: u64,
    /// Waiters that timed out and got nil.
    pub timed_out: u64,
    /// Waiters whose connection closed or was unblocked, whose server was demoted, or whose shard
    /// channel lost its listeners.
    pub disconnected: u64,
    /// Grants undone because the answer could not reach the waiter.
    pub undone: u64,
    /// Expired holds.
    pub expired: u64,
    /// Expired holds that were still unclaimed: see [`crate::Phase`].
    pub unclaimed: u64,
    /// Holds ended by FORCERELEASE.
    pub forced: u64,
}

impl KindStats {
    /// Every counter, by name.
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

/// Increments a counter.
pub(crate) fn count(counter: &mut u64) {
    *counter = counter.saturating_add(1);
}

/// See the module documentation.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Statistics {
    kinds: PerKind<KindStats>,
    waits: WaitTimes,
    /// Grants undone because no client was subscribed to the channel of their answer.
    unheard: u64,
}

impl Statistics {
    pub(crate) fn of(&mut self, kind: Kind) -> &mut KindStats {
        self.kinds.of_mut(kind)
    }

    /// Counts a grant whose channel had no subscriber.
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

    /// Counts an error answer to a request or a waiter.
    pub(crate) fn count_refusal(&mut self, kind: Kind, refusal: &Refusal) {
        let stats = self.of(kind);
        count(if matches!(refusal, Refusal::Deadlock(_)) { &mut stats.deadlocks } else { &mut stats.refused });
    }

    /// Counts a grant after a wait.
    pub(crate) fn count_wait(&mut self, kind: Kind, since_us: u64, now: Now) {
        count(&mut self.of(kind).granted_after_waiting);
        self.waits.record(now.mono_us.saturating_sub(since_us), now);
    }
}

/// How long waits took that ended with a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitSummary {
    /// The sum of all waits since the start.
    pub total_us: u64,
    /// The median of the last one to two minutes.
    pub p50_us: u64,
    /// The 99th percentile of the last one to two minutes.
    pub p99_us: u64,
    /// The longest wait of the last one to two minutes.
    pub max_us: u64,
}

const WINDOW_US: u64 = 60_000_000;

/// Each power of two has `2^BUCKET_BITS` buckets.
const BUCKET_BITS: u32 = 3;
/// The longest time recorded, more than a year; longer waits count as this.
const LONGEST_US: u64 = (1 << 45) - 1;
const BUCKETS: usize = 344;

#[cfg_attr(test, derive(Clone))]
struct Window {
    counts: [u32; BUCKETS],
    max_us: u64,
}

const EMPTY: Window = Window { counts: [0; BUCKETS], max_us: 0 };

/// The buckets of two minutes.
#[cfg_attr(test, derive(Clone))]
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
    fn record(&mut self, waited_us: u64, now: Now) {
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

/// The bucket of a time: the position of its highest bit, and the `BUCKET_BITS` bits after it.
fn bucket(us: u64) -> usize {
    let us = us.min(LONGEST_US);
    let Some(shift) = us.checked_ilog2().and_then(|highest| highest.checked_sub(BUCKET_BITS)) else {
        return usize::try_from(us).unwrap_or(0);
    };
    // From 8 to 15: the highest bit and the three after it.
    let share = us >> shift;
    usize::try_from((u64::from(shift) << BUCKET_BITS).saturating_add(share)).unwrap_or(0)
}

/// The longest time of a bucket.
fn highest_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let power = 1_u64 << BUCKET_BITS;
    if bucket < power {
        return bucket;
    }
    let (shift, share) =
        ((bucket >> BUCKET_BITS).saturating_sub(1), (bucket & power.saturating_sub(1)).saturating_add(power));
    (share.saturating_add(1) << shift).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mono_us: u64) -> Now {
        Now { mono_us, wall_us: mono_us }
    }

    #[test]
    fn bucket_contains_times_above_the_one_below_up_to_its_highest() {
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
            waits.record(us * 100, at(10));
        }
        let summary = waits.summary(at(20));
        assert!((50_000..=56_250).contains(&summary.p50_us), "{summary:?}");
        assert!((99_000..=100_000).contains(&summary.p99_us), "{summary:?}");
        assert_eq!((summary.max_us, summary.total_us), (100_000, 50_050_000));
    }

    #[test]
    fn waits_older_than_two_minutes_count_only_in_the_total() {
        let mut waits = WaitTimes::default();
        waits.record(7, at(1_000_000));
        assert_eq!(waits.summary(at(1_000_000 + WINDOW_US)).max_us, 7);
        waits.record(3, at(1_000_000 + WINDOW_US + 1));
        let later = waits.summary(at(1_000_000 + 2 * WINDOW_US + 1));
        assert_eq!((later.max_us, later.total_us), (3, 10));
        waits.record(5, at(1_000_000 + 9 * WINDOW_US));
        assert_eq!(waits.summary(at(1_000_000 + 9 * WINDOW_US)).max_us, 5);
    }
}
