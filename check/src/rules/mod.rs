//! The rules. Each is one pass over what [`crate::timeline`] made of a key's calls, sorted by time, so a history of n calls costs
//! O(n log n).

mod exclusion;
mod order;
mod waiting;

use crate::history::{Call, History, Outcome, Rule, Violation};
use crate::timeline::{Grant, Possible, each_key};

/// How many violations of a history are told.
const MAX_TOLD: usize = 1000;

/// What was sent to a replica, and answered by it, was refused.
fn check_demotions(history: &History, violations: &mut Vec<Violation>) {
    for Possible { from_us, until_us } in &history.demotions {
        let within = history.operations.iter().filter(|one| *from_us <= one.sent_us && one.answered_us <= *until_us);
        for one in within.filter(|one| one.call != Call::Look) {
            if let Outcome::Granted(_) | Outcome::Number(_) = one.outcome {
                let story = format!(
                    "{} asked a replica {:?} of {}, and was answered {:?}",
                    one.owner, one.call, one.key, one.outcome
                );
                violations.push(Violation { rule: Rule::ReplicaDecidesNothing, story });
            }
        }
    }
}

/// Checks a history by every rule. Sorts its operations.
#[must_use]
pub fn check(history: &mut History) -> Vec<Violation> {
    let keys = std::mem::take(&mut history.keys);
    let pauses = history.pauses.clone();
    let is_of_several_servers = history.is_of_several_servers;
    let mut grants: Vec<(u32, Grant)> = Vec::new();
    let mut violations = each_key(history, |timeline, violations| {
        if let Some(key) = keys.get(timeline.key as usize) {
            exclusion::check(key, &timeline.beliefs, violations);
            order::check_queue(key, &timeline.grants, violations);
            order::check_denied(key, timeline, violations);
            waiting::check(key, timeline, &pauses, violations);
            waiting::check_cancels(key, timeline, violations);
        }
        grants.extend(timeline.grants.iter().map(|grant| (timeline.key, *grant)));
        if is_of_several_servers {
            order::check_tokens(&mut grants, violations);
            grants.clear();
        }
    });
    order::check_tokens(&mut grants, &mut violations);
    check_demotions(history, &mut violations);
    history.keys = keys;
    violations.truncate(MAX_TOLD);
    violations
}
