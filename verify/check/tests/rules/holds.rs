//! A hold lasts as long as the answers say, has the granted count, and ends with its release.

use crate::scripted::{ALONE, Scripted, acquire, acquire_for};
use rlock_check::history::{Call, Outcome, Rule};
use rlock_check::timeline::Possible;

#[test]
fn hold_lost_before_its_lease_expires_is_reported() {
    let history = |at_ms| {
        Scripted::mutex().granted(1, ALONE, 10, 5).call(
            1,
            ALONE,
            at_ms,
            at_ms + 1,
            Call::Renew { lease_ms: 1000, token: None },
            Outcome::NotOwner,
        )
    };
    assert_eq!(history(20_000).broken(), [Rule::HoldIsKept]);
    assert_eq!(history(30_010).broken(), []);
    let after_a_server_with_another_clock = |at_ms| {
        let mut history = history(at_ms);
        history.0.clocks_differ_us = 300_000;
        history.broken()
    };
    assert_eq!(after_a_server_with_another_clock(29_000), [Rule::HoldIsKept]);
    assert_eq!(after_a_server_with_another_clock(29_800), []);
}

#[test]
fn renewal_prolongs_a_hold_and_never_shortens_it() {
    let renew = Call::Renew { lease_ms: 1000, token: None };
    let history = |left| {
        Scripted::mutex()
            .granted(1, ALONE, 10, 5)
            .call(1, ALONE, 20, 21, renew, Outcome::Number(left))
            .granted(2, ALONE, 5_000, 6)
    };
    assert_eq!(history(29_989).broken(), [Rule::Exclusion]);
    assert_eq!(history(1_000).broken(), [Rule::Exclusion, Rule::HoldIsKept]);
}

#[test]
fn unanswered_renewal_may_have_taken_effect() {
    let history = |outcome| {
        let wait = acquire(1, Some(60_000), None);
        let short = acquire_for(20, 1, None, None);
        Scripted::mutex()
            .call(1, ALONE, 10, 11, short, Outcome::Granted(5))
            .call(1, ALONE, 15, 16, Call::Renew { lease_ms: 3_000, token: None }, outcome)
            .call(2, ALONE, 20, 5_000, wait, Outcome::Granted(6))
    };
    assert_eq!(history(Outcome::Unknown).broken(), []);
    assert_eq!(history(Outcome::NotOwner).broken(), [Rule::HoldIsKept, Rule::NoLostWakeUp]);
}

#[test]
fn session_lasts_for_its_grace_where_no_connection_is_lost() {
    let history = |at_ms| {
        let close = Call::Close { grace_ms: 500 };
        let mut history = Scripted::mutex().granted(1, ALONE, 10, 5).call(1, ALONE, 100, 101, close, Outcome::Unknown);
        history.0.is_undisturbed = true;
        history.granted(2, ALONE, at_ms, 6)
    };
    assert_eq!(history(590).broken(), [Rule::Exclusion]);
    assert_eq!(history(610).broken(), []);
}

#[test]
fn repeated_release_counts_once() {
    let release = Call::Release { count: 1, token: None, request_id: Some(3) };
    let history = |again| {
        Scripted::mutex()
            .granted(1, ALONE, 10, 5)
            .granted(1, ALONE, 20, 5)
            .call(1, ALONE, 30, 31, release, Outcome::Number(1))
            .call(1, ALONE, 32, 33, release, Outcome::Number(again))
            .released(1, ALONE, 40, again.saturating_sub(1))
    };
    assert_eq!(history(1).broken(), []);
    assert_eq!(history(0).broken(), [Rule::CountsAreRight]);
}

#[test]
fn repeated_request_counts_once() {
    let numbered = acquire(1, None, Some(7));
    let history = |left| {
        Scripted::mutex()
            .call(1, ALONE, 10, 11, numbered, Outcome::Granted(5))
            .call(1, ALONE, 20, 21, numbered, Outcome::Granted(5))
            .released(1, ALONE, 30, left)
    };
    assert_eq!(history(0).broken(), []);
    assert_eq!(history(1).broken(), [Rule::CountsAreRight]);
    let again = Scripted::mutex().granted(1, ALONE, 10, 5).granted(1, ALONE, 20, 5).released(1, ALONE, 30, 1);
    assert_eq!(again.broken(), []);
}

#[test]
fn request_with_once_adds_no_second_hold() {
    let once = || match acquire(1, None, None) {
        Call::Acquire { count, lease_ms, block_ms, request_id, keeps_place, .. } => {
            Call::Acquire { count, lease_ms, block_ms, request_id, keeps_place, is_once: true }
        }
        other => other,
    };
    let history = |first, left| {
        Scripted::mutex()
            .call(1, ALONE, 10, 11, once(), first)
            .call(1, ALONE, 20, 21, once(), Outcome::Granted(5))
            .released(1, ALONE, 30, left)
    };
    for first in [Outcome::Granted(5), Outcome::Unknown] {
        assert_eq!(history(first, 0).broken(), []);
        assert_eq!(history(first, 1).broken(), [Rule::CountsAreRight]);
    }
}

#[test]
fn released_hold_that_comes_back_is_reported() {
    let looked =
        |history: Scripted, seen| history.call(1, ALONE, 5_000, 5_001, Call::Look, Outcome::Number(seen)).broken();
    let released = || Scripted::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 20, 0);
    assert_eq!(looked(released(), 0), []);
    assert_eq!(looked(released(), 1), [Rule::GivenUpIsGone]);
    let closes = Call::Close { grace_ms: 10 };
    let closed = || Scripted::mutex().granted(1, ALONE, 10, 5).call(1, ALONE, 20, 21, closes, Outcome::Unknown);
    assert_eq!(looked(closed(), 0), []);
    assert_eq!(looked(closed(), 1), [Rule::GivenUpIsGone]);
    // A server that has just come back looks at sessions once it serves again.
    let mut paused = [closed(), released()];
    paused.iter_mut().for_each(|history| history.0.pauses = vec![Possible { from_us: 4_000_000, until_us: 6_000_000 }]);
    let [closed_in_pause, released] = paused;
    assert_eq!((looked(closed_in_pause, 1), looked(released, 1)), (vec![], vec![Rule::GivenUpIsGone]));
    // A replica ends no session; the promotion ends those whose connections closed before it.
    let looked_after = |from_ms: u64, until_ms: u64| {
        let mut history = closed();
        history.0.demotions = vec![Possible { from_us: from_ms * 1000, until_us: until_ms * 1000 }];
        looked(history, 1)
    };
    assert_eq!((looked_after(15, 4_000), looked_after(1_000, 4_000)), (vec![], vec![]));
    let (promoted_long_ago, seen_before) = (looked_after(15, 2_000), looked_after(3_000, 4_000));
    assert_eq!((promoted_long_ago, seen_before), (vec![Rule::GivenUpIsGone], vec![Rule::GivenUpIsGone]));
}
