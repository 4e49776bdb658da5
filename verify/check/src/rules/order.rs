//! The first who came is the first who is served. Nobody who came later is served while somebody waits who is answered nil in
//! the end.
//!
//! Tokens are given in the order of the grants. Requests are granted at once or from the head of their key's queue, so on one
//! key the order of the requests and that of the tokens are the same; but for whoever passes the queue because it holds in
//! another mode.

use std::iter;

use crate::history::{Key, Rule, Violation};
use crate::timeline::{Addition, Belief, Grant, Timeline};

/// Of one key: the order in which requests came is that in which they were granted.
pub(super) fn check_queue(key: &Key, grants: &[Grant], violations: &mut Vec<Violation>) {
    let in_line = |grant: &&Grant| grant.order != 0 && !grant.passes_queue;
    let mut sorted: Vec<&Grant> = grants.iter().filter(in_line).collect();
    sorted.sort_unstable_by_key(|grant| grant.order);
    let mut latest: Option<&Grant> = None;
    for grant in sorted {
        if let Some(earlier) = latest.filter(|earlier| earlier.token > grant.token) {
            let story = format!(
                "{} asked for {} before {} and was granted after it: requests {} and {}, tokens {} and {}",
                earlier.owner, key.name, grant.owner, earlier.order, grant.order, earlier.token, grant.token
            );
            violations.push(Violation { rule: Rule::FirstComeFirstServed, story });
        } else {
            latest = Some(grant);
        }
    }
}

/// Of one key: nobody who came later was given anything while somebody waited who was answered nil in the end.
pub(super) fn check_denied(key: &Key, timeline: &Timeline, violations: &mut Vec<Violation>) {
    let in_line = timeline.grants.iter().filter(|grant| !grant.passes_queue);
    let mut given: Vec<(u64, u64)> = in_line.map(|grant| (grant.order, grant.answered_us)).collect();
    given.extend(timeline.additions.iter().map(|addition| (addition.order, addition.answered_us)));
    given.sort_unstable();
    // From each place in the order on: when the first was given something.
    let mut first_us = u64::MAX;
    for (_, answered_us) in given.iter_mut().rev() {
        first_us = first_us.min(*answered_us);
        *answered_us = first_us;
    }
    for denied in timeline.denied.iter().filter(|denied| denied.order != 0) {
        let later = given.partition_point(|(order, _)| *order <= denied.order);
        if let Some((_, given_us)) = given.get(later).filter(|(_, given_us)| *given_us <= denied.until_us) {
            let story = format!(
                "{} waited for {} from request {} on until {} us and was answered nil; who came later was served at {given_us} us",
                denied.owner, key.name, denied.order, denied.until_us
            );
            violations.push(Violation { rule: Rule::FirstComeFirstServed, story });
        }
    }
}

/// Of a semaphore: nobody was given more while somebody waited who came before, and surely was not granted yet, because too much was in use. Sweeps over
/// what was added in the order of time: an owner makes one call at a time, so few wait or hold at any moment.
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
        // Its lease may have been over before it knew of it.
        waiting.retain(|grant| at_us < grant.answered_us.min(grant.sent_us + grant.lease_us));
        held.extend(iter::from_fn(|| beliefs.next_if(|belief| belief.from_us <= at_us)));
        held.retain(|belief| at_us < belief.until_us);
        let used: u32 = held.iter().map(|belief| belief.count).sum();
        let is_passed = |grant: &&&Grant| grant.order < added.order && used + grant.count > key.permits;
        if let Some(passed) = waiting.iter().find(is_passed) {
            let story =
                format!("{} waited for {}, and request {} was given more before", passed.owner, key.name, added.order);
            violations.push(Violation { rule: Rule::FirstComeFirstServed, story });
        }
    }
}
