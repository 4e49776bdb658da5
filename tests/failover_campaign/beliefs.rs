//! The beliefs of the workers, on the clock of the machine, which all workers share.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, process};

/// A time in which a worker believed that it held a lock.
#[derive(Clone, Copy, Debug)]
pub struct Belief {
    pub key: usize,
    pub worker: usize,
    pub token: i64,
    /// When the worker sent the request that gave it the belief, or began to wait.
    pub sent: Instant,
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

/// Returns the longest time from one grant to the next that ended within a time.
pub fn longest_gap(beliefs: &[Belief], from: Instant, until: Instant) -> Duration {
    let mut grants: Vec<Instant> = beliefs.iter().map(|belief| belief.from).collect();
    grants.sort();
    let is_within = |pair: &&[Instant]| pair[1] > from && pair[1] <= until;
    grants.windows(2).filter(is_within).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

/// Returns the number of holds that began before `at` and were believed for longer than the longest
/// lease after it, so their workers have renewed them since.
pub fn kept(beliefs: &[Belief], at: Instant, lease: Duration) -> usize {
    beliefs.iter().filter(|belief| belief.from < at && belief.until > at + lease).count()
}

/// Writes beliefs and the number of their overlaps for `verify/porcupine`, if the environment names
/// a folder.
pub fn publish(name: &str, beliefs: &[Belief], began: Instant, overlaps: usize) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let Some(folder) = env::var_os("RLOCK_HISTORIES").map(PathBuf::from) else { return };
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("campaign-{name}-{}-{number}.jsonl", process::id()));
    write(&path, beliefs, began, overlaps);
}

fn write(path: &Path, beliefs: &[Belief], began: Instant, overlaps: usize) {
    let mut text = format!("{{\"overlaps\":{overlaps}}}\n");
    for Belief { key, worker, sent, from, until, .. } in beliefs {
        let [sent, from, until] = [sent, from, until].map(|at| at.duration_since(began).as_nanos());
        let _ = writeln!(
            text,
            "{{\"key\":\"{key}\",\"owner\":\"{worker}\",\"sent\":{sent},\"from\":{from},\"until\":{until}}}"
        );
    }
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    folder.and_then(|()| fs::write(path, text)).expect("a writable folder for the histories");
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

#[cfg(test)]
mod tests {
    use super::*;

    fn belief(began: Instant, key: usize, worker: usize, from: u64, until: u64) -> Belief {
        let at = |ms| began + Duration::from_millis(ms);
        Belief { key, worker, token: 1, sent: began, from: at(from), until: at(until) }
    }

    #[test]
    fn overlap_of_two_workers_on_one_key_is_found() {
        let began = Instant::now();
        let belief = |key, worker, from, until| belief(began, key, worker, from, until);
        let apart = [belief(1, 1, 0, 10), belief(1, 2, 10, 20), belief(2, 3, 0, 20), belief(1, 2, 15, 25)];
        assert!(overlaps(&apart, began).is_empty());
        let meeting = [&apart[..], &[belief(1, 3, 5, 6), belief(1, 4, 24, 30)]].concat();
        assert_eq!(overlaps(&meeting, began).len(), 2);
        let gap = |from, until| {
            longest_gap(&apart, began + Duration::from_millis(from), began + Duration::from_millis(until))
        };
        assert_eq!(gap(0, 30), Duration::from_millis(10));
        assert_eq!(gap(10, 30), Duration::from_millis(5));
    }

    #[test]
    fn history_has_a_line_for_each_belief() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, began) = (folder.path().join("new/history"), Instant::now());
        write(&path, &[belief(began, 3, 7, 1, 2)], began, 4);
        let text = fs::read_to_string(path).expect("a history");
        let line = r#"{"key":"3","owner":"7","sent":0,"from":1000000,"until":2000000}"#;
        assert_eq!(text, format!("{{\"overlaps\":4}}\n{line}\n"));
    }
}
