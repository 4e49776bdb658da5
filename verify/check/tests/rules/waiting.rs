//! A wait ends in time: by a grant, by nil, or taken back.

use crate::told::{ALONE, Told, acquire, acquire_for};
use rlock_check::history::{Call, Key, Kind, Operation, Outcome, Rule};
use rlock_check::timeline::Possible;

#[test]
fn nil_is_final_and_comes_in_time() {
    let wait = acquire(1, Some(500), None);
    let told = |answered_ms, seen| {
        Told::mutex().granted(1, ALONE, 10, 5).call(2, ALONE, 20, answered_ms, wait, Outcome::Nil).call(
            2,
            ALONE,
            6000,
            6001,
            Call::Look,
            Outcome::Number(seen),
        )
    };
    assert_eq!(told(521, 0).broken(), []);
    assert_eq!(told(521, 1).broken(), [Rule::NilIsFinal]);
    assert_eq!(told(400, 0).broken(), [Rule::NilIsFinal], "early");
    assert_eq!(told(5000, 0).broken(), [Rule::NilIsFinal], "late");
    let mut paused = told(5000, 0);
    paused.0.pauses.push(Possible { from_us: 15_000, until_us: 4_900_000 });
    assert_eq!(paused.broken(), [], "nobody was told anything in between");
    paused = told(5000, 0);
    paused.0.pauses.push(Possible { from_us: 15_000, until_us: 4_900_000 });
    paused.0.waits_end_in_pauses = true;
    assert_eq!(paused.broken(), [Rule::NilIsFinal], "the server was there");
}

#[test]
fn a_request_that_waits_for_a_free_lock() {
    let wait = acquire(1, Some(60_000), None);
    let told = |answered_ms| {
        Told::mutex()
            .granted(1, ALONE, 10, 5)
            .call(2, ALONE, 20, answered_ms, wait, Outcome::Granted(6))
            .released(1, ALONE, 100, 0)
    };
    assert_eq!(told(102).broken(), []);
    assert_eq!(told(2_100).broken(), []);
    assert_eq!(told(2_200).broken(), [Rule::NoLostWakeUp]);
}

#[test]
fn a_grant_that_comes_when_its_time_is_over() {
    let wait = acquire_for(60_000, 1, Some(500), None);
    let told = |granted_ms| {
        Told::mutex().call(1, ALONE, 1, 2, acquire_for(granted_ms - 1, 1, None, None), Outcome::Granted(5)).call(
            2,
            ALONE,
            10,
            granted_ms,
            wait,
            Outcome::Granted(6),
        )
    };
    assert_eq!(told(2_400).broken(), [], "it may have been told late");
    assert_eq!(told(2_600).broken(), [Rule::NilIsFinal]);
    let mut paused = told(2_600);
    paused.0.pauses.push(Possible { from_us: 400_000, until_us: 700_000 });
    assert_eq!(paused.broken(), []);
}

/// The other key is held by a client that was lost.
#[test]
fn who_waits_behind_a_request_for_many_keys_waits_for_all_of_them() {
    let wait = acquire(1, Some(3_000), None);
    let told = |asks_for_many: bool| {
        let mut told = Told::mutex();
        told.0.keys.push(Key { name: "other".into(), kind: Kind::Mutex, permits: 1 });
        told = told.call(1, ALONE, 20, 3_020, wait, Outcome::Nil).call(2, ALONE, 30, 3_030, wait, Outcome::Nil);
        if asks_for_many {
            let other = Operation { key: 1, ..told.0.operations[0] };
            told.0.operations.extend([
                other,
                Operation { owner: 3, outcome: Outcome::Unknown, sent_us: 1, answered_us: 2, ..other },
            ]);
        }
        told
    };
    assert_eq!(told(false).broken(), [Rule::NoLostWakeUp]);
    assert_eq!(told(true).broken(), []);
    let mut undisturbed = told(true);
    undisturbed.0.is_undisturbed = true;
    assert_eq!(undisturbed.broken(), [Rule::NoLostWakeUp, Rule::ServerLives]);
}

#[test]
fn a_wait_without_an_answer_ends_in_time() {
    let wait = acquire(1, Some(500), None);
    let told =
        |answered_ms| Told::mutex().granted(1, ALONE, 10, 5).call(2, ALONE, 20, answered_ms, wait, Outcome::Unknown);
    assert_eq!(told(2_400).broken(), [], "its connection was lost");
    assert_eq!(told(2_600).broken(), [Rule::NilIsFinal]);
    let mut paused = told(2_600);
    paused.0.pauses.push(Possible { from_us: 400_000, until_us: 700_000 });
    assert_eq!(paused.broken(), []);
}

#[test]
fn a_session_that_closed_and_a_grant_that_was_undone_free_the_lock() {
    let wait = acquire(1, Some(60_000), None);
    let session = |grace_ms| {
        Told::mutex().granted(1, ALONE, 10, 5).call(2, ALONE, 20, 9_000, wait, Outcome::Granted(6)).call(
            1,
            ALONE,
            100,
            101,
            Call::Close { grace_ms },
            Outcome::Unknown,
        )
    };
    assert_eq!(session(0).broken(), [Rule::NoLostWakeUp]);
    assert_eq!(session(8_000).broken(), []);
    let told =
        |killed| {
            Told::mutex()
                .granted(1, ALONE, 10, 5)
                .call(2, ALONE, 20, 101, wait, killed)
                .released(1, ALONE, 100, 0)
                .call(3, ALONE, 21, 9_000, wait, Outcome::Granted(8))
        };
    assert_eq!(told(Outcome::Undone).broken(), [Rule::NoLostWakeUp]);
    assert_eq!(told(Outcome::Unknown).broken(), [], "it may have held");
    let mut in_a_cluster = told(Outcome::Undone);
    in_a_cluster.0.is_of_several_servers = true;
    assert_eq!(in_a_cluster.broken(), [], "the lock may have left in that turn, with what was granted");
}

#[test]
fn a_lost_answer_to_a_request_that_waits_excuses_the_moments_before_it_only() {
    let wait = acquire(1, Some(60_000), None);
    let told = Told::mutex()
        .granted(1, ALONE, 10, 5)
        .released(1, ALONE, 100, 0)
        .call(2, ALONE, 20, 7_900, wait, Outcome::Unknown)
        .call(3, ALONE, 21, 7_950, wait, Outcome::Granted(7));
    assert_eq!(told.broken(), [Rule::NoLostWakeUp]);
}

/// Owner 1 holds, owner 2 waits and takes that back.
fn taken_back(ended: u64, then: Outcome, released_ms: u64) -> Vec<Rule> {
    Told::mutex()
        .granted(1, ALONE, 10, 5)
        .call(2, ALONE, 30, 31, Call::Cancel { is_waiting: true }, Outcome::Number(ended))
        .released(1, ALONE, released_ms, 0)
        .call(2, ALONE, 20, 60, acquire(1, Some(8_000), Some(2)), then)
        .broken()
}

#[test]
fn what_was_taken_back_is_over() {
    assert_eq!(taken_back(1, Outcome::Unblocked, 40), []);
    assert_eq!(taken_back(1, Outcome::Granted(6), 40), [Rule::CancelEndsWaits]);
    assert!(taken_back(1, Outcome::Nil, 40).contains(&Rule::CancelEndsWaits));
}

#[test]
fn who_surely_waits_can_take_that_back() {
    assert_eq!(taken_back(0, Outcome::Granted(6), 40), [Rule::CancelEndsWaits]);
    assert_eq!(taken_back(0, Outcome::Granted(6), 25), [], "it was granted before");
}

/// The connection over which a request waits has closed: whoever stands behind it is next.
#[test]
fn a_wait_without_a_connection_is_passed() {
    let wait = acquire(1, Some(60_000), Some(1));
    let told = |answered_ms| {
        Told::mutex()
            .granted(1, ALONE, 10, 5)
            .call(2, ALONE, 20, 99, wait, Outcome::Undone)
            .call(3, ALONE, 21, answered_ms, wait, Outcome::Granted(7))
            .released(1, ALONE, 100, 0)
    };
    assert_eq!(told(102).broken(), []);
    assert_eq!(told(9_000).broken(), [Rule::NoLostWakeUp]);
}
