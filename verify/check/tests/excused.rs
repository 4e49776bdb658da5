//! A fault excuses its own consequences, and nothing more: in these histories a guarantee is broken
//! while a fault happens, and a rule must report it. Some tests apply a rule to every kind of lock.

mod scripted;

use rlock_check::history::{Call, Kind, Mode, Outcome, Rule};
use rlock_check::takeovers;
use rlock_check::timeline::Possible;
use scripted::{ALONE, Scripted};

const PERMITS: Mode = Mode::Permits;

const fn release(count: u32) -> Call {
    Call::Release { count, token: None, request_id: None }
}

const fn acquire(count: u32, lease_ms: u64, block_ms: Option<u64>) -> Call {
    Call::Acquire { count, lease_ms, block_ms, request_id: None, keeps_place: false, is_once: false }
}

const TRY: Call = acquire(1, 5_000, None);
const WAIT: Call = acquire(1, 5_000, Some(3_000));

/// Guarantee 3: only an owner that already holds passes the queue, and on a semaphore not even such
/// an owner. Of 4 permits 1 + 2 are held, and owner 3 waits for 3. Then owner 1 is given the free
/// permit. At 31 ms all four are in use, so owner 3 was surely not granted before.
#[test]
fn holder_of_permits_does_not_pass_a_waiter_for_more_than_is_free() {
    let broken = |more, in_queue: Outcome| {
        let mut history = Scripted::of(Kind::Semaphore, 4)
            .call(1, PERMITS, [10, 11], TRY, Outcome::Granted(5))
            .call(2, PERMITS, [12, 13], acquire(2, 60_000, None), Outcome::Granted(6))
            .call(3, PERMITS, [20, 902], acquire(3, 60_000, Some(8_000)), in_queue)
            .call(1, PERMITS, [30, 31], TRY, more);
        if more == Outcome::Granted(5) {
            history = history.call(1, PERMITS, [800, 801], release(1), Outcome::Number(1));
        }
        history.call(2, PERMITS, [900, 901], release(2), Outcome::Number(0)).broken()
    };
    assert_eq!(broken(Outcome::Nil, Outcome::Granted(7)), []);
    assert_eq!(broken(Outcome::Granted(5), Outcome::Granted(7)), [Rule::FirstComeFirstServed]);
}

/// Like the test above, but owner 1 passes no waiter: the earlier request may have been granted
/// before.
#[test]
fn holder_of_permits_gets_more_after_the_earlier_waiter() {
    let broken = |released: [u64; 2], wish: Call, waits: [u64; 2], comes_first: bool| {
        let wait = |history: Scripted| history.call(3, PERMITS, waits, wish, Outcome::Granted(7));
        let add = |history: Scripted| history.call(1, PERMITS, [30, 31], TRY, Outcome::Granted(5));
        let history = Scripted::of(Kind::Semaphore, 4)
            .call(1, PERMITS, [10, 11], TRY, Outcome::Granted(5))
            .call(2, PERMITS, [12, 13], acquire(2, 60_000, None), Outcome::Granted(6))
            .call(2, PERMITS, released, release(2), Outcome::Number(0));
        let history = if comes_first { add(wait(history)) } else { wait(add(history)) };
        let (Call::Acquire { count, lease_ms, .. }, [_, answered]) = (wish, waits) else { return Vec::new() };
        let left = if lease_ms < 10 { Outcome::NotOwner } else { Outcome::Number(0) };
        history.call(3, PERMITS, [answered + 1, answered + 2], release(count), left).broken()
    };
    let (early, late) = ([21, 22], [800, 801]);
    let wish = |count, lease_ms| acquire(count, lease_ms, Some(8_000));
    assert_eq!(
        broken(late, wish(2, 60_000), [20, 902], true),
        [Rule::FirstComeFirstServed],
        "it cannot have been granted"
    );
    assert_eq!(broken(late, wish(2, 60_000), [20, 902], false), [], "it came after");
    assert_eq!(broken(early, wish(2, 60_000), [20, 902], true), [], "permits were free");
    assert_eq!(broken(early, wish(2, 60_000), [20, 24], true), [], "it was granted, and released");
    assert_eq!(broken(early, wish(3, 5), [20, 902], true), [], "its lease may have expired by then");
}

/// Guarantee 9: a repeated request changes nothing and gets the first answer for as long as its
/// hold lasts; with ONCE there is one hold, however often the ACQUIRE is sent.
#[test]
fn repeated_request_for_permits_gets_the_first_answer() {
    for (request_id, is_once) in [(Some(1), false), (None, true)] {
        let ask = Call::Acquire { count: 3, lease_ms: 60_000, block_ms: None, request_id, keeps_place: false, is_once };
        let broken = |kind, mode, again| {
            Scripted::of(kind, 4)
                .call(1, mode, [10, 11], ask, Outcome::Granted(5))
                .call(1, mode, [20, 21], ask, again)
                .call(1, mode, [30, 31], release(3), Outcome::Number(0))
                .broken()
        };
        assert_eq!(broken(Kind::Semaphore, PERMITS, Outcome::Granted(5)), []);
        assert_eq!(broken(Kind::Mutex, ALONE, Outcome::Nil), [Rule::HoldIsKept]);
        assert_eq!(
            broken(Kind::Semaphore, PERMITS, Outcome::Nil),
            [Rule::HoldIsKept],
            "REQ {request_id:?}, ONCE {is_once}"
        );
    }
}

/// A replica decides nothing. The server is demoted for six seconds while owner 2 waits; the
/// replica answers the wait 2.4 s later.
#[test]
fn replica_does_not_answer_waiters() {
    let broken = |answered, outcome| {
        let mut history = Scripted::mutex()
            .under_faults()
            .call(1, ALONE, [10, 11], acquire(1, 2_400, None), Outcome::Granted(5))
            .call(2, ALONE, [20, answered], acquire(1, 5_000, Some(2_400)), outcome);
        history.0.demotions = vec![Possible { from_us: 30_000, until_us: 6_030_000 }];
        history.broken()
    };
    assert_eq!(broken(35, Outcome::Unknown), [], "UNBLOCKED, because of the demotion");
    let answered = [Outcome::Granted(6), Outcome::Nil].map(|outcome| broken(2_430, outcome));
    assert_eq!(answered, [[Rule::ReplicaDecidesNothing], [Rule::ReplicaDecidesNothing]]);
}

/// Guarantees 5 and 15: waits end in time. The disk is full, but the server is up. A wait of 500 ms
/// ends 6 s late.
#[test]
fn wait_that_ends_late_with_an_error_is_reported() {
    let broken = |answered, outcome| {
        let mut history = Scripted::mutex()
            .under_faults()
            .call(1, ALONE, [10, 11], acquire(1, 60_000, None), Outcome::Granted(5))
            .call(2, ALONE, [20, answered], acquire(1, 5_000, Some(500)), outcome);
        history.0.pauses = vec![Possible { from_us: 30_000, until_us: 6_500_000 }];
        history.0.waits_end_in_pauses = true;
        history.broken()
    };
    assert_eq!(broken(521, Outcome::Nil), []);
    assert_eq!(broken(6_600, Outcome::Nil), [Rule::NilIsFinal]);
    assert_eq!(broken(6_600, Outcome::Unknown), [Rule::NilIsFinal]);
    let errors = [broken(6_600, Outcome::Refused), broken(50_000, Outcome::Unblocked)];
    assert_eq!(errors, [[Rule::NilIsFinal], [Rule::NilIsFinal]], "an error, and UNBLOCKED 50 s late");
}

/// Guarantee 14: waiters are served even if memory is full. As under "maxmemory reached", SIGSTOP
/// and output buffers, no connection is lost and the server stays a master. Owner 2 waited for 2.9
/// s, and was then refused.
#[test]
fn waiter_is_not_refused() {
    let broken = |outcome| {
        let mut history = Scripted::mutex()
            .under_faults()
            .call(1, ALONE, [10, 11], acquire(1, 60_000, None), Outcome::Granted(5))
            .call(2, ALONE, [20, 2_900], WAIT, outcome)
            .call(1, ALONE, [2_850, 2_851], release(1), Outcome::Number(0));
        history.0.accepts_releases = true;
        history.broken()
    };
    assert_eq!(broken(Outcome::Granted(6)), []);
    assert_eq!(broken(Outcome::Refused), [Rule::GivingUpIsTaken]);
}

/// Guarantees 4 and 11: a request for many keys waits although all of its keys are free all the
/// time.
#[test]
fn request_for_many_keys_does_not_wait_for_itself() {
    let broken = |answered, outcomes: [Outcome; 2], is_undisturbed| {
        let mut history = Scripted::mutex().call(1, ALONE, [20, answered], WAIT, outcomes[0]);
        history = history.on(1, 1, ALONE, [20, answered], WAIT, outcomes[1]);
        history.0.is_undisturbed = is_undisturbed;
        history.broken()
    };
    let granted = [Outcome::Granted(6), Outcome::Granted(7)];
    assert_eq!(broken(21, granted, false), []);
    assert_eq!(broken(3_020, [Outcome::Nil; 2], true), [Rule::NoLostWakeUp]);
    let behind = Scripted::mutex()
        .call(1, ALONE, [20, 3_020], WAIT, Outcome::Nil)
        .on(1, 1, ALONE, [20, 3_020], WAIT, Outcome::Nil)
        .call(2, ALONE, [21, 3_021], WAIT, Outcome::Nil);
    let wrong =
        [broken(3_020, [Outcome::Nil; 2], false), broken(3_020, granted, false), behind.under_faults().broken()];
    assert_eq!(
        wrong,
        [[Rule::NoLostWakeUp], [Rule::NoLostWakeUp], [Rule::NoLostWakeUp]],
        "nil, a late grant, and a waiter behind it"
    );
}

/// Guarantee 6: the token of a hold is higher than that of every hold before it on this server,
/// whatever the key. Like `waiter_gets_a_token_above_all_known_when_the_lock_came_free` in
/// `forgiven.rs`, for a semaphore all of whose permits are in use.
#[test]
fn waiter_for_permits_gets_a_token_above_all_known_when_they_came_free() {
    let broken = |permits, token| {
        Scripted::of(Kind::Semaphore, permits)
            .call(1, PERMITS, [10, 11], acquire(permits, 30_000, None), Outcome::Granted(5))
            .call(2, PERMITS, [20, 901], acquire(1, 30_000, Some(8_000)), Outcome::Granted(token))
            .on(1, 3, PERMITS, [500, 501], acquire(1, 30_000, None), Outcome::Granted(10))
            .call(1, PERMITS, [900, 901], release(permits), Outcome::Number(0))
            .broken()
    };
    assert_eq!(broken(4, 11), []);
    assert_eq!([broken(1, 6), broken(4, 6)], [[Rule::TokensRise], [Rule::TokensRise]]);
}

/// Rule "a free lock is granted": only a fair lock keeps places. Owner 1 was refused; a second
/// later no owner has any part of the mutex.
#[test]
fn refused_request_has_no_place_at_a_mutex() {
    let broken = |kind, mode, outcome| {
        Scripted::of(kind, 4)
            .under_faults()
            .call(1, mode, [10, 100], acquire(1, 5_000, Some(90)), outcome)
            .call(2, mode, [1_100, 1_101], TRY, Outcome::Nil)
            .broken()
    };
    assert_eq!(broken(Kind::Fair, ALONE, Outcome::Unblocked), [], "its place lasts for the grace");
    assert_eq!(broken(Kind::Mutex, ALONE, Outcome::Nil), [Rule::FreeIsGranted]);
    let kinds = [(Kind::Mutex, ALONE), (Kind::RwLock, Mode::Write), (Kind::Semaphore, PERMITS)];
    let wrong =
        kinds.map(|(kind, mode)| [Outcome::Refused, Outcome::Unblocked].map(|outcome| broken(kind, mode, outcome)));
    assert!(wrong.iter().flatten().all(|broken| broken == &[Rule::FreeIsGranted]), "{wrong:?}");
}

/// Guarantee 7, where servers take over. There is one takeover. The owner first asks 60 s later, so
/// no takeover excuses its lease.
#[test]
fn takeover_prolongs_no_lease_a_minute_later() {
    let broken = |operations: Scripted| {
        let mut history = operations.under_faults();
        let takeovers_us = [1_000_000, 2_000_000];
        history.0.grants_of_forgotten = takeovers::forget(&mut history.0.operations, &takeovers_us);
        history.broken()
    };
    let at = 60_000;
    let holds = || Scripted::mutex().call(1, ALONE, [at, at + 1], acquire(1, 1_500, None), Outcome::Granted(5));
    let renew = Call::Renew { lease_ms: 1_500, token: None };
    let renewed = |left_ms| broken(holds().call(1, ALONE, [at + 10, at + 11], renew, Outcome::Number(left_ms)));
    assert_eq!(renewed(1_500), []);
    assert_eq!(renewed(3_600_000), [Rule::LeaseEnds]);
}

/// A place of a fair lock excuses without a limit, but not after CANCEL ended it.
#[test]
fn cancelled_place_excuses_nothing() {
    let place = Call::Acquire {
        count: 1,
        lease_ms: 60_000,
        block_ms: None,
        request_id: None,
        keeps_place: true,
        is_once: false,
    };
    let history = Scripted::of(Kind::Fair, 1)
        .call(1, ALONE, [10, 11], place, Outcome::Nil)
        .call(1, ALONE, [20, 21], Call::Cancel { is_waiting: false }, Outcome::Number(1))
        .call(2, ALONE, [3_600_000, 3_600_001], TRY, Outcome::Nil);
    assert_eq!(history.broken(), [Rule::FreeIsGranted]);
}

/// If the clocks of two servers differ by s, a deadline moves by s at each takeover: by 2 s at two.
#[test]
fn deadline_moves_at_each_takeover() {
    let mut history = Scripted::mutex()
        .under_faults()
        .call(1, ALONE, [10, 11], acquire(1, 5_000, None), Outcome::Granted(5))
        .call(1, ALONE, [4_500, 4_501], Call::Look, Outcome::Number(0));
    history.0.clocks_differ_us = 300_000;
    // Two `CLUSTER FAILOVER`s during the hold, as `Harm` records them.
    history.0.pauses =
        vec![Possible { from_us: 100_000, until_us: 1_500_000 }, Possible { from_us: 2_000_000, until_us: 3_900_000 }];
    assert_eq!(history.broken(), []);
}

/// The replica takes over in the turn in which the waiter is granted and killed. The server undoes
/// nothing, and the lease goes on at the new master.
#[test]
fn grant_in_the_turn_of_an_agreed_takeover_is_not_undone() {
    let broken = |paused_us: [u64; 2], clocks_differ_us| {
        let mut history = Scripted::mutex()
            .under_faults()
            .call(1, ALONE, [80, 195], acquire(1, 5_000, Some(3_000)), Outcome::Undone)
            .call(2, ALONE, [1_950, 4_960], acquire(1, 5_000, Some(3_000)), Outcome::Nil);
        history.0.clocks_differ_us = clocks_differ_us;
        history.0.pauses = vec![Possible { from_us: paused_us[0], until_us: paused_us[1] }];
        history.broken()
    };
    assert_eq!(broken([150_000, 2_200_000], 300_000), []);
    assert_eq!(broken([150_000, 2_200_000], 0), [Rule::NoLostWakeUp]);
    assert_eq!(broken([250_000, 2_200_000], 300_000), [Rule::NoLostWakeUp]);
}
