//! First come, first served: while a request that will end with nil waits, no later request is
//! served.
//!
//! Tokens are given in the order of the grants. Requests are granted at once or from the head of
//! their key's queue, so on one key the order of the requests is the order of the tokens. The
//! exception is an owner that holds in another mode and therefore passes the queue.

use std::iter;

use crate::history::{Key, Rule, Violation};
use crate::timeline::{Addition, Belief, Grant, Timeline};

/// On one key, requests are granted in the order in which they arrived.
pub(super) fn check_queue(key: &Key, grants: &[Grant], violations: &mut Vec<Violation>) {
    let in_line = |grant: &&Grant| grant.order != 0 && !grant.passes_queue;
    let mut sorted: Vec<&Grant> = grants.iter().filter(in_line).collect();
    sorted.sort_unstable_by_key(|grant| grant.order);
    let mut latest: Option<&Grant> = None;
    for grant in sorted {
        if let Some(earlier) = latest.filter(|earlier| earlier.token > grant.token) {
            let story = format!(
                "{} requested {} before {} and was granted later: requests {} and {}, tokens {} and {}",
                earlier.owner, key.name, grant.owner, earlier.order, grant.order, earlier.token, grant.token
            );
            violations.push(Violation { rule: Rule::FirstComeFirstServed, story });
        } else {
            latest = Some(grant);
        }
    }
}

/// On one key, no later request was granted anything while an earlier one, which ended with nil,
/// waited.
pub(super) fn check_denied(key: &Key, timeline: &Timeline, violations: &mut Vec<Violation>) {
    let in_line = timeline.grants.iter().filter(|grant| !grant.passes_queue);
    let mut given: Vec<(u64, u64)> = in_line.map(|grant| (grant.order, grant.answered_us)).collect();
    given.extend(timeline.additions.iter().map(|addition| (addition.order, addition.answered_us)));
    given.sort_unstable();
    // For each position in the order: when the first request from there on was granted.
    let mut first_us = u64::MAX;
    for (_, answered_us) in given.iter_mut().rev() {
        first_us = first_us.min(*answered_us);
        *answered_us = first_us;
    }
    for denied in timeline.denied.iter().filter(|denied| denied.order != 0) {
        let later = given.partition_point(|(order, _)| *order <= denied.order);
        if let Some((_, given_us)) = given.get(later).filter(|(_, given_us)| *given_us <= denied.until_us) {
            let story = format!(
                "{} waited for {} with request {} until {} us and got nil; a later request was granted at {given_us} us",
                denied.owner, key.name, denied.order, denied.until_us
            );
            violations.push(Violation { rule: Rule::FirstComeFirstServed, story });
        }
    }
}

/// On a semaphore, no owner was given more permits while an earlier request waited and was surely
/// not granted yet, because too many permits were in use. Sweeps over the additions in the order of
/// time: an owner makes one call at a time, so few wait or hold at any moment.
pub(super) fn check_added(key: &Key, timeline: &Timeline, violations: &mut Vec<Violation>) {
    let mut additions: Vec<&Addition> = timeline.additions.iter().filter(|added| added.order != 0).collect();
    additions.sort_unstable_by_key(|added| added.answered_us);
    let mut grants: Vec<&Grant> = timeline.grants.iter().filter(|grant| grant.order != 0).collect();
    grants.sort_unstable_by_key(|grant| grant.sent_us);
    let mut beliefs: Vec<&Belief> = timeline.beliefs.iter().collect();
    beliefs.sort_unstable_by_key(|belief| belief.from_us);
    let (mut grants, mut beliefs) = (grants.into_iter().peekable(), beliefs.into_iter().peekable());
    let (mut waiting, mut held): (Vec<&Grant>, Vec<&Belief>) = (Vec::new(), Vec::new());
    for added in additions {
        let at_us = added.answered_us;
        waiting.extend(iter::from_fn(|| grants.next_if(|grant| grant.sent_us <= at_us)));
        // Its lease may have expired before the client received the grant.
        waiting.retain(|grant| at_us < grant.answered_us.min(grant.sent_us + grant.lease_us));
        held.extend(iter::from_fn(|| beliefs.next_if(|belief| belief.from_us <= at_us)));
        held.retain(|belief| at_us < belief.until_us);
        let used: u32 = held.iter().map(|belief| belief.count).sum();
        let is_passed = |grant: &&&Grant| grant.order < added.order && used + grant.count > key.permits;
        if let Some(passed) = waiting.iter().find(is_passed) {
            let story = format!(
                "{} waited for {}, and the later request {} was given more permits first",
                passed.owner, key.name, added.order
            );
            violations.push(Violation { rule: Rule::FirstComeFirstServed, story });
        }
    }
}
