//! Whether a history in which no rule is broken proves anything: a run in which nothing happens breaks no rule either.

use std::time::Duration;

use super::fault::Faults;
use super::processes::FIRST_OWNER;
use crate::history::{Call, History, Operation};

/// What a process of clients needs to begin: in a shorter campaign it may do nothing else.
const BEGINS_IN: Duration = Duration::from_secs(5);

/// Why a history of a campaign of this length proves nothing, if it does not.
pub(super) fn why_nothing_is_proved(faults: Faults, lasts: Duration, history: &History) -> Option<&'static str> {
    let asked = || history.operations.iter().filter(|one| matches!(one.call, Call::Acquire { .. }));
    let is_granted = |one: &Operation| one.token().is_some();
    let has_processes = faults == Faults::ClientStop && lasts >= BEGINS_IN;
    if !asked().any(is_granted) {
        Some("nobody was granted anything, so nothing is proved")
    } else if has_processes && !asked().any(|one| one.owner >= FIRST_OWNER && is_granted(one)) {
        Some("no process was granted anything, so nothing is proved of those that stand still")
    } else if history.is_undisturbed && asked().all(|one| one.order == 0) {
        Some("of no request it is known when the server took it, so nothing is proved of their order")
    } else {
        None
    }
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
        why_nothing_is_proved(faults, BEGINS_IN, history).is_none()
    }

    #[test]
    fn without_a_grant_nothing_is_proved() {
        assert!(is_proof(Faults::Clock, &history(1, 1, Outcome::Granted(5))));
        assert!(!is_proof(Faults::Clock, &history(1, 1, Outcome::Refused)));
        assert!(!is_proof(Faults::Clock, &History::default()));
    }

    #[test]
    fn where_processes_stand_still_they_have_held() {
        assert!(is_proof(Faults::ClientStop, &history(FIRST_OWNER, 1, Outcome::Granted(5))));
        let of_others = history(1, 1, Outcome::Granted(5));
        assert!(!is_proof(Faults::ClientStop, &of_others));
        assert!(why_nothing_is_proved(Faults::ClientStop, Duration::from_secs(1), &of_others).is_none());
    }

    #[test]
    fn where_nothing_fails_the_order_is_known() {
        let mut unknown = history(1, 0, Outcome::Granted(5));
        assert!(!is_proof(Faults::Clock, &unknown));
        unknown.is_undisturbed = false;
        assert!(is_proof(Faults::Crashes, &unknown));
    }
}
