//! The admission decision of each kind of lock. No other module knows these rules.
//!
//! | the owner | the lock | decision |
//! |---|---|---|
//! | holds in this mode, by this very request | | [`Decision::Repeat`] |
//! | holds in this mode, asks with `ONCE` | | [`Decision::Held`] |
//! | holds in this mode (not on semaphores) | | [`Decision::Grant`] ahead of the queue: a re-entry |
//! | holds WRITE, asks for READ | | [`Decision::Grant`] ahead of the queue: a downgrade |
//! | holds READ, asks for WRITE | no other holder, no other upgrade waits | [`Decision::Grant`] ahead of other waiters |
//! | | has room, no waiter is ahead | [`Decision::Grant`] |
//! | | otherwise | [`Decision::Wait`] |
//!
//! A lock has room for an exclusive or WRITE hold if no other owner holds it, for a READ hold if no
//! other owner holds WRITE, and for permits if enough are free. Expired leases do not count. No
//! lock has more than [`MAX_HOLDERS`](super::MAX_HOLDERS) holders.
//!
//! The caller knows the waiters ahead, except on a fair lock, whose queue is part of the value.

use super::{Hold, Lock};
use crate::event::Event;
use crate::kind::{Kind, Mode};
use crate::place::Place;
use crate::request::{Ask, Numbered, Refusal, Request, RequestMark, Verb};
use crate::time::Now;

/// The value of a key.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Nothing.
    Vacant,
    /// A lock.
    Lock(&'a Lock),
    /// A value of another type.
    Foreign,
}

/// The requests that wait ahead of a request under the key's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// There is at least one.
    pub(crate) any: bool,
    /// A reader waits for WRITE, ahead of the rest of the queue.
    pub(crate) upgrade: bool,
    /// At least one waits for a lock of another kind.
    pub(crate) other_kind: bool,
}

/// The decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Grant the request, in addition to the owner's holds.
    Grant,
    /// This very request was granted before, as the hold with this token.
    Repeat(u64),
    /// The owner already holds what it asks for with `ONCE`: the hold with this token.
    Held(u64),
    /// The request cannot be granted now.
    Wait,
    /// The request cannot be granted, whichever holds end.
    Refuse(Refusal),
}

impl<'a> Value<'a> {
    /// Checks the kind for every command, and returns the lock if there is one. A lock of another
    /// kind whose leases and places have all expired counts as absent.
    ///
    /// # Errors
    ///
    /// [`Refusal::WrongType`]; [`Refusal::NoSemaphore`] for a missing semaphore.
    pub fn of_kind(self, kind: Kind, now: Now) -> Result<Option<&'a Lock>, Refusal> {
        match self {
            Self::Foreign => Err(Refusal::WrongType { found: None }),
            Self::Lock(lock) if lock.kind() == kind => Ok(Some(lock)),
            Self::Lock(lock) if lock.is_live(now) => Err(Refusal::WrongType { found: Some(lock.kind()) }),
            Self::Lock(_) | Self::Vacant if kind == Kind::Semaphore => Err(Refusal::NoSemaphore),
            Self::Lock(_) | Self::Vacant => Ok(None),
        }
    }

    /// Whether `event` clears an EXPIRE that a user has set on the key. A grant does, because the
    /// EXPIRE was meant for the previous holder; but not if a reader joins readers, and never on a
    /// semaphore, whose lifetime the user controls. A replica gets the same result as its master.
    #[must_use]
    pub fn clears_expire(self, event: &Event) -> bool {
        let Event::Granted { kind, .. } = event else {
            return false;
        };
        match (kind, self) {
            (Kind::Semaphore, _) => false,
            (Kind::RwLock, Self::Lock(lock)) => lock.holds().is_empty(),
            (Kind::Mutex | Kind::Fair | Kind::RwLock, _) => true,
        }
    }

    /// The live hold that a command of its owner refers to.
    ///
    /// # Errors
    ///
    /// Like [`Value::of_kind`].
    pub fn hold(self, kind: Kind, owner: &[u8], mode: Mode, now: Now) -> Result<Option<&'a Hold>, Refusal> {
        Ok(self.of_kind(kind, now)?.and_then(|lock| lock.live_hold(owner, mode, now)))
    }

    /// The live hold that RELEASE refers to, or the hold with which its former owner keeps the lock
    /// closed.
    pub(crate) fn hold_or_kept(
        self,
        kind: Kind,
        owner: &[u8],
        mode: Mode,
        now: Now,
    ) -> Result<Option<&'a Hold>, Refusal> {
        let lock = self.of_kind(kind, now)?;
        Ok(lock.and_then(|lock| lock.hold(owner, mode)).filter(|hold| hold.is_live(now)))
    }
}

/// Decides about a request for one key.
pub(crate) fn decide(value: Value<'_>, ahead: Ahead, owner: &[u8], request: &Request, now: Now) -> Decision {
    match decided(value, ahead, owner, request, now) {
        Ok(decision) => decision,
        Err(refusal) => Decision::Refuse(refusal),
    }
}

fn decided(value: Value<'_>, ahead: Ahead, owner: &[u8], request: &Request, now: Now) -> Result<Decision, Refusal> {
    let lock = value.of_kind(request.kind, now)?;
    if let Some(hold) = lock.and_then(|lock| lock.live_hold(owner, request.mode, now)) {
        if RequestMark::classify(hold.request(), request.request_id, request.verb)? == Numbered::Repeat {
            return Ok(Decision::Repeat(hold.token()));
        }
        if request.is_once {
            let is_enough = request.mode != Mode::Permits || hold.count() == request.count;
            return if is_enough {
                Ok(Decision::Held(hold.token()))
            } else {
                Err(Refusal::HoldsOther { held: hold.count() })
            };
        }
        if request.mode != Mode::Permits {
            let fits = hold.count().checked_add(request.count).is_some();
            return if fits { Ok(Decision::Grant) } else { Err(Refusal::CountOverflow) };
        }
    }
    let waiting_id = lock.and_then(|lock| lock.place(owner)).and_then(|place| place.request_id);
    if let (Some(id), Some(last_id)) = (request.request_id, waiting_id)
        && id < last_id
    {
        return Err(Refusal::Stale { last_id });
    }
    let Some(lock) = lock else {
        if request.kind == Kind::Fair && ahead.other_kind {
            // A MACQUIRE for a lock of another kind waits under this name, so no fair lock is
            // created here.
            return if request.ask == Ask::Try { Ok(Decision::Wait) } else { Err(Refusal::WrongType { found: None }) };
        }
        return Ok(if ahead.any { Decision::Wait } else { Decision::Grant });
    };
    if request.mode == Mode::Permits && request.count > lock.permits() {
        return Err(Refusal::TooManyPermits { permits: lock.permits() });
    }
    let has_room = lock.has_room_for_a_holder()
        && match request.mode {
            Mode::Exclusive | Mode::Write => !lock.is_held_by_another(owner, now),
            Mode::Read => !lock.is_written_by_another(owner, now),
            Mode::Permits => i64::from(request.count) <= lock.available(now),
        };
    let is_next = match conversion(lock, owner, request, now) {
        Conversion::Downgrade => true,
        Conversion::Upgrade => !ahead.upgrade,
        // Waiters may not have a place yet in a lock that arrived under their name.
        Conversion::None if lock.kind() == Kind::Fair => {
            // An expired place gives no precedence. It may still be here if the budget of a turn
            // ran out.
            let is_turn = |first: Place<'_>| first.owner == owner && (first.is_live(now) || !ahead.any);
            lock.queue().and_then(|queue| queue.first()).map_or(!ahead.any, is_turn)
        }
        Conversion::None => !ahead.any,
    };
    Ok(if has_room && is_next { Decision::Grant } else { Decision::Wait })
}

/// How a request relates to its owner's hold in another mode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Conversion {
    /// No relation: it waits its turn.
    None,
    /// A reader asks for WRITE: it goes ahead of the queue, which waits for its READ hold.
    Upgrade,
    /// The writer asks for READ, which blocks no other owner further.
    Downgrade,
}

fn conversion(lock: &Lock, owner: &[u8], request: &Request, now: Now) -> Conversion {
    let holds = |mode| lock.live_hold(owner, mode, now).is_some();
    match request.mode {
        Mode::Read if holds(Mode::Write) => Conversion::Downgrade,
        Mode::Write if holds(Mode::Read) => Conversion::Upgrade,
        _ => Conversion::None,
    }
}

/// Whether a request has to wait ahead of the queue.
pub(crate) fn is_upgrade(value: Value<'_>, owner: &[u8], request: &Request, now: Now) -> bool {
    let is_upgrade = |lock| conversion(lock, owner, request, now) == Conversion::Upgrade;
    matches!(value, Value::Lock(lock) if request.mode == Mode::Write && is_upgrade(lock))
}

/// Checks whether the current value could ever grant the request: its kind, and its number of
/// permits.
///
/// # Errors
///
/// The reason why it cannot.
pub(crate) fn check_possible(value: Value<'_>, request: &Request, now: Now) -> Result<(), Refusal> {
    match value.of_kind(request.kind, now)? {
        Some(lock) if request.mode == Mode::Permits && request.count > lock.permits() => {
            Err(Refusal::TooManyPermits { permits: lock.permits() })
        }
        _ => Ok(()),
    }
}

/// Whether the request repeats the last request of the hold. It then gets the same answer and
/// changes nothing.
///
/// # Errors
///
/// [`Refusal::Stale`] if the hold has seen a later request.
pub(crate) fn is_repeat(hold: &Hold, id: Option<u64>, verb: Verb) -> Result<bool, Refusal> {
    Ok(RequestMark::classify(hold.request(), id, verb)? == Numbered::Repeat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Terms;

    const NOW: Now = Now { mono_us: 1_000_000, wall_us: 1_700_000_000_000_000 };

    fn with(kind: Kind, permits: u32, holds: &[(&str, Mode, u32)]) -> Lock {
        let mut lock = Lock::new(kind, permits);
        for (token, (owner, mode, count)) in (1..).zip(holds) {
            let deadline_us = NOW.mono_us + 1;
            let terms = Terms::plain(*count, deadline_us);
            lock.apply(Event::Granted { kind, owner: owner.as_bytes().into(), mode: *mode, token, terms });
        }
        lock
    }

    fn request(kind: Kind, mode: Mode, count: u32) -> Request {
        Request {
            verb: Verb::Acquire,
            kind,
            mode,
            count,
            lease_ms: 1000,
            request_id: None,
            session_ms: None,
            claim_ms: None,
            grace_ms: None,
            is_once: false,
            is_timed: false,
            notify: None,
            ask: Ask::Try,
        }
    }

    /// The admission rule as a table: (holds, request, admitted).
    #[test]
    fn the_admission_rule_of_each_kind() {
        use Mode::{Exclusive, Permits, Read, Write};
        type Row<'a> = (Kind, &'a [(&'a str, Mode, u32)], (&'a str, Mode, u32), bool);
        let rows: &[Row] = &[
            (Kind::Mutex, &[], ("a", Exclusive, 1), true),
            (Kind::Mutex, &[("a", Exclusive, 1)], ("b", Exclusive, 1), false),
            (Kind::Fair, &[("a", Exclusive, 1)], ("b", Exclusive, 1), false),
            (Kind::RwLock, &[], ("a", Write, 1), true),
            (Kind::RwLock, &[("a", Read, 1), ("b", Read, 2)], ("c", Read, 1), true),
            (Kind::RwLock, &[("a", Read, 1)], ("b", Write, 1), false),
            (Kind::RwLock, &[("a", Read, 1)], ("a", Write, 1), true),
            (Kind::RwLock, &[("a", Read, 1), ("b", Read, 1)], ("a", Write, 1), false),
            (Kind::RwLock, &[("a", Write, 1)], ("a", Read, 1), true),
            (Kind::RwLock, &[("a", Write, 1)], ("b", Read, 1), false),
            (Kind::RwLock, &[("a", Write, 1), ("a", Read, 1)], ("b", Read, 1), false),
            (Kind::Semaphore, &[("a", Permits, 2)], ("b", Permits, 1), true),
            (Kind::Semaphore, &[("a", Permits, 2)], ("b", Permits, 2), false),
            (Kind::Semaphore, &[("a", Permits, 2)], ("a", Permits, 2), false),
            (Kind::Mutex, &[("a", Exclusive, 1)], ("a", Exclusive, 1), true),
            (Kind::RwLock, &[("a", Read, 1), ("b", Read, 1)], ("a", Read, 1), true),
        ];
        for (kind, holds, (owner, mode, count), admitted) in rows {
            let lock = with(*kind, 3, holds);
            let expected = if *admitted { Decision::Grant } else { Decision::Wait };
            let request = request(*kind, *mode, *count);
            let decision = decide(Value::Lock(&lock), Ahead::default(), owner.as_bytes(), &request, NOW);
            assert_eq!(decision, expected, "{kind:?} held by {holds:?}, asked by {owner} for {mode:?} {count}");
        }
    }

    /// Precedence as a table: (holds, waiters ahead, request, admitted).
    #[test]
    fn precedence_over_the_queue() {
        use Mode::{Exclusive, Permits, Read, Write};
        let none = Ahead::default();
        let queue = Ahead { any: true, ..none };
        let upgrade = Ahead { any: true, upgrade: true, ..none };
        type Row<'a> = (Kind, &'a [(&'a str, Mode, u32)], Ahead, (&'a str, Mode), bool);
        let rows: &[Row] = &[
            (Kind::Mutex, &[("a", Exclusive, 1)], queue, ("a", Exclusive), true),
            (Kind::RwLock, &[("a", Read, 1)], queue, ("b", Read), false),
            (Kind::RwLock, &[("a", Read, 1)], queue, ("a", Read), true),
            (Kind::RwLock, &[("a", Read, 1)], queue, ("a", Write), true),
            (Kind::RwLock, &[("a", Read, 1)], upgrade, ("a", Write), false),
            (Kind::RwLock, &[("a", Write, 1)], upgrade, ("a", Read), true),
            (Kind::Semaphore, &[("a", Permits, 1)], queue, ("a", Permits), false),
            (Kind::Semaphore, &[("a", Permits, 1)], none, ("a", Permits), true),
        ];
        for (kind, holds, ahead, (owner, mode), admitted) in rows {
            let lock = with(*kind, 3, holds);
            let expected = if *admitted { Decision::Grant } else { Decision::Wait };
            let request = request(*kind, *mode, 1);
            let decision = decide(Value::Lock(&lock), *ahead, owner.as_bytes(), &request, NOW);
            assert_eq!(decision, expected, "{kind:?} held by {holds:?}, {ahead:?}, asked by {owner} for {mode:?}");
        }
        let decision = decide(Value::Vacant, queue, b"a", &request(Kind::Mutex, Exclusive, 1), NOW);
        assert_eq!(decision, Decision::Wait, "a free key with a queue");
    }

    #[test]
    fn no_fair_queue_is_created_under_a_name_with_waiters_of_another_kind() {
        let others = Ahead { any: true, other_kind: true, ..Ahead::default() };
        let decide = |ahead, kind, ask| {
            let request = Request { ask, ..request(kind, Mode::Exclusive, 1) };
            decide(Value::Vacant, ahead, b"a", &request, NOW)
        };
        let wait = Ask::Wait { until_us: None };
        assert_eq!(decide(others, Kind::Fair, wait), Decision::Refuse(Refusal::WrongType { found: None }));
        assert_eq!(decide(others, Kind::Fair, Ask::Try), Decision::Wait);
        assert_eq!(decide(others, Kind::Mutex, wait), Decision::Wait);
        assert_eq!(decide(Ahead { any: true, ..Ahead::default() }, Kind::Fair, wait), Decision::Wait);
        assert_eq!(decide(Ahead::default(), Kind::Fair, wait), Decision::Grant);
    }

    #[test]
    fn grant_clears_an_expire_unless_readers_join_readers() {
        use Mode::{Exclusive, Permits, Read, Write};
        let terms = Terms::plain(1, NOW.mono_us + 1);
        let granted =
            |kind, mode| Event::Granted { kind, owner: b"a"[..].into(), mode, token: 9, terms: terms.clone() };
        let read = with(Kind::RwLock, 1, &[("b", Read, 1)]);
        let (empty, semaphore) = (with(Kind::RwLock, 1, &[]), with(Kind::Semaphore, 3, &[]));
        let rows = [
            (Value::Vacant, granted(Kind::Mutex, Exclusive), true),
            (Value::Vacant, granted(Kind::Fair, Exclusive), true),
            (Value::Vacant, granted(Kind::RwLock, Read), true),
            (Value::Lock(&empty), granted(Kind::RwLock, Write), true),
            (Value::Lock(&read), granted(Kind::RwLock, Read), false),
            (Value::Lock(&semaphore), granted(Kind::Semaphore, Permits), false),
            (Value::Lock(&empty), Event::QueueExpired, false),
        ];
        for (value, event, is_cleared) in rows {
            assert_eq!(value.clears_expire(&event), is_cleared, "{event:?}");
        }
    }

    #[test]
    fn impossible_requests_are_refused() {
        let semaphore = with(Kind::Semaphore, 3, &[]);
        let request_for = |count| request(Kind::Semaphore, Mode::Permits, count);
        let refused = |value, request| match decide(value, Ahead::default(), b"a", &request, NOW) {
            Decision::Refuse(refusal) => refusal,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(Value::Lock(&semaphore), request_for(4)), Refusal::TooManyPermits { permits: 3 });
        assert_eq!(refused(Value::Vacant, request_for(1)), Refusal::NoSemaphore);
        let mutex = request(Kind::Mutex, Mode::Exclusive, 1);
        assert_eq!(refused(Value::Lock(&semaphore), mutex), Refusal::WrongType { found: Some(Kind::Semaphore) });
        assert_eq!(refused(Value::Foreign, mutex), Refusal::WrongType { found: None });
        let full = with(Kind::Mutex, 1, &[("a", Mode::Exclusive, u32::MAX)]);
        assert_eq!(refused(Value::Lock(&full), mutex), Refusal::CountOverflow);
        // An expired lock counts as absent.
        let later = Now { mono_us: NOW.mono_us + 1, ..NOW };
        let rwlock = with(Kind::RwLock, 1, &[("b", Mode::Read, 1)]);
        assert_eq!(decide(Value::Lock(&rwlock), Ahead::default(), b"a", &mutex, later), Decision::Grant);
    }
}
