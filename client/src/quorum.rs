//! A lock on several independent primaries, held while a majority holds it.
//!
//! This is the Redlock algorithm. Each server's hold has its own validity, counted from the moment
//! its request was sent, and its own renewals. A server that grants late joins the guard, so that
//! the guard survives the loss of one of the first servers. It cannot join a lost guard: another
//! owner may have held the lock since.

use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use rand::Rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::Error;
use crate::acquire::{Wait, Wanted};
use crate::client::{Builder, Client};
use crate::held::Held;
use crate::hold::Hold;
use crate::lock::run;
use crate::options::{Options, check_span, option_methods};
use crate::sync::lock;
use crate::wire::Family;

/// The default time limit for one server.
const SERVER_TIMEOUT: Duration = Duration::from_millis(250);

/// The longest pause between two attempts. Pauses are random, so that competing clients do not stay
/// in step.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Independent primaries, none of which replicates another. Use an odd number: 2n + 1 servers
/// tolerate the loss of n.
#[derive(Clone, Debug)]
pub struct Quorum {
    clients: Arc<[Client]>,
}

impl Quorum {
    /// A quorum of these servers, each with its own client.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is no client.
    pub fn new(clients: impl IntoIterator<Item = Client>) -> Result<Self, Error> {
        let clients: Arc<[Client]> = clients.into_iter().collect();
        if clients.is_empty() {
            return Err(Error::Argument("clients is empty; expected at least one".to_owned()));
        }
        Ok(Self { clients })
    }

    /// A quorum of the servers at these addresses. Servers that are down now are tried again with
    /// each request. Must be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is no address, or one is malformed.
    pub fn connect(options: &Builder, urls: &[&str]) -> Result<Self, Error> {
        let clients: Result<Vec<_>, _> = urls.iter().map(|url| options.clone().connect_later(url)).collect();
        Self::new(clients?)
    }

    /// A mutex on the same key on all servers.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> QuorumLock {
        self.lock_of(Family::Mutex, key.as_ref())
    }

    /// A lock for many readers or one writer, on the same key on all servers.
    pub fn rw_lock(&self, key: impl AsRef<[u8]>) -> QuorumRwLock {
        QuorumRwLock { quorum: self.clone(), key: key.as_ref().to_vec() }
    }

    /// Closes the clients of all servers at once, see [`Client::close`]. It takes no longer than
    /// the slowest of them, and also waits for the releases that [`QuorumGuard::release`] did not
    /// wait for. Call it before the runtime stops.
    ///
    /// # Cancel safety
    ///
    /// The clients are closed even if the future is dropped; the releases go on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::LeftBehind`] with the requests of all servers that had no answer in time, such as
    /// those of a server that hangs. The clients do not repeat them, and the leases end what is
    /// left.
    pub async fn close(&self) -> Result<(), Error> {
        let closed = join_all(self.clients.iter().map(Client::close)).await;
        closed.into_iter().fold(Ok(()), both)
    }

    fn lock_of(&self, family: Family, key: &[u8]) -> QuorumLock {
        QuorumLock { quorum: self.clone(), wanted: Wanted::one(family, key), server_timeout: SERVER_TIMEOUT }
    }
}

/// Whether the server is useless for this lock until an operator changes it.
fn is_of_the_server(error: &Error) -> bool {
    matches!(error, Error::Closed | Error::ModuleMissing(_) | Error::ModuleTooOld(_) | Error::Refused { .. })
}

/// Adds up what two clients have left behind.
fn both(one: Result<(), Error>, other: Result<(), Error>) -> Result<(), Error> {
    match (one, other) {
        (Err(Error::LeftBehind { requests: one }), Err(Error::LeftBehind { requests: other })) => {
            Err(Error::LeftBehind { requests: one + other })
        }
        (one, other) => one.and(other),
    }
}

/// A lock for many readers or one writer on a [`Quorum`]. Any writer's majority shares a server
/// with any reader's majority.
///
/// There is no queue, so a writer has to find a moment without readers on a majority.
#[derive(Clone, Debug)]
pub struct QuorumRwLock {
    quorum: Quorum,
    key: Vec<u8>,
}

impl QuorumRwLock {
    /// The read lock.
    pub fn read(&self) -> QuorumLock {
        self.quorum.lock_of(Family::Read, &self.key)
    }

    /// The write lock.
    pub fn write(&self) -> QuorumLock {
        self.quorum.lock_of(Family::Write, &self.key)
    }
}

/// A lock on a [`Quorum`]: a mutex, or the read or write lock of a [`QuorumRwLock`].
///
/// There is no fair lock: requests reach the servers in different orders, so there is no common
/// queue. There is no semaphore either, because majorities do not count: with two permits on each
/// of three servers, three holders find two servers each.
#[derive(Clone, Debug)]
pub struct QuorumLock {
    quorum: Quorum,
    wanted: Wanted,
    server_timeout: Duration,
}

impl QuorumLock {
    fn options_mut(&mut self) -> &mut Options {
        &mut self.wanted.options
    }

    option_methods!();

    /// How long to wait for one server's answer, 1 ms to 365 days. It should be short compared with
    /// the lease. Default: 250 ms.
    #[must_use]
    pub fn server_timeout(mut self, timeout: Duration) -> Self {
        self.server_timeout = timeout;
        self
    }

    fn majority(&self) -> usize {
        self.quorum.clients.len() / 2 + 1
    }

    /// Asks all servers at once, and returns as soon as a majority has decided. `None` if a
    /// majority answered, but too few of them granted the lock.
    ///
    /// A server that grants later joins the guard, or is released if there is no guard.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, locks granted meanwhile are released in the background.
    ///
    /// # Errors
    ///
    /// [`Error::NoQuorum`] if no majority answered within [`server_timeout`](Self::server_timeout).
    /// [`Error::Closed`], [`Error::ModuleMissing`], [`Error::ModuleTooOld`] or [`Error::Refused`]
    /// if servers fail with these errors and the others are no majority.
    pub async fn try_acquire(&self) -> Result<Option<QuorumGuard>, Error> {
        self.wanted.check()?;
        check_span("server_timeout", self.server_timeout, Duration::from_millis(1))?;
        let servers = self.quorum.clients.len();
        let (mut attempts, mut misfits) = (JoinSet::new(), Vec::new());
        for client in self.quorum.clients.iter() {
            let (core, wanted, within) = (client.core.clone(), self.wanted.clone(), self.server_timeout);
            let token = match core.enter() {
                Ok(token) => token,
                Err(error) => {
                    misfits.push(error);
                    continue;
                }
            };
            let home = core.common.home.clone();
            let attempt = async move {
                let outcome = timeout(within, core.acquire(&wanted, Wait::Not)).await;
                // Closing the client waits until the guard has this hold, or its release has
                // started.
                (outcome.ok(), token)
            };
            attempts.spawn_on(attempt, &home);
        }
        let (mut holds, mut refusals) = (Vec::with_capacity(servers), 0);
        // If this many servers fail, the others are no majority.
        let too_many = servers - self.majority() + 1;
        while holds.len() < self.majority() && refusals < self.majority() && misfits.len() < too_many {
            let Some(attempt) = attempts.join_next().await else { break };
            match attempt {
                Ok((Some(Ok(Some(held))), _)) => holds.push(held),
                Ok((Some(Ok(None)), _)) => refusals += 1,
                Ok((Some(Err(error)), _)) => {
                    tracing::debug!(%error, "a server of a quorum failed");
                    if is_of_the_server(&error) {
                        misfits.push(error);
                    }
                }
                Ok((None, _)) => tracing::debug!("a server of a quorum did not answer in time"),
                // The runtime of this client has stopped, which is permanent.
                Err(_) => misfits.push(Error::Closed),
            }
        }
        // A client may have been closed meanwhile; release what its server granted.
        holds.retain(|held: &Held| held.hold.request.core.enter().is_ok());
        let granted = holds.len();
        let guard = QuorumGuard::of(holds, self.majority());
        if granted >= self.majority() && guard.is_held() {
            guard.gather(attempts);
            return Ok(Some(guard));
        }
        // Dropping the guard or the attempts releases on all servers at once, in the background.
        drop(guard);
        match misfits.into_iter().nth(too_many - 1) {
            Some(error) => Err(error),
            None if granted + refusals >= self.majority() => Ok(None),
            None => Err(Error::NoQuorum { granted, servers }),
        }
    }

    /// Acquires the lock. Retries while others hold it or no majority answers.
    ///
    /// # Cancel safety
    ///
    /// As [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire), except [`Error::NoQuorum`].
    pub async fn acquire(&self) -> Result<QuorumGuard, Error> {
        self.acquire_until(None).await
    }

    /// Acquires the lock, retrying no longer than `timeout`.
    ///
    /// # Cancel safety
    ///
    /// As [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    ///
    /// If others held the lock at the last attempt, [`Error::Timeout`]; if no majority answered,
    /// [`Error::NoQuorum`]. Otherwise as [`try_acquire`](Self::try_acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<QuorumGuard, Error> {
        self.acquire_until(Instant::now().checked_add(timeout)).await
    }

    async fn acquire_until(&self, deadline: Option<Instant>) -> Result<QuorumGuard, Error> {
        loop {
            let left = deadline.map_or(Duration::MAX, |until| (until - Instant::now()).saturating_add(SERVER_TIMEOUT));
            let attempt = Self { server_timeout: self.server_timeout.min(left), ..self.clone() };
            let failure = match attempt.try_acquire().await {
                Ok(Some(guard)) => return Ok(guard),
                Ok(None) => Error::Timeout,
                // A majority is silent, as a single server is during its restart.
                Err(error @ Error::NoQuorum { .. }) => error,
                Err(error) => return Err(error),
            };
            let next = Instant::now() + LONGEST_PAUSE.mul_f64(rand::rng().random_range(0.1..1.0));
            if deadline.is_some_and(|deadline| next >= deadline) {
                return Err(failure);
            }
            sleep_until(next).await;
        }
    }

    /// Acquires the lock, runs `work`, and releases the lock, as [`Lock::run`](crate::Lock::run).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and releases the lock in the background.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::Lost`] as of [`Lock::run`](crate::Lock::run).
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&QuorumGuard) -> T) -> Result<T, Error> {
        let guard = self.acquire().await?;
        run(guard, work, QuorumGuard::lost, |guard| async move { guard.release().await }, &self.quorum.clients[0]).await
    }
}

/// The outcome of an attempt on one server; `None` if the server did not answer in time. Closing
/// the client waits for the token.
type Attempt = (Option<Result<Option<Held>, Error>>, tokio_util::task::task_tracker::TaskTrackerToken);

/// The holds of a guard; `None` once it is being released.
type Holds = Mutex<Option<Vec<Held>>>;

/// A lock that a majority of servers has granted. Dropping it releases on all servers, in the
/// background.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases the lock"]
pub struct QuorumGuard {
    holds: Arc<Holds>,
    token: u64,
    majority: usize,
}

impl QuorumGuard {
    fn of(holds: Vec<Held>, majority: usize) -> Self {
        let token = holds.iter().flat_map(|held| held.hold.tokens.iter().copied()).max().unwrap_or_default();
        Self { holds: Arc::new(Mutex::new(Some(holds))), token, majority }
    }

    /// Adds late grants to the guard. A grant that comes after the guard was dropped or lost is
    /// released.
    fn gather(&self, mut attempts: JoinSet<Attempt>) {
        let (holds, majority) = (Arc::downgrade(&self.holds), self.majority);
        let home = lock(&self.holds).iter().flatten().next().map(|held| held.hold.request.core.common.home.clone());
        let gathering = async move {
            while let Some(attempt) = attempts.join_next().await {
                if let Ok((Some(Ok(Some(held))), _under_way)) = attempt {
                    join(&holds, held, majority);
                }
            }
        };
        if let Some(home) = home {
            drop(home.spawn(gathering));
        }
    }

    /// All holds granted so far.
    fn granted(&self) -> Vec<Arc<Hold>> {
        lock(&self.holds).iter().flatten().map(|held| held.hold.clone()).collect()
    }

    /// The highest fencing token of the servers that decided. It increases from holder to holder,
    /// provided the servers' clocks differ by less than the time between two holders.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Whether a majority of the holds is valid now.
    pub fn is_held(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// How long a majority of the holds stays valid without another renewal; zero if the lock is
    /// lost.
    pub fn valid_for(&self) -> Duration {
        majority_valid_for(&self.granted(), self.majority)
    }

    /// Resolves as soon as fewer than a majority of the holds are valid.
    ///
    /// # Cancel safety
    ///
    /// This future is cancel safe. The method may be called again.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let (holds, majority) = (Arc::downgrade(&self.holds), self.majority);
        let (mut pending, mut seen) = (Vec::new(), 0);
        std::future::poll_fn(move |context| {
            // Holds that joined later count like the first ones.
            if let Some(holds) = holds.upgrade() {
                let holds = lock(&holds);
                let holds = holds.as_deref().unwrap_or_default();
                pending.extend(holds.iter().skip(seen).map(|held| Box::pin(held.hold.clone().lost())));
                seen = seen.max(holds.len());
            }
            pending.retain_mut(|lost| Pin::new(lost).poll(context).is_pending());
            if pending.len() < majority { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    /// Resolves when all holds granted so far are released.
    #[cfg(feature = "blocking")]
    pub(crate) fn released(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        let granted: Vec<_> = self.granted().iter().map(|hold| hold.done.clone()).collect();
        async move {
            for done in granted {
                done.cancelled().await;
            }
        }
    }

    /// Renews on all servers at once.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, renewals may or may not happen.
    ///
    /// # Errors
    ///
    /// If no majority could be renewed: [`Error::Lost`], or the error of a server that failed
    /// otherwise, as of [`Guard::renew`](crate::Guard::renew).
    pub async fn renew(&self) -> Result<(), Error> {
        let mut renewals = JoinSet::new();
        for hold in self.granted() {
            let home = hold.request.core.common.home.clone();
            renewals.spawn_on(async move { hold.renew(None).await }, &home);
        }
        self.majority_of(renewals).await
    }

    /// Releases on all servers at once, and waits until a majority has answered.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background.
    ///
    /// # Errors
    ///
    /// If no majority confirmed the release: [`Error::Lost`] if the holds had ended before, or the
    /// error of a server, such as [`Error::Unavailable`] if it did not answer.
    pub async fn release(self) -> Result<(), Error> {
        let mut releases = JoinSet::new();
        let holds = lock(&self.holds).take();
        for held in holds.into_iter().flatten() {
            let core = held.hold.request.core.clone();
            let (home, token) = (core.common.home.clone(), core.token());
            let release = async move {
                let outcome = held.release(None).await;
                drop(token);
                outcome
            };
            releases.spawn_on(release, &home);
        }
        self.majority_of(releases).await
    }

    /// Waits until a majority has succeeded, or cannot. The remaining tasks go on in the
    /// background.
    async fn majority_of(&self, mut tasks: JoinSet<Result<(), Error>>) -> Result<(), Error> {
        let (mut done, mut unknown) = (0, None);
        while let Some(outcome) = tasks.join_next().await {
            match outcome {
                Ok(Ok(())) => done += 1,
                Ok(Err(Error::Lost)) => {}
                Ok(Err(error)) => unknown = Some(error),
                Err(_) => unknown = Some(Error::Closed),
            }
            if done >= self.majority {
                tasks.detach_all();
                return Ok(());
            }
        }
        Err(unknown.unwrap_or(Error::Lost))
    }
}

/// How long at least `majority` of the holds stay valid.
fn majority_valid_for(holds: &[Arc<Hold>], majority: usize) -> Duration {
    let mut valid: Vec<_> = holds.iter().map(Hold::valid_for).collect();
    valid.sort_unstable();
    valid.into_iter().rev().nth(majority - 1).unwrap_or_default()
}

/// Adds a hold to a guard, unless the guard is dropped or lost. A lost hold never becomes valid
/// again, so a guard does not either.
fn join(holds: &Weak<Holds>, held: Held, majority: usize) {
    let Some(holds) = holds.upgrade() else { return };
    if let Some(holds) = &mut *lock(&holds) {
        let present: Vec<_> = holds.iter().map(|held| held.hold.clone()).collect();
        if !majority_valid_for(&present, majority).is_zero() {
            holds.push(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn majority_is_more_than_half() {
        for (servers, majority) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)] {
            let urls = vec!["redis://127.0.0.1/"; servers];
            let quorum = Quorum::connect(&Client::builder(), &urls).expect("addresses");
            assert_eq!(quorum.lock("k").majority(), majority, "of {servers}");
        }
    }

    #[test]
    fn requests_left_behind_by_several_clients_are_added_up() {
        let left = |requests| if requests == 0 { Ok(()) } else { Err(Error::LeftBehind { requests }) };
        for (one, other) in [(0, 0), (3, 0), (0, 3), (3, 4)] {
            assert_eq!(both(left(one), left(other)), left(one + other));
        }
    }
}
