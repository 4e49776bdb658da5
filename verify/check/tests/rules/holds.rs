//! A hold lasts for as long as was answered, counts what it was granted, and is gone when it was given up.

use crate::told::{ALONE, Told, acquire, acquire_for};
use rlock_check::history::{Call, Outcome, Rule};
use rlock_check::timeline::Possible;

#[test]
fn a_hold_that_is_lost_before_its_time() {
    let told = |at_ms| {
        Told::mutex().granted(1, ALONE, 10, 5).call(
            1,
            ALONE,
            at_ms,
            at_ms + 1,
            Call::Renew { lease_ms: 1000, token: None },
            Outcome::NotOwner,
        )
    };
    assert_eq!(told(20_000).broken(), [Rule::HoldIsKept]);
    assert_eq!(told(30_010).broken(), []);
    let after_a_server_with_another_clock = |at_ms| {
        let mut told = told(at_ms);
        told.0.clocks_differ_us = 300_000;
        told.broken()
    };
    assert_eq!(after_a_server_with_another_clock(29_000), [Rule::HoldIsKept]);
    assert_eq!(after_a_server_with_another_clock(29_800), []);
}

#[test]
fn a_renewal_makes_a_hold_last_and_never_shortens_it() {
    let renew = Call::Renew { lease_ms: 1000, token: None };
    let told = |left| {
        Told::mutex()
            .granted(1, ALONE, 10, 5)
            .call(1, ALONE, 20, 21, renew, Outcome::Number(left))
            .granted(2, ALONE, 5_000, 6)
    };
    assert_eq!(told(29_989).broken(), [Rule::Exclusion]);
    assert_eq!(told(1_000).broken(), [Rule::Exclusion, Rule::HoldIsKept]);
}

#[test]
fn a_renewal_without_an_answer_may_have_been_done() {
    let told = |outcome| {
        let wait = acquire(1, Some(60_000), None);
        let short = acquire_for(20, 1, None, None);
        Told::mutex()
            .call(1, ALONE, 10, 11, short, Outcome::Granted(5))
            .call(1, ALONE, 15, 16, Call::Renew { lease_ms: 3_000, token: None }, outcome)
            .call(2, ALONE, 20, 5_000, wait, Outcome::Granted(6))
    };
    assert_eq!(told(Outcome::Unknown).broken(), []);
    assert_eq!(told(Outcome::NotOwner).broken(), [Rule::HoldIsKept, Rule::NoLostWakeUp]);
}

#[test]
fn a_session_lasts_for_its_grace_where_no_connection_is_lost() {
    let told = |at_ms| {
        let close = Call::Close { grace_ms: 500 };
        let mut told = Told::mutex().granted(1, ALONE, 10, 5).call(1, ALONE, 100, 101, close, Outcome::Unknown);
        told.0.is_undisturbed = true;
        told.granted(2, ALONE, at_ms, 6)
    };
    assert_eq!(told(590).broken(), [Rule::Exclusion]);
    assert_eq!(told(610).broken(), []);
}

#[test]
fn a_repeated_release_counts_once() {
    let release = Call::Release { count: 1, token: None, request_id: Some(3) };
    let told = |again| {
        Told::mutex()
            .granted(1, ALONE, 10, 5)
            .granted(1, ALONE, 20, 5)
            .call(1, ALONE, 30, 31, release, Outcome::Number(1))
            .call(1, ALONE, 32, 33, release, Outcome::Number(again))
            .released(1, ALONE, 40, again.saturating_sub(1))
    };
    assert_eq!(told(1).broken(), []);
    assert_eq!(told(0).broken(), [Rule::CountsAreRight]);
}

#[test]
fn a_repeated_request_counts_once() {
    let numbered = acquire(1, None, Some(7));
    let told = |left| {
        Told::mutex()
            .call(1, ALONE, 10, 11, numbered, Outcome::Granted(5))
            .call(1, ALONE, 20, 21, numbered, Outcome::Granted(5))
            .released(1, ALONE, 30, left)
    };
    assert_eq!(told(0).broken(), []);
    assert_eq!(told(1).broken(), [Rule::CountsAreRight]);
    let again = Told::mutex().granted(1, ALONE, 10, 5).granted(1, ALONE, 20, 5).released(1, ALONE, 30, 1);
    assert_eq!(again.broken(), []);
}

#[test]
fn a_request_with_once_is_no_second_hold() {
    let once = || match acquire(1, None, None) {
        Call::Acquire { count, lease_ms, block_ms, request_id, keeps_place, .. } => {
            Call::Acquire { count, lease_ms, block_ms, request_id, keeps_place, is_once: true }
        }
        other => other,
    };
    let told = |first, left| {
        Told::mutex()
            .call(1, ALONE, 10, 11, once(), first)
            .call(1, ALONE, 20, 21, once(), Outcome::Granted(5))
            .released(1, ALONE, 30, left)
    };
    for first in [Outcome::Granted(5), Outcome::Unknown] {
        assert_eq!(told(first, 0).broken(), []);
        assert_eq!(told(first, 1).broken(), [Rule::CountsAreRight]);
    }
}

#[test]
fn what_was_given_up_and_comes_back() {
    let looked = |told: Told, seen| told.call(1, ALONE, 5_000, 5_001, Call::Look, Outcome::Number(seen)).broken();
    let released = || Told::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 20, 0);
    assert_eq!(looked(released(), 0), []);
    assert_eq!(looked(released(), 1), [Rule::GivenUpIsGone]);
    let closes = Call::Close { grace_ms: 10 };
    let closed = || Told::mutex().granted(1, ALONE, 10, 5).call(1, ALONE, 20, 21, closes, Outcome::Unknown);
    assert_eq!(looked(closed(), 0), []);
    assert_eq!(looked(closed(), 1), [Rule::GivenUpIsGone]);
    // A server that has just come back looks at sessions when it serves again.
    let mut paused = [closed(), released()];
    paused.iter_mut().for_each(|told| told.0.pauses = vec![Possible { from_us: 4_000_000, until_us: 6_000_000 }]);
    let [closed_in_pause, released] = paused;
    assert_eq!((looked(closed_in_pause, 1), looked(released, 1)), (vec![], vec![Rule::GivenUpIsGone]));
    // A replica ends none, and a promotion those whose connections have closed before.
    let looked_after = |from_ms: u64, until_ms: u64| {
        let mut told = closed();
        told.0.demotions = vec![Possible { from_us: from_ms * 1000, until_us: until_ms * 1000 }];
        looked(told, 1)
    };
    assert_eq!((looked_after(15, 4_000), looked_after(1_000, 4_000)), (vec![], vec![]));
    let (promoted_long_ago, seen_before) = (looked_after(15, 2_000), looked_after(3_000, 4_000));
    assert_eq!((promoted_long_ago, seen_before), (vec![Rule::GivenUpIsGone], vec![Rule::GivenUpIsGone]));
}
