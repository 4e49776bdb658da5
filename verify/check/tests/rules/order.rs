//! First come, first served.

use crate::scripted::{ALONE, Scripted, acquire};
use rlock_check::history::{Kind, Mode, Outcome, Rule};

#[test]
fn later_request_granted_first_is_reported() {
    let wait = acquire(1, Some(60_000), None);
    let history = |first, second| {
        Scripted::mutex()
            .granted(1, ALONE, 10, 5)
            .call(2, ALONE, 20, first, wait, Outcome::Granted(first))
            .call(3, ALONE, 21, second, wait, Outcome::Granted(second))
            .released(1, ALONE, 900, 0)
            .released(2, ALONE, first + 10, 0)
            .released(3, ALONE, second + 10, 0)
    };
    assert_eq!(history(1000, 1100).broken(), []);
    assert_eq!(history(1100, 1000).broken(), [Rule::FirstComeFirstServed]);
}

#[test]
fn request_that_gets_nil_was_not_passed() {
    let history = |served_ms| {
        Scripted::mutex()
            .granted(1, ALONE, 10, 5)
            .released(1, ALONE, 20, 0)
            .call(2, ALONE, 15, 516, acquire(1, Some(500), None), Outcome::Nil)
            .granted(3, ALONE, served_ms, 6)
    };
    assert_eq!(history(30).broken(), [Rule::FirstComeFirstServed]);
    assert_eq!(history(516).broken(), []);
    // An owner that already holds permits is given more, or sends the same request again.
    let more = |request_id| {
        Scripted::of(Kind::Semaphore, 4)
            .call(1, Mode::Permits, 10, 11, acquire(1, None, Some(1)), Outcome::Granted(5))
            .call(2, Mode::Permits, 12, 13, acquire(2, None, None), Outcome::Granted(6))
            .call(3, Mode::Permits, 20, 51, acquire(3, Some(30), None), Outcome::Nil)
            .call(1, Mode::Permits, 25, 26, acquire(1, None, Some(request_id)), Outcome::Granted(5))
    };
    assert_eq!(more(2).broken(), [Rule::FirstComeFirstServed]);
    assert_eq!(more(1).broken(), []);
}

/// A request gets no answer, is sent again and refused, and is sent again and granted: it may have
/// kept its first place.
#[test]
fn refusal_does_not_end_an_earlier_place() {
    let wait = acquire(1, Some(60_000), Some(1));
    let history = Scripted::mutex()
        .granted(1, ALONE, 10, 5)
        .call(2, ALONE, 20, 30, wait, Outcome::Unknown)
        .call(3, ALONE, 31, 1_100, wait, Outcome::Granted(7))
        .call(2, ALONE, 32, 33, wait, Outcome::Refused)
        .call(2, ALONE, 34, 1_000, wait, Outcome::Granted(6))
        .released(1, ALONE, 900, 0)
        .released(2, ALONE, 1_050, 0)
        .released(3, ALONE, 1_200, 0);
    assert_eq!(history.broken(), []);
}

/// A request takes over the place of an earlier one, and its own connection is lost before the
/// answer.
#[test]
fn place_taken_over_before_the_connection_was_lost_has_no_known_order() {
    let wait = acquire(1, Some(60_000), Some(1));
    let history = Scripted::mutex()
        .granted(1, ALONE, 10, 5)
        .call(2, ALONE, 20, 30, wait, Outcome::Unknown)
        .call(3, ALONE, 21, 1_100, wait, Outcome::Granted(7))
        .call(2, ALONE, 22, 1_000, wait, Outcome::Granted(6))
        .released(1, ALONE, 900, 0)
        .released(2, ALONE, 1_050, 0)
        .released(3, ALONE, 1_200, 0);
    assert_eq!(history.broken(), []);
}
