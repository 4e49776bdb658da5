//! What is free is not refused, and who gives up is not either; a replica refuses.

use crate::told::{ALONE, Told, acquire, acquire_for};
use rlock_check::history::{Call, Key, Kind, Operation, Outcome, Rule};
use rlock_check::timeline::Possible;

#[test]
fn who_does_not_want_to_wait_is_given_what_is_free() {
    let try_it = acquire(1, None, None);
    let told = |at_ms, is_undisturbed| {
        let mut told = Told::mutex()
            .granted(1, ALONE, 10, 5)
            .released(1, ALONE, 100, 0)
            .call(2, ALONE, at_ms, at_ms + 1, try_it, Outcome::Nil)
            .call(3, ALONE, 5_000, 5_002, acquire(1, Some(1_000), None), Outcome::Granted(6))
            .released(3, ALONE, 5_003, 0);
        told.0.is_undisturbed = is_undisturbed;
        told
    };
    assert_eq!(told(5, true).broken(), [Rule::FreeIsGranted], "it was not asked for yet");
    for is_held_at_ms in [9, 50, 101, 4_999, 5_001] {
        assert_eq!(told(is_held_at_ms, true).broken(), [], "at {is_held_at_ms} ms");
    }
    for is_undisturbed in [true, false] {
        assert_eq!(told(102, is_undisturbed).broken(), [Rule::FreeIsGranted], "its release was answered");
    }
    let lapsed =
        |at_ms, is_undisturbed| {
            let mut told = Told::mutex()
                .call(1, ALONE, 10, 11, acquire_for(90, 1, None, None), Outcome::Granted(5))
                .call(2, ALONE, at_ms, at_ms + 1, try_it, Outcome::Nil);
            told.0.is_undisturbed = is_undisturbed;
            told.broken()
        };
    assert_eq!(lapsed(105, true), []);
    assert_eq!(lapsed(120, true), [Rule::FreeIsGranted]);
    assert_eq!(lapsed(120, false), [], "the end may have been late");
    assert_eq!(lapsed(2_200, false), [Rule::FreeIsGranted]);
}

#[test]
fn what_somebody_has_a_place_for_is_not_free() {
    let place = Call::Acquire {
        count: 1,
        lease_ms: 30_000,
        block_ms: None,
        request_id: None,
        keeps_place: true,
        is_once: false,
    };
    let told = |first| {
        Told::of(Kind::Fair, 1).call(1, ALONE, 10, 11, first, Outcome::Nil).call(
            2,
            ALONE,
            100,
            101,
            acquire(1, None, None),
            Outcome::Nil,
        )
    };
    assert_eq!(told(place).broken(), []);
    assert_eq!(told(acquire(1, None, None)).broken(), [Rule::FreeIsGranted]);
}

/// It is at the head of the queue here, and the other key is held.
#[test]
fn what_a_request_for_many_keys_waits_for_is_not_free() {
    let told = |asks_for_many: bool| {
        let wait = acquire(1, Some(1_000), None);
        let mut told = Told::mutex().call(1, ALONE, 10, 1_011, wait, Outcome::Nil).call(
            2,
            ALONE,
            100,
            101,
            acquire(1, None, None),
            Outcome::Nil,
        );
        told.0.keys.push(Key { name: "other".into(), kind: Kind::Mutex, permits: 1 });
        if asks_for_many {
            let other = Operation { key: 1, ..told.0.operations[0] };
            told.0.operations.push(other);
        }
        told.0.is_undisturbed = true;
        told
    };
    assert_eq!(told(true).broken(), []);
    assert_eq!(told(false).broken(), [Rule::FreeIsGranted]);
}

#[test]
fn what_a_replica_is_asked_is_refused() {
    let asked = |call, sent_ms, answered_ms, outcome| {
        let mut told = Told::mutex().granted(1, ALONE, 1, 5).call(1, ALONE, sent_ms, answered_ms, call, outcome);
        told.0.demotions.push(Possible { from_us: 10_000, until_us: 20_000 });
        told.broken()
    };
    let told = |sent_ms, answered_ms, outcome| asked(acquire(1, None, None), sent_ms, answered_ms, outcome);
    let release = Call::Release { count: 1, token: None, request_id: None };
    assert_eq!(asked(release, 12, 13, Outcome::Number(0)), [Rule::ReplicaDecidesNothing]);
    assert_eq!(asked(Call::Remove, 12, 13, Outcome::Number(0)), [], "the server did that, which may be written to");
    assert_eq!(told(12, 13, Outcome::Granted(5)), [Rule::ReplicaDecidesNothing]);
    assert_eq!(told(12, 13, Outcome::Refused), []);
    assert_eq!(told(9, 13, Outcome::Granted(5)), []);
    assert_eq!(told(12, 21, Outcome::Granted(5)), []);
}

#[test]
fn where_nothing_fails_each_request_is_answered_and_ended_by_its_owner() {
    let told = |outcome, is_undisturbed| {
        let mut told = Told::mutex().call(2, ALONE, 20, 60, acquire(1, Some(8_000), None), outcome);
        told.0.is_undisturbed = is_undisturbed;
        told
    };
    for outcome in [Outcome::Refused, Outcome::Unknown, Outcome::Unblocked] {
        assert_eq!(told(outcome, true).broken(), [Rule::ServerLives], "{outcome:?}");
        assert_eq!(told(outcome, false).broken(), []);
    }
    let release = Call::Release { count: 1, token: None, request_id: None };
    let others =
        [Call::Look, Call::Renew { lease_ms: 30_000, token: None }, release, Call::Cancel { is_waiting: false }];
    for (call, outcome) in others.into_iter().flat_map(|call| [(call, Outcome::Refused), (call, Outcome::Nil)]) {
        let mut told = Told::mutex().granted(1, ALONE, 10, 5).call(1, ALONE, 20, 21, call, outcome);
        told.0.is_undisturbed = true;
        assert_eq!(told.broken(), [Rule::ServerLives], "{call:?} {outcome:?}");
    }
    let cancel = Call::Cancel { is_waiting: true };
    assert_eq!(told(Outcome::Unblocked, true).call(2, ALONE, 30, 31, cancel, Outcome::Number(1)).broken(), []);
}

#[test]
fn a_request_that_is_refused_by_a_server_that_works() {
    let release = Call::Release { count: 1, token: None, request_id: None };
    let refused = || Told::mutex().granted(1, ALONE, 10, 5).call(1, ALONE, 20, 21, release, Outcome::Refused);
    assert_eq!(refused().broken(), []);
    let mut works = refused();
    works.0.is_always_taken = true;
    assert_eq!(works.broken(), [Rule::GivingUpIsTaken]);
    let acquires = |refuses_acquisitions| {
        let mut told = Told::mutex().call(1, ALONE, 20, 21, acquire(1, None, None), Outcome::Refused);
        (told.0.is_always_taken, told.0.refuses_acquisitions) = (true, refuses_acquisitions);
        told.broken()
    };
    assert_eq!(acquires(false), [Rule::GivingUpIsTaken]);
    // The memory is full.
    assert_eq!(acquires(true), []);
}
