//! A lock on several independent masters: held as long as a majority holds.
//!
//! The Redlock algorithm, with the parts of this crate: each server's hold has its own validity, counted from the sending of its
//! request, and its own keeper. The whole can be relied upon while a majority of the parts can.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tokio::task::JoinSet;

use crate::Error;
use crate::client::{Builder, Client};
use crate::clock::{Moment, sleep_until};
use crate::hold::Held;
use crate::lock::Acquisition;
use crate::multi::fewer_than;
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

    /// Asks all servers at once. `None` if a majority answered, and too few of them granted.
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
            let acquisition = Acquisition::new(client, Family::Mutex, self.keys.clone(), 1, &self.options)?;
            let server_timeout = self.server_timeout;
            attempts.spawn(async move { tokio::time::timeout(server_timeout, acquisition.try_acquire()).await });
        }
        let (mut holds, mut refusals) = (Vec::with_capacity(servers), 0);
        while let Some(attempt) = attempts.join_next().await {
            match attempt {
                Ok(Ok(Ok(Some(held)))) => holds.push(held),
                Ok(Ok(Ok(None))) => refusals += 1,
                Ok(Ok(Err(error))) => tracing::debug!(%error, "a server of a quorum failed"),
                Ok(Err(_)) => tracing::debug!("a server of a quorum did not answer in time"),
                Err(error) => tracing::debug!(%error, "an attempt on a server of a quorum was aborted"),
            }
        }
        let granted = holds.len();
        let guard = QuorumGuard { holds, majority: self.majority() };
        if granted >= self.majority() && guard.is_held() {
            return Ok(Some(guard));
        }
        // Dropping it releases on all servers at once, in the background.
        drop(guard);
        if granted + refusals >= self.majority() { Ok(None) } else { Err(Error::NoQuorum { granted, servers }) }
    }

    /// Acquires it, and tries again for as long as others hold it.
    ///
    /// # Cancel safety
    ///
    /// As [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
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
    /// [`Error::Timeout`] if others held it all that time; else as [`try_acquire`](Self::try_acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<QuorumGuard, Error> {
        self.acquire_until(Some(Moment::now().after(timeout))).await
    }

    async fn acquire_until(&self, deadline: Option<Moment>) -> Result<QuorumGuard, Error> {
        loop {
            if let Some(guard) = self.try_acquire().await? {
                return Ok(guard);
            }
            let next = Moment::now().after(LONGEST_PAUSE.mul_f64(rand::rng().random_range(0.1..1.0)));
            if deadline.is_some_and(|deadline| next >= deadline) {
                return Err(Error::Timeout);
            }
            sleep_until(next).await;
        }
    }
}

/// A lock that a majority of servers has granted. Dropping it releases everywhere, in the background.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases the lock"]
pub struct QuorumGuard {
    holds: Vec<Held>,
    majority: usize,
}

impl QuorumGuard {
    /// The highest of the servers' fencing tokens. It rises from holder to holder as long as the servers' clocks differ by less than passes
    /// between two holders.
    pub fn token(&self) -> u64 {
        self.holds.iter().flat_map(|held| held.hold.tokens.iter().copied()).max().unwrap_or_default()
    }

    /// Whether a majority can be relied upon at this moment.
    pub fn is_held(&self) -> bool {
        self.holds.iter().filter(|held| held.hold.is_held()).count() >= self.majority
    }

    /// Resolves as soon as fewer than a majority can be relied upon.
    ///
    /// # Cancel safety
    ///
    /// It may be dropped and asked for again.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        fewer_than(self.majority, &self.holds)
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
        for held in &self.holds {
            let hold = held.hold.clone();
            renewals.spawn(async move { hold.renew_by_hand(None).await });
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
    pub async fn release(mut self) -> Result<(), Error> {
        let mut releases = JoinSet::new();
        for held in self.holds.drain(..) {
            releases.spawn(held.release());
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
