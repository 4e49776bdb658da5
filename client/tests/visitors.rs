//! A visitor acquires a lock of any kind on random terms, checks that its guard is right, and
//! releases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use rlock_client::kinds::Reentrant;
use rlock_client::{Client, Error, Guard, Kind, Lock};

use crate::beliefs::{Belief, Register, Share};
use crate::support::{Reply, Server};

/// The permits of each semaphore.
pub const PERMITS: u32 = 3;

/// One lock, as the client of a visitor sees it.
#[derive(Clone)]
pub enum Any {
    Mutex(Lock<rlock_client::kinds::Mutex>),
    Fair(Lock<rlock_client::kinds::Fair>),
    Read(Lock<rlock_client::kinds::Read>),
    Write(Lock<rlock_client::kinds::Write>),
    Permits(Lock<rlock_client::kinds::Permits>, u32),
}

/// The terms of one acquisition.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub lease: Option<Duration>,
    pub renews: bool,
    pub grace: Option<Duration>,
    /// A distinct number if the visitor holds under a chosen owner name.
    pub name: Option<u64>,
}

impl Terms {
    pub fn random(random: &mut StdRng, is_late: bool) -> Terms {
        // A request that arrives late may be granted, and then holds until its lease expires. So
        // the lease is short.
        let is_short = is_late || random.random_ratio(1, 4);
        let lease = is_short.then(|| Duration::from_millis(random.random_range(30..700)));
        let grace = random.random_ratio(1, 3).then(|| Duration::from_millis(random.random_range(100..300)));
        Terms { lease, renews: random.random(), grace, name: random.random_ratio(1, 4).then(|| random.random()) }
    }

    pub fn apply<K: Kind>(self, mut lock: Lock<K>) -> Lock<K> {
        if let Some(lease) = self.lease {
            lock = crate::leased(lock, lease, self.renews);
        }
        if let Some(grace) = self.grace {
            lock = lock.session_grace(grace);
        }
        match self.name {
            Some(name) => lock.owner(format!("named-{name}")),
            None => lock,
        }
    }

    /// On a bad network any hold may be lost: until its first renewal it lasts for a claim of 2 s. Then
    /// the error says so, or that the server was not reached: a renewal is retried only until the hold
    /// expires.
    pub fn expect_done<T>(self, outcome: Result<T, Error>) -> Option<T> {
        match outcome {
            Ok(done) => Some(done),
            Err(Error::Lost | Error::Unavailable { .. }) => None,
            Err(error) => panic!("{self:?}: {error}"),
        }
    }
}

/// The keys, with the command family whose INFO shows them.
pub const KEYS: [(&str, &str); 5] =
    [("m0", "RLOCK"), ("m1", "RLOCK"), ("fair", "RFAIRLOCK"), ("rw", "RRWLOCK"), ("s", "RSEMAPHORE")];

pub fn any_lock(random: &mut StdRng, client: &Client, terms: Terms) -> (&'static str, Any) {
    let key = KEYS[random.random_range(0..KEYS.len())].0;
    (key, lock_under(random, client, key, terms))
}

fn lock_under(random: &mut StdRng, client: &Client, key: &str, terms: Terms) -> Any {
    match key {
        "fair" => Any::Fair(terms.apply(client.fair_lock(key))),
        "rw" if random.random_ratio(2, 3) => Any::Read(terms.apply(client.rw_lock(key).read())),
        "rw" => Any::Write(terms.apply(client.rw_lock(key).write())),
        "s" => {
            let permits = random.random_range(1..=PERMITS);
            Any::Permits(terms.apply(client.semaphore(key).permits(permits)), permits)
        }
        _ => Any::Mutex(terms.apply(client.lock(key))),
    }
}

/// How long a visitor waits, and how it gives up.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    None,
    Endless,
    Timeout(Duration),
    /// The future is dropped.
    Dropped(Duration),
}

impl Patience {
    pub fn random(random: &mut StdRng) -> Patience {
        let time = Duration::from_micros(random.random_range(0..100_000));
        match random.random_range(0..4) {
            0 => Patience::None,
            1 => Patience::Endless,
            2 => Patience::Timeout(time),
            _ => Patience::Dropped(time),
        }
    }

    pub async fn acquire<K: Kind>(self, lock: &Lock<K>, terms: Terms) -> Option<Guard<K>> {
        let outcome = match self {
            Patience::None => lock.try_acquire().await,
            Patience::Endless => lock.acquire().await.map(Some),
            Patience::Timeout(time) => lock.acquire_timeout(time).await.map(Some),
            Patience::Dropped(time) => match tokio::time::timeout(time, lock.acquire()).await {
                Ok(outcome) => outcome.map(Some),
                Err(_) => return None,
            },
        };
        match outcome {
            Ok(guard) => guard,
            Err(Error::Timeout) if matches!(self, Patience::Timeout(_)) => None,
            // `try_acquire` is retried for the timeout of one command.
            Err(Error::Unavailable { .. }) if matches!(self, Patience::None | Patience::Timeout(_)) => None,
            // The hold expired before the grant arrived.
            Err(Error::Lost) if matches!(self, Patience::None) => None,
            Err(error) => panic!("{self:?}, {terms:?}: {error}"),
        }
    }
}

/// A visitor's surroundings, besides its lock.
pub struct Place {
    pub server: Arc<Server>,
    pub register: Arc<Register>,
    pub key: &'static str,
    pub share: Share,
    pub terms: Terms,
}

/// The server's view of a lock: the holds of each owner and mode, with their tokens.
pub fn shown(server: &Server, key: &str) -> BTreeMap<u64, i64> {
    let family = KEYS.iter().find(|(name, _)| *name == key).map_or("RLOCK", |(_, family)| *family);
    let info = server.client().call(format!("{family}.INFO {key}"));
    if info == Reply::Nil {
        return BTreeMap::new();
    }
    let holders = info.field("holders");
    let holder = |holder: &Reply| (holder.field("token").int().cast_unsigned(), holder.field("holds").int());
    holders.array().iter().map(holder).collect()
}

impl Place {
    fn enter<K: Kind>(&self, guard: Guard<K>) -> Arc<Guard<K>> {
        let guard = Arc::new(guard);
        self.register.enter(self.key, self.share, guard.clone());
        guard
    }

    fn leave<K: Kind>(&self, guard: Arc<Guard<K>>) -> Guard<K> {
        self.register.leave(self.key, &(guard.clone() as Arc<dyn Belief>));
        Arc::into_inner(guard).expect("the register has let it go")
    }

    /// If the guard is held after a look at the server, the server must show the hold.
    fn check<K: Kind>(&self, guard: &Guard<K>, holds: i64) {
        let shown = shown(&self.server, self.key);
        if guard.is_held() {
            let expected = if let Share::Permits(some, _) = self.share { i64::from(some) } else { holds };
            assert_eq!(shown.get(&guard.token()), Some(&expected), "{}: {:?} {shown:?}", self.key, self.terms);
        }
    }

    async fn visit<K: Kind>(&self, lock: Lock<K>, patience: Patience, stay: Stay) {
        let Some(guard) = patience.acquire(&lock, self.terms).await else { return };
        let guard = self.enter(guard);
        self.check(&guard, 1);
        tokio::time::sleep(stay.time).await;
        if stay.renews {
            self.terms.expect_done(guard.renew().await);
        }
        self.check(&guard, 1);
        self.give_up(guard, stay).await;
    }

    async fn visit_twice<K: Reentrant>(&self, lock: Lock<K>, patience: Patience, stay: Stay) {
        let Some(guard) = patience.acquire(&lock, self.terms).await else { return };
        let guard = self.enter(guard);
        if let Some(inner) = self.terms.expect_done(guard.reenter()) {
            // The client counts re-entries, so the server shows one hold.
            self.check(&guard, 1);
            tokio::time::sleep(stay.time).await;
            self.terms.expect_done(inner.release().await);
        }
        self.check(&guard, 1);
        self.give_up(guard, stay).await;
    }

    async fn give_up<K: Kind>(&self, guard: Arc<Guard<K>>, stay: Stay) {
        let guard = self.leave(guard);
        if stay.releases {
            self.terms.expect_done(guard.release().await);
        }
    }
}

/// The visitor's actions while it holds.
#[derive(Clone, Copy, Debug)]
pub struct Stay {
    time: Duration,
    renews: bool,
    reenters: bool,
    /// Releases, or else drops the guard.
    releases: bool,
}

impl Stay {
    pub fn random(random: &mut StdRng) -> Stay {
        // Sometimes beyond the end of a lease.
        let longest_us = if random.random_ratio(1, 8) { 500_000 } else { 3000 };
        let time = Duration::from_micros(random.random_range(0..longest_us));
        Stay { time, renews: random.random_ratio(1, 3), reenters: random.random_ratio(1, 3), releases: random.random() }
    }
}

pub async fn visit(place: Place, lock: Any, patience: Patience, stay: Stay) {
    match (lock, stay.reenters) {
        (Any::Mutex(lock), true) => place.visit_twice(lock, patience, stay).await,
        (Any::Fair(lock), true) => place.visit_twice(lock, patience, stay).await,
        (Any::Read(lock), true) => place.visit_twice(lock, patience, stay).await,
        (Any::Write(lock), true) => place.visit_twice(lock, patience, stay).await,
        (Any::Mutex(lock), false) => place.visit(lock, patience, stay).await,
        (Any::Fair(lock), false) => place.visit(lock, patience, stay).await,
        (Any::Read(lock), false) => place.visit(lock, patience, stay).await,
        (Any::Write(lock), false) => place.visit(lock, patience, stay).await,
        (Any::Permits(lock, _), _) => place.visit(lock, patience, stay).await,
    }
}

pub fn share(lock: &Any) -> Share {
    match lock {
        Any::Mutex(_) | Any::Fair(_) | Any::Write(_) => Share::Alone,
        Any::Read(_) => Share::Reading,
        Any::Permits(_, some) => Share::Permits(*some, PERMITS),
    }
}
