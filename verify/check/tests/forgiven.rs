//! Histories that break a written guarantee (docs/guarantees.md), and that a rule has to report: each is the lawful history beside it with one
//! thing changed. And lawful ones that look as if they did.

mod told;

use rlock_check::history::{Call, Kind, Mode, Outcome, Rule};
use rlock_check::timeline::Possible;
use told::{ALONE, Told};

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
fn who_holds_nothing_renews_nothing() {
    let told = |outcome| {
        Told::mutex()
            .call(1, ALONE, [10, 11], acquire(30_000, None), Outcome::Granted(5))
            .call(1, ALONE, [20, 21], RELEASE, Outcome::Number(0))
            .call(1, ALONE, [30, 31], renew(30_000), outcome)
            .broken()
    };
    assert_eq!(told(Outcome::NotOwner), []);
    assert_eq!(told(Outcome::Number(30_000)), [Rule::CountsAreRight]);
}

/// 3: past the queue go only an owner that holds, and a reader that asks for WRITE. Owner 1 was a reader, whose lease has been over for long.
#[test]
fn who_held_once_does_not_pass_the_queue() {
    let told = |first: u64, third: u64| {
        let mut told = Told::of(Kind::RwLock, 1)
            .call(1, Mode::Read, [10, 11], acquire(20, None), Outcome::Granted(5))
            .call(2, Mode::Write, [100, 101], acquire(30_000, None), Outcome::Granted(6))
            .call(3, Mode::Write, [200, third], acquire(30_000, Some(8_000)), Outcome::Granted(third))
            .call(1, Mode::Write, [300, first], acquire(30_000, Some(8_000)), Outcome::Granted(first))
            .call(2, Mode::Write, [900, 901], RELEASE, Outcome::Number(0));
        for (owner, at) in [(1, first), (3, third)] {
            told = told.call(owner, Mode::Write, [at + 50, at + 51], RELEASE, Outcome::Number(0));
        }
        told.broken()
    };
    assert_eq!(told(1_000, 901), []);
    assert_eq!(told(901, 1_000), [Rule::FirstComeFirstServed]);
}

/// "What CANCEL has ended is never granted", also if CANCEL is sent once more before that.
#[test]
fn what_was_taken_back_twice_is_over() {
    let told = |then, at| {
        Told::mutex()
            .call(1, ALONE, [10, 11], acquire(30_000, None), Outcome::Granted(5))
            .call(2, ALONE, [20, at], acquire(30_000, Some(8_000)), then)
            .call(2, ALONE, [30, 31], CANCEL, Outcome::Number(1))
            .call(2, ALONE, [32, 33], Call::Cancel { is_waiting: false }, Outcome::Number(0))
            .call(1, ALONE, [40, 41], RELEASE, Outcome::Number(0))
            .broken()
    };
    assert_eq!(told(Outcome::Unblocked, 33), []);
    assert_eq!(told(Outcome::Granted(6), 42), [Rule::CancelEndsWaits]);
}

/// "A hold ends with its lease": its owner learns that too, whatever it asks.
#[test]
fn who_comes_back_too_late_does_not_hold() {
    const COUNTED: [(Call, Outcome, Outcome); 4] = [
        (RELEASE, Outcome::NotOwner, Outcome::Number(0)),
        (renew(30_000), Outcome::NotOwner, Outcome::Number(30_000)),
        (Call::Look, Outcome::Number(0), Outcome::Number(1)),
        (AGAIN, Outcome::Granted(6), Outcome::Granted(5)),
    ];
    for (call, lawful, wrong) in COUNTED {
        let told = |sent, outcome| {
            Told::mutex()
                .call(1, ALONE, [10, 11], acquire(100, None), Outcome::Granted(5))
                .call(1, ALONE, [sent, sent + 1], call, outcome)
                .broken()
        };
        assert_eq!(told(200, lawful), [], "{call:?}");
        assert_eq!(told(200, wrong), [Rule::LeaseEnds], "{call:?}");
        assert_eq!(told(105, wrong), [], "it holds then: {call:?}");
    }
}

/// What had no answer may have been done late, and have prolonged the lease.
#[test]
fn who_is_not_sure_of_its_lease_may_hold() {
    let told = |before| {
        let told = Told::mutex()
            .call(1, ALONE, [10, 11], acquire(100, None), Outcome::Granted(5))
            .call(1, ALONE, [12, 20], before, Outcome::Unknown)
            .call(1, ALONE, [900, 901], RELEASE, Outcome::Number(0));
        told.under_faults().broken()
    };
    assert_eq!(told(renew(100)), []);
    assert_eq!(told(Call::Look), [Rule::LeaseEnds]);
}

/// "A free lock is granted at once", also the moment after its release was answered.
#[test]
fn who_does_not_wait_is_not_refused_what_was_just_given_up() {
    let told_where = |second: u64, outcome, takeover: Option<[u64; 2]>| {
        let mut told = Told::mutex()
            .call(1, ALONE, [10, 11], acquire(30_000, None), Outcome::Granted(5))
            .call(1, ALONE, [20, 25], RELEASE, Outcome::Number(0))
            .call(2, ALONE, [second, second + 1], acquire(30_000, None), outcome);
        told.0.is_undisturbed = takeover.is_none();
        let span = takeover.map(|ms| ms.map(|ms| ms * 1000));
        told.0.takeovers = span.map(|[from_us, until_us]| Possible { from_us, until_us }).into_iter().collect();
        told.broken()
    };
    let told = |second, outcome| told_where(second, outcome, None);
    assert_eq!(
        told_where(1_900, Outcome::Nil, Some([1_000, 1_500])),
        [],
        "who takes over may not have heard of the release"
    );
    assert_eq!(told_where(2_026, Outcome::Nil, Some([1_000, 1_500])), [Rule::FreeIsGranted]);
    assert_eq!(told_where(1_900, Outcome::Nil, Some([3_000, 3_500])), [Rule::FreeIsGranted], "that was long before");
    assert_eq!(told(26, Outcome::Granted(6)), []);
    assert_eq!(told(24, Outcome::Nil), [], "the release may not be done yet");
    assert_eq!(told(26, Outcome::Nil), [Rule::FreeIsGranted]);
}

/// "Tokens rise in the order of the grants": who waited was granted when the lock was given up, and not when it asked.
#[test]
fn the_token_of_who_waited_is_above_what_was_known_when_the_lock_came_free() {
    let told = |kind, mode, token| {
        Told::of(kind, 1)
            .call(1, mode, [10, 11], acquire(30_000, None), Outcome::Granted(5))
            .call(2, mode, [20, 901], acquire(30_000, Some(8_000)), Outcome::Granted(token))
            .on(1, 3, mode, [500, 501], acquire(30_000, None), Outcome::Granted(10))
            .call(1, mode, [900, 901], RELEASE, Outcome::Number(0))
            .broken()
    };
    assert_eq!(told(Kind::Mutex, ALONE, 11), []);
    assert_eq!(told(Kind::Mutex, ALONE, 6), [Rule::TokensRise]);
    assert_eq!(told(Kind::RwLock, Mode::Write, 6), [Rule::TokensRise]);
    assert_eq!(told(Kind::RwLock, Mode::Read, 6), [], "it may have been granted before");
    // Its lease was over before it was told, and another owner came and went.
    let late = |lease_ms| {
        Told::mutex()
            .call(1, ALONE, [10, 21], acquire(lease_ms, Some(8_000)), Outcome::Granted(5))
            .call(2, ALONE, [15, 16], acquire(30_000, None), Outcome::Granted(10))
            .call(2, ALONE, [18, 19], RELEASE, Outcome::Number(0))
            .broken()
    };
    assert_eq!(late(2), []);
    assert_eq!(late(100), [Rule::TokensRise]);
}

/// CANCEL says how many requests it has ended: no more than there were.
#[test]
fn cancel_ends_no_more_than_what_waits() {
    let told = |ended| {
        Told::mutex()
            .call(1, ALONE, [10, 11], acquire(30_000, None), Outcome::Granted(5))
            .call(2, ALONE, [20, 33], acquire(30_000, Some(8_000)), Outcome::Unblocked)
            .call(2, ALONE, [30, 31], CANCEL, Outcome::Number(ended))
            .call(1, ALONE, [40, 41], RELEASE, Outcome::Number(0))
            .broken()
    };
    assert_eq!(told(1), []);
    assert_eq!(told(2), [Rule::CancelEndsWaits]);
}

/// "A replica decides nothing", and so it does not say either that somebody gets nothing or does not hold.
#[test]
fn a_replica_says_to_nobody_that_it_does_not_hold() {
    let told = |call, outcome| {
        let mut told = Told::mutex().call(1, ALONE, [100, 101], call, outcome);
        told.0.is_undisturbed = false;
        let [from_us, until_us] = [50_000, 150_000];
        told.0.demotions = vec![Possible { from_us, until_us }];
        told.0.pauses = told.0.demotions.clone();
        told.broken()
    };
    for (call, outcome) in [(AGAIN, Outcome::Nil), (RELEASE, Outcome::NotOwner), (renew(100), Outcome::NotOwner)] {
        assert_eq!(told(call, Outcome::Refused), [], "{call:?}");
        assert_eq!(told(call, outcome), [Rule::ReplicaDecidesNothing], "{call:?}");
    }
}

/// "The answer to a request with NOTIFY is published once."
#[test]
fn who_waits_is_answered_once() {
    let told = Told::mutex().call(1, ALONE, [10, 20], acquire(30_000, Some(8_000)), Outcome::Granted(5));
    let twice = told.call(1, ALONE, [30, 30], Call::Look, Outcome::ToldTwice);
    assert_eq!(twice.broken(), [Rule::AnsweredOnce]);
}

/// A session ends when its server sees that its connection has closed: a replica does not look.
#[test]
fn a_session_whose_connection_closed_under_a_replica_is_there_for_a_while() {
    let told = |until: u64, asked: u64| {
        let mut told = Told::mutex()
            .call(1, ALONE, [10, 11], acquire(60_000, None), Outcome::Granted(5))
            .call(1, ALONE, [12, 13], Call::Close { grace_ms: 20 }, Outcome::Unknown)
            .call(2, ALONE, [asked, asked + 1], acquire(100, None), Outcome::Nil);
        told.0.is_undisturbed = false;
        told.0.demotions = vec![Possible { from_us: 12_000, until_us: until * 1000 }];
        told.broken()
    };
    assert_eq!(told(6_000, 6_100), []);
    assert_eq!(told(6_000, 8_100), [Rule::FreeIsGranted]);
    assert_eq!(told(12, 2_050), [Rule::FreeIsGranted]);
}

/// "The end of a session waits for that too": the server could not write when its connection closed.
#[test]
fn a_session_whose_connection_closed_while_nothing_was_written_is_there_for_a_while() {
    let told = |until: u64, looked: u64, waits_end_in_pauses| {
        let mut told = Told::mutex()
            .call(1, ALONE, [10, 11], acquire(60_000, None), Outcome::Granted(5))
            .call(1, ALONE, [12, 13], Call::Close { grace_ms: 20 }, Outcome::Unknown)
            .call(1, ALONE, [looked, looked + 1], Call::Look, Outcome::Number(1));
        told.0.is_undisturbed = false;
        told.0.pauses = vec![Possible { from_us: 12_000, until_us: until * 1000 }];
        told.0.waits_end_in_pauses = waits_end_in_pauses;
        told.broken()
    };
    for waits_end_in_pauses in [false, true] {
        assert_eq!(told(6_000, 5_000, waits_end_in_pauses), []);
        assert_eq!(told(6_000, 6_100, waits_end_in_pauses), []);
        assert_eq!(told(6_000, 8_100, waits_end_in_pauses), [Rule::GivenUpIsGone]);
    }
}

/// "Every hold has a lease", and none is longer than somebody has asked for.
#[test]
fn a_lease_that_is_longer_than_what_was_asked_for() {
    let told = |left_ms| {
        Told::mutex()
            .call(1, ALONE, [10, 11], acquire(100, None), Outcome::Granted(5))
            .call(1, ALONE, [20, 21], renew(100), Outcome::Number(left_ms))
            .call(1, ALONE, [30, 31], RELEASE, Outcome::Number(0))
            .broken()
    };
    assert_eq!(told(100), []);
    assert_eq!(told(3_600_000), [Rule::LeaseEnds]);
}

/// Owner 2 waits for a fair lock, and the connection that asked closes; it is told so on its channel. Its place is kept for a grace, and what owner 1
/// gives up is reserved for it.
#[test]
fn the_place_of_a_fair_lock_whose_connection_closed_is_kept_for_a_grace() {
    let told = |is_undisturbed| {
        let mut told = Told::of(Kind::Fair, 1)
            .call(1, ALONE, [10, 11], acquire(5_000, None), Outcome::Granted(5))
            .call(2, ALONE, [20, 200], acquire(5_000, Some(3_000)), Outcome::Unblocked)
            .call(2, ALONE, [190, 191], CANCEL, Outcome::Number(1))
            .call(1, ALONE, [205, 206], RELEASE, Outcome::Number(0))
            .call(3, ALONE, [207, 208], acquire(5_000, None), Outcome::Nil);
        told.0.is_undisturbed = is_undisturbed;
        told.broken()
    };
    assert_eq!(told(false), []);
    assert_eq!(told(true), [Rule::FreeIsGranted], "no connection closes by itself there");
}

/// A fair lock goes to another node with its slot, and with the place of owner 2, who still waits at the first one. What is given up there is reserved
/// for that place. Then owner 2 is sent on, and asks anew: that is when its request counts as sent.
#[test]
fn the_place_of_a_fair_lock_goes_with_its_slot_before_its_owner_does() {
    let told = |is_of_several_servers| {
        let mut told = Told::of(Kind::Fair, 1)
            .call(1, ALONE, [10, 11], acquire(5_000, None), Outcome::Granted(5))
            .call(1, ALONE, [205, 206], RELEASE, Outcome::Number(0))
            .call(3, ALONE, [207, 208], acquire(5_000, None), Outcome::Nil)
            .call(2, ALONE, [230, 231], acquire(5_000, Some(3_000)), Outcome::Granted(6));
        told.0.is_undisturbed = false;
        told.0.is_of_several_servers = is_of_several_servers;
        told.broken()
    };
    assert_eq!(told(true), []);
    assert_eq!(told(false), [Rule::FreeIsGranted]);
}

/// Owner 1 is granted a lock for a moment, and looks at the answer late: others have come and gone by then, with higher tokens. Its lease was over early by the
/// clock of a server that took over; or its session had ended, since its connection was not to the node that the lock went to.
#[test]
fn a_hold_that_had_ended_before_its_owner_knew_of_it_was_given_before() {
    let told = |lease_ms, clocks_differ_us, closes: bool| {
        let mut told = Told::mutex()
            .call(1, ALONE, [10, 200], acquire(lease_ms, Some(3_000)), Outcome::Granted(5))
            .call(2, ALONE, [50, 51], acquire(5_000, None), Outcome::Granted(10))
            .call(2, ALONE, [60, 61], RELEASE, Outcome::Number(0));
        if closes {
            told = told.call(1, ALONE, [200, 201], Call::Close { grace_ms: 33 }, Outcome::Unknown);
        }
        told.0.is_undisturbed = false;
        told.0.clocks_differ_us = clocks_differ_us;
        told.broken()
    };
    assert_eq!(told(100, 0, false), [Rule::TokensRise]);
    assert_eq!(told(100, 300_000, false), []);
    assert_eq!(told(5_000, 0, false), [Rule::TokensRise]);
    assert_eq!(told(5_000, 0, true), []);
}
