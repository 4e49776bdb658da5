//! A wait ends in time: by a grant, by nil, or by CANCEL.

use crate::scripted::{ALONE, Scripted, acquire, acquire_for};
use rlock_check::history::{Call, Key, Kind, Operation, Outcome, Rule};
use rlock_check::timeline::Possible;

#[test]
fn nil_is_final_and_comes_in_time() {
    let wait = acquire(1, Some(500), None);
    let history = |answered_ms, seen| {
        Scripted::mutex().granted(1, ALONE, 10, 5).call(2, ALONE, 20, answered_ms, wait, Outcome::Nil).call(
            2,
            ALONE,
            6000,
            6001,
            Call::Look,
            Outcome::Number(seen),
        )
    };
    assert_eq!(history(521, 0).broken(), []);
    assert_eq!(history(521, 1).broken(), [Rule::NilIsFinal]);
    assert_eq!(history(400, 0).broken(), [Rule::NilIsFinal], "early");
    assert_eq!(history(5000, 0).broken(), [Rule::NilIsFinal], "late");
    let mut paused = history(5000, 0);
    paused.0.pauses.push(Possible { from_us: 15_000, until_us: 4_900_000 });
    assert_eq!(paused.broken(), [], "the server answered no client during the pause");
    paused = history(5000, 0);
    paused.0.pauses.push(Possible { from_us: 15_000, until_us: 4_900_000 });
    paused.0.waits_end_in_pauses = true;
    assert_eq!(paused.broken(), [Rule::NilIsFinal], "the server was up");
}

#[test]
fn wait_for_a_free_lock_is_reported() {
    let wait = acquire(1, Some(60_000), None);
    let history = |answered_ms| {
        Scripted::mutex()
            .granted(1, ALONE, 10, 5)
            .call(2, ALONE, 20, answered_ms, wait, Outcome::Granted(6))
            .released(1, ALONE, 100, 0)
    };
    assert_eq!(history(102).broken(), []);
    assert_eq!(history(2_100).broken(), []);
    assert_eq!(history(2_200).broken(), [Rule::NoLostWakeUp]);
}

#[test]
fn grant_after_the_time_to_wait_is_reported() {
    let wait = acquire_for(60_000, 1, Some(500), None);
    let history =
        |granted_ms| {
            Scripted::mutex()
                .call(1, ALONE, 1, 2, acquire_for(granted_ms - 1, 1, None, None), Outcome::Granted(5))
                .call(2, ALONE, 10, granted_ms, wait, Outcome::Granted(6))
        };
    assert_eq!(history(2_400).broken(), [], "the answer may have been late");
    assert_eq!(history(2_600).broken(), [Rule::NilIsFinal]);
    let mut paused = history(2_600);
    paused.0.pauses.push(Possible { from_us: 400_000, until_us: 700_000 });
    assert_eq!(paused.broken(), []);
}

/// The other key is held by a client that was lost.
#[test]
fn waiter_behind_a_request_for_many_keys_waits_for_all_of_them() {
    let wait = acquire(1, Some(3_000), None);
    let history = |asks_for_many: bool| {
        let mut history = Scripted::mutex();
        history.0.keys.push(Key { name: "other".into(), kind: Kind::Mutex, permits: 1 });
        history = history.call(1, ALONE, 20, 3_020, wait, Outcome::Nil).call(2, ALONE, 30, 3_030, wait, Outcome::Nil);
        if asks_for_many {
            let other = Operation { key: 1, ..history.0.operations[0] };
            history.0.operations.extend([
                other,
                Operation { owner: 3, outcome: Outcome::Unknown, sent_us: 1, answered_us: 2, ..other },
            ]);
        }
        history
    };
    assert_eq!(history(false).broken(), [Rule::NoLostWakeUp]);
    assert_eq!(history(true).broken(), []);
    let mut undisturbed = history(true);
    undisturbed.0.is_undisturbed = true;
    assert_eq!(undisturbed.broken(), [Rule::NoLostWakeUp, Rule::ServerLives]);
}

#[test]
fn unanswered_wait_ends_in_time() {
    let wait = acquire(1, Some(500), None);
    let history = |answered_ms| {
        Scripted::mutex().granted(1, ALONE, 10, 5).call(2, ALONE, 20, answered_ms, wait, Outcome::Unknown)
    };
    assert_eq!(history(2_400).broken(), [], "its connection was lost");
    assert_eq!(history(2_600).broken(), [Rule::NilIsFinal]);
    let mut paused = history(2_600);
    paused.0.pauses.push(Possible { from_us: 400_000, until_us: 700_000 });
    assert_eq!(paused.broken(), []);
}

#[test]
fn closed_session_and_undone_grant_free_the_lock() {
    let wait = acquire(1, Some(60_000), None);
    let session = |grace_ms| {
        Scripted::mutex().granted(1, ALONE, 10, 5).call(2, ALONE, 20, 9_000, wait, Outcome::Granted(6)).call(
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
    let history = |killed| {
        Scripted::mutex()
            .granted(1, ALONE, 10, 5)
            .call(2, ALONE, 20, 101, wait, killed)
            .released(1, ALONE, 100, 0)
            .call(3, ALONE, 21, 9_000, wait, Outcome::Granted(8))
    };
    assert_eq!(history(Outcome::Undone).broken(), [Rule::NoLostWakeUp]);
    assert_eq!(history(Outcome::Unknown).broken(), [], "it may have held");
    let mut in_a_cluster = history(Outcome::Undone);
    in_a_cluster.0.is_of_several_servers = true;
    assert_eq!(in_a_cluster.broken(), [], "the lock may have left in that turn, with the grant");
}

#[test]
fn lost_answer_to_a_waiter_excuses_only_the_moments_before_it() {
    let wait = acquire(1, Some(60_000), None);
    let history = Scripted::mutex()
        .granted(1, ALONE, 10, 5)
        .released(1, ALONE, 100, 0)
        .call(2, ALONE, 20, 7_900, wait, Outcome::Unknown)
        .call(3, ALONE, 21, 7_950, wait, Outcome::Granted(7));
    assert_eq!(history.broken(), [Rule::NoLostWakeUp]);
}

/// Owner 1 holds; owner 2 waits, and cancels its wait.
fn cancelled(ended: u64, then: Outcome, released_ms: u64) -> Vec<Rule> {
    Scripted::mutex()
        .granted(1, ALONE, 10, 5)
        .call(2, ALONE, 30, 31, Call::Cancel { is_waiting: true }, Outcome::Number(ended))
        .released(1, ALONE, released_ms, 0)
        .call(2, ALONE, 20, 60, acquire(1, Some(8_000), Some(2)), then)
        .broken()
}

#[test]
fn cancelled_request_is_not_answered_again() {
    assert_eq!(cancelled(1, Outcome::Unblocked, 40), []);
    assert_eq!(cancelled(1, Outcome::Granted(6), 40), [Rule::CancelEndsWaits]);
    assert!(cancelled(1, Outcome::Nil, 40).contains(&Rule::CancelEndsWaits));
}

#[test]
fn waiting_request_can_be_cancelled() {
    assert_eq!(cancelled(0, Outcome::Granted(6), 40), [Rule::CancelEndsWaits]);
    assert_eq!(cancelled(0, Outcome::Granted(6), 25), [], "it may have been granted before");
}

/// The connection of a waiting request has closed: the waiter behind it is next.
#[test]
fn waiter_without_a_connection_is_passed() {
    let wait = acquire(1, Some(60_000), Some(1));
    let history = |answered_ms| {
        Scripted::mutex()
            .granted(1, ALONE, 10, 5)
            .call(2, ALONE, 20, 99, wait, Outcome::Undone)
            .call(3, ALONE, 21, answered_ms, wait, Outcome::Granted(7))
            .released(1, ALONE, 100, 0)
    };
    assert_eq!(history(102).broken(), []);
    assert_eq!(history(9_000).broken(), [Rule::NoLostWakeUp]);
}
