//! The answers that every request must get where nothing fails.

use crate::history::{Call, Operation, Outcome, Rule, Violation};

/// Where nothing fails, every request gets an answer, and only its own owner ends it.
pub(super) fn check_answers(of_owner: &[Operation], violations: &mut Vec<Violation>) {
    for (at, one) in of_owner.iter().enumerate() {
        let ends = |(other_at, other): (usize, &Operation)| {
            other_at != at
                && matches!(other.call, Call::Acquire { .. } | Call::Cancel { .. })
                && other.sent_us < one.answered_us
                && one.sent_us < other.answered_us
        };
        let is_wrong = match (one.call, one.outcome) {
            // A close has no answer, and a second answer belongs to no call.
            (Call::Close { .. }, _) | (_, Outcome::AnsweredTwice) => false,
            (_, Outcome::Refused | Outcome::Unknown) => true,
            (Call::Acquire { .. }, Outcome::Unblocked) => !of_owner.iter().enumerate().any(ends),
            (Call::Acquire { .. }, _) => false,
            (_, outcome) => !matches!(outcome, Outcome::Number(_) | Outcome::NotOwner),
        };
        if is_wrong {
            let story = format!("{} sent {:?} for key {} and got {:?}", one.owner, one.call, one.key, one.outcome);
            violations.push(Violation { rule: Rule::ServerLives, story });
        }
    }
}
