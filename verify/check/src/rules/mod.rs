//! The rules. Each is one pass over what [`crate::timeline`] made of a key's calls, sorted by time, so a history of n calls costs
//! O(n log n).

mod exclusion;
mod order;
mod tokens;
mod waiting;

use crate::history::{Call, History, Operation, Outcome, Rule, Violation};
use crate::timeline::{Grant, Possible, SLACK_US, each_key};

/// How many violations of a history are told.
const MAX_TOLD: usize = 1000;

/// What was sent to a replica, and answered by it, was refused: that somebody does not hold, or gets nothing, is no answer of a replica's either. The replicas here take other writes, so that the module has to refuse its own.
fn check_demotions(history: &History, violations: &mut Vec<Violation>) {
    // They are in the order of time.
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
        // What was asked before has its answer soon after, from a master still.
        let is_late = |demotion: &Possible| demotion.from_us + SLACK_US < one.answered_us;
        let goes_on = history.demotions.iter().any(|it| is_late(it) && one.answered_us <= it.until_us);
        if goes_on || last_before(one).is_some_and(|demotion| one.answered_us <= demotion.until_us) {
            let Operation { owner, key, call, outcome, .. } = one;
            let story = format!("{owner} asked a replica {call:?} of {key}, and was answered {outcome:?}");
            violations.push(Violation { rule: Rule::ReplicaDecidesNothing, story });
        }
    }
}

/// Who waits is answered once.
fn check_answers(history: &History, violations: &mut Vec<Violation>) {
    for one in history.operations.iter().filter(|one| one.outcome == Outcome::ToldTwice) {
        let Operation { owner, sent_us, .. } = one;
        let story = format!("{owner} was answered a second time, before {sent_us} us");
        violations.push(Violation { rule: Rule::AnsweredOnce, story });
    }
}

/// Who wants to give up, to renew or to cancel is not refused, nor is who waits already; nor who acquires, if nothing is wrong with the server.
fn check_refusals(history: &History, violations: &mut Vec<Violation>) {
    let is_refused = |one: &&Operation| one.outcome == Outcome::Refused;
    let must_be_taken = |one: &&Operation| match one.call {
        Call::Release { .. } | Call::Keep { .. } | Call::Renew { .. } | Call::Cancel { .. } => true,
        Call::Acquire { .. } if !history.refuses_acquisitions => true,
        Call::Acquire { block_ms: Some(_), .. } => one.answered_us > one.sent_us + SLACK_US,
        Call::Acquire { .. } | Call::Remove | Call::Close { .. } | Call::Look => false,
    };
    for one in history.operations.iter().filter(|_| history.is_always_taken).filter(must_be_taken).filter(is_refused) {
        let Operation { owner, key, call, sent_us, .. } = one;
        let story = format!("{owner} asked {call:?} of {key} at {sent_us} us, and was refused");
        violations.push(Violation { rule: Rule::GivingUpIsTaken, story });
    }
}

/// Checks a history by every rule. Sorts its operations.
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
    violations.truncate(MAX_TOLD);
    violations
}
