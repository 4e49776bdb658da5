//! A lock on several independent masters: held as long as a majority holds.
//!
//! The Redlock algorithm, with the parts of this crate: each server's hold has its own validity, counted from the sending of its
//! request, and its own keeper. The whole can be relied upon while a majority of the parts can.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::Rng;
use tokio::task::JoinSet;

use crate::Error;
use crate::acquisition::Acquisition;
use crate::client::{Builder, Client};
use crate::clock::Moment;
use crate::hold::{Held, fewer_than, fewer_unreleased_than};
use crate::options::{Options, option_methods};
use crate::timer::{sleep_until, within};
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
            return Err(Error::Argument("clients has no client".to_owned()));
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

    /// A lock under the same key on all servers.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> QuorumLock {
        let keys = Arc::from([key.as_ref().to_vec()]);
        QuorumLock { quorum: self.clone(), keys, options: Options::default(), server_timeout: SERVER_TIMEOUT }
    }
}

/// A lock on a [`Quorum`].
#[derive(Clone, Debug)]
pub struct QuorumLock {
    quorum: Quorum,
    keys: Arc<[Vec<u8>]>,
    options: Options,
    server_timeout: Duration,
}

impl QuorumLock {
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
    /// [`Error::NoQuorum`] if no majority answered within [`server_timeout`](Self::server_timeout).
    pub async fn try_acquire(&self) -> Result<Option<QuorumGuard>, Error> {
        let servers = self.quorum.clients.len();
        let mut attempts = JoinSet::new();
        for client in self.quorum.clients.iter() {
            let acquisition = Acquisition::new(&client.shared, Family::Mutex, self.keys.clone(), 1, &self.options)?;
            let server_timeout = self.server_timeout;
            let attempt = async move { within(server_timeout, acquisition.try_acquire()).await };
            attempts.spawn_on(attempt, client.shared.home.runtime());
        }
        let (mut holds, mut refusals) = (Vec::with_capacity(servers), 0);
        while holds.len() < self.majority() && refusals < self.majority() {
            match attempts.join_next().await {
                Some(Ok(Some(Ok(Some(held))))) => holds.push(held),
                Some(Ok(Some(Ok(None)))) => refusals += 1,
                Some(Ok(Some(Err(error)))) => tracing::debug!(%error, "a server of a quorum failed"),
                Some(Ok(None)) => tracing::debug!("a server of a quorum did not answer in time"),
                Some(Err(error)) => tracing::debug!(%error, "an attempt on a server of a quorum was aborted"),
                None => break,
            }
        }
        let granted = holds.len();
        let guard = QuorumGuard::of(holds, self.majority());
        if granted >= self.majority() && guard.is_held() {
            if let Some(client) = self.quorum.clients.first() {
                drop(client.shared.home.start(gather(attempts, Arc::downgrade(&guard.holds))));
            }
            return Ok(Some(guard));
        }
        // Dropping it releases on all servers at once, in the background. So does dropping the attempts.
        drop(guard);
        if granted + refusals >= self.majority() { Ok(None) } else { Err(Error::NoQuorum { granted, servers }) }
    }

    /// Acquires it, and tries again for as long as others hold it. While no majority answers it tries for as long as
    /// [`Builder::retry_for`] of the first server says.
    ///
    /// # Cancel safety
    ///
    /// As [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    ///
    /// [`Error::NoQuorum`] if no majority answered for so long.
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
    /// [`Error::Timeout`] if others held it in the end, [`Error::NoQuorum`] if no majority answered in the end.
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<QuorumGuard, Error> {
        self.acquire_until(Some(Moment::now().after(timeout))).await
    }

    async fn acquire_until(&self, deadline: Option<Moment>) -> Result<QuorumGuard, Error> {
        let retry_for = self.quorum.clients.first().map_or(Duration::ZERO, |client| client.shared.settings.retry_for);
        let mut answered_at = Moment::now();
        loop {
            let failure = match self.try_acquire().await {
                Ok(Some(guard)) => return Ok(guard),
                Ok(None) => {
                    answered_at = Moment::now();
                    Error::Timeout
                }
                // A majority is silent, as a single server is while it restarts.
                Err(error @ Error::NoQuorum { .. }) => error,
                Err(error) => return Err(error),
            };
            let give_up = deadline.unwrap_or_else(|| answered_at.after(retry_for));
            let next = Moment::now().after(LONGEST_PAUSE.mul_f64(rand::rng().random_range(0.1..1.0)));
            if next >= give_up {
                return Err(failure);
            }
            sleep_until(next).await;
        }
    }
}

/// The holds of a guard, or `None` when it is being released.
type Holds = Mutex<Option<Vec<Held>>>;

fn lock(holds: &Holds) -> MutexGuard<'_, Option<Vec<Held>>> {
    holds.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds what is granted late to the holds of a guard. What comes when there is none any more is dropped, and so released.
async fn gather(mut attempts: JoinSet<Option<Result<Option<Held>, Error>>>, holds: std::sync::Weak<Holds>) {
    while let Some(attempt) = attempts.join_next().await {
        if let (Ok(Some(Ok(Some(held)))), Some(holds)) = (attempt, holds.upgrade())
            && let Some(holds) = &mut *lock(&holds)
        {
            holds.push(held);
        }
    }
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

    /// The highest fencing token of the servers that decided. It rises from holder to holder as long as the servers' clocks differ by less
    /// than passes between two holders.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Whether a majority can be relied upon at this moment.
    pub fn is_held(&self) -> bool {
        let holds = lock(&self.holds);
        holds.iter().flatten().filter(|held| held.hold.is_held()).count() >= self.majority
    }

    /// Resolves as soon as fewer than a majority of the servers can be relied upon that have granted by now.
    ///
    /// # Cancel safety
    ///
    /// It may be dropped and asked for again.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        fewer_than(self.majority, lock(&self.holds).as_deref().unwrap_or_default())
    }

    /// Resolves when a majority has been released, whether by hand or because it was dropped.
    pub(crate) fn released(&self) -> impl Future<Output = ()> + Send + use<> {
        let holds = lock(&self.holds);
        let holds = holds.as_deref().unwrap_or_default();
        fewer_unreleased_than((holds.len() + 1).saturating_sub(self.majority), holds)
    }

    /// Renews everywhere now, all servers at once.
    ///
    /// # Cancel safety
    ///
    /// When dropped, renewals may or may not take place.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if fewer than a majority renewed it.
    pub async fn renew(&self) -> Result<(), Error> {
        let mut renewals = JoinSet::new();
        for held in lock(&self.holds).iter().flatten() {
            let hold = held.hold.clone();
            let runtime = hold.request.client.home.runtime().clone();
            renewals.spawn_on(async move { hold.renew_by_hand(None).await }, &runtime);
        }
        let mut renewed = 0;
        while let Some(renewal) = renewals.join_next().await {
            renewed += usize::from(matches!(renewal, Ok(Ok(()))));
            if renewed >= self.majority {
                // The others go on by themselves: each has its keeper.
                return Ok(());
            }
        }
        Err(Error::NotHeld)
    }

    /// Releases everywhere, all servers at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest to the background.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if fewer than a majority held it to the end.
    pub async fn release(self) -> Result<(), Error> {
        let mut releases = JoinSet::new();
        let holds = lock(&self.holds).take();
        for held in holds.into_iter().flatten() {
            let runtime = held.hold.request.client.home.runtime().clone();
            releases.spawn_on(held.release(), &runtime);
        }
        let mut released = 0;
        while let Some(release) = releases.join_next().await {
            released += usize::from(matches!(release, Ok(Ok(()))));
            if released >= self.majority {
                // Those that do not answer are told in the background.
                releases.detach_all();
                return Ok(());
            }
        }
        Err(Error::NotHeld)
    }
}
