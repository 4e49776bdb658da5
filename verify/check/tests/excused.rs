//! A fault excuses what it explains, and nothing more: histories of broken locks in the middle of faults, which a rule has to report; and what rules look at
//! for every kind of lock.

mod told;

use rlock_check::history::{Call, Kind, Mode, Outcome, Rule};
use rlock_check::takeovers;
use rlock_check::timeline::Possible;
use told::{ALONE, Told};

const PERMITS: Mode = Mode::Permits;

const fn release(count: u32) -> Call {
    Call::Release { count, token: None, request_id: None }
}

const fn acquire(count: u32, lease_ms: u64, block_ms: Option<u64>) -> Call {
    Call::Acquire { count, lease_ms, block_ms, request_id: None, keeps_place: false, is_once: false }
}

const TRY: Call = acquire(1, 5_000, None);
const WAIT: Call = acquire(1, 5_000, Some(3_000));

/// 3: "Past the queue go only an owner that holds already, on a semaphore not even that one." 4 permits: 1 + 2 are held, owner 3 waits for 3; then owner 1
/// is given the free one. At 31 ms all four are in use, so owner 3 was surely not granted before.
#[test]
fn a_holder_of_permits_does_not_pass_who_waits_for_more_than_is_free() {
    let told = |more, in_queue: Outcome| {
        let mut told = Told::of(Kind::Semaphore, 4)
            .call(1, PERMITS, [10, 11], TRY, Outcome::Granted(5))
            .call(2, PERMITS, [12, 13], acquire(2, 60_000, None), Outcome::Granted(6))
            .call(3, PERMITS, [20, 902], acquire(3, 60_000, Some(8_000)), in_queue)
            .call(1, PERMITS, [30, 31], TRY, more);
        if more == Outcome::Granted(5) {
            told = told.call(1, PERMITS, [800, 801], release(1), Outcome::Number(1));
        }
        told.call(2, PERMITS, [900, 901], release(2), Outcome::Number(0)).broken()
    };
    assert_eq!(told(Outcome::Nil, Outcome::Granted(7)), []);
    assert_eq!(told(Outcome::Granted(5), Outcome::Granted(7)), [Rule::FirstComeFirstServed]);
}

/// The same, but nobody is passed: who waited may have been granted before.
#[test]
fn a_holder_of_permits_is_given_more_after_who_came_before() {
    let told = |released: [u64; 2], wish: Call, waits: [u64; 2], comes_first: bool| {
        let wait = |told: Told| told.call(3, PERMITS, waits, wish, Outcome::Granted(7));
        let add = |told: Told| told.call(1, PERMITS, [30, 31], TRY, Outcome::Granted(5));
        let told = Told::of(Kind::Semaphore, 4)
            .call(1, PERMITS, [10, 11], TRY, Outcome::Granted(5))
            .call(2, PERMITS, [12, 13], acquire(2, 60_000, None), Outcome::Granted(6))
            .call(2, PERMITS, released, release(2), Outcome::Number(0));
        let told = if comes_first { add(wait(told)) } else { wait(add(told)) };
        let (Call::Acquire { count, lease_ms, .. }, [_, answered]) = (wish, waits) else { return Vec::new() };
        let left = if lease_ms < 10 { Outcome::NotOwner } else { Outcome::Number(0) };
        told.call(3, PERMITS, [answered + 1, answered + 2], release(count), left).broken()
    };
    let (early, late) = ([21, 22], [800, 801]);
    let wish = |count, lease_ms| acquire(count, lease_ms, Some(8_000));
    assert_eq!(told(late, wish(2, 60_000), [20, 902], true), [Rule::FirstComeFirstServed], "it cannot have been");
    assert_eq!(told(late, wish(2, 60_000), [20, 902], false), [], "it came after");
    assert_eq!(told(early, wish(2, 60_000), [20, 902], true), [], "there was room");
    assert_eq!(told(early, wish(2, 60_000), [20, 24], true), [], "it was answered, and gave up");
    assert_eq!(told(early, wish(3, 5), [20, 902], true), [], "its lease may have been over by then");
}

/// 9: "a repeated request changes nothing and is answered as the first one was, for as long as its hold lasts"; "however often the ACQUIRE is sent, there is
/// one hold".
#[test]
fn a_repeated_request_for_permits_is_answered_as_the_first_one_was() {
    for (request_id, is_once) in [(Some(1), false), (None, true)] {
        let ask = Call::Acquire { count: 3, lease_ms: 60_000, block_ms: None, request_id, keeps_place: false, is_once };
        let told = |kind, mode, again| {
            Told::of(kind, 4)
                .call(1, mode, [10, 11], ask, Outcome::Granted(5))
                .call(1, mode, [20, 21], ask, again)
                .call(1, mode, [30, 31], release(3), Outcome::Number(0))
                .broken()
        };
        assert_eq!(told(Kind::Semaphore, PERMITS, Outcome::Granted(5)), []);
        assert_eq!(told(Kind::Mutex, ALONE, Outcome::Nil), [Rule::HoldIsKept]);
        assert_eq!(
            told(Kind::Semaphore, PERMITS, Outcome::Nil),
            [Rule::HoldIsKept],
            "REQ {request_id:?}, ONCE {is_once}"
        );
    }
}

/// "Replicas … decide nothing." Owner 2 waits when its server becomes a replica, for six seconds; it is answered by the replica, 2.4 s after that.
#[test]
fn a_replica_does_not_go_on_with_waits() {
    let told = |answered, outcome| {
        let mut told = Told::mutex()
            .under_faults()
            .call(1, ALONE, [10, 11], acquire(1, 2_400, None), Outcome::Granted(5))
            .call(2, ALONE, [20, answered], acquire(1, 5_000, Some(2_400)), outcome);
        told.0.demotions = vec![Possible { from_us: 30_000, until_us: 6_030_000 }];
        told.broken()
    };
    assert_eq!(told(35, Outcome::Unknown), [], "UNBLOCKED, because of the demotion");
    let answered = [Outcome::Granted(6), Outcome::Nil].map(|outcome| told(2_430, outcome));
    assert_eq!(answered, [[Rule::ReplicaDecidesNothing], [Rule::ReplicaDecidesNothing]]);
}

/// 5 and 15: "A waiter whose time ran out … gets `nil`"; "waits end in time". The disk is full; the server is there. A wait of 500 ms is over 6 s late.
#[test]
fn a_wait_that_ends_late_with_an_error_has_ended_late() {
    let told = |answered, outcome| {
        let mut told = Told::mutex()
            .under_faults()
            .call(1, ALONE, [10, 11], acquire(1, 60_000, None), Outcome::Granted(5))
            .call(2, ALONE, [20, answered], acquire(1, 5_000, Some(500)), outcome);
        told.0.pauses = vec![Possible { from_us: 30_000, until_us: 6_500_000 }];
        told.0.waits_end_in_pauses = true;
        told.broken()
    };
    assert_eq!(told(521, Outcome::Nil), []);
    assert_eq!(told(6_600, Outcome::Nil), [Rule::NilIsFinal]);
    assert_eq!(told(6_600, Outcome::Unknown), [Rule::NilIsFinal]);
    let errors = [told(6_600, Outcome::Refused), told(50_000, Outcome::Unblocked)];
    assert_eq!(errors, [[Rule::NilIsFinal], [Rule::NilIsFinal]], "an error, and UNBLOCKED fifty seconds late");
}

/// 14: "whoever waits already is served". As under "maxmemory reached", SIGSTOP and output buffers: no connection is lost, the server is a master all the time.
/// Owner 2 waited for 2.9 s, and was refused in the middle of it.
#[test]
fn who_waits_already_is_not_refused() {
    let told = |outcome| {
        let mut told = Told::mutex()
            .under_faults()
            .call(1, ALONE, [10, 11], acquire(1, 60_000, None), Outcome::Granted(5))
            .call(2, ALONE, [20, 2_900], WAIT, outcome)
            .call(1, ALONE, [2_850, 2_851], release(1), Outcome::Number(0));
        told.0.is_always_taken = true;
        told.broken()
    };
    assert_eq!(told(Outcome::Granted(6)), []);
    assert_eq!(told(Outcome::Refused), [Rule::GivingUpIsTaken]);
}

/// 4 and 11: a request for many keys that waits, all of which are free all the time.
#[test]
fn a_request_for_many_keys_does_not_wait_for_itself() {
    let told = |answered, outcomes: [Outcome; 2], is_undisturbed| {
        let mut told = Told::mutex().call(1, ALONE, [20, answered], WAIT, outcomes[0]);
        told = told.on(1, 1, ALONE, [20, answered], WAIT, outcomes[1]);
        told.0.is_undisturbed = is_undisturbed;
        told.broken()
    };
    let granted = [Outcome::Granted(6), Outcome::Granted(7)];
    assert_eq!(told(21, granted, false), []);
    assert_eq!(told(3_020, [Outcome::Nil; 2], true), [Rule::NoLostWakeUp]);
    let behind = Told::mutex()
        .call(1, ALONE, [20, 3_020], WAIT, Outcome::Nil)
        .on(1, 1, ALONE, [20, 3_020], WAIT, Outcome::Nil)
        .call(2, ALONE, [21, 3_021], WAIT, Outcome::Nil);
    let wrong = [told(3_020, [Outcome::Nil; 2], false), told(3_020, granted, false), behind.under_faults().broken()];
    assert_eq!(
        wrong,
        [[Rule::NoLostWakeUp], [Rule::NoLostWakeUp], [Rule::NoLostWakeUp]],
        "nil, late, and who waits for one"
    );
}

/// 6: "The fencing token of a hold is higher than that of every hold before it on this server, whatever the key." As the test of the same name in
/// `forgiven.rs`, on a semaphore all of whose permits are in use.
#[test]
fn the_token_of_who_waited_for_permits_is_above_what_was_known_when_they_came_free() {
    let told = |permits, token| {
        Told::of(Kind::Semaphore, permits)
            .call(1, PERMITS, [10, 11], acquire(permits, 30_000, None), Outcome::Granted(5))
            .call(2, PERMITS, [20, 901], acquire(1, 30_000, Some(8_000)), Outcome::Granted(token))
            .on(1, 3, PERMITS, [500, 501], acquire(1, 30_000, None), Outcome::Granted(10))
            .call(1, PERMITS, [900, 901], release(permits), Outcome::Number(0))
            .broken()
    };
    assert_eq!(told(4, 11), []);
    assert_eq!([told(1, 6), told(4, 6)], [[Rule::TokensRise], [Rule::TokensRise]]);
}

/// 2, "a free lock is granted": only a fair lock keeps places. Owner 1 was refused; a second later nobody has anything of the mutex.
#[test]
fn who_was_refused_has_no_place_at_a_mutex() {
    let told = |kind, mode, outcome| {
        Told::of(kind, 4)
            .under_faults()
            .call(1, mode, [10, 100], acquire(1, 5_000, Some(90)), outcome)
            .call(2, mode, [1_100, 1_101], TRY, Outcome::Nil)
            .broken()
    };
    assert_eq!(told(Kind::Fair, ALONE, Outcome::Unblocked), [], "its place is kept for a grace");
    assert_eq!(told(Kind::Mutex, ALONE, Outcome::Nil), [Rule::FreeIsGranted]);
    let kinds = [(Kind::Mutex, ALONE), (Kind::RwLock, Mode::Write), (Kind::Semaphore, PERMITS)];
    let wrong =
        kinds.map(|(kind, mode)| [Outcome::Refused, Outcome::Unblocked].map(|outcome| told(kind, mode, outcome)));
    assert!(wrong.iter().flatten().all(|broken| broken == &[Rule::FreeIsGranted]), "{wrong:?}");
}

/// 7, where servers take over. One takeover, and 60 s later an owner that has seen none, as no lock has.
#[test]
fn a_takeover_makes_no_lease_longer_a_minute_later() {
    let told = |operations: Told| {
        let mut told = operations.under_faults();
        let takeovers_us = [1_000_000, 2_000_000];
        told.0.grants_of_forgotten = takeovers::forget(&mut told.0.operations, &takeovers_us);
        told.broken()
    };
    let at = 60_000;
    let holds = || Told::mutex().call(1, ALONE, [at, at + 1], acquire(1, 1_500, None), Outcome::Granted(5));
    let renew = Call::Renew { lease_ms: 1_500, token: None };
    let renewed = |left_ms| told(holds().call(1, ALONE, [at + 10, at + 11], renew, Outcome::Number(left_ms)));
    assert_eq!(renewed(1_500), []);
    assert_eq!(renewed(3_600_000), [Rule::LeaseEnds]);
}

/// A place of a fair lock excuses for ever, also after it was taken back.
#[test]
fn a_place_is_not_kept_for_ever() {
    let place = Call::Acquire {
        count: 1,
        lease_ms: 60_000,
        block_ms: None,
        request_id: None,
        keeps_place: true,
        is_once: false,
    };
    let told = Told::of(Kind::Fair, 1)
        .call(1, ALONE, [10, 11], place, Outcome::Nil)
        .call(1, ALONE, [20, 21], Call::Cancel { is_waiting: false }, Outcome::Number(1))
        .call(2, ALONE, [3_600_000, 3_600_001], TRY, Outcome::Nil);
    assert_eq!(told.broken(), [Rule::FreeIsGranted]);
}

/// "If the clocks of two servers differ by s, a deadline moves by s when one takes over from the other": by 2 s when two do.
#[test]
fn a_deadline_moves_at_each_takeover() {
    let mut told = Told::mutex()
        .under_faults()
        .call(1, ALONE, [10, 11], acquire(1, 5_000, None), Outcome::Granted(5))
        .call(1, ALONE, [4_500, 4_501], Call::Look, Outcome::Number(0));
    told.0.clocks_differ_us = 300_000;
    // Two `CLUSTER FAILOVER`s in the life of the hold, as `Harm` notes them.
    told.0.pauses =
        vec![Possible { from_us: 100_000, until_us: 1_500_000 }, Possible { from_us: 2_000_000, until_us: 3_900_000 }];
    assert_eq!(told.broken(), []);
}

/// The replica takes over in the very turn in which the waiter is granted and killed: its server takes nothing back, and the lease goes on at the other one.
#[test]
fn a_grant_in_the_very_turn_of_a_takeover_in_agreement_is_not_taken_back() {
    let told = |paused_us: [u64; 2], clocks_differ_us| {
        let mut told = Told::mutex()
            .under_faults()
            .call(1, ALONE, [80, 195], acquire(1, 5_000, Some(3_000)), Outcome::Undone)
            .call(2, ALONE, [1_950, 4_960], acquire(1, 5_000, Some(3_000)), Outcome::Nil);
        told.0.clocks_differ_us = clocks_differ_us;
        told.0.pauses = vec![Possible { from_us: paused_us[0], until_us: paused_us[1] }];
        told.broken()
    };
    assert_eq!(told([150_000, 2_200_000], 300_000), []);
    assert_eq!(told([150_000, 2_200_000], 0), [Rule::NoLostWakeUp]);
    assert_eq!(told([250_000, 2_200_000], 300_000), [Rule::NoLostWakeUp]);
}
