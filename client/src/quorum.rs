//! A lock on several independent masters: held as long as a majority holds.
//!
//! The Redlock algorithm, with the parts of this crate: each server's hold has its own validity, counted from the sending of its
//! request, and its own keeper. Here servers are asked; what they have granted is in `quorum_guard`.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rand::Rng;
use tokio::task::JoinSet;

use crate::Error;
use crate::acquisition::Acquisition;
use crate::client::{Builder, Client};
use crate::clock::Moment;
use crate::hold::Held;
use crate::options::{Options, option_methods};
use crate::quorum_guard::{Asked, QuorumGuard};
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
        let mut closing: Vec<_> = self.clients.iter().map(|client| Box::pin(client.close())).collect();
        let mut outcome = Ok(());
        std::future::poll_fn(|context| {
            closing.retain_mut(|closing| match closing.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready(closed) => {
                    outcome = both(outcome.clone(), closed);
                    false
                }
            });
            if closing.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        outcome
    }

    fn lock_of(&self, family: Family, key: &[u8]) -> QuorumLock {
        let (quorum, keys) = (self.clone(), Arc::from([key.to_vec()]));
        QuorumLock { quorum, family, keys, options: Options::default(), server_timeout: SERVER_TIMEOUT }
    }
}

/// Whether a server is not of use for this lock, until somebody changes something there.
fn is_of_the_server(error: &Error) -> bool {
    matches!(error, Error::NoModule(_) | Error::Permission(_) | Error::Server { .. })
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
    family: Family,
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

    /// Whether a majority of the clients can give guards. Whose runtime has ended, or who was closed, does not come back as a server does.
    fn check_homes(&self) -> Result<(), Error> {
        let clients = &self.quorum.clients;
        let mut gone = clients.iter().filter_map(|client| client.shared.home.check().err());
        gone.nth(clients.len() - self.majority()).map_or(Ok(()), Err)
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
    /// [`Error::NoQuorum`] if no majority answered within [`server_timeout`](Self::server_timeout). [`Error::RuntimeEnded`] or
    /// [`Error::Closed`] if that is so for so many of the clients that the others are no majority; and [`Error::NoModule`],
    /// [`Error::Permission`] or [`Error::Server`] if so many servers say that.
    pub async fn try_acquire(&self) -> Result<Option<QuorumGuard>, Error> {
        let servers = self.quorum.clients.len();
        self.check_homes()?;
        // Whoever closes one of the clients waits until it is known who gets what was granted there.
        let _under_way: Vec<_> = self.quorum.clients.iter().map(|client| client.shared.home.under_way()).collect();
        let (mut attempts, mut asked) = (JoinSet::new(), Vec::with_capacity(servers));
        for client in self.quorum.clients.iter() {
            let acquisition = Acquisition::new(&client.shared, self.family, self.keys.clone(), 1, &self.options)?;
            let (server_timeout, under_way) = (self.server_timeout, client.shared.home.under_way());
            let attempt = async move {
                let outcome = within(server_timeout, acquisition.try_acquire()).await;
                // Closing the client waits for what is granted late, and then for its release.
                (outcome, under_way)
            };
            let attempt = attempts.spawn_on(attempt, client.shared.home.runtime());
            asked.push(Asked { client: client.shared.clone(), attempt });
        }
        let (mut holds, mut refusals, mut misfits) = (Vec::with_capacity(servers), 0, Vec::new());
        // With so many lost the others are no majority.
        let too_many = servers - self.majority() + 1;
        while holds.len() < self.majority() && refusals < self.majority() && misfits.len() < too_many {
            let Some(attempt) = attempts.join_next().await else { break };
            match attempt.map(|(outcome, _)| outcome) {
                Ok(Some(Ok(Some(held)))) => holds.push(held),
                Ok(Some(Ok(None))) => refusals += 1,
                Ok(Some(Err(error))) => {
                    tracing::debug!(%error, "a server of a quorum failed");
                    if is_of_the_server(&error) {
                        misfits.push(error);
                    }
                }
                Ok(None) => tracing::debug!("a server of a quorum did not answer in time"),
                Err(error) => tracing::debug!(%error, "an attempt on a server of a quorum was aborted"),
            }
        }
        // One of the clients may have been closed meanwhile: what was granted there is given back.
        holds.retain(|held: &Held| held.hold.request.client.home.check().is_ok());
        let granted = holds.len();
        let guard = QuorumGuard::of(holds, asked, self.majority());
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

    /// Acquires it, and tries again for as long as others hold it. While no majority answers it tries for as long as
    /// [`Builder::retry_for`] of the first server says.
    ///
    /// # Cancel safety
    ///
    /// As [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    ///
    /// [`Error::NoQuorum`] if no majority answered for so long; else as [`try_acquire`](Self::try_acquire).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_majority_is_more_than_half() {
        for (servers, majority) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)] {
            let urls = vec!["redis://127.0.0.1/"; servers];
            let quorum = Quorum::connect(&Client::builder(), &urls).expect("addresses");
            assert_eq!(quorum.lock("k").majority(), majority, "of {servers}");
        }
    }

    #[test]
    fn what_is_left_behind_at_several_servers_is_counted_together() {
        let left = |requests| if requests == 0 { Ok(()) } else { Err(Error::LeftBehind { requests }) };
        for (one, other) in [(0, 0), (3, 0), (0, 3), (3, 4)] {
            let requests = match both(left(one), left(other)) {
                Ok(()) => 0,
                Err(Error::LeftBehind { requests }) => requests,
                Err(error) => panic!("{error}"),
            };
            assert_eq!(requests, one + other);
        }
    }
}
