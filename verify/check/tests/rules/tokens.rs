//! Fencing tokens rise, and each names one hold.

use crate::scripted::{ALONE, Scripted, acquire};
use rlock_check::history::{Call, Key, Kind, Mode, Outcome, Rule};
use rlock_check::timeline::Possible;

#[test]
fn grant_whose_answer_was_lost_may_be_reported_later() {
    let history = |first| {
        Scripted::of(Kind::Semaphore, 3)
            .call(1, Mode::Permits, 10, 11, acquire(1, None, None), first)
            .granted(2, Mode::Permits, 20, 6)
            .granted(1, Mode::Permits, 30, 5)
    };
    assert_eq!(history(Outcome::Unknown).broken(), []);
    assert_eq!(history(Outcome::Refused).broken(), [Rule::TokensRise, Rule::FirstComeFirstServed]);
}

#[test]
fn two_servers_may_give_one_token_for_two_locks_but_not_for_one() {
    let history = |key, is_of_several_servers| {
        let mut history = Scripted::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 15, 0).granted(2, ALONE, 20, 5);
        history.0.keys.push(Key { name: "other".into(), kind: Kind::Mutex, permits: 1 });
        history.0.operations[2].key = key;
        history.0.is_of_several_servers = is_of_several_servers;
        history
    };
    assert_eq!(history(1, true).broken(), []);
    assert_eq!(history(1, false).broken(), [Rule::TokensRise]);
    assert_eq!(history(0, true).broken(), [Rule::TokensRise]);
}

#[test]
fn during_a_takeover_two_servers_may_give_one_token_for_two_locks_but_not_for_one() {
    let history = |key, until_us: fn(u64) -> u64| {
        let mut history = Scripted::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 15, 0).granted(2, ALONE, 20, 5);
        history.0.keys.push(Key { name: "other".into(), kind: Kind::Mutex, permits: 1 });
        history.0.operations[2].key = key;
        let answered_us = history.0.operations.iter().map(|one| one.answered_us);
        let (from_us, until_us) = (answered_us.clone().min().unwrap(), until_us(answered_us.max().unwrap()));
        history.0.takeovers = vec![Possible { from_us, until_us }];
        history
    };
    assert_eq!(history(1, |last_us| last_us).broken(), []);
    assert_eq!(history(1, |last_us| last_us - 1).broken(), [Rule::TokensRise], "the old server grants nothing then");
    assert_eq!(history(0, |last_us| last_us).broken(), [Rule::TokensRise]);
}

#[test]
fn repeated_or_lower_token_is_reported() {
    let twice = Scripted::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 15, 0).granted(2, ALONE, 20, 5);
    assert_eq!(twice.broken(), [Rule::TokensRise]);
    let falls = Scripted::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 15, 0).granted(2, ALONE, 20, 4);
    assert_eq!(falls.broken(), [Rule::TokensRise, Rule::FirstComeFirstServed]);
}

#[test]
fn token_names_one_hold() {
    let history = |call, outcome| {
        Scripted::mutex()
            .granted(1, ALONE, 10, 5)
            .released(1, ALONE, 20, 0)
            .granted(1, ALONE, 30, 6)
            .call(1, ALONE, 40, 41, call, outcome)
    };
    let release = |token| Call::Release { count: 1, token: Some(token), request_id: None };
    assert_eq!(history(release(5), Outcome::NotOwner).broken(), [], "the second hold goes on");
    assert_eq!(history(release(5), Outcome::Number(0)).broken(), [Rule::TokenIsMeant]);
    let renew = |token| Call::Renew { lease_ms: 30_000, token: Some(token) };
    assert_eq!(history(renew(5), Outcome::NotOwner).broken(), []);
    assert_eq!(history(renew(5), Outcome::Number(30_000)).broken(), [Rule::TokenIsMeant]);
    assert_eq!(history(renew(6), Outcome::Number(30_000)).broken(), []);
    assert_eq!(
        history(release(6), Outcome::NotOwner).broken(),
        [Rule::HoldIsKept],
        "the hold with this token was lost"
    );
}
