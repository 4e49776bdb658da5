//! Whether a history without violations proves anything: a run in which nothing happens breaks no
//! rule either.

use std::time::Duration;

use super::fault::Faults;
use super::processes::FIRST_OWNER;
use crate::history::{Call, History, Operation};
use crate::timeline::{Possible, SLACK_US};

/// How long a process of clients takes to start. In a shorter campaign it may do nothing else.
const BEGINS_IN: Duration = Duration::from_secs(5);

/// How long the rest after a pause must be in a longer campaign to show a request that waits in
/// vain: the slack, and one more second.
const REST_US: u64 = SLACK_US + 1_000_000;

/// The reason why a history of a campaign of this length proves nothing; `None` if it proves
/// something.
pub(super) fn why_it_proves_nothing(faults: Faults, lasts: Duration, history: &History) -> Option<&'static str> {
    let asked = || history.operations.iter().filter(|one| matches!(one.call, Call::Acquire { .. }));
    let is_granted = |one: &Operation| one.token().is_some();
    // A shorter campaign may end during its first fault.
    let is_long = lasts >= BEGINS_IN.max(faults.lasts_at_least());
    let times = || history.operations.iter().map(|one| one.sent_us);
    let (begin_us, end_us) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    let half_us = begin_us.midpoint(end_us);
    let has_processes = faults == Faults::ClientStop && lasts >= BEGINS_IN;
    if !asked().any(is_granted) {
        Some("no request was granted, so the run proves nothing")
    } else if is_long && !asked().any(|one| one.answered_us > half_us && is_granted(one)) {
        Some("no request was granted in the second half, so the run proves nothing about the time after a fault")
    } else if is_long && !has_rest(&history.pauses, half_us, end_us) {
        Some("each pause followed the one before without a rest, so the run proves nothing about waiters after a pause")
    } else if has_processes && !asked().any(|one| one.owner >= FIRST_OWNER && is_granted(one)) {
        Some("no request of a process was granted, so the run proves nothing about stopped processes")
    } else if history.is_undisturbed && asked().all(|one| one.order == 0) {
        Some("every request has an unknown order, so the run proves nothing about the order")
    } else {
        None
    }
}

/// Whether a long enough rest followed one of the pauses. If the first pause is in the second half
/// of the campaign, no rest is needed: enough waits without a pause were checked before.
fn has_rest(pauses: &[Possible], half_us: u64, end_us: u64) -> bool {
    let next_us = pauses.iter().skip(1).map(|next| next.from_us).chain([end_us]);
    pauses.first().is_none_or(|first| first.from_us > half_us)
        || pauses.iter().zip(next_us).any(|(pause, next_us)| pause.until_us + REST_US <= next_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Mode, Outcome};

    fn history(owner: u64, order: u64, outcome: Outcome) -> History {
        let (count, lease_ms, block_ms, request_id) = (1, 1000, None, None);
        let call = Call::Acquire { count, lease_ms, block_ms, request_id, keeps_place: false, is_once: false };
        let one = Operation { key: 0, owner, mode: Mode::Exclusive, sent_us: 1, answered_us: 2, order, call, outcome };
        History { operations: vec![one], is_undisturbed: true, ..History::default() }
    }

    fn is_proof(faults: Faults, history: &History) -> bool {
        why_it_proves_nothing(faults, BEGINS_IN, history).is_none()
    }

    #[test]
    fn history_without_a_grant_proves_nothing() {
        assert!(is_proof(Faults::Clock, &history(1, 1, Outcome::Granted(5))));
        assert!(!is_proof(Faults::Clock, &history(1, 1, Outcome::Refused)));
        assert!(!is_proof(Faults::Clock, &History::default()));
    }

    /// Refuses everything from the middle on.
    #[test]
    fn grant_before_the_first_fault_is_not_enough() {
        let with_last = |last: Outcome| {
            let mut history = history(1, 1, Outcome::Granted(5));
            let mut later = history.operations[0];
            (later.sent_us, later.answered_us, later.outcome) = (10, 11, last);
            history.operations.push(later);
            history
        };
        let lasts = Faults::KillInCluster.lasts_at_least();
        let why = |outcome| why_it_proves_nothing(Faults::KillInCluster, lasts, &with_last(outcome));
        assert_eq!(why(Outcome::Granted(6)), None);
        assert!(why(Outcome::Refused).is_some_and(|why| why.contains("second half")));
    }

    #[test]
    fn pause_needs_a_rest_after_it() {
        let pause = |from_us, until_us| Possible { from_us, until_us };
        assert!(has_rest(&[], 0, 0));
        assert!(has_rest(&[pause(1, 2)], 5, 2 + REST_US));
        assert!(!has_rest(&[pause(1, 2)], 5, 1 + REST_US));
        assert!(has_rest(&[pause(6, 7)], 5, 8));
        let two = |next_us| [pause(1, 2), pause(next_us, 9 + REST_US)];
        assert!(has_rest(&two(2 + REST_US), 5, 9 + REST_US));
        assert!(!has_rest(&two(1 + REST_US), 5, 9 + REST_US));
    }

    #[test]
    fn stopped_processes_must_have_held() {
        assert!(is_proof(Faults::ClientStop, &history(FIRST_OWNER, 1, Outcome::Granted(5))));
        let of_others = history(1, 1, Outcome::Granted(5));
        assert!(!is_proof(Faults::ClientStop, &of_others));
        assert!(why_it_proves_nothing(Faults::ClientStop, Duration::from_secs(1), &of_others).is_none());
    }

    #[test]
    fn undisturbed_history_must_have_an_order() {
        let mut unknown = history(1, 0, Outcome::Granted(5));
        assert!(!is_proof(Faults::Clock, &unknown));
        unknown.is_undisturbed = false;
        assert!(is_proof(Faults::Crashes, &unknown));
    }
}
