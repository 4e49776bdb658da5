//! The beliefs of the workers, on the clock of the machine, which all workers share.

use std::fmt;
use std::time::{Duration, Instant};

use super::workers::LONG_LEASE;

/// A time in which a worker believed that it held a lock.
#[derive(Clone, Copy, Debug)]
pub struct Belief {
    pub key: usize,
    pub worker: usize,
    pub token: i64,
    pub from: Instant,
    pub until: Instant,
}

/// Two workers that believed at the same time to hold one lock.
pub struct Overlap {
    earlier: Belief,
    later: Belief,
    began: Instant,
}

/// Returns each pair of workers that believed at the same time to hold one lock. A report counts
/// its times from `began`.
pub fn overlaps(beliefs: &[Belief], began: Instant) -> Vec<Overlap> {
    let mut sorted = beliefs.to_vec();
    sorted.sort_by_key(|belief| (belief.key, belief.from));
    let mut overlaps = Vec::new();
    for (index, earlier) in sorted.iter().enumerate() {
        let meets = |later: &&Belief| later.key == earlier.key && later.from < earlier.until;
        let others = sorted[index + 1..].iter().take_while(meets).filter(|later| later.worker != earlier.worker);
        overlaps.extend(others.map(|later| Overlap { earlier: *earlier, later: *later, began }));
    }
    overlaps
}

/// Returns the longest time from one grant to the next.
pub fn longest_gap(beliefs: &[Belief]) -> Duration {
    let mut grants: Vec<Instant> = beliefs.iter().map(|belief| belief.from).collect();
    grants.sort();
    grants.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

/// Returns the number of holds that began before `at` and were believed for longer than the longest
/// lease after it, so their workers have renewed them since.
pub fn kept(beliefs: &[Belief], at: Instant) -> usize {
    beliefs.iter().filter(|belief| belief.from < at && belief.until > at + LONG_LEASE).count()
}

impl fmt::Display for Overlap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "key {}:", self.earlier.key)?;
        for Belief { worker, token, from, until, .. } in [self.earlier, self.later] {
            let [from, until] = [from, until].map(|at| at.duration_since(self.began).as_secs_f64());
            write!(out, " worker {worker} from {from:.3} s to {until:.3} s with token {token};")?;
        }
        Ok(())
    }
}

#[test]
fn overlap_of_two_workers_on_one_key_is_found() {
    let began = Instant::now();
    let at = |ms| began + Duration::from_millis(ms);
    let belief = |key, worker, from, until| Belief { key, worker, token: 1, from: at(from), until: at(until) };
    let apart = [belief(1, 1, 0, 10), belief(1, 2, 10, 20), belief(2, 3, 0, 20), belief(1, 2, 15, 25)];
    assert!(overlaps(&apart, began).is_empty());
    let meeting = [&apart[..], &[belief(1, 3, 5, 6), belief(1, 4, 24, 30)]].concat();
    assert_eq!(overlaps(&meeting, began).len(), 2);
    assert_eq!(longest_gap(&apart), Duration::from_millis(10));
}
