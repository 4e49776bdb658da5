//! A free lock is not refused, and neither is a release; a replica refuses everything.

use crate::scripted::{ALONE, Scripted, acquire, acquire_for};
use rlock_check::history::{Call, Key, Kind, Operation, Outcome, Rule};
use rlock_check::timeline::Possible;

#[test]
fn free_lock_is_granted_without_a_wait() {
    let try_it = acquire(1, None, None);
    let history = |at_ms, is_undisturbed| {
        let mut history = Scripted::mutex()
            .granted(1, ALONE, 10, 5)
            .released(1, ALONE, 100, 0)
            .call(2, ALONE, at_ms, at_ms + 1, try_it, Outcome::Nil)
            .call(3, ALONE, 5_000, 5_002, acquire(1, Some(1_000), None), Outcome::Granted(6))
            .released(3, ALONE, 5_003, 0);
        history.0.is_undisturbed = is_undisturbed;
        history
    };
    assert_eq!(history(5, true).broken(), [Rule::FreeIsGranted], "no request was sent before");
    for is_held_at_ms in [9, 50, 101, 4_999, 5_001] {
        assert_eq!(history(is_held_at_ms, true).broken(), [], "at {is_held_at_ms} ms");
    }
    for is_undisturbed in [true, false] {
        assert_eq!(
            history(102, is_undisturbed).broken(),
            [Rule::FreeIsGranted],
            "the answer to its release came before"
        );
    }
    let lapsed = |at_ms, is_undisturbed| {
        let mut history = Scripted::mutex()
            .call(1, ALONE, 10, 11, acquire_for(90, 1, None, None), Outcome::Granted(5))
            .call(2, ALONE, at_ms, at_ms + 1, try_it, Outcome::Nil);
        history.0.is_undisturbed = is_undisturbed;
        history.broken()
    };
    assert_eq!(lapsed(105, true), []);
    assert_eq!(lapsed(120, true), [Rule::FreeIsGranted]);
    assert_eq!(lapsed(120, false), [], "the lease may have expired late");
    assert_eq!(lapsed(2_200, false), [Rule::FreeIsGranted]);
}

#[test]
fn lock_with_a_place_in_its_queue_is_not_free() {
    let place = Call::Acquire {
        count: 1,
        lease_ms: 30_000,
        block_ms: None,
        request_id: None,
        keeps_place: true,
        is_once: false,
    };
    let history = |first| {
        Scripted::of(Kind::Fair, 1).call(1, ALONE, 10, 11, first, Outcome::Nil).call(
            2,
            ALONE,
            100,
            101,
            acquire(1, None, None),
            Outcome::Nil,
        )
    };
    assert_eq!(history(place).broken(), []);
    assert_eq!(history(acquire(1, None, None)).broken(), [Rule::FreeIsGranted]);
}

/// The request waits at the head of this key's queue for the other key, which is held.
#[test]
fn key_that_a_request_for_many_waits_for_is_not_free() {
    let history = |asks_for_many: bool| {
        let wait = acquire(1, Some(1_000), None);
        let mut history = Scripted::mutex().call(1, ALONE, 10, 1_011, wait, Outcome::Nil).call(
            2,
            ALONE,
            100,
            101,
            acquire(1, None, None),
            Outcome::Nil,
        );
        history.0.keys.push(Key { name: "other".into(), kind: Kind::Mutex, permits: 1 });
        if asks_for_many {
            let other = Operation { key: 1, ..history.0.operations[0] };
            history.0.operations.push(other);
        }
        history.0.is_undisturbed = true;
        history
    };
    assert_eq!(history(true).broken(), []);
    assert_eq!(history(false).broken(), [Rule::FreeIsGranted]);
}

#[test]
fn replica_refuses_every_request() {
    let asked = |call, sent_ms, answered_ms, outcome| {
        let mut history = Scripted::mutex().granted(1, ALONE, 1, 5).call(1, ALONE, sent_ms, answered_ms, call, outcome);
        history.0.demotions.push(Possible { from_us: 10_000, until_us: 20_000 });
        history.broken()
    };
    let broken = |sent_ms, answered_ms, outcome| asked(acquire(1, None, None), sent_ms, answered_ms, outcome);
    let release = Call::Release { count: 1, token: None, request_id: None };
    assert_eq!(asked(release, 12, 13, Outcome::Number(0)), [Rule::ReplicaDecidesNothing]);
    assert_eq!(asked(Call::Remove, 12, 13, Outcome::Number(0)), [], "DEL is the server's own write");
    assert_eq!(broken(12, 13, Outcome::Granted(5)), [Rule::ReplicaDecidesNothing]);
    assert_eq!(broken(12, 13, Outcome::Refused), []);
    assert_eq!(broken(9, 13, Outcome::Granted(5)), []);
    assert_eq!(broken(12, 21, Outcome::Granted(5)), []);
}

#[test]
fn where_nothing_fails_each_request_is_answered_and_ended_by_its_owner() {
    let history = |outcome, is_undisturbed| {
        let mut history = Scripted::mutex().call(2, ALONE, 20, 60, acquire(1, Some(8_000), None), outcome);
        history.0.is_undisturbed = is_undisturbed;
        history
    };
    for outcome in [Outcome::Refused, Outcome::Unknown, Outcome::Unblocked] {
        assert_eq!(history(outcome, true).broken(), [Rule::ServerLives], "{outcome:?}");
        assert_eq!(history(outcome, false).broken(), []);
    }
    let release = Call::Release { count: 1, token: None, request_id: None };
    let others =
        [Call::Look, Call::Renew { lease_ms: 30_000, token: None }, release, Call::Cancel { is_waiting: false }];
    for (call, outcome) in others.into_iter().flat_map(|call| [(call, Outcome::Refused), (call, Outcome::Nil)]) {
        let mut history = Scripted::mutex().granted(1, ALONE, 10, 5).call(1, ALONE, 20, 21, call, outcome);
        history.0.is_undisturbed = true;
        assert_eq!(history.broken(), [Rule::ServerLives], "{call:?} {outcome:?}");
    }
    let cancel = Call::Cancel { is_waiting: true };
    assert_eq!(history(Outcome::Unblocked, true).call(2, ALONE, 30, 31, cancel, Outcome::Number(1)).broken(), []);
}

#[test]
fn working_server_that_refuses_a_request_is_reported() {
    let release = Call::Release { count: 1, token: None, request_id: None };
    let refused = || Scripted::mutex().granted(1, ALONE, 10, 5).call(1, ALONE, 20, 21, release, Outcome::Refused);
    assert_eq!(refused().broken(), []);
    let mut works = refused();
    works.0.accepts_releases = true;
    assert_eq!(works.broken(), [Rule::GivingUpIsTaken]);
    let acquires = |refuses_acquisitions| {
        let mut history = Scripted::mutex().call(1, ALONE, 20, 21, acquire(1, None, None), Outcome::Refused);
        (history.0.accepts_releases, history.0.refuses_acquisitions) = (true, refuses_acquisitions);
        history.broken()
    };
    assert_eq!(acquires(false), [Rule::GivingUpIsTaken]);
    // Memory is full.
    assert_eq!(acquires(true), []);
}
