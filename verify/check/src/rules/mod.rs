//! The rules. Each is one pass over the spans that [`crate::timeline`] derives from a key's calls,
//! sorted by time, so a history of n calls costs O(n log n).

mod exclusion;
mod order;
mod tokens;
mod waiting;

use crate::history::{Call, History, Operation, Outcome, Rule, Violation};
use crate::timeline::{Grant, Possible, SLACK_US, each_key};

/// How many violations of a history are reported.
const MAX_REPORTED: usize = 1000;

/// A replica refuses every request: NOTOWNER and nil count as decisions too. The replicas here
/// accept other writes, so the module itself has to refuse.
fn check_demotions(history: &History, violations: &mut Vec<Violation>) {
    // Demotions are in the order of time.
    let last_before = |one: &Operation| {
        let begun = history.demotions.partition_point(|demotion| demotion.from_us <= one.sent_us);
        history.demotions.get(begun.checked_sub(1)?)
    };
    let is_answered = |one: &&Operation| {
        matches!(
            one.outcome,
            Outcome::Granted(_) | Outcome::Nil | Outcome::Number(_) | Outcome::NotOwner | Outcome::Unblocked
        )
    };
    let is_of_the_module = |one: &&Operation| !matches!(one.call, Call::Look | Call::Remove);
    for one in history.operations.iter().filter(is_answered).filter(is_of_the_module) {
        // The answer to an earlier request arrives soon after the demotion, still from a master.
        let is_late = |demotion: &Possible| demotion.from_us + SLACK_US < one.answered_us;
        let goes_on = history.demotions.iter().any(|it| is_late(it) && one.answered_us <= it.until_us);
        if goes_on || last_before(one).is_some_and(|demotion| one.answered_us <= demotion.until_us) {
            let Operation { owner, key, call, outcome, .. } = one;
            let story = format!("{owner} sent {call:?} for key {key} to a replica, which answered {outcome:?}");
            violations.push(Violation { rule: Rule::ReplicaDecidesNothing, story });
        }
    }
}

/// Each waiting request gets exactly one answer.
fn check_answers(history: &History, violations: &mut Vec<Violation>) {
    for one in history.operations.iter().filter(|one| one.outcome == Outcome::AnsweredTwice) {
        let Operation { owner, sent_us, .. } = one;
        let story = format!("{owner} got a second answer, before {sent_us} us");
        violations.push(Violation { rule: Rule::AnsweredOnce, story });
    }
}

/// A release, renewal or cancellation is not refused, nor a request that is already waiting, nor an
/// acquisition if nothing is wrong with the server.
fn check_refusals(history: &History, violations: &mut Vec<Violation>) {
    let is_refused = |one: &&Operation| one.outcome == Outcome::Refused;
    let must_be_taken = |one: &&Operation| match one.call {
        Call::Release { .. } | Call::Keep { .. } | Call::Renew { .. } | Call::Cancel { .. } => true,
        Call::Acquire { .. } if !history.refuses_acquisitions => true,
        Call::Acquire { block_ms: Some(_), .. } => one.answered_us > one.sent_us + SLACK_US,
        Call::Acquire { .. } | Call::Remove | Call::Close { .. } | Call::Look => false,
    };
    for one in history.operations.iter().filter(|_| history.accepts_releases).filter(must_be_taken).filter(is_refused) {
        let Operation { owner, key, call, sent_us, .. } = one;
        let story = format!("{owner} was refused {call:?} for key {key}, sent at {sent_us} us");
        violations.push(Violation { rule: Rule::GivingUpIsTaken, story });
    }
}

/// Checks a history against every rule. Sorts its operations.
#[must_use]
pub fn check(history: &mut History) -> Vec<Violation> {
    let keys = history.keys.clone();
    let (pauses, takeovers) = (history.pauses.clone(), history.takeovers.clone());
    let is_of_several_servers = history.is_of_several_servers;
    let mut grants: Vec<(u32, Grant)> = std::mem::take(&mut history.grants_of_forgotten);
    let mut violations = each_key(history, |timeline, violations| {
        if let Some(key) = keys.get(timeline.key as usize) {
            exclusion::check(key, &timeline.beliefs, violations);
            order::check_queue(key, &timeline.grants, violations);
            order::check_added(key, timeline, violations);
            order::check_denied(key, timeline, violations);
            waiting::check(key, timeline, &pauses, violations);
            waiting::check_missed(key, timeline, &pauses, violations);
            waiting::check_cancels(key, timeline, violations);
            grants.extend(tokens::grants(key, timeline).map(|grant| (timeline.key, grant)));
        }
        if is_of_several_servers {
            tokens::check(&mut grants, &takeovers, violations);
            grants.clear();
        }
    });
    tokens::check(&mut grants, &takeovers, &mut violations);
    check_answers(history, &mut violations);
    check_demotions(history, &mut violations);
    check_refusals(history, &mut violations);
    violations.truncate(MAX_REPORTED);
    violations
}
