//! A register of the holds that clients believe in. It fails the test if two of them exclude each
//! other.
//!
//! Each holder enters the register right after its grant. Two overlapping holds both exist at the
//! moment when the later one begins, so it is enough to check at each entry. A guard that reports a
//! lost hold never reports it as held again. If the register sees first the other guard held, and
//! then the new one, both were held at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rlock_client::{Guard, Kind, QuorumGuard};

/// The part of a guard that the register needs.
pub trait Belief: Send + Sync {
    fn believes(&self) -> bool;
    fn token(&self) -> u64;
}

impl<K: Kind> Belief for Guard<K> {
    fn believes(&self) -> bool {
        self.is_held()
    }

    fn token(&self) -> u64 {
        Guard::token(self)
    }
}

impl Belief for QuorumGuard {
    fn believes(&self) -> bool {
        self.is_held()
    }

    fn token(&self) -> u64 {
        QuorumGuard::token(self)
    }
}

/// Which other holds a hold tolerates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    Alone,
    /// Exclusive, except for holds of the owner with this number: those share one hold and its
    /// token.
    AloneAs(u64),
    /// Shared with other readers.
    Reading,
    /// This many permits, out of this total.
    Permits(u32, u32),
}

impl Share {
    /// The part of the lock that this hold takes, and the size of the whole lock.
    fn part(self) -> (u32, u32) {
        match self {
            Share::Alone | Share::AloneAs(_) => (u32::MAX, u32::MAX),
            Share::Reading => (1, u32::MAX),
            Share::Permits(some, all) => (some, all),
        }
    }
}

#[derive(Default)]
struct Inside {
    holders: Vec<(Share, Arc<dyn Belief>)>,
    /// The highest token of an exclusive hold, and the highest of any hold.
    last_alone: u64,
    last: u64,
    tokens: BTreeSet<u64>,
    /// The last entry that was not a re-entry by the same owner.
    last_hold: Option<(Share, u64)>,
    /// The number of entries whose guard was held at that moment.
    believed: usize,
}

/// The holders of all locks, by key.
#[derive(Default)]
pub struct Register(Mutex<BTreeMap<String, Inside>>);

impl Register {
    fn inside(&self) -> MutexGuard<'_, BTreeMap<String, Inside>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Call it right after a grant. Panics if another guard is still held that excludes this one,
    /// or if the token does not rise.
    pub fn enter(&self, key: &str, share: Share, guard: Arc<dyn Belief>) {
        let mut keys = self.inside();
        let inside = keys.entry(key.to_owned()).or_default();
        let is_same_hold =
            |other: Share, token| matches!(share, Share::AloneAs(_)) && other == share && token == guard.token();
        let believing = inside.holders.iter().filter(|(_, guard)| guard.believes());
        let (same, believing): (Vec<_>, Vec<_>) =
            believing.partition(|(other, guard)| is_same_hold(*other, guard.token()));
        let (taken, others): (Vec<_>, Vec<_>) =
            believing.into_iter().map(|(share, guard)| (u64::from(share.part().0), (*share, guard.token()))).unzip();
        // A guard that lost its hold on the way here may have been overtaken, so only a held guard
        // is checked.
        if guard.believes() {
            let (part, all) = share.part();
            let (taken, token) = (taken.iter().sum::<u64>() + u64::from(part), guard.token());
            assert!(taken <= u64::from(all), "{key}: {share:?} with token {token} is held besides {others:?}");
            // Another guard of the same owner may have left before this one enters.
            let is_known =
                !same.is_empty() || matches!(share, Share::AloneAs(_)) && inside.last_hold == Some((share, token));
            if !is_known {
                inside.check_token(key, share, token);
                inside.last_hold = Some((share, token));
            }
            inside.believed += 1;
        }
        inside.holders.push((share, guard));
    }

    /// Call it right before releasing the guard.
    pub fn leave(&self, key: &str, guard: &Arc<dyn Belief>) {
        if let Some(inside) = self.inside().get_mut(key) {
            inside.holders.retain(|(_, other)| !Arc::ptr_eq(other, guard));
        }
    }

    /// The number of entries whose guard was held at that moment, over all keys.
    pub fn believed(&self) -> usize {
        self.inside().values().map(|inside| inside.believed).sum()
    }
}

impl Inside {
    /// A token is higher than those of all holds that have ended. Readers and owners of permits are
    /// granted side by side, and may enter in any order.
    fn check_token(&mut self, key: &str, share: Share, token: u64) {
        let is_alone = matches!(share, Share::Alone | Share::AloneAs(_));
        let floor = if is_alone { self.last } else { self.last_alone };
        assert!(token > floor, "{key}: token {token} of {share:?} does not rise above {floor}");
        assert!(self.tokens.insert(token), "{key}: token {token} was granted twice");
        self.last = self.last.max(token);
        if is_alone {
            self.last_alone = token;
        }
    }
}

/// A guard that always claims to be held.
struct Stubborn(u64);

impl Belief for Stubborn {
    fn believes(&self) -> bool {
        true
    }

    fn token(&self) -> u64 {
        self.0
    }
}

#[test]
#[should_panic(expected = "is held besides")]
fn register_rejects_an_exclusive_hold_beside_readers() {
    let register = Register::default();
    register.enter("k", Share::Reading, Arc::new(Stubborn(1)));
    register.enter("k", Share::Reading, Arc::new(Stubborn(2)));
    register.enter("k", Share::Alone, Arc::new(Stubborn(3)));
}

#[test]
#[should_panic(expected = "is held besides")]
fn register_rejects_more_permits_than_exist() {
    let register = Register::default();
    for token in 1..=3 {
        register.enter("s", Share::Permits(2, 5), Arc::new(Stubborn(token)));
    }
}

#[test]
#[should_panic(expected = "is held besides")]
fn register_rejects_two_named_owners() {
    let register = Register::default();
    register.enter("k", Share::AloneAs(1), Arc::new(Stubborn(4)));
    register.enter("k", Share::AloneAs(1), Arc::new(Stubborn(4)));
    register.enter("k", Share::AloneAs(2), Arc::new(Stubborn(5)));
}

#[test]
#[should_panic(expected = "is held besides")]
fn register_rejects_two_holds_of_one_owner() {
    let register = Register::default();
    register.enter("k", Share::AloneAs(1), Arc::new(Stubborn(4)));
    register.enter("k", Share::AloneAs(1), Arc::new(Stubborn(5)));
}

#[test]
#[should_panic(expected = "does not rise")]
fn register_rejects_a_token_that_does_not_rise() {
    let register = Register::default();
    for token in [7, 6] {
        let guard: Arc<dyn Belief> = Arc::new(Stubborn(token));
        register.enter("k", Share::Alone, guard.clone());
        register.leave("k", &guard);
    }
}

#[test]
#[should_panic(expected = "granted twice")]
fn register_rejects_two_readers_with_one_token() {
    let register = Register::default();
    register.enter("k", Share::Reading, Arc::new(Stubborn(5)));
    register.enter("k", Share::Reading, Arc::new(Stubborn(5)));
}
