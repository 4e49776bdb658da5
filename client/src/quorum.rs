//! A lock on several independent primaries: held as long as a majority holds.
//!
//! The Redlock algorithm, with the parts of this crate: each server's hold has its own validity, counted from the sending of its request,
//! and its own renewals. A server that grants late joins, so that the guard outlives the loss of one of those that decided; but not once
//! the guard is lost, since another owner may have held since.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use rand::Rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::Error;
use crate::acquire::{Wait, Wanted};
use crate::client::{Builder, Client};
use crate::hold::{Held, Hold};
use crate::lock::run;
use crate::options::{Options, option_methods};
use crate::wire::Family;

/// How long one server may take by default.
const SERVER_TIMEOUT: Duration = Duration::from_millis(250);

/// The longest pause between two attempts. Its length is random, so that two who want the same do not stay in step.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Independent masters, none of which replicates another. An odd number makes sense: 2n + 1 servers bear the loss of n.
#[derive(Clone, Debug)]
pub struct Quorum {
    clients: Arc<[Client]>,
}

impl Quorum {
    /// The servers, each through a client of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is none.
    pub fn new(clients: impl IntoIterator<Item = Client>) -> Result<Self, Error> {
        let clients: Arc<[Client]> = clients.into_iter().collect();
        if clients.is_empty() {
            return Err(Error::Argument("clients is empty; expected at least one".to_owned()));
        }
        Ok(Self { clients })
    }

    /// The servers by address. Those that are down now are tried again with each request. Must be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is none, or if an address cannot be read.
    pub fn connect(options: &Builder, urls: &[&str]) -> Result<Self, Error> {
        let clients: Result<Vec<_>, _> = urls.iter().map(|url| options.clone().connect_later(url)).collect();
        Self::new(clients?)
    }

    /// A mutex under the same key on all servers.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> QuorumLock {
        self.lock_of(Family::Mutex, key.as_ref())
    }

    /// A lock for many readers or one writer, under the same key on all servers.
    pub fn rw_lock(&self, key: impl AsRef<[u8]>) -> QuorumRwLock {
        QuorumRwLock { quorum: self.clone(), key: key.as_ref().to_vec() }
    }

    /// Closes the clients of all servers at once, see [`Client::close`]: it takes no longer than for the slowest of them. The last thing to do
    /// before the runtime ends. What a majority did not wait for is released by then as well.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the clients are closed, and the rest is left to the background.
    ///
    /// # Errors
    ///
    /// [`Error::LeftBehind`] if not everything was released in time, with the requests of all servers together: those of a server that hangs
    /// are among them. The rest is tried further.
    pub async fn close(&self) -> Result<(), Error> {
        let closed = join_all(self.clients.iter().map(Client::close)).await;
        closed.into_iter().fold(Ok(()), both)
    }

    fn lock_of(&self, family: Family, key: &[u8]) -> QuorumLock {
        QuorumLock { quorum: self.clone(), wanted: Wanted::one(family, key), server_timeout: SERVER_TIMEOUT }
    }
}

/// Whether a server is not of use for this lock, until somebody changes something there.
fn is_of_the_server(error: &Error) -> bool {
    matches!(error, Error::Closed | Error::ModuleMissing(_) | Error::ModuleTooOld(_) | Error::Refused { .. })
}

/// What two clients have left behind together.
fn both(one: Result<(), Error>, other: Result<(), Error>) -> Result<(), Error> {
    match (one, other) {
        (Err(Error::LeftBehind { requests: one }), Err(Error::LeftBehind { requests: other })) => {
            Err(Error::LeftBehind { requests: one + other })
        }
        (one, other) => one.and(other),
    }
}

/// A lock for many readers or one writer on a [`Quorum`]. Any majority of a writer has a server in common with that of any reader.
///
/// Nobody waits in a queue, so a writer has to find a moment without readers on a majority.
#[derive(Clone, Debug)]
pub struct QuorumRwLock {
    quorum: Quorum,
    key: Vec<u8>,
}

impl QuorumRwLock {
    /// The side of the readers.
    pub fn read(&self) -> QuorumLock {
        self.quorum.lock_of(Family::Read, &self.key)
    }

    /// The side of the writer.
    pub fn write(&self) -> QuorumLock {
        self.quorum.lock_of(Family::Write, &self.key)
    }
}

/// A lock on a [`Quorum`]: a mutex, or one side of a [`QuorumRwLock`].
///
/// There is no fair one: requests come to the servers in different orders, so there is none to keep. And there is no semaphore, because
/// majorities do not count: with two permits on each of three servers, three holders find two servers each.
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

    /// How long one server may take to answer. It should be small against the lease. Default: 250 ms.
    #[must_use]
    pub fn server_timeout(mut self, timeout: Duration) -> Self {
        self.server_timeout = timeout;
        self
    }

    fn majority(&self) -> usize {
        self.quorum.clients.len() / 2 + 1
    }

    /// Asks all servers at once, and is done when a majority has decided. `None` if a majority answered, and too few of them granted.
    ///
    /// A server that grants later joins the guard, or is released if there is none.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases in the background what was granted meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::NoQuorum`] if no majority answered within [`server_timeout`](Self::server_timeout). [`Error::Closed`],
    /// [`Error::ModuleMissing`], [`Error::ModuleTooOld`] or [`Error::Refused`] if so many servers say that that the others are no majority.
    pub async fn try_acquire(&self) -> Result<Option<QuorumGuard>, Error> {
        self.wanted.check()?;
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
                // Closing the client waits until it is known who gets what was granted, or its release has begun.
                (outcome.ok(), token)
            };
            attempts.spawn_on(attempt, &home);
        }
        let (mut holds, mut refusals) = (Vec::with_capacity(servers), 0);
        // With so many lost the others are no majority.
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
                // Its runtime has ended, and does not come back as a server does.
                Err(_) => misfits.push(Error::Closed),
            }
        }
        // One of the clients may have been closed meanwhile: what was granted there is given back.
        holds.retain(|held: &Held| held.hold.request.core.enter().is_ok());
        let granted = holds.len();
        let guard = QuorumGuard::of(holds, self.majority());
        if granted >= self.majority() && guard.is_held() {
            guard.gather(attempts);
            return Ok(Some(guard));
        }
        // Dropping it releases on all servers at once, in the background. So does dropping the attempts.
        drop(guard);
        match misfits.into_iter().nth(too_many - 1) {
            Some(error) => Err(error),
            None if granted + refusals >= self.majority() => Ok(None),
            None => Err(Error::NoQuorum { granted, servers }),
        }
    }

    /// Acquires it, and tries again for as long as others hold it or no majority answers.
    ///
    /// # Cancel safety
    ///
    /// As [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire), but for [`Error::NoQuorum`].
    pub async fn acquire(&self) -> Result<QuorumGuard, Error> {
        self.acquire_until(None).await
    }

    /// Acquires it, and tries for no longer than `timeout`.
    ///
    /// # Cancel safety
    ///
    /// As [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if others held it in the end, [`Error::NoQuorum`] if no majority answered in the end; else as
    /// [`try_acquire`](Self::try_acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<QuorumGuard, Error> {
        self.acquire_until(Instant::now().checked_add(timeout)).await
    }

    async fn acquire_until(&self, deadline: Option<Instant>) -> Result<QuorumGuard, Error> {
        loop {
            let failure = match self.try_acquire().await {
                Ok(Some(guard)) => return Ok(guard),
                Ok(None) => Error::Timeout,
                // A majority is silent, as a single server is while it restarts.
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

    /// Acquires it, does some work, and releases it, as [`Lock::run`](crate::Lock::run).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, and releases in the background.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::Lost`] if the lock was lost before the work was done.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&QuorumGuard) -> T) -> Result<T, Error> {
        let guard = self.acquire().await?;
        run(guard, work, QuorumGuard::lost, |guard| async move { guard.release().await }, &self.quorum.clients[0]).await
    }
}

/// What an attempt on one server has come to; nothing if the server did not answer in time. Closing the client waits for the token.
type Attempt = (Option<Result<Option<Held>, Error>>, tokio_util::task::task_tracker::TaskTrackerToken);

/// The holds of a guard, or `None` when it is being released.
type Holds = Mutex<Option<Vec<Held>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lock that a majority of servers has granted. Dropping it releases everywhere, in the background.
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

    /// Adds what is granted late. What comes when there is no guard any more, or when it is lost, is dropped, and so released.
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

    /// What has been granted so far.
    fn granted(&self) -> Vec<Arc<Hold>> {
        lock(&self.holds).iter().flatten().map(|held| held.hold.clone()).collect()
    }

    /// The highest fencing token of the servers that decided. It rises from holder to holder as long as the servers' clocks differ by less
    /// than passes between two holders.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Whether a majority can be relied upon at this moment.
    pub fn is_held(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// How long a majority can be relied upon if nothing is renewed again; zero if it is lost.
    pub fn valid_for(&self) -> Duration {
        majority_valid_for(&self.granted(), self.majority)
    }

    /// Resolves as soon as fewer than a majority of the servers can be relied upon.
    ///
    /// # Cancel safety
    ///
    /// It may be dropped and asked for again.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let (holds, majority) = (Arc::downgrade(&self.holds), self.majority);
        let (mut pending, mut seen) = (Vec::new(), 0);
        std::future::poll_fn(move |context| {
            // Those that have joined since are as good as the first.
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

    /// Resolves when all that has been granted so far has been released.
    #[cfg(feature = "blocking")]
    pub(crate) fn released(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        let granted: Vec<_> = self.granted().iter().map(|hold| hold.done.clone()).collect();
        async move {
            for done in granted {
                done.cancelled().await;
            }
        }
    }

    /// Renews everywhere now, all servers at once.
    ///
    /// # Cancel safety
    ///
    /// When dropped, renewals may or may not take place.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if no majority holds it any more, [`Error::Unavailable`] if not enough servers answered to tell.
    pub async fn renew(&self) -> Result<(), Error> {
        let mut renewals = JoinSet::new();
        for hold in self.granted() {
            let home = hold.request.core.common.home.clone();
            renewals.spawn_on(async move { hold.renew(None).await }, &home);
        }
        self.majority_of(renewals).await
    }

    /// Releases everywhere, all servers at once, and waits until a majority has answered.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest to the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if no majority held it to the end, [`Error::Unavailable`] if not enough servers answered to tell.
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

    /// Waits until a majority has done something, or cannot any more. The others go on in the background.
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

/// For how long as many as a majority can be relied upon.
fn majority_valid_for(holds: &[Arc<Hold>], majority: usize) -> Duration {
    let mut valid: Vec<_> = holds.iter().map(Hold::valid_for).collect();
    valid.sort_unstable();
    valid.into_iter().rev().nth(majority - 1).unwrap_or_default()
}

/// Adds a hold to those of a guard, if there is one, and it is not lost. A hold that is lost is never held again, so neither is the guard.
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
    fn what_several_clients_leave_behind_is_counted_together() {
        let left = |requests| if requests == 0 { Ok(()) } else { Err(Error::LeftBehind { requests }) };
        for (one, other) in [(0, 0), (3, 0), (0, 3), (3, 4)] {
            assert_eq!(both(left(one), left(other)), left(one + other));
        }
    }
}
