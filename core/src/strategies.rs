//! Random events and locks, for the round trips of `codec` and `effect`.

use proptest::prelude::*;

use crate::bytes::Owner;
use crate::event::{ChangeCause, EndCause, Event, LeaveCause, Phase, Terms};
use crate::kind::{Kind, Mode};
use crate::lock::Lock;
use crate::place::Stay;
use crate::request::{RequestMark, Verb};
use crate::time::{MAX_LEASE_MS, MAX_NOTE_BYTES, MAX_OWNER_BYTES, MAX_TOKEN, Now, US_PER_MS};

/// Long enough for a heap allocation. Miri takes a thousand steps for each random byte.
const LONGEST_OWNER_BYTES: usize = if cfg!(miri) { 48 } else { MAX_OWNER_BYTES };

const LONGEST_NOTE_BYTES: usize = if cfg!(miri) { 8 } else { MAX_NOTE_BYTES };

fn owner() -> impl Strategy<Value = Owner> {
    prop::collection::vec(any::<u8>(), 1..=LONGEST_OWNER_BYTES).prop_map(|bytes| bytes.as_slice().into())
}

/// A kind, and one of its modes.
fn kind_and_mode() -> impl Strategy<Value = (Kind, Mode)> {
    prop::sample::select(&[
        (Kind::Mutex, Mode::Exclusive),
        (Kind::Fair, Mode::Exclusive),
        (Kind::RwLock, Mode::Read),
        (Kind::RwLock, Mode::Write),
        (Kind::Semaphore, Mode::Permits),
    ])
}

/// Terms with a deadline in whole milliseconds of unix time, as after a round trip through text or
/// bytes.
fn terms(now: Now) -> impl Strategy<Value = Terms> {
    const VERBS: &[Verb] = &[Verb::Acquire, Verb::Release, Verb::AcquireMany, Verb::ReleaseMany, Verb::Cancel];
    let request = (1..=i64::MAX.unsigned_abs(), prop::sample::select(VERBS), any::<u32>())
        .prop_map(|(id, verb, added)| RequestMark { id, verb, added: if verb.acquires() { added } else { 0 } });
    (
        1..=u32::MAX,
        0..=MAX_LEASE_MS,
        1..=MAX_LEASE_MS,
        proptest::option::of(request),
        proptest::option::of(0..=MAX_LEASE_MS),
        prop::sample::select(&[Phase::Held, Phase::Unclaimed]),
        proptest::option::weighted(0.3, prop::collection::vec(any::<u8>(), 1..=LONGEST_NOTE_BYTES)),
    )
        .prop_map(move |(count, ahead_ms, lease_ms, request, session_ms, phase, note)| Terms {
            count,
            deadline_us: now.from_unix_ms(now.wall_us.div_ceil(US_PER_MS) + ahead_ms),
            lease_ms,
            request,
            session_ms,
            phase,
            note: note.map(Into::into),
        })
}

/// A moment within the next year, in whole milliseconds of unix time.
fn moment(now: Now) -> impl Strategy<Value = u64> {
    (0..=MAX_LEASE_MS).prop_map(move |ahead_ms| now.from_unix_ms(now.wall_us.div_ceil(US_PER_MS) + ahead_ms))
}

fn request_id() -> impl Strategy<Value = Option<u64>> {
    proptest::option::of(1..=i64::MAX.unsigned_abs())
}

fn grace_ms() -> impl Strategy<Value = Option<u64>> {
    proptest::option::of(0..=MAX_LEASE_MS)
}

fn stay(now: Now) -> impl Strategy<Value = Stay> {
    prop_oneof![
        Just(Stay::Connected),
        moment(now).prop_map(|until_us| Stay::Polled { until_us }),
        moment(now).prop_map(|until_us| Stay::Grace { until_us }),
    ]
}

pub(crate) fn event(now: Now) -> impl Strategy<Value = Event> {
    let change = prop::sample::select(&[
        ChangeCause::Reentered,
        ChangeCause::Renewed,
        ChangeCause::Released,
        ChangeCause::SessionEnded,
        ChangeCause::Kept,
    ]);
    let end = prop::sample::select(&[EndCause::Released, EndCause::Expired, EndCause::Forced, EndCause::Undone]);
    let leave =
        prop::sample::select(&[LeaveCause::Cancelled, LeaveCause::TimedOut, LeaveCause::Expired, LeaveCause::Missed]);
    let token = || 1..=MAX_TOKEN;
    prop_oneof![
        (kind_and_mode(), owner(), token(), terms(now))
            .prop_map(|((kind, mode), owner, token, terms)| Event::Granted { kind, owner, mode, token, terms }),
        (token(), change, terms(now)).prop_map(|(token, cause, terms)| Event::Changed { token, cause, terms }),
        (1..=u32::MAX).prop_map(|permits| Event::Sized { permits }),
        (token(), end).prop_map(|(token, cause)| Event::Ended { token, cause }),
        (owner(), stay(now), 1..=MAX_TOKEN, request_id(), grace_ms(), any::<bool>()).prop_map(
            |(owner, stay, arrival, request_id, grace_ms, at_head)| {
                Event::Queued { owner, stay, arrival, request_id, grace_ms, at_head }
            }
        ),
        (owner(), stay(now), request_id(), grace_ms()).prop_map(|(owner, stay, request_id, grace_ms)| Event::Kept {
            owner,
            stay,
            request_id,
            grace_ms
        }),
        (owner(), leave).prop_map(|(owner, cause)| Event::Left { owner, cause }),
        (owner(), moment(now)).prop_map(|(owner, until_us)| Event::Reserved { owner, until_us }),
        Just(Event::QueueExpired),
        (0..=MAX_LEASE_MS, moment(now)).prop_map(|(idle_ms, until_us)| Event::Unused { idle_ms, until_us }),
        Just(Event::Removed),
        (prop::sample::select(&[EndCause::Expired, EndCause::Forced]), proptest::option::of(owner()))
            .prop_map(|(cause, except)| Event::Cleared { cause, except }),
        (moment(now), proptest::option::of(moment(now)))
            .prop_map(|(until_us, at_us)| Event::Detached { until_us, at_us }),
    ]
}

pub(crate) fn lock(now: Now) -> impl Strategy<Value = Lock> {
    let idle = proptest::option::of((1..=MAX_LEASE_MS, moment(now)));
    let place = (owner(), stay(now), 1..=MAX_TOKEN, request_id(), grace_ms());
    (kind_and_mode(), prop::collection::vec((owner(), terms(now)), 0..5), prop::collection::vec(place, 0..5), idle)
        .prop_map(move |((kind, mode), holds, places, idle)| {
            let is_exclusive = mode == Mode::Exclusive;
            let mut lock = Lock::new(kind, if kind == Kind::Semaphore { 9 } else { 1 });
            if let Some((idle_ms, until_us)) = idle.filter(|_| kind == Kind::Semaphore) {
                lock.apply(Event::Unused { idle_ms, until_us });
            }
            for (token, (owner, terms)) in (1..).zip(holds) {
                if (is_exclusive || mode == Mode::Write) && !lock.holds().is_empty() {
                    break;
                }
                lock.apply(Event::Granted { kind, owner, mode, token, terms });
            }
            for (owner, stay, arrival, request_id, grace_ms) in places {
                lock.apply(Event::Queued { owner: owner.clone(), stay, arrival, request_id, grace_ms, at_head: false });
                lock.apply(Event::Reserved { owner, until_us: now.after_ms(arrival % 1000) });
            }
            lock
        })
}
