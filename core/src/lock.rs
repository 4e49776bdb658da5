//! The value of a key: a kind, a capacity, the holds, and the queue of a fair lock.
//!
//! Invariants, kept by [`Lock::apply`] and checked by the decoder:
//! 1. No two holds have the same owner and mode, nor the same token.
//! 2. Each hold has a count of at least 1 and a deadline: no lock is immortal.
//! 3. What is admitted is decided by [`Lock::admits`] alone; a kind is one arm of it.
//!
//! The value is plain data: the server may free it on another thread.

use alloc::boxed::Box;
use smallvec::SmallVec;

use crate::bytes::Owner;
use crate::event::{Event, Terms};
use crate::places::{Place, Places};
use crate::request::RequestMark;
use crate::time::Now;

/// What a lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One owner at a time.
    Mutex,
    /// One owner at a time, and a queue that lives in the value.
    Fair,
    /// Many readers or one writer.
    RwLock,
    /// A number of permits.
    Semaphore,
}

impl Kind {
    /// The name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Fair => "fair",
            Self::RwLock => "rwlock",
            Self::Semaphore => "semaphore",
        }
    }

    /// Whether a hold of this kind can be in `mode`.
    #[must_use]
    pub fn has_mode(self, mode: Mode) -> bool {
        match self {
            Self::Mutex | Self::Fair => mode == Mode::Exclusive,
            Self::RwLock => matches!(mode, Mode::Read | Mode::Write),
            Self::Semaphore => mode == Mode::Permits,
        }
    }
}

/// How a hold shares the lock with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Alone (mutex, fair).
    Exclusive,
    /// With other readers (rwlock).
    Read,
    /// Alone, but for the owner's own READ (rwlock).
    Write,
    /// With others, as long as the permits last (semaphore).
    Permits,
}

impl Mode {
    /// The name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Read => "read",
            Self::Write => "write",
            Self::Permits => "permits",
        }
    }
}

/// What an owner has in one mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    owner: Owner,
    token: u64,
    deadline_us: u64,
    lease_ms: u64,
    /// Most holds are neither numbered nor bound to a connection: those two live apart.
    extras: Option<Box<Extras>>,
    count: u32,
    mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extras {
    request: Option<RequestMark>,
    session_ms: Option<u64>,
}

impl Hold {
    fn new(owner: Owner, mode: Mode, token: u64, terms: &Terms) -> Self {
        let mut hold = Self { owner, token, deadline_us: 0, lease_ms: 0, extras: None, count: 0, mode };
        hold.set_terms(terms);
        hold
    }

    fn set_terms(&mut self, terms: &Terms) {
        self.count = terms.count;
        self.deadline_us = terms.deadline_us;
        self.lease_ms = terms.lease_ms;
        let extras = Extras { request: terms.request, session_ms: terms.session_ms };
        self.extras = (extras.request.is_some() || extras.session_ms.is_some()).then(|| Box::new(extras));
    }

    /// Who holds.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// In which mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The fencing token.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Re-entries, or permits.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// When the lease ends.
    #[must_use]
    pub fn deadline_us(&self) -> u64 {
        self.deadline_us
    }

    /// The last numbered request.
    #[must_use]
    pub fn request(&self) -> Option<RequestMark> {
        self.extras.as_ref()?.request
    }

    /// The grace after the last connection that the hold is bound to closes.
    #[must_use]
    pub fn session_ms(&self) -> Option<u64> {
        self.extras.as_ref()?.session_ms
    }

    /// The terms as they are.
    #[must_use]
    pub fn terms(&self) -> Terms {
        Terms {
            count: self.count,
            deadline_us: self.deadline_us,
            lease_ms: self.lease_ms,
            request: self.request(),
            session_ms: self.session_ms(),
        }
    }

    /// Whether the lease has not ended.
    #[must_use]
    pub fn is_live(&self, now: Now) -> bool {
        self.deadline_us > now.mono_us
    }

    /// Milliseconds of lease left, rounded up.
    #[must_use]
    pub fn lease_left_ms(&self, now: Now) -> u64 {
        now.left_ms(self.deadline_us)
    }

    fn heap_bytes(&self) -> usize {
        let extras = self.extras.as_ref().map_or(0, |_| size_of::<Extras>());
        self.owner.heap_bytes().saturating_add(extras)
    }
}

/// A lock of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    holds: SmallVec<[Hold; 1]>,
    /// Only a fair lock that is waited for has one.
    places: Option<Box<Places>>,
    permits: u32,
    kind: Kind,
}

impl Lock {
    /// A lock that nobody holds. Only a semaphore has more than one permit.
    #[must_use]
    pub fn new(kind: Kind, permits: u32) -> Self {
        Self { holds: SmallVec::new(), places: None, permits, kind }
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// A semaphore's capacity; 1 for the other kinds.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Every hold, also one whose lease has ended and was not removed yet.
    #[must_use]
    pub fn holds(&self) -> &[Hold] {
        &self.holds
    }

    /// The holds whose lease has not ended.
    pub fn live_holds(&self, now: Now) -> impl Iterator<Item = &Hold> {
        self.holds.iter().filter(move |hold| hold.is_live(now))
    }

    /// The live hold of `owner` in `mode`.
    #[must_use]
    pub fn live_hold(&self, owner: &[u8], mode: Mode, now: Now) -> Option<&Hold> {
        self.live_holds(now).find(|hold| hold.mode == mode && hold.owner.as_slice() == owner)
    }

    /// The hold with `token`, live or not.
    #[must_use]
    pub fn hold_with_token(&self, token: u64) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.token == token)
    }

    /// A hold whose lease has ended.
    #[must_use]
    pub fn lapsed_hold(&self, now: Now) -> Option<&Hold> {
        self.holds.iter().find(|hold| !hold.is_live(now))
    }

    /// The queue of a fair lock that is waited for.
    #[must_use]
    pub fn places(&self) -> Option<&Places> {
        self.places.as_deref()
    }

    /// When the next lease, the life of a place, or a turn ends.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        let lease_us = self.holds.iter().map(Hold::deadline_us).min();
        let place_us = self.places().and_then(Places::next_deadline_us);
        [lease_us, place_us].into_iter().flatten().min()
    }

    /// Whether the key can go: nobody holds, and nobody has a place. A semaphore stays, it is configuration.
    #[must_use]
    pub fn is_disposable(&self) -> bool {
        self.holds.is_empty() && self.places.is_none() && self.kind != Kind::Semaphore
    }

    /// Whether `owner` may hold in `mode` next to those who hold already, whoever waits. The admission rule: all that
    /// makes one kind different from another.
    #[must_use]
    pub fn admits(&self, owner: &[u8], mode: Mode, count: u32, now: Now) -> bool {
        let mut others = self.live_holds(now).filter(|hold| hold.owner.as_slice() != owner);
        match mode {
            Mode::Exclusive | Mode::Write => others.next().is_none(),
            Mode::Read => others.all(|hold| hold.mode == Mode::Read),
            Mode::Permits => i64::from(count) <= self.available(now),
        }
    }

    /// How many permits of a semaphore are free; negative if it was made smaller than what is in use.
    #[must_use]
    pub fn available(&self, now: Now) -> i64 {
        let used: i64 = self.live_holds(now).map(|hold| i64::from(hold.count)).fold(0, i64::saturating_add);
        i64::from(self.permits).saturating_sub(used)
    }

    /// Whether there is anything to it at this moment: a lock whose leases and places are all over is as good as gone.
    #[must_use]
    pub fn is_live(&self, now: Now) -> bool {
        self.kind == Kind::Semaphore
            || self.live_holds(now).next().is_some()
            || self.places().is_some_and(|places| places.iter().any(|place| place.is_live(now)))
    }

    /// Makes `event` true. Total: an event about a hold that is not here changes nothing.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Granted { owner, mode, token, terms, .. } => {
                self.holds.retain(|hold| hold.mode != *mode || hold.owner != *owner);
                self.holds.push(Hold::new(owner.clone(), *mode, *token, terms));
                self.leave(owner);
            }
            Event::Changed { token, terms, .. } => {
                if let Some(hold) = self.holds.iter_mut().find(|hold| hold.token == *token) {
                    hold.set_terms(terms);
                }
            }
            Event::Ended { token, .. } => self.holds.retain(|hold| hold.token != *token),
            Event::Sized { permits } => {
                if self.kind == Kind::Semaphore {
                    self.permits = *permits;
                }
            }
            Event::Queued { owner, stay, arrival, request_id, at_head } => {
                if self.kind == Kind::Fair {
                    let places = self.places.get_or_insert_with(Box::default);
                    let place =
                        Place { owner: owner.as_slice(), stay: *stay, arrival: *arrival, request_id: *request_id };
                    places.push(place, *at_head);
                }
            }
            Event::Kept { owner, stay, request_id } => {
                self.queue(|places| places.set_stay(owner.as_slice(), *stay, *request_id));
            }
            Event::Left { owner, .. } => self.leave(owner),
            Event::Turn { until_us, .. } => self.queue(|places| places.set_turn(*until_us)),
            Event::Detached { until_us } => self.queue(|places| places.detach_all(*until_us)),
        }
    }

    fn queue(&mut self, change: impl FnOnce(&mut Places)) {
        if let Some(places) = &mut self.places {
            change(places);
        }
    }

    fn leave(&mut self, owner: &Owner) {
        if let Some(places) = &mut self.places {
            places.remove(owner.as_slice());
            if places.is_empty() {
                self.places = None;
            }
        }
    }

    /// Bytes on the heap behind this value, for MEMORY USAGE.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let spilled = if self.holds.spilled() { self.holds.capacity().saturating_mul(size_of::<Hold>()) } else { 0 };
        let places = self.places().map_or(0, |places| size_of::<Places>().saturating_add(places.heap_bytes()));
        self.holds.iter().map(Hold::heap_bytes).fold(spilled, usize::saturating_add).saturating_add(places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EndCause;

    const NOW: Now = Now { mono_us: 1_000_000, wall_us: 1_700_000_000_000_000 };

    fn terms(count: u32, deadline_us: u64) -> Terms {
        Terms { count, deadline_us, lease_ms: 1000, request: None, session_ms: None }
    }

    fn with(kind: Kind, permits: u32, holds: &[(&str, Mode, u32)]) -> Lock {
        let mut lock = Lock::new(kind, permits);
        for (token, (owner, mode, count)) in (1..).zip(holds) {
            lock.apply(&Event::Granted {
                kind,
                owner: owner.as_bytes().into(),
                mode: *mode,
                token,
                terms: terms(*count, NOW.mono_us + 1),
            });
        }
        lock
    }

    /// (who holds, who asks for what, admitted): the whole admission rule as a table.
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
            (Kind::Semaphore, &[], ("a", Permits, u32::MAX), false),
        ];
        for (kind, holds, (owner, mode, count), admitted) in rows {
            let lock = with(*kind, 3, holds);
            assert_eq!(
                lock.admits(owner.as_bytes(), *mode, *count, NOW),
                *admitted,
                "{kind:?} held by {holds:?}, asked by {owner} for {mode:?} {count}"
            );
        }
    }

    #[test]
    fn from_its_deadline_on_a_lease_has_no_effect() {
        let lock = with(Kind::Mutex, 1, &[("a", Mode::Exclusive, 1)]);
        let later = Now { mono_us: NOW.mono_us + 1, ..NOW };
        assert!(lock.live_hold(b"a", Mode::Exclusive, NOW).is_some());
        assert!(!lock.admits(b"b", Mode::Exclusive, 1, NOW));
        assert!(lock.live_hold(b"a", Mode::Exclusive, later).is_none());
        assert!(lock.admits(b"b", Mode::Exclusive, 1, later));
        assert!(lock.lapsed_hold(NOW).is_none() && lock.lapsed_hold(later).is_some());
    }

    #[test]
    fn events_about_a_hold_that_is_not_here_change_nothing() {
        let mut lock = with(Kind::Mutex, 1, &[("a", Mode::Exclusive, 1)]);
        let before = lock.clone();
        lock.apply(&Event::Ended { token: 99, cause: EndCause::Expired });
        lock.apply(&Event::Changed { token: 99, cause: crate::event::ChangeCause::Renewed, terms: terms(5, 7) });
        assert_eq!(lock, before);
    }

    #[test]
    fn the_value_has_the_size_that_the_memory_figures_rest_on() {
        assert_eq!(size_of::<Hold>(), 80);
        assert_eq!(size_of::<Lock>(), 104);
    }
}
