//! Each rule is seen to fail: a lawful history with one thing changed. Those that no history is about are in `servers.rs`.

use rlock_check::history::{Call, History, Key, Kind, Mode, Operation, Outcome, Rule};
use rlock_check::invented;
use rlock_check::rules::check;
use rlock_check::timeline::Possible;

/// A history of one key, made call by call. Times are in milliseconds.
struct Told(History);

impl Told {
    fn of(kind: Kind, permits: u32) -> Told {
        Told(History { keys: vec![Key { name: "k".into(), kind, permits }], ..History::default() })
    }

    fn mutex() -> Told {
        Told::of(Kind::Mutex, 1)
    }

    fn call(mut self, owner: u64, mode: Mode, sent_ms: u64, answered_ms: u64, call: Call, outcome: Outcome) -> Told {
        let order = self.0.operations.len() as u64 + 1;
        let (sent_us, answered_us) = (sent_ms * 1000, answered_ms * 1000);
        self.0.operations.push(Operation { key: 0, owner, mode, sent_us, answered_us, order, call, outcome });
        self
    }

    fn granted(self, owner: u64, mode: Mode, at_ms: u64, token: u64) -> Told {
        self.call(owner, mode, at_ms, at_ms + 1, acquire(1, None, None), Outcome::Granted(token))
    }

    fn released(self, owner: u64, mode: Mode, at_ms: u64, left: u64) -> Told {
        self.call(
            owner,
            mode,
            at_ms,
            at_ms + 1,
            Call::Release { count: 1, token: None, request_id: None },
            Outcome::Number(left),
        )
    }

    fn broken(mut self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = check(&mut self.0).into_iter().map(|violation| violation.rule).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }
}

fn acquire(count: u32, block_ms: Option<u64>, request_id: Option<u64>) -> Call {
    acquire_for(30_000, count, block_ms, request_id)
}

fn acquire_for(lease_ms: u64, count: u32, block_ms: Option<u64>, request_id: Option<u64>) -> Call {
    Call::Acquire { count, lease_ms, block_ms, request_id, keeps_place: false, is_once: false }
}

const ALONE: Mode = Mode::Exclusive;

#[test]
fn each_rule_is_seen_to_fail() {
    let tests = [include_str!("rules.rs"), include_str!("forgiven.rs"), include_str!("servers.rs")].concat();
    for rule in Rule::ALL {
        assert!(
            tests.contains(&format!("[Rule::{rule:?}")) || tests.contains(&format!(", Rule::{rule:?}]")),
            "{rule:?}"
        );
    }
}

#[test]
fn a_lawful_history_breaks_no_rule() {
    let mut history = invented::history(30_000, 1);
    assert_eq!(check(&mut history), []);
}

/// Whatever is changed in a lawful history, if it matters, is noticed: each grant is moved before the release ahead of it.
#[test]
fn a_grant_that_comes_too_early_is_noticed() {
    for seed in 0..20 {
        let mut history = invented::history(3_000, seed);
        let grants = history.operations.iter_mut().filter(|one| matches!(one.outcome, Outcome::Granted(_)));
        let early = grants.skip(500).step_by(100).next().expect("a grant");
        (early.sent_us, early.answered_us) = (early.sent_us - 300, early.answered_us - 300);
        assert!(!check(&mut history).is_empty(), "seed {seed}");
    }
}

#[test]
fn two_owners_at_once() {
    let told = Told::mutex().granted(1, ALONE, 10, 5).granted(2, ALONE, 20, 6);
    assert_eq!(told.broken(), [Rule::Exclusion]);
}

#[test]
fn one_after_the_other_is_right() {
    let told = Told::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 15, 0).granted(2, ALONE, 20, 6);
    assert_eq!(told.broken(), []);
    let lapsed = Told::mutex().granted(1, ALONE, 10, 5).granted(2, ALONE, 30_020, 6);
    assert_eq!(lapsed.broken(), []);
}

#[test]
fn readers_and_a_writer() {
    let readers = Told::of(Kind::RwLock, 1).granted(1, Mode::Read, 10, 5).granted(2, Mode::Read, 20, 6);
    assert_eq!(readers.broken(), []);
    let writer = Told::of(Kind::RwLock, 1).granted(1, Mode::Read, 10, 5).granted(2, Mode::Write, 20, 6);
    assert_eq!(writer.broken(), [Rule::Exclusion]);
    let own = Told::of(Kind::RwLock, 1).granted(1, Mode::Write, 10, 5).granted(1, Mode::Read, 20, 6);
    assert_eq!(own.broken(), []);
}

#[test]
fn more_permits_than_there_are() {
    let told =
        |second| {
            Told::of(Kind::Semaphore, 3)
                .call(1, Mode::Permits, 10, 11, acquire(2, None, None), Outcome::Granted(5))
                .call(2, Mode::Permits, 20, 21, acquire(second, None, None), Outcome::Granted(6))
        };
    assert_eq!(told(1).broken(), []);
    assert_eq!(told(2).broken(), [Rule::Permits]);
}

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
fn a_token_that_is_given_twice_or_falls() {
    let twice = Told::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 15, 0).granted(2, ALONE, 20, 5);
    assert_eq!(twice.broken(), [Rule::TokensRise]);
    let falls = Told::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 15, 0).granted(2, ALONE, 20, 4);
    assert_eq!(falls.broken(), [Rule::TokensRise, Rule::FirstComeFirstServed]);
}

#[test]
fn who_asked_later_is_served_earlier() {
    let wait = acquire(1, Some(60_000), None);
    let told = |first, second| {
        Told::mutex()
            .granted(1, ALONE, 10, 5)
            .call(2, ALONE, 20, first, wait, Outcome::Granted(first))
            .call(3, ALONE, 21, second, wait, Outcome::Granted(second))
            .released(1, ALONE, 900, 0)
            .released(2, ALONE, first + 10, 0)
            .released(3, ALONE, second + 10, 0)
    };
    assert_eq!(told(1000, 1100).broken(), []);
    assert_eq!(told(1100, 1000).broken(), [Rule::FirstComeFirstServed]);
}

#[test]
fn a_hold_that_is_lost_before_its_time() {
    let told = |at_ms| {
        Told::mutex().granted(1, ALONE, 10, 5).call(
            1,
            ALONE,
            at_ms,
            at_ms + 1,
            Call::Renew { lease_ms: 1000, token: None },
            Outcome::NotOwner,
        )
    };
    assert_eq!(told(20_000).broken(), [Rule::HoldIsKept]);
    assert_eq!(told(30_010).broken(), []);
    let after_a_server_with_another_clock = |at_ms| {
        let mut told = told(at_ms);
        told.0.clocks_differ_us = 300_000;
        told.broken()
    };
    assert_eq!(after_a_server_with_another_clock(29_000), [Rule::HoldIsKept]);
    assert_eq!(after_a_server_with_another_clock(29_800), []);
}

#[test]
fn a_renewal_makes_a_hold_last_and_never_shortens_it() {
    let renew = Call::Renew { lease_ms: 1000, token: None };
    let told = |left| {
        Told::mutex()
            .granted(1, ALONE, 10, 5)
            .call(1, ALONE, 20, 21, renew, Outcome::Number(left))
            .granted(2, ALONE, 5_000, 6)
    };
    assert_eq!(told(29_989).broken(), [Rule::Exclusion]);
    assert_eq!(told(1_000).broken(), [Rule::Exclusion, Rule::HoldIsKept]);
}

#[test]
fn a_renewal_without_an_answer_may_have_been_done() {
    let told = |outcome| {
        let wait = acquire(1, Some(60_000), None);
        let short = acquire_for(20, 1, None, None);
        Told::mutex()
            .call(1, ALONE, 10, 11, short, Outcome::Granted(5))
            .call(1, ALONE, 15, 16, Call::Renew { lease_ms: 3_000, token: None }, outcome)
            .call(2, ALONE, 20, 5_000, wait, Outcome::Granted(6))
    };
    assert_eq!(told(Outcome::Unknown).broken(), []);
    assert_eq!(told(Outcome::NotOwner).broken(), [Rule::HoldIsKept, Rule::NoLostWakeUp]);
}

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

#[test]
fn who_is_answered_nil_was_not_passed_by_those_who_came_later() {
    let told = |served_ms| {
        Told::mutex()
            .granted(1, ALONE, 10, 5)
            .released(1, ALONE, 20, 0)
            .call(2, ALONE, 15, 516, acquire(1, Some(500), None), Outcome::Nil)
            .granted(3, ALONE, served_ms, 6)
    };
    assert_eq!(told(30).broken(), [Rule::FirstComeFirstServed]);
    assert_eq!(told(516).broken(), []);
    // Who holds permits already, and is given more or sends the same request again.
    let more = |request_id| {
        Told::of(Kind::Semaphore, 4)
            .call(1, Mode::Permits, 10, 11, acquire(1, None, Some(1)), Outcome::Granted(5))
            .call(2, Mode::Permits, 12, 13, acquire(2, None, None), Outcome::Granted(6))
            .call(3, Mode::Permits, 20, 51, acquire(3, Some(30), None), Outcome::Nil)
            .call(1, Mode::Permits, 25, 26, acquire(1, None, Some(request_id)), Outcome::Granted(5))
    };
    assert_eq!(more(2).broken(), [Rule::FirstComeFirstServed]);
    assert_eq!(more(1).broken(), []);
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
fn a_session_lasts_for_its_grace_where_no_connection_is_lost() {
    let told = |at_ms| {
        let close = Call::Close { grace_ms: 500 };
        let mut told = Told::mutex().granted(1, ALONE, 10, 5).call(1, ALONE, 100, 101, close, Outcome::Unknown);
        told.0.is_undisturbed = true;
        told.granted(2, ALONE, at_ms, 6)
    };
    assert_eq!(told(590).broken(), [Rule::Exclusion]);
    assert_eq!(told(610).broken(), []);
}

#[test]
fn who_was_not_answered_may_hold() {
    let told = |first| {
        Told::mutex().call(2, ALONE, 20, 30, acquire(1, Some(50), None), first).call(
            2,
            ALONE,
            33,
            34,
            Call::Look,
            Outcome::Number(1),
        )
    };
    assert_eq!(told(Outcome::Unknown).broken(), []);
    assert_eq!(told(Outcome::Unblocked).broken(), [Rule::NilIsFinal]);
}

/// A request is not answered, sent again and refused, and sent again and granted: it may have kept its first place.
#[test]
fn a_refusal_takes_no_place_away_that_may_be_there() {
    let wait = acquire(1, Some(60_000), Some(1));
    let told = Told::mutex()
        .granted(1, ALONE, 10, 5)
        .call(2, ALONE, 20, 30, wait, Outcome::Unknown)
        .call(3, ALONE, 31, 1_100, wait, Outcome::Granted(7))
        .call(2, ALONE, 32, 33, wait, Outcome::Refused)
        .call(2, ALONE, 34, 1_000, wait, Outcome::Granted(6))
        .released(1, ALONE, 900, 0)
        .released(2, ALONE, 1_050, 0)
        .released(3, ALONE, 1_200, 0);
    assert_eq!(told.broken(), []);
}

#[test]
fn a_repeated_release_counts_once() {
    let release = Call::Release { count: 1, token: None, request_id: Some(3) };
    let told = |again| {
        Told::mutex()
            .granted(1, ALONE, 10, 5)
            .granted(1, ALONE, 20, 5)
            .call(1, ALONE, 30, 31, release, Outcome::Number(1))
            .call(1, ALONE, 32, 33, release, Outcome::Number(again))
            .released(1, ALONE, 40, again.saturating_sub(1))
    };
    assert_eq!(told(1).broken(), []);
    assert_eq!(told(0).broken(), [Rule::CountsAreRight]);
}

#[test]
fn a_repeated_request_counts_once() {
    let numbered = acquire(1, None, Some(7));
    let told = |left| {
        Told::mutex()
            .call(1, ALONE, 10, 11, numbered, Outcome::Granted(5))
            .call(1, ALONE, 20, 21, numbered, Outcome::Granted(5))
            .released(1, ALONE, 30, left)
    };
    assert_eq!(told(0).broken(), []);
    assert_eq!(told(1).broken(), [Rule::CountsAreRight]);
    let again = Told::mutex().granted(1, ALONE, 10, 5).granted(1, ALONE, 20, 5).released(1, ALONE, 30, 1);
    assert_eq!(again.broken(), []);
}

/// A request takes an earlier one's place over, whose connection is lost before it hears of that.
#[test]
fn a_place_that_was_taken_over_unheard_has_no_known_order() {
    let wait = acquire(1, Some(60_000), Some(1));
    let told = Told::mutex()
        .granted(1, ALONE, 10, 5)
        .call(2, ALONE, 20, 30, wait, Outcome::Unknown)
        .call(3, ALONE, 21, 1_100, wait, Outcome::Granted(7))
        .call(2, ALONE, 22, 1_000, wait, Outcome::Granted(6))
        .released(1, ALONE, 900, 0)
        .released(2, ALONE, 1_050, 0)
        .released(3, ALONE, 1_200, 0);
    assert_eq!(told.broken(), []);
}

#[test]
fn a_request_with_once_is_no_second_hold() {
    let once = || match acquire(1, None, None) {
        Call::Acquire { count, lease_ms, block_ms, request_id, keeps_place, .. } => {
            Call::Acquire { count, lease_ms, block_ms, request_id, keeps_place, is_once: true }
        }
        other => other,
    };
    let told = |first, left| {
        Told::mutex()
            .call(1, ALONE, 10, 11, once(), first)
            .call(1, ALONE, 20, 21, once(), Outcome::Granted(5))
            .released(1, ALONE, 30, left)
    };
    for first in [Outcome::Granted(5), Outcome::Unknown] {
        assert_eq!(told(first, 0).broken(), []);
        assert_eq!(told(first, 1).broken(), [Rule::CountsAreRight]);
    }
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

#[test]
fn what_was_given_up_and_comes_back() {
    let looked = |told: Told, seen| told.call(1, ALONE, 5_000, 5_001, Call::Look, Outcome::Number(seen)).broken();
    let released = || Told::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 20, 0);
    assert_eq!(looked(released(), 0), []);
    assert_eq!(looked(released(), 1), [Rule::GivenUpIsGone]);
    let closes = Call::Close { grace_ms: 10 };
    let closed = || Told::mutex().granted(1, ALONE, 10, 5).call(1, ALONE, 20, 21, closes, Outcome::Unknown);
    assert_eq!(looked(closed(), 0), []);
    assert_eq!(looked(closed(), 1), [Rule::GivenUpIsGone]);
    // A server that has just come back looks at sessions when it serves again.
    let mut paused = [closed(), released()];
    paused.iter_mut().for_each(|told| told.0.pauses = vec![Possible { from_us: 4_000_000, until_us: 6_000_000 }]);
    let [closed_in_pause, released] = paused;
    assert_eq!((looked(closed_in_pause, 1), looked(released, 1)), (vec![], vec![Rule::GivenUpIsGone]));
    // A replica ends none, and a promotion those whose connections have closed before.
    let looked_after = |from_ms: u64, until_ms: u64| {
        let mut told = closed();
        told.0.demotions = vec![Possible { from_us: from_ms * 1000, until_us: until_ms * 1000 }];
        looked(told, 1)
    };
    assert_eq!((looked_after(15, 4_000), looked_after(1_000, 4_000)), (vec![], vec![]));
    let (promoted_long_ago, seen_before) = (looked_after(15, 2_000), looked_after(3_000, 4_000));
    assert_eq!((promoted_long_ago, seen_before), (vec![Rule::GivenUpIsGone], vec![Rule::GivenUpIsGone]));
}
