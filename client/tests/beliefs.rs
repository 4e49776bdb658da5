//! Who believes to hold what: a register inside the test, which sees when two do that must not.
//!
//! Each holder enters right after its grant. Two holds that overlap do so at the moment when the later one begins, so
//! looking at each entry is enough. A guard that once was not held never is again; so if another is seen to believe first and
//! the one that enters afterwards, both did at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rlock_client::{Guard, Kind, QuorumGuard};

/// What a register needs to know of a guard.
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

/// Besides whom one may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    Alone,
    /// Alone but for others in the name of the owner with this number: they share one hold, and its token.
    AloneAs(u64),
    /// Besides others that read.
    Reading,
    /// So many permits of so many.
    Permits(u32, u32),
}

impl Share {
    /// How much of the lock it takes, and how much there is.
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
    /// The highest token of one that was alone, and of any.
    last_alone: u64,
    last: u64,
    tokens: BTreeSet<u64>,
    /// The last one that was not in addition to another of its owner.
    last_hold: Option<(Share, u64)>,
    /// How many have entered and believed in their hold then.
    believed: usize,
}

/// The holders of all locks, by key.
#[derive(Default)]
pub struct Register(Mutex<BTreeMap<String, Inside>>);

impl Register {
    fn inside(&self) -> MutexGuard<'_, BTreeMap<String, Inside>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Right after a grant. Fails if somebody else believes to hold what excludes it, or if the token does not rise.
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
        // One that has lost its hold on the way here may have been overtaken.
        if guard.believes() {
            let (part, all) = share.part();
            let (taken, token) = (taken.iter().sum::<u64>() + u64::from(part), guard.token());
            assert!(taken <= u64::from(all), "{key}: {share:?} with token {token} is held besides {others:?}");
            // One of the same owner may be gone already when the other comes here.
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

    /// Right before the guard is given up.
    pub fn leave(&self, key: &str, guard: &Arc<dyn Belief>) {
        if let Some(inside) = self.inside().get_mut(key) {
            inside.holders.retain(|(_, other)| !Arc::ptr_eq(other, guard));
        }
    }

    /// How many have entered while they believed.
    pub fn believed(&self) -> usize {
        self.inside().values().map(|inside| inside.believed).sum()
    }
}

impl Inside {
    /// A token is above those of all that are over. Readers, and owners of permits, are granted side by side, and may come here in any order.
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

/// One who believes whatever happens.
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
fn a_register_sees_two_who_believe_to_be_alone() {
    let register = Register::default();
    register.enter("k", Share::Reading, Arc::new(Stubborn(1)));
    register.enter("k", Share::Reading, Arc::new(Stubborn(2)));
    register.enter("k", Share::Alone, Arc::new(Stubborn(3)));
}

#[test]
#[should_panic(expected = "is held besides")]
fn a_register_sees_more_permits_than_there_are() {
    let register = Register::default();
    for token in 1..=3 {
        register.enter("s", Share::Permits(2, 5), Arc::new(Stubborn(token)));
    }
}

#[test]
#[should_panic(expected = "is held besides")]
fn a_register_sees_two_owners_with_names() {
    let register = Register::default();
    register.enter("k", Share::AloneAs(1), Arc::new(Stubborn(4)));
    register.enter("k", Share::AloneAs(1), Arc::new(Stubborn(4)));
    register.enter("k", Share::AloneAs(2), Arc::new(Stubborn(5)));
}

#[test]
#[should_panic(expected = "is held besides")]
fn a_register_sees_an_owner_that_believes_in_an_earlier_hold_of_its_own() {
    let register = Register::default();
    register.enter("k", Share::AloneAs(1), Arc::new(Stubborn(4)));
    register.enter("k", Share::AloneAs(1), Arc::new(Stubborn(5)));
}

#[test]
#[should_panic(expected = "does not rise")]
fn a_register_sees_a_token_that_does_not_rise() {
    let register = Register::default();
    for token in [7, 6] {
        let guard: Arc<dyn Belief> = Arc::new(Stubborn(token));
        register.enter("k", Share::Alone, guard.clone());
        register.leave("k", &guard);
    }
}

#[test]
#[should_panic(expected = "granted twice")]
fn a_register_sees_a_token_that_two_readers_have() {
    let register = Register::default();
    register.enter("k", Share::Reading, Arc::new(Stubborn(5)));
    register.enter("k", Share::Reading, Arc::new(Stubborn(5)));
}
