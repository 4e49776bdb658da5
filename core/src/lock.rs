//! The value of a key: a kind, a capacity, the holds, and the queue of a fair lock.
//!
//! Invariants, kept by [`Lock::apply`] and checked by the decoder:
//! 1. No two holds have the same owner and mode, nor the same token.
//! 2. Each hold has a count of at least 1 and a deadline: no lock is immortal.
//! 3. What is admitted is decided by [`Lock::admits`] alone; a kind is one arm of it.
//!
//! The value is plain data: the server may free it on another thread.

use alloc::boxed::Box;
use core::fmt;

use smallvec::SmallVec;

use crate::bytes::Owner;
use crate::crowd::{Crowd, MAX_FEW, MIN_CROWD};
use crate::event::Event;
use crate::hold::Hold;
use crate::places::{Place, Places};
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

/// A lock of any kind.
#[derive(Clone)]
pub struct Lock {
    holds: SmallVec<[Hold; 1]>,
    /// What few locks have lives apart.
    extra: Option<Box<Extra>>,
    permits: u32,
    kind: Kind,
}

/// No lock has both.
#[derive(Clone)]
enum Extra {
    /// The queue of a fair lock that is waited for.
    Places(Places),
    /// The index over the holds of a lock that many hold.
    Crowd(Crowd),
}

/// The index is part of the list that it is made from.
impl PartialEq for Lock {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, self.permits, &self.holds) == (other.kind, other.permits, &other.holds)
            && self.places() == other.places()
    }
}

impl Eq for Lock {}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("kind", &self.kind)
            .field("permits", &self.permits)
            .field("holds", &self.holds)
            .field("places", &self.places())
            .finish()
    }
}

impl Lock {
    /// A lock that nobody holds. Only a semaphore has more than one permit.
    #[must_use]
    pub fn new(kind: Kind, permits: u32) -> Self {
        Self { holds: SmallVec::new(), extra: None, permits, kind }
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
        self.hold(owner, mode).filter(|hold| hold.is_live(now))
    }

    /// The hold of `owner` in `mode`, live or not.
    #[must_use]
    pub fn hold(&self, owner: &[u8], mode: Mode) -> Option<&Hold> {
        self.holds.get(self.position(owner, mode)?)
    }

    fn crowd(&self) -> Option<&Crowd> {
        match self.extra.as_deref()? {
            Extra::Crowd(crowd) => Some(crowd),
            Extra::Places(_) => None,
        }
    }

    fn position(&self, owner: &[u8], mode: Mode) -> Option<usize> {
        match self.crowd() {
            Some(crowd) => crowd.find(&self.holds, owner, mode),
            None => self.holds.iter().position(|hold| hold.mode() == mode && hold.owner().as_slice() == owner),
        }
    }

    fn position_of_token(&self, token: u64) -> Option<usize> {
        match self.crowd() {
            Some(crowd) => crowd.find_token(token),
            None => self.holds.iter().position(|hold| hold.token() == token),
        }
    }

    /// The hold with `token`, live or not.
    #[must_use]
    pub fn hold_with_token(&self, token: u64) -> Option<&Hold> {
        self.holds.get(self.position_of_token(token)?)
    }

    /// A hold whose lease has ended.
    #[must_use]
    pub fn lapsed_hold(&self, now: Now) -> Option<&Hold> {
        match self.crowd() {
            Some(crowd) => {
                let (_, token) = crowd.first_deadline().filter(|(deadline_us, _)| *deadline_us <= now.mono_us)?;
                self.hold_with_token(token)
            }
            None => self.holds.iter().find(|hold| !hold.is_live(now)),
        }
    }

    /// The queue of a fair lock that is waited for.
    #[must_use]
    pub fn places(&self) -> Option<&Places> {
        match self.extra.as_deref()? {
            Extra::Places(places) => Some(places),
            Extra::Crowd(_) => None,
        }
    }

    /// When the next lease, the life of a place, or a turn ends.
    #[must_use]
    pub fn next_deadline_us(&self) -> Option<u64> {
        let lease_us = match self.crowd() {
            Some(crowd) => crowd.first_deadline().map(|(deadline_us, _)| deadline_us),
            None => self.holds.iter().map(Hold::deadline_us).min(),
        };
        let place_us = self.places().and_then(Places::next_deadline_us);
        [lease_us, place_us].into_iter().flatten().min()
    }

    /// Whether the key can go: nobody holds, and nobody has a place. A semaphore stays, it is configuration.
    #[must_use]
    pub fn is_disposable(&self) -> bool {
        self.holds.is_empty() && self.extra.is_none() && self.kind != Kind::Semaphore
    }

    /// Whether `owner` may hold in `mode` next to those who hold already, whoever waits. The admission rule: all that
    /// makes one kind different from another.
    #[must_use]
    pub fn admits(&self, owner: &[u8], mode: Mode, count: u32, now: Now) -> bool {
        let mut others = self.live_holds(now).filter(|hold| hold.owner().as_slice() != owner);
        match mode {
            Mode::Exclusive | Mode::Write => others.next().is_none(),
            Mode::Read if self.crowd().is_some_and(|crowd| !crowd.has_writer()) => true,
            Mode::Read => others.all(|hold| hold.mode() == Mode::Read),
            Mode::Permits => i64::from(count) <= self.available(now),
        }
    }

    /// How many permits of a semaphore are free; negative if it was made smaller than what is in use.
    #[must_use]
    pub fn available(&self, now: Now) -> i64 {
        let used: u64 = match self.crowd() {
            Some(crowd) => crowd.live_total(&self.holds, now.mono_us),
            None => self.live_holds(now).map(|hold| u64::from(hold.count())).sum(),
        };
        i64::from(self.permits).saturating_sub(i64::try_from(used).unwrap_or(i64::MAX))
    }

    /// Whether there is anything to it at this moment: a lock whose leases and places are all over is as good as gone.
    #[must_use]
    pub fn is_live(&self, now: Now) -> bool {
        self.kind == Kind::Semaphore
            || self.live_holds(now).next().is_some()
            || self.places().is_some_and(|places| !places.are_over(now))
    }

    /// Makes `event` true. Total: an event about a hold that is not here changes nothing.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Granted { owner, mode, token, terms, .. } => {
                if let Some(at) = self.position(owner.as_slice(), *mode) {
                    self.remove_hold(at);
                }
                if matches!(mode, Mode::Exclusive | Mode::Write) {
                    self.displace_others(owner);
                }
                self.push_hold(Hold::new(owner.clone(), *mode, *token, terms));
                self.leave(owner);
            }
            Event::Changed { token, terms, .. } => {
                if let Some(hold) = self.position_of_token(*token).and_then(|at| self.holds.get_mut(at)) {
                    let mut crowd = match self.extra.as_deref_mut() {
                        Some(Extra::Crowd(crowd)) => Some(crowd),
                        _ => None,
                    };
                    if let Some(crowd) = &mut crowd {
                        crowd.count_out(hold);
                    }
                    hold.set_terms(terms);
                    if let Some(crowd) = &mut crowd {
                        crowd.count_in(hold);
                    }
                }
            }
            Event::Ended { token, .. } => {
                if let Some(at) = self.position_of_token(*token) {
                    self.remove_hold(at);
                }
            }
            Event::Sized { permits } => {
                if self.kind == Kind::Semaphore {
                    self.permits = *permits;
                }
            }
            Event::Queued { owner, stay, arrival, request_id, at_head } => {
                if self.kind == Kind::Fair {
                    let place =
                        Place { owner: owner.as_slice(), stay: *stay, arrival: *arrival, request_id: *request_id };
                    let extra = self.extra.get_or_insert_with(|| Box::new(Extra::Places(Places::default())));
                    if let Extra::Places(places) = extra.as_mut() {
                        places.push(place, *at_head);
                    }
                }
            }
            Event::Kept { owner, stay, request_id } => {
                self.queue(|places| places.set_stay(owner.as_slice(), *stay, *request_id));
            }
            Event::Left { owner, .. } => self.leave(owner),
            Event::Lapsed => {
                if self.kind == Kind::Fair {
                    self.extra = None;
                }
            }
            Event::Turn { until_us, .. } => self.queue(|places| places.set_turn(*until_us)),
            Event::Detached { until_us } => self.queue(|places| places.detach_all(*until_us)),
        }
    }

    /// Whoever is granted a lock alone holds it alone, also on a copy that has missed something.
    fn displace_others(&mut self, owner: &Owner) {
        while let Some(at) = self.holds.iter().position(|hold| hold.owner() != owner) {
            self.remove_hold(at);
        }
    }

    fn push_hold(&mut self, hold: Hold) {
        self.holds.push(hold);
        match self.extra.as_deref_mut() {
            Some(Extra::Crowd(crowd)) => crowd.add(&self.holds, self.holds.len().saturating_sub(1)),
            Some(Extra::Places(_)) => {}
            None if self.holds.len() >= MIN_CROWD => {
                self.extra = Some(Box::new(Extra::Crowd(Crowd::of(&self.holds))));
            }
            None => {}
        }
    }

    /// The last hold takes the place of the one that goes: the same on every server that applies the same events.
    fn remove_hold(&mut self, at: usize) {
        if let Some(Extra::Crowd(crowd)) = self.extra.as_deref_mut() {
            crowd.remove(&self.holds, at);
        }
        self.holds.swap_remove(at);
        if self.holds.len() <= MAX_FEW && self.crowd().is_some() {
            self.extra = None;
            self.holds.shrink_to_fit();
        }
    }

    fn queue(&mut self, change: impl FnOnce(&mut Places)) {
        if let Some(Extra::Places(places)) = self.extra.as_deref_mut() {
            change(places);
        }
    }

    fn leave(&mut self, owner: &Owner) {
        self.queue(|places| {
            places.remove(owner.as_slice());
        });
        if self.places().is_some_and(Places::is_empty) {
            self.extra = None;
        }
    }

    /// Bytes on the heap behind this value, for MEMORY USAGE.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let spilled = if self.holds.spilled() { self.holds.capacity().saturating_mul(size_of::<Hold>()) } else { 0 };
        let extra = self.extra.as_deref().map_or(0, |extra| {
            size_of::<Extra>().saturating_add(match extra {
                Extra::Places(places) => places.heap_bytes(),
                Extra::Crowd(crowd) => crowd.heap_bytes(),
            })
        });
        self.holds.iter().map(Hold::heap_bytes).fold(spilled, usize::saturating_add).saturating_add(extra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EndCause, Terms};
    use alloc::vec::Vec;

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

    use proptest::prelude::*;

    proptest! {
        /// A lock that many hold answers as the plain list of its holds does, while it grows and shrinks.
        #[test]
        fn a_crowd_is_found_as_in_the_list(
            is_semaphore: bool,
            steps in prop::collection::vec((0..40u8, any::<bool>(), 0..5u8, 0..50u64), 1..300),
        ) {
            let (kind, mode) = if is_semaphore { (Kind::Semaphore, Mode::Permits) } else { (Kind::RwLock, Mode::Read) };
            let mut lock = Lock::new(kind, 60);
            let mut list: Vec<(u8, u64, u32, u64)> = Vec::new();
            for (token, (owner, grows, what, deadline)) in (1..).zip(steps) {
                let deadline_us = NOW.mono_us - 20 + deadline;
                let count = u32::from(what) + 1;
                let at = list.iter().position(|entry| entry.0 == owner);
                match (at, grows || what > 2) {
                    (None, _) => {
                        let terms = terms(count, deadline_us);
                        lock.apply(&Event::Granted { kind, owner: (&[owner][..]).into(), mode, token, terms });
                        list.push((owner, token, count, deadline_us));
                    }
                    (Some(at), true) => {
                        let cause = crate::event::ChangeCause::Renewed;
                        lock.apply(&Event::Changed { token: list[at].1, cause, terms: terms(count, deadline_us) });
                        (list[at].2, list[at].3) = (count, deadline_us);
                    }
                    (Some(at), false) => {
                        lock.apply(&Event::Ended { token: list[at].1, cause: EndCause::Released });
                        list.remove(at);
                    }
                }
                let live = || list.iter().filter(|entry| entry.3 > NOW.mono_us);
                prop_assert_eq!(lock.holds().len(), list.len());
                for owner in 0..40 {
                    let held = live().find(|entry| entry.0 == owner).map(|entry| entry.1);
                    prop_assert_eq!(lock.live_hold(&[owner], mode, NOW).map(Hold::token), held);
                }
                for entry in &list {
                    let hold = lock.hold_with_token(entry.1).unwrap();
                    prop_assert_eq!((hold.owner().as_slice(), hold.count()), (&[entry.0][..], entry.2));
                }
                prop_assert_eq!(lock.next_deadline_us(), list.iter().map(|entry| entry.3).min());
                prop_assert_eq!(lock.lapsed_hold(NOW).is_some(), list.iter().any(|entry| entry.3 <= NOW.mono_us));
                let used: i64 = live().map(|entry| i64::from(entry.2)).sum();
                prop_assert_eq!(lock.available(NOW), 60 - used);
                prop_assert!(is_semaphore || lock.admits(b"x", Mode::Read, 1, NOW));
            }
        }
    }

    #[test]
    fn on_a_copy_that_has_missed_something_there_is_one_holder_all_the_same() {
        let mutex = with(Kind::Mutex, 1, &[("a", Mode::Exclusive, 1), ("b", Mode::Exclusive, 1)]);
        assert_eq!(mutex.holds().iter().map(Hold::token).collect::<Vec<_>>(), [2]);
        let holds = [("a", Mode::Read, 1), ("b", Mode::Read, 1), ("a", Mode::Write, 1)];
        let rwlock = with(Kind::RwLock, 1, &holds);
        assert_eq!(rwlock.holds().iter().map(Hold::token).collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn a_lock_has_an_index_while_many_hold_it() {
        let mut lock = Lock::new(Kind::Semaphore, 100);
        let grant = |lock: &mut Lock, number: u8| {
            let (kind, mode, token) = (Kind::Semaphore, Mode::Permits, u64::from(number) + 1);
            lock.apply(&Event::Granted { kind, owner: (&[number][..]).into(), mode, token, terms: terms(1, 7) });
        };
        for number in 0..100 {
            grant(&mut lock, number);
            assert_eq!(lock.crowd().is_some(), lock.holds().len() >= MIN_CROWD);
        }
        for token in 1..=100 {
            lock.apply(&Event::Ended { token, cause: EndCause::Expired });
            assert_eq!(lock.crowd().is_some(), lock.holds().len() > MAX_FEW);
        }
    }

    #[test]
    fn the_value_has_the_size_that_the_memory_figures_rest_on() {
        assert_eq!(size_of::<Hold>(), 80);
        assert_eq!(size_of::<Lock>(), 104);
    }
}
