//! No request waits for a free lock, and CANCEL finds waiting requests.

use crate::history::{Key, Kind, Rule, Violation};
use crate::timeline::{Belief, Possible, SLACK_US, Timeline, Wait};

/// Sweeps over the spans in which the lock was surely free, and the requests that waited, both in
/// the order of time. A pause counts as held, because nothing is granted in it.
pub(super) fn check(key: &Key, timeline: &Timeline, pauses: &[Possible], violations: &mut Vec<Violation>) {
    let gaps = gaps([timeline.possible.as_slice(), pauses].concat());
    let mut waits: Vec<&Wait> = timeline.waits.iter().collect();
    waits.sort_unstable_by_key(|wait| wait.sent_us);
    let mut first = 0;
    for wait in waits {
        // A gap that ended before this wait ended before all later waits too.
        while gaps.get(first).is_some_and(|gap| gap.until_us <= wait.sent_us) {
            first += 1;
        }
        let around = gaps.get(first..).unwrap_or_default().iter();
        for gap in around.take_while(|gap| gap.from_us < wait.answered_us) {
            let from_us = gap.from_us.max(wait.sent_us);
            let lasted_us = gap.until_us.min(wait.answered_us).saturating_sub(from_us);
            if lasted_us > SLACK_US {
                let Wait { owner, .. } = wait;
                let story = format!(
                    "{owner} waited for {}, which was free for {lasted_us} us of the wait, from {from_us} us on",
                    key.name
                );
                violations.push(Violation { rule: Rule::NoLostWakeUp, story });
            }
        }
    }
}

/// A request that does not wait gets nil only if another owner may have a part of the lock,
/// or the server grants nothing.
pub(super) fn check_missed(key: &Key, timeline: &Timeline, pauses: &[Possible], violations: &mut Vec<Violation>) {
    let mut taken = timeline.taken.clone();
    taken.extend(pauses.iter().map(|pause| Possible { until_us: pause.until_us + SLACK_US, ..*pause }));
    taken.sort_unstable_by_key(|span| span.from_us);
    let latest_ends: Vec<u64> = taken
        .iter()
        .scan(0, |latest_us, span| {
            *latest_us = span.until_us.max(*latest_us);
            Some(*latest_us)
        })
        .collect();
    for one in timeline.missed.iter().filter(|one| one.count <= key.permits || key.kind != Kind::Semaphore) {
        let begun = taken.partition_point(|span| span.from_us <= one.answered_us);
        let latest_us = begun.checked_sub(1).and_then(|at| latest_ends.get(at)).copied();
        if latest_us.is_none_or(|latest_us| latest_us < one.sent_us) {
            let story =
                format!("{} requested {} at {} us and got nil although it was free", one.owner, key.name, one.sent_us);
            violations.push(Violation { rule: Rule::FreeIsGranted, story });
        }
    }
}

/// If a request waits while another owner holds the lock, from before it was sent until CANCEL was
/// answered, CANCEL must find it.
pub(super) fn check_cancels(key: &Key, timeline: &Timeline, violations: &mut Vec<Violation>) {
    if timeline.overlooked.is_empty() || !matches!(key.kind, Kind::Mutex | Kind::Fair) {
        return;
    }
    let mut beliefs: Vec<&Belief> = timeline.beliefs.iter().collect();
    beliefs.sort_unstable_by_key(|belief| belief.from_us);
    for one in &timeline.overlooked {
        let begun = beliefs.partition_point(|belief| belief.from_us <= one.sent_us);
        let latest = begun.checked_sub(1).and_then(|at| beliefs.get(at));
        if latest.is_some_and(|belief| belief.owner != one.owner && belief.until_us >= one.until_us) {
            let story =
                format!("{} waited for {}, and CANCEL found nothing at {} us", one.owner, key.name, one.until_us);
            violations.push(Violation { rule: Rule::CancelEndsWaits, story });
        }
    }
}

/// The spans longer than the slack in which the lock was surely free.
fn gaps(mut sorted: Vec<Possible>) -> Vec<Possible> {
    sorted.sort_unstable_by_key(|span| span.from_us);
    let mut gaps = Vec::new();
    let mut free_from_us = 0;
    for span in sorted {
        if span.from_us > free_from_us + SLACK_US {
            gaps.push(Possible { from_us: free_from_us, until_us: span.from_us });
        }
        free_from_us = free_from_us.max(span.until_us);
    }
    gaps.push(Possible { from_us: free_from_us, until_us: u64::MAX });
    gaps
}
