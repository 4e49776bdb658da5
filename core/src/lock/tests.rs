//! Invariants of the value under changes.

use super::hold_index::{MAX_FEW, MIN_INDEXED};
use super::*;
use crate::bytes::Owner;

use crate::event::{ChangeCause, EndCause, Event, Terms};
use crate::place::Stay;
use crate::request::{RequestMark, Verb};
use crate::time::MAX_LEASE_MS;
use std::format;
use std::string::String;

const NOW: Now = Now { mono_us: 1_000_000, wall_us: 1_700_000_000_000_000 };

fn with(kind: Kind, permits: u32, holds: &[(&str, Mode, u32)]) -> Lock {
    let mut lock = Lock::new(kind, permits);
    for (token, (owner, mode, count)) in (1..).zip(holds) {
        lock.apply(Event::Granted {
            kind,
            owner: owner.as_bytes().into(),
            mode: *mode,
            token,
            terms: Terms::plain(*count, NOW.mono_us + 1),
        });
    }
    lock
}

#[test]
fn lease_has_no_effect_from_its_deadline_on() {
    let lock = with(Kind::Mutex, 1, &[("a", Mode::Exclusive, 1)]);
    let later = Now { mono_us: NOW.mono_us + 1, ..NOW };
    assert!(lock.live_hold(b"a", Mode::Exclusive, NOW).is_some());
    assert!(lock.is_held_by_another(b"b", NOW) && lock.is_live(NOW));
    assert!(lock.live_hold(b"a", Mode::Exclusive, later).is_none());
    assert!(!lock.is_held_by_another(b"b", later) && !lock.is_live(later));
    assert!(lock.expired_hold(NOW).is_none() && lock.expired_hold(later).is_some());
}

#[test]
fn events_about_a_missing_hold_change_nothing() {
    let mut lock = with(Kind::Mutex, 1, &[("a", Mode::Exclusive, 1)]);
    let before = lock.clone();
    lock.apply(Event::Ended { token: 99, cause: EndCause::Expired });
    lock.apply(Event::Changed { token: 99, cause: crate::event::ChangeCause::Renewed, terms: Terms::plain(5, 7) });
    assert_eq!(lock, before);
}

#[test]
fn locks_that_differ_in_any_field_are_not_equal() {
    let queued = |owner: &str| {
        let (owner, stay) = (owner.as_bytes().into(), Stay::Connected);
        let mut lock = with(Kind::Fair, 1, &[("a", Mode::Exclusive, 1)]);
        lock.apply(Event::Queued { owner, stay, arrival: 2, request_id: None, grace_ms: None, at_head: false });
        lock
    };
    let locks = [
        with(Kind::Mutex, 1, &[]),
        with(Kind::Mutex, 1, &[("a", Mode::Exclusive, 1)]),
        with(Kind::Mutex, 1, &[("a", Mode::Exclusive, 2)]),
        with(Kind::Mutex, 1, &[("b", Mode::Exclusive, 1)]),
        with(Kind::Fair, 1, &[("a", Mode::Exclusive, 1)]),
        queued("b"),
        queued("c"),
        with(Kind::Semaphore, 2, &[("a", Mode::Permits, 1)]),
        with(Kind::Semaphore, 3, &[("a", Mode::Permits, 1)]),
    ];
    for (index, lock) in locks.iter().enumerate() {
        for (other_index, other) in locks.iter().enumerate() {
            assert_eq!(lock == other, index == other_index, "{lock:?} and {other:?}");
        }
        assert_eq!(lock, &lock.clone());
    }
}

use proptest::prelude::*;

/// More steps would take minutes under Miri.
const MOST_STEPS: usize = if cfg!(miri) { 40 } else { 300 };

proptest! {
    /// While it grows and shrinks, a lock with an index behaves like the plain list of its holds.
    #[test]
    fn indexed_lock_behaves_like_a_list_of_holds(
        is_semaphore: bool,
        steps in prop::collection::vec((0..40u8, any::<bool>(), 0..5u8, 0..50u64), 1..MOST_STEPS),
        jumps in prop::collection::vec(0..3u64, MOST_STEPS),
    ) {
        let (kind, mode) = if is_semaphore { (Kind::Semaphore, Mode::Permits) } else { (Kind::RwLock, Mode::Read) };
        let mut lock = Lock::new(kind, 60);
        let mut list: Vec<(u8, u64, u32, u64)> = Vec::new();
        let mut now = NOW;
        for ((token, (owner, grows, what, deadline)), jump_us) in (1..).zip(steps).zip(jumps) {
            now.mono_us += jump_us;
            let deadline_us = now.mono_us - 20 + deadline;
            let count = u32::from(what) + 1;
            let at = list.iter().position(|entry| entry.0 == owner);
            match (at, grows || what > 2) {
                (None, _) => {
                    let terms = Terms::plain(count, deadline_us);
                    lock.apply(Event::Granted { kind, owner: (&[owner][..]).into(), mode, token, terms });
                    list.push((owner, token, count, deadline_us));
                }
                (Some(at), true) => {
                    let cause = crate::event::ChangeCause::Renewed;
                    lock.apply(Event::Changed { token: list[at].1, cause, terms: Terms::plain(count, deadline_us) });
                    (list[at].2, list[at].3) = (count, deadline_us);
                }
                (Some(at), false) => {
                    lock.apply(Event::Ended { token: list[at].1, cause: EndCause::Released });
                    list.remove(at);
                }
            }
            let live = || list.iter().filter(|entry| entry.3 > now.mono_us);
            prop_assert_eq!(lock.holds().len(), list.len());
            for owner in 0..40 {
                let held = live().find(|entry| entry.0 == owner).map(|entry| entry.1);
                prop_assert_eq!(lock.live_hold(&[owner], mode, now).map(Hold::token), held);
            }
            for entry in &list {
                let hold = lock.hold_with_token(entry.1).unwrap();
                prop_assert_eq!((hold.owner().as_slice(), hold.count()), (&[entry.0][..], entry.2));
            }
            prop_assert_eq!(lock.next_deadline_us(), list.iter().map(|entry| entry.3).min());
            prop_assert_eq!(lock.expired_hold(now).is_some(), list.iter().any(|entry| entry.3 <= now.mono_us));
            let used: i64 = live().map(|entry| i64::from(entry.2)).sum();
            prop_assert!(!is_semaphore || lock.available(now) == 60 - used);
            for owner in 0..41 {
                let by_another = live().any(|entry| entry.0 != owner);
                prop_assert_eq!(lock.is_held_by_another(&[owner], now), by_another);
            }
            let last = list.iter().map(|entry| entry.3).max();
            prop_assert_eq!(lock.last_deadline_us(), last);
        }
    }
}

#[test]
fn copy_that_missed_an_event_still_has_one_holder() {
    let mutex = with(Kind::Mutex, 1, &[("a", Mode::Exclusive, 1), ("b", Mode::Exclusive, 1)]);
    assert_eq!(mutex.holds().iter().map(Hold::token).collect::<Vec<_>>(), [2]);
    let holds = [("a", Mode::Read, 1), ("b", Mode::Read, 1), ("a", Mode::Write, 1)];
    let rwlock = with(Kind::RwLock, 1, &holds);
    assert_eq!(rwlock.holds().iter().map(Hold::token).collect::<Vec<_>>(), [1, 3]);
    let holds = [("a", Mode::Write, 1), ("b", Mode::Read, 1), ("c", Mode::Read, 1)];
    let rwlock = with(Kind::RwLock, 1, &holds);
    assert_eq!(rwlock.holds().iter().map(Hold::token).collect::<Vec<_>>(), [2, 3]);
    let readers: Vec<String> = (0..100).map(|number| format!("r{number}")).collect();
    let mut holds: Vec<_> = readers.iter().map(|owner| (owner.as_str(), Mode::Read, 1)).collect();
    holds.push(("r7", Mode::Write, 1));
    let rwlock = with(Kind::RwLock, 1, &holds);
    assert_eq!(rwlock.holds().iter().map(Hold::token).collect::<Vec<_>>(), [8, 101]);
}

#[test]
fn lock_has_an_index_while_it_has_many_holds() {
    let mut lock = Lock::new(Kind::Semaphore, 100);
    let grant = |lock: &mut Lock, number: u8| {
        let (kind, mode, token) = (Kind::Semaphore, Mode::Permits, u64::from(number) + 1);
        lock.apply(Event::Granted { kind, owner: (&[number][..]).into(), mode, token, terms: Terms::plain(1, 7) });
    };
    for number in 0..100 {
        grant(&mut lock, number);
        assert_eq!(lock.index().is_some(), lock.holds().len() >= MIN_INDEXED);
    }
    for token in 1..=100 {
        lock.apply(Event::Ended { token, cause: EndCause::Expired });
        assert_eq!(lock.index().is_some(), lock.holds().len() > MAX_FEW);
    }
}

#[test]
fn value_has_the_documented_size() {
    assert_eq!(size_of::<Hold>(), 72);
    assert_eq!(size_of::<Lock>(), 80);
}

/// The claimed MEMORY USAGE of a value, and the bytes allocated to create it.
fn claimed_and_allocated(kind: Kind, make: impl FnOnce(&mut Lock)) -> (usize, usize) {
    let mut made = None;
    let taken = allocation_counter::measure(|| {
        let mut lock = Lock::new(kind, 10_000);
        make(&mut lock);
        made = Some(lock);
    });
    (made.unwrap().heap_bytes(), usize::try_from(taken.bytes_current).unwrap())
}

#[test]
#[cfg_attr(miri, ignore = "thousands of holds and places")]
fn memory_usage_matches_the_allocated_bytes() {
    // Longer than a value stores inline.
    let owner = |number: u64| Owner::from(format!("{number:060}").as_bytes());
    let grant = |lock: &mut Lock, token: u64, mode: Mode| {
        let (kind, owner, terms) = (lock.kind(), owner(token), Terms::plain(1, NOW.mono_us + token));
        lock.apply(Event::Granted { kind, owner, mode, token, terms });
    };
    let free = claimed_and_allocated(Kind::Mutex, |_| {});
    assert_eq!(free, (0, 0), "a free lock has nothing on the heap");
    let held = claimed_and_allocated(Kind::Mutex, |lock| grant(lock, 1, Mode::Exclusive));
    assert_eq!(held.0, held.1, "the bytes of one hold are exact");
    let numbered = claimed_and_allocated(Kind::Mutex, |lock| {
        let request = RequestMark { id: 7, verb: Verb::Acquire, added: 1 };
        let terms = Terms { session_ms: Some(5), request: Some(request), ..Terms::plain(1, NOW.mono_us + 1) };
        lock.apply(Event::Granted { kind: Kind::Mutex, owner: owner(1), mode: Mode::Exclusive, token: 1, terms });
        for client in 0..9 {
            lock.bind(1, client);
        }
    });
    assert!(numbered.0 > held.0 && numbered.0 == numbered.1, "with its session: {numbered:?}");

    let queue = |lock: &mut Lock, arrival: u64| {
        let (owner, stay) = (owner(arrival), Stay::Polled { until_us: NOW.mono_us + arrival });
        lock.apply(Event::Queued { owner, stay, arrival, request_id: None, grace_ms: None, at_head: false });
    };
    for many in [10, 100, 1_000, 5_000] {
        let permits = claimed_and_allocated(Kind::Semaphore, |lock| {
            (1..=many).for_each(|token| grant(lock, token, Mode::Permits))
        });
        let places = claimed_and_allocated(Kind::Fair, |lock| (1..=many).for_each(|arrival| queue(lock, arrival)));
        for (told, taken) in [permits, places] {
            assert!(told.abs_diff(taken) * 10 <= taken, "{many} of them: claimed {told}, allocated {taken}");
        }
    }
}

#[test]
fn leases_are_shortened_to_the_limit() {
    const LIMIT_MS: u64 = 60_000;
    let longest_us = NOW.within(u64::MAX, LIMIT_MS);
    let far = [u64::MAX, NOW.mono_us + 10, longest_us];
    let mut lock = Lock::new(Kind::Semaphore, 9);
    for (token, deadline_us) in (1..).zip(far) {
        let (kind, mode, owner) = (Kind::Semaphore, Mode::Permits, Owner::from(&[b'0', token as u8][..]));
        lock.apply(Event::Granted { kind, owner, mode, token, terms: Terms::plain(1, deadline_us) });
    }
    lock.shorten_leases(NOW, LIMIT_MS);
    let deadlines: Vec<_> = lock.holds().iter().map(|hold| hold.terms().deadline_us).collect();
    assert_eq!(deadlines, [longest_us, NOW.mono_us + 10, longest_us]);
    assert_eq!(lock.next_deadline_us(), Some(NOW.mono_us + 10));
    // The owner of a kept lock has asked for its time.
    let mut kept = with(Kind::Mutex, 1, &[("o", Mode::Exclusive, 1)]);
    let token = kept.holds().first().unwrap().token();
    let terms = Terms { phase: Phase::Kept, ..Terms::plain(1, u64::MAX) };
    kept.apply(Event::Changed { token, cause: ChangeCause::Kept, terms });
    kept.shorten_leases(NOW, LIMIT_MS);
    assert_eq!(kept.next_deadline_us(), Some(NOW.within(u64::MAX, MAX_LEASE_MS)));
}

#[test]
fn debug_output_shows_holders_and_waiters() {
    let mut lock = with(Kind::Fair, 1, &[("holder", Mode::Exclusive, 1)]);
    let (owner, stay) = (b"waiter".as_slice().into(), Stay::Connected);
    lock.apply(Event::Queued { owner, stay, arrival: 1, request_id: None, grace_ms: None, at_head: false });
    let shown = format!("{lock:?}");
    assert!(["Fair", "\"holder\"", "Connected"].iter().all(|word| shown.contains(word)), "{shown}");
}
