//! A lock that was released with KEEP admits no owner until its time is over or its former owner
//! frees it with its token.

use crate::scripted::{ALONE, Scripted, acquire};
use rlock_check::history::{Call, Outcome, Rule};

const RENEW: Call = Call::Renew { lease_ms: 1_000, token: None };

/// Owner 1 ends its hold at 100 ms, and keeps the lock closed for 1 s.
fn kept() -> Scripted {
    Scripted::mutex().granted(1, ALONE, 10, 5).call(
        1,
        ALONE,
        100,
        101,
        Call::Keep { keep_ms: 1_000 },
        Outcome::Number(1),
    )
}

#[test]
fn kept_lock_admits_no_owner_before_its_time_is_over() {
    for owner in [1, 2] {
        assert_eq!(kept().granted(owner, ALONE, 1_090, 6).broken(), [Rule::Exclusion], "{owner}");
        assert_eq!(kept().granted(owner, ALONE, 1_102, 6).broken(), [], "{owner}");
    }
}

#[test]
fn kept_lock_opens_when_its_time_is_over() {
    let history =
        |outcome, answered_ms| kept().call(2, ALONE, 200, answered_ms, acquire(1, Some(8_000), None), outcome);
    assert_eq!(history(Outcome::Granted(6), 3_000).broken(), []);
    assert_eq!(history(Outcome::Granted(6), 3_200).broken(), [Rule::NoLostWakeUp]);
    let attempt = |at_ms: u64| kept().call(2, ALONE, at_ms, at_ms + 1, acquire(1, None, None), Outcome::Nil);
    let broken = |mut history: Scripted| {
        history.0.is_undisturbed = true;
        history.broken()
    };
    assert_eq!(broken(attempt(1_100)), []);
    assert_eq!(broken(attempt(1_120)), [Rule::FreeIsGranted]);
}

#[test]
fn former_owner_frees_a_kept_lock() {
    let release = Call::Release { count: 1, token: Some(5), request_id: None };
    let freed = |left| kept().call(1, ALONE, 200, 201, release, Outcome::Number(left));
    assert_eq!(freed(0).granted(2, ALONE, 201, 6).broken(), []);
    assert_eq!(freed(1).broken(), [Rule::CountsAreRight]);
    let waits = freed(0).call(2, ALONE, 150, 2_250, acquire(1, Some(8_000), None), Outcome::Granted(6));
    assert_eq!(waits.broken(), [Rule::NoLostWakeUp]);
    let broken = |at_ms: u64, outcome| kept().call(1, ALONE, at_ms, at_ms + 1, release, outcome).broken();
    assert_eq!(broken(1_000, Outcome::NotOwner), [Rule::HoldIsKept]);
    assert_eq!(broken(1_105, Outcome::NotOwner), []);
    assert_eq!(broken(1_105, Outcome::Number(0)), [], "the machine may be busy");
    assert_eq!(broken(1_120, Outcome::Number(0)), [Rule::LeaseEnds]);
    let of_another_hold = Call::Release { count: 1, token: Some(4), request_id: None };
    let history = kept().call(1, ALONE, 200, 201, of_another_hold, Outcome::Number(0));
    assert_eq!(history.broken(), [Rule::TokenIsMeant]);
}

#[test]
fn release_without_token_does_not_free_a_kept_lock() {
    let release = Call::Release { count: 1, token: None, request_id: None };
    let history = |outcome| kept().call(1, ALONE, 200, 201, release, outcome);
    assert_eq!(history(Outcome::NotOwner).broken(), []);
    assert_eq!(history(Outcome::NotOwner).granted(2, ALONE, 300, 6).broken(), [Rule::Exclusion]);
    assert_eq!(history(Outcome::Number(0)).broken(), [Rule::TokenIsMeant]);
}

#[test]
fn kept_lock_is_not_a_hold_of_its_former_owner() {
    let broken = |call, outcome| kept().call(1, ALONE, 200, 201, call, outcome).broken();
    assert_eq!(broken(Call::Look, Outcome::Number(0)), []);
    assert_eq!(broken(Call::Look, Outcome::Number(1)), [Rule::GivenUpIsGone]);
    assert_eq!(broken(RENEW, Outcome::NotOwner), []);
    assert_eq!(broken(RENEW, Outcome::Number(1_000)), [Rule::CountsAreRight]);
    assert_eq!(broken(acquire(1, None, None), Outcome::Nil), []);
    assert_eq!(broken(acquire(1, None, None), Outcome::Granted(5)), [Rule::Exclusion, Rule::TokensRise]);
}

#[test]
fn second_keep_changes_nothing() {
    let history = |left| kept().call(1, ALONE, 200, 201, Call::Keep { keep_ms: 9_000 }, Outcome::Number(left));
    assert_eq!(history(1).granted(2, ALONE, 1_102, 6).broken(), []);
    assert_eq!(history(1).granted(2, ALONE, 1_090, 6).broken(), [Rule::Exclusion]);
    assert_eq!(history(0).broken(), [Rule::CountsAreRight]);
    let never_held = Scripted::mutex().call(1, ALONE, 200, 201, Call::Keep { keep_ms: 10 }, Outcome::Number(1));
    assert_eq!(never_held.broken(), [Rule::CountsAreRight]);
}

#[test]
fn unanswered_keep_may_have_taken_effect() {
    let broken = |outcome, granted_ms| {
        Scripted::mutex()
            .granted(1, ALONE, 10, 5)
            .call(1, ALONE, 100, 101, Call::Keep { keep_ms: 40_000 }, outcome)
            .call(2, ALONE, 200, granted_ms, acquire(1, Some(60_000), None), Outcome::Granted(6))
            .broken()
    };
    assert_eq!(broken(Outcome::Unknown, 42_000), []);
    assert_eq!(broken(Outcome::Unknown, 42_200), [Rule::NoLostWakeUp]);
    assert_eq!(broken(Outcome::Unknown, 201), []);
    assert_eq!(broken(Outcome::Refused, 201), [Rule::Exclusion], "the hold goes on");
    assert_eq!(broken(Outcome::NotOwner, 201), [Rule::HoldIsKept]);
}
