//! Nobody waits for a lock that is free.

use crate::history::{Key, Rule, Violation};
use crate::timeline::{Possible, SLACK_US, Timeline, Wait};

/// Sweeps over the spans in which nobody can hold, and the requests that waited, both in the order of time.
pub(super) fn check(key: &Key, timeline: &Timeline, violations: &mut Vec<Violation>) {
    let gaps = gaps(&timeline.possible);
    let mut waits: Vec<&Wait> = timeline.waits.iter().collect();
    waits.sort_unstable_by_key(|wait| wait.sent_us);
    let mut first = 0;
    for wait in waits {
        // What ended before this wait ended before all that follow.
        while gaps.get(first).is_some_and(|gap| gap.until_us <= wait.sent_us) {
            first += 1;
        }
        let around = gaps.get(first..).unwrap_or_default().iter();
        for gap in around.take_while(|gap| gap.from_us < wait.answered_us) {
            let from_us = gap.from_us.max(wait.sent_us);
            let lasted_us = gap.until_us.min(wait.answered_us).saturating_sub(from_us);
            if lasted_us > SLACK_US {
                let Wait { owner, .. } = wait;
                let story =
                    format!("{owner} waited for {} for {lasted_us} us from {from_us} on, which was free", key.name);
                violations.push(Violation { rule: Rule::NoLostWakeUp, story });
            }
        }
    }
}

/// The spans longer than the slack in which nobody can have held.
fn gaps(possible: &[Possible]) -> Vec<Possible> {
    let mut sorted = possible.to_vec();
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
