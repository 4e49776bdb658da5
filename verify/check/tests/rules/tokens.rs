//! Fencing tokens rise, and one names one hold.

use crate::told::{ALONE, Told, acquire};
use rlock_check::history::{Call, Key, Kind, Mode, Outcome, Rule};
use rlock_check::timeline::Possible;

#[test]
fn a_hold_that_was_granted_by_a_request_whose_answer_was_lost_may_be_told_later() {
    let told = |first| {
        Told::of(Kind::Semaphore, 3)
            .call(1, Mode::Permits, 10, 11, acquire(1, None, None), first)
            .granted(2, Mode::Permits, 20, 6)
            .granted(1, Mode::Permits, 30, 5)
    };
    assert_eq!(told(Outcome::Unknown).broken(), []);
    assert_eq!(told(Outcome::Refused).broken(), [Rule::TokensRise, Rule::FirstComeFirstServed]);
}

#[test]
fn two_servers_may_give_the_same_token_of_two_locks_and_not_of_one() {
    let told = |key, is_of_several_servers| {
        let mut told = Told::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 15, 0).granted(2, ALONE, 20, 5);
        told.0.keys.push(Key { name: "other".into(), kind: Kind::Mutex, permits: 1 });
        told.0.operations[2].key = key;
        told.0.is_of_several_servers = is_of_several_servers;
        told
    };
    assert_eq!(told(1, true).broken(), []);
    assert_eq!(told(1, false).broken(), [Rule::TokensRise]);
    assert_eq!(told(0, true).broken(), [Rule::TokensRise]);
}

#[test]
fn while_a_server_takes_over_it_and_the_one_before_may_give_the_same_token_of_two_locks_and_not_of_one() {
    let told = |key, until_us: fn(u64) -> u64| {
        let mut told = Told::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 15, 0).granted(2, ALONE, 20, 5);
        told.0.keys.push(Key { name: "other".into(), kind: Kind::Mutex, permits: 1 });
        told.0.operations[2].key = key;
        let answered_us = told.0.operations.iter().map(|one| one.answered_us);
        let (from_us, until_us) = (answered_us.clone().min().unwrap(), until_us(answered_us.max().unwrap()));
        told.0.takeovers = vec![Possible { from_us, until_us }];
        told
    };
    assert_eq!(told(1, |last_us| last_us).broken(), []);
    assert_eq!(told(1, |last_us| last_us - 1).broken(), [Rule::TokensRise], "the old one grants no more");
    assert_eq!(told(0, |last_us| last_us).broken(), [Rule::TokensRise]);
}

#[test]
fn a_token_that_is_given_twice_or_falls() {
    let twice = Told::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 15, 0).granted(2, ALONE, 20, 5);
    assert_eq!(twice.broken(), [Rule::TokensRise]);
    let falls = Told::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 15, 0).granted(2, ALONE, 20, 4);
    assert_eq!(falls.broken(), [Rule::TokensRise, Rule::FirstComeFirstServed]);
}

#[test]
fn a_token_means_one_hold() {
    let told = |call, outcome| {
        Told::mutex()
            .granted(1, ALONE, 10, 5)
            .released(1, ALONE, 20, 0)
            .granted(1, ALONE, 30, 6)
            .call(1, ALONE, 40, 41, call, outcome)
    };
    let release = |token| Call::Release { count: 1, token: Some(token), request_id: None };
    assert_eq!(told(release(5), Outcome::NotOwner).broken(), [], "the second hold goes on");
    assert_eq!(told(release(5), Outcome::Number(0)).broken(), [Rule::TokenIsMeant]);
    let renew = |token| Call::Renew { lease_ms: 30_000, token: Some(token) };
    assert_eq!(told(renew(5), Outcome::NotOwner).broken(), []);
    assert_eq!(told(renew(5), Outcome::Number(30_000)).broken(), [Rule::TokenIsMeant]);
    assert_eq!(told(renew(6), Outcome::Number(30_000)).broken(), []);
    assert_eq!(told(release(6), Outcome::NotOwner).broken(), [Rule::HoldIsKept], "its own hold is released");
}
