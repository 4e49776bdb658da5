//! Histories that break a guarantee of docs/guarantees.md and that a rule must report. Each is a
//! correct history with one thing changed; the correct one is checked too. Other histories look
//! wrong and are correct.

mod scripted;

use rlock_check::history::{Call, Kind, Mode, Outcome, Rule};
use rlock_check::timeline::Possible;
use scripted::{ALONE, Scripted};

const RELEASE: Call = Call::Release { count: 1, token: None, request_id: None };
const AGAIN: Call =
    Call::Acquire { count: 1, lease_ms: 30_000, block_ms: None, request_id: None, keeps_place: false, is_once: false };
const CANCEL: Call = Call::Cancel { is_waiting: true };

fn acquire(lease_ms: u64, block_ms: Option<u64>) -> Call {
    Call::Acquire { count: 1, lease_ms, block_ms, request_id: None, keeps_place: false, is_once: false }
}

const fn renew(lease_ms: u64) -> Call {
    Call::Renew { lease_ms, token: None }
}

#[test]
fn renewal_without_a_hold_is_refused() {
    let broken = |outcome| {
        Scripted::mutex()
            .call(1, ALONE, [10, 11], acquire(30_000, None), Outcome::Granted(5))
            .call(1, ALONE, [20, 21], RELEASE, Outcome::Number(0))
            .call(1, ALONE, [30, 31], renew(30_000), outcome)
            .broken()
    };
    assert_eq!(broken(Outcome::NotOwner), []);
    assert_eq!(broken(Outcome::Number(30_000)), [Rule::CountsAreRight]);
}

/// Guarantee 3: only a holder and a reader that asks for WRITE pass the queue. Owner 1 was a
/// reader, but its lease expired long before.
#[test]
fn former_holder_does_not_pass_the_queue() {
    let broken = |first: u64, third: u64| {
        let mut history = Scripted::of(Kind::RwLock, 1)
            .call(1, Mode::Read, [10, 11], acquire(20, None), Outcome::Granted(5))
            .call(2, Mode::Write, [100, 101], acquire(30_000, None), Outcome::Granted(6))
            .call(3, Mode::Write, [200, third], acquire(30_000, Some(8_000)), Outcome::Granted(third))
            .call(1, Mode::Write, [300, first], acquire(30_000, Some(8_000)), Outcome::Granted(first))
            .call(2, Mode::Write, [900, 901], RELEASE, Outcome::Number(0));
        for (owner, at) in [(1, first), (3, third)] {
            history = history.call(owner, Mode::Write, [at + 50, at + 51], RELEASE, Outcome::Number(0));
        }
        history.broken()
    };
    assert_eq!(broken(1_000, 901), []);
    assert_eq!(broken(901, 1_000), [Rule::FirstComeFirstServed]);
}

/// A request that CANCEL ended is never granted, even if CANCEL is sent once more before the grant.
#[test]
fn request_cancelled_twice_stays_ended() {
    let broken = |then, at| {
        Scripted::mutex()
            .call(1, ALONE, [10, 11], acquire(30_000, None), Outcome::Granted(5))
            .call(2, ALONE, [20, at], acquire(30_000, Some(8_000)), then)
            .call(2, ALONE, [30, 31], CANCEL, Outcome::Number(1))
            .call(2, ALONE, [32, 33], Call::Cancel { is_waiting: false }, Outcome::Number(0))
            .call(1, ALONE, [40, 41], RELEASE, Outcome::Number(0))
            .broken()
    };
    assert_eq!(broken(Outcome::Unblocked, 33), []);
    assert_eq!(broken(Outcome::Granted(6), 42), [Rule::CancelEndsWaits]);
}

/// A hold ends with its lease, and every command of its owner shows that.
#[test]
fn owner_with_an_expired_lease_does_not_hold() {
    const COUNTED: [(Call, Outcome, Outcome); 4] = [
        (RELEASE, Outcome::NotOwner, Outcome::Number(0)),
        (renew(30_000), Outcome::NotOwner, Outcome::Number(30_000)),
        (Call::Look, Outcome::Number(0), Outcome::Number(1)),
        (AGAIN, Outcome::Granted(6), Outcome::Granted(5)),
    ];
    for (call, lawful, wrong) in COUNTED {
        let broken = |sent, outcome| {
            Scripted::mutex()
                .call(1, ALONE, [10, 11], acquire(100, None), Outcome::Granted(5))
                .call(1, ALONE, [sent, sent + 1], call, outcome)
                .broken()
        };
        assert_eq!(broken(200, lawful), [], "{call:?}");
        assert_eq!(broken(200, wrong), [Rule::LeaseEnds], "{call:?}");
        assert_eq!(broken(105, wrong), [], "it still holds: {call:?}");
    }
}

/// A request without an answer may have taken effect late, and may have prolonged the lease.
#[test]
fn unanswered_renewal_may_have_prolonged_the_lease() {
    let broken = |before| {
        let history = Scripted::mutex()
            .call(1, ALONE, [10, 11], acquire(100, None), Outcome::Granted(5))
            .call(1, ALONE, [12, 20], before, Outcome::Unknown)
            .call(1, ALONE, [900, 901], RELEASE, Outcome::Number(0));
        history.under_faults().broken()
    };
    assert_eq!(broken(renew(100)), []);
    assert_eq!(broken(Call::Look), [Rule::LeaseEnds]);
}

/// A free lock is granted at once, even right after the answer to its release.
#[test]
fn just_released_lock_is_granted_without_a_wait() {
    let broken_with_takeover = |second: u64, outcome, takeover: Option<[u64; 2]>| {
        let mut history = Scripted::mutex()
            .call(1, ALONE, [10, 11], acquire(30_000, None), Outcome::Granted(5))
            .call(1, ALONE, [20, 25], RELEASE, Outcome::Number(0))
            .call(2, ALONE, [second, second + 1], acquire(30_000, None), outcome);
        history.0.is_undisturbed = takeover.is_none();
        let span = takeover.map(|ms| ms.map(|ms| ms * 1000));
        history.0.takeovers = span.map(|[from_us, until_us]| Possible { from_us, until_us }).into_iter().collect();
        history.broken()
    };
    let broken = |second, outcome| broken_with_takeover(second, outcome, None);
    assert_eq!(
        broken_with_takeover(1_900, Outcome::Nil, Some([1_000, 1_500])),
        [],
        "the new server may lack the release"
    );
    assert_eq!(broken_with_takeover(2_026, Outcome::Nil, Some([1_000, 1_500])), [Rule::FreeIsGranted]);
    assert_eq!(
        broken_with_takeover(1_900, Outcome::Nil, Some([3_000, 3_500])),
        [Rule::FreeIsGranted],
        "the takeover came long after the release"
    );
    assert_eq!(broken(26, Outcome::Granted(6)), []);
    assert_eq!(broken(24, Outcome::Nil), [], "the release may not have taken effect yet");
    assert_eq!(broken(26, Outcome::Nil), [Rule::FreeIsGranted]);
}

/// Tokens rise in the order of the grants: a waiter was granted when the lock was released, and not
/// when it asked.
#[test]
fn waiter_gets_a_token_above_all_known_when_the_lock_came_free() {
    let broken = |kind, mode, token| {
        Scripted::of(kind, 1)
            .call(1, mode, [10, 11], acquire(30_000, None), Outcome::Granted(5))
            .call(2, mode, [20, 901], acquire(30_000, Some(8_000)), Outcome::Granted(token))
            .on(1, 3, mode, [500, 501], acquire(30_000, None), Outcome::Granted(10))
            .call(1, mode, [900, 901], RELEASE, Outcome::Number(0))
            .broken()
    };
    assert_eq!(broken(Kind::Mutex, ALONE, 11), []);
    assert_eq!(broken(Kind::Mutex, ALONE, 6), [Rule::TokensRise]);
    assert_eq!(broken(Kind::RwLock, Mode::Write, 6), [Rule::TokensRise]);
    assert_eq!(broken(Kind::RwLock, Mode::Read, 6), [], "it may have been granted before");
    // Its lease expired before it received the grant, and another owner held and released the lock
    // in between.
    let late = |lease_ms| {
        Scripted::mutex()
            .call(1, ALONE, [10, 21], acquire(lease_ms, Some(8_000)), Outcome::Granted(5))
            .call(2, ALONE, [15, 16], acquire(30_000, None), Outcome::Granted(10))
            .call(2, ALONE, [18, 19], RELEASE, Outcome::Number(0))
            .broken()
    };
    assert_eq!(late(2), []);
    assert_eq!(late(100), [Rule::TokensRise]);
}

/// CANCEL reports how many requests it ended: no more than were waiting.
#[test]
fn cancel_ends_no_more_requests_than_wait() {
    let broken = |ended| {
        Scripted::mutex()
            .call(1, ALONE, [10, 11], acquire(30_000, None), Outcome::Granted(5))
            .call(2, ALONE, [20, 33], acquire(30_000, Some(8_000)), Outcome::Unblocked)
            .call(2, ALONE, [30, 31], CANCEL, Outcome::Number(ended))
            .call(1, ALONE, [40, 41], RELEASE, Outcome::Number(0))
            .broken()
    };
    assert_eq!(broken(1), []);
    assert_eq!(broken(2), [Rule::CancelEndsWaits]);
}

/// A replica decides nothing, so it answers neither nil nor NOTOWNER.
#[test]
fn replica_answers_neither_nil_nor_notowner() {
    let broken = |call, outcome| {
        let mut history = Scripted::mutex().call(1, ALONE, [100, 101], call, outcome);
        history.0.is_undisturbed = false;
        let [from_us, until_us] = [50_000, 150_000];
        history.0.demotions = vec![Possible { from_us, until_us }];
        history.0.pauses = history.0.demotions.clone();
        history.broken()
    };
    for (call, outcome) in [(AGAIN, Outcome::Nil), (RELEASE, Outcome::NotOwner), (renew(100), Outcome::NotOwner)] {
        assert_eq!(broken(call, Outcome::Refused), [], "{call:?}");
        assert_eq!(broken(call, outcome), [Rule::ReplicaDecidesNothing], "{call:?}");
    }
}

/// The answer to a request with NOTIFY is published once.
#[test]
fn wait_is_answered_once() {
    let history = Scripted::mutex().call(1, ALONE, [10, 20], acquire(30_000, Some(8_000)), Outcome::Granted(5));
    let twice = history.call(1, ALONE, [30, 30], Call::Look, Outcome::AnsweredTwice);
    assert_eq!(twice.broken(), [Rule::AnsweredOnce]);
}

/// A session ends when its server notices that its connection has closed. A replica does not look.
#[test]
fn session_closed_under_a_replica_may_outlast_the_demotion() {
    let broken = |until: u64, asked: u64| {
        let mut history = Scripted::mutex()
            .call(1, ALONE, [10, 11], acquire(60_000, None), Outcome::Granted(5))
            .call(1, ALONE, [12, 13], Call::Close { grace_ms: 20 }, Outcome::Unknown)
            .call(2, ALONE, [asked, asked + 1], acquire(100, None), Outcome::Nil);
        history.0.is_undisturbed = false;
        history.0.demotions = vec![Possible { from_us: 12_000, until_us: until * 1000 }];
        history.broken()
    };
    assert_eq!(broken(6_000, 6_100), []);
    assert_eq!(broken(6_000, 8_100), [Rule::FreeIsGranted]);
    assert_eq!(broken(12, 2_050), [Rule::FreeIsGranted]);
}

/// A session does not end while its server cannot write, because its end is a write.
#[test]
fn session_closed_while_writes_fail_may_outlast_the_pause() {
    let broken = |until: u64, looked: u64, waits_end_in_pauses| {
        let mut history = Scripted::mutex()
            .call(1, ALONE, [10, 11], acquire(60_000, None), Outcome::Granted(5))
            .call(1, ALONE, [12, 13], Call::Close { grace_ms: 20 }, Outcome::Unknown)
            .call(1, ALONE, [looked, looked + 1], Call::Look, Outcome::Number(1));
        history.0.is_undisturbed = false;
        history.0.pauses = vec![Possible { from_us: 12_000, until_us: until * 1000 }];
        history.0.waits_end_in_pauses = waits_end_in_pauses;
        history.broken()
    };
    for waits_end_in_pauses in [false, true] {
        assert_eq!(broken(6_000, 5_000, waits_end_in_pauses), []);
        assert_eq!(broken(6_000, 6_100, waits_end_in_pauses), []);
        assert_eq!(broken(6_000, 8_100, waits_end_in_pauses), [Rule::GivenUpIsGone]);
    }
}

/// Every hold has a lease, and no lease is longer than requested.
#[test]
fn lease_longer_than_requested_is_reported() {
    let broken = |left_ms| {
        Scripted::mutex()
            .call(1, ALONE, [10, 11], acquire(100, None), Outcome::Granted(5))
            .call(1, ALONE, [20, 21], renew(100), Outcome::Number(left_ms))
            .call(1, ALONE, [30, 31], RELEASE, Outcome::Number(0))
            .broken()
    };
    assert_eq!(broken(100), []);
    assert_eq!(broken(3_600_000), [Rule::LeaseEnds]);
}

/// Owner 2 waits for a fair lock when its connection closes; its channel reports that. Its place
/// lasts for the grace, and the lock that owner 1 releases is reserved for it.
#[test]
fn fair_place_outlives_its_connection_by_the_grace() {
    let broken = |is_undisturbed| {
        let mut history = Scripted::of(Kind::Fair, 1)
            .call(1, ALONE, [10, 11], acquire(5_000, None), Outcome::Granted(5))
            .call(2, ALONE, [20, 200], acquire(5_000, Some(3_000)), Outcome::Unblocked)
            .call(2, ALONE, [190, 191], CANCEL, Outcome::Number(1))
            .call(1, ALONE, [205, 206], RELEASE, Outcome::Number(0))
            .call(3, ALONE, [207, 208], acquire(5_000, None), Outcome::Nil);
        history.0.is_undisturbed = is_undisturbed;
        history.broken()
    };
    assert_eq!(broken(false), []);
    assert_eq!(broken(true), [Rule::FreeIsGranted], "no connection closes by itself");
}

/// A fair lock moves to another node with its slot, and with the place of owner 2, which still
/// waits at the first node. When the lock is released there, it is reserved for that place. Then
/// owner 2 is redirected and asks again: only now does its request count as sent.
#[test]
fn fair_place_moves_with_its_slot_before_its_owner() {
    let broken = |is_of_several_servers| {
        let mut history = Scripted::of(Kind::Fair, 1)
            .call(1, ALONE, [10, 11], acquire(5_000, None), Outcome::Granted(5))
            .call(1, ALONE, [205, 206], RELEASE, Outcome::Number(0))
            .call(3, ALONE, [207, 208], acquire(5_000, None), Outcome::Nil)
            .call(2, ALONE, [230, 231], acquire(5_000, Some(3_000)), Outcome::Granted(6));
        history.0.is_undisturbed = false;
        history.0.is_of_several_servers = is_of_several_servers;
        history.broken()
    };
    assert_eq!(broken(true), []);
    assert_eq!(broken(false), [Rule::FreeIsGranted]);
}

/// Owner 1 is granted a lock for a moment, and reads the answer late: other owners have held the
/// lock by then, with higher tokens. Either its lease expired early by the clock of a server that
/// took over, or its session had ended because it had no connection to the node that the lock moved
/// to.
#[test]
fn hold_that_ended_before_its_answer_may_have_an_older_token() {
    let broken = |lease_ms, clocks_differ_us, closes: bool| {
        let mut history = Scripted::mutex()
            .call(1, ALONE, [10, 200], acquire(lease_ms, Some(3_000)), Outcome::Granted(5))
            .call(2, ALONE, [50, 51], acquire(5_000, None), Outcome::Granted(10))
            .call(2, ALONE, [60, 61], RELEASE, Outcome::Number(0));
        if closes {
            history = history.call(1, ALONE, [200, 201], Call::Close { grace_ms: 33 }, Outcome::Unknown);
        }
        history.0.is_undisturbed = false;
        history.0.clocks_differ_us = clocks_differ_us;
        history.broken()
    };
    assert_eq!(broken(100, 0, false), [Rule::TokensRise]);
    assert_eq!(broken(100, 300_000, false), []);
    assert_eq!(broken(5_000, 0, false), [Rule::TokensRise]);
    assert_eq!(broken(5_000, 0, true), []);
}
