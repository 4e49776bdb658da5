//! Each rule fails for a correct history with one thing changed. The tests in `servers.rs` cover
//! the rules that check no history.

mod exclusion;
mod holds;
mod kept;
mod order;
mod refusals;
mod scripted;
mod tokens;
mod waiting;

use rlock_check::history::{Outcome, Rule};
use rlock_check::invented;
use rlock_check::rules::check;

#[test]
fn each_rule_fails_in_some_test() {
    let tests = [
        include_str!("exclusion.rs"),
        include_str!("tokens.rs"),
        include_str!("order.rs"),
        include_str!("holds.rs"),
        include_str!("waiting.rs"),
        include_str!("refusals.rs"),
        include_str!("../forgiven.rs"),
        include_str!("../servers.rs"),
    ]
    .concat();
    for rule in Rule::ALL {
        assert!(
            tests.contains(&format!("[Rule::{rule:?}")) || tests.contains(&format!(", Rule::{rule:?}]")),
            "{rule:?}"
        );
    }
}

#[test]
fn correct_history_breaks_no_rule() {
    let mut history = invented::history(30_000, 1);
    assert_eq!(check(&mut history), []);
}

/// A change to a correct history is noticed: each grant is moved before the release that precedes
/// it.
#[test]
fn grant_that_comes_too_early_is_noticed() {
    for seed in 0..20 {
        let mut history = invented::history(3_000, seed);
        let grants = history.operations.iter_mut().filter(|one| matches!(one.outcome, Outcome::Granted(_)));
        let early = grants.skip(500).step_by(100).next().expect("a grant");
        (early.sent_us, early.answered_us) = (early.sent_us - 300, early.answered_us - 300);
        assert!(!check(&mut history).is_empty(), "seed {seed}");
    }
}
