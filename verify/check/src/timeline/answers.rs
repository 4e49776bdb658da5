//! What every request is answered where nothing fails.

use crate::history::{Call, Operation, Outcome, Rule, Violation};

/// Where nothing fails, a request is answered, and ended by its own owner only.
pub(super) fn check_answers(of_owner: &[Operation], violations: &mut Vec<Violation>) {
    for (at, one) in of_owner.iter().enumerate() {
        let ends = |(other_at, other): (usize, &Operation)| {
            other_at != at
                && matches!(other.call, Call::Acquire { .. } | Call::Cancel { .. })
                && other.sent_us < one.answered_us
                && one.sent_us < other.answered_us
        };
        let is_wrong = match (one.call, one.outcome) {
            // It has no answer; or it is none.
            (Call::Close { .. }, _) | (_, Outcome::ToldTwice) => false,
            (_, Outcome::Refused | Outcome::Unknown) => true,
            (Call::Acquire { .. }, Outcome::Unblocked) => !of_owner.iter().enumerate().any(ends),
            (Call::Acquire { .. }, _) => false,
            (_, outcome) => !matches!(outcome, Outcome::Number(_) | Outcome::NotOwner),
        };
        if is_wrong {
            let story =
                format!("{} asked {:?} of {}, and was answered {:?}", one.owner, one.call, one.key, one.outcome);
            violations.push(Violation { rule: Rule::ServerLives, story });
        }
    }
}
