//! Handles to locks: what to acquire, and how.

use std::marker::PhantomData;
use std::time::Duration;

use crate::Error;
use crate::acquire::{Wait, Wanted};
use crate::client::Client;
use crate::guard::{Detached, Guard};
use crate::hold::Held;
use crate::kinds::{Fair, Kind, Mutex, Permits, Read, Write};
use crate::observer::Observer;
use crate::options::{Options, option_methods};

impl Client {
    /// A mutex: one owner at a time.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock<Mutex> {
        Lock::new(self, key.as_ref())
    }

    /// A mutex whose queue is kept by the server as data: it survives a restart and a failover in the same order.
    pub fn fair_lock(&self, key: impl AsRef<[u8]>) -> Lock<Fair> {
        Lock::new(self, key.as_ref())
    }

    /// A lock for many readers or one writer.
    pub fn rw_lock(&self, key: impl AsRef<[u8]>) -> RwLock {
        RwLock { client: self.clone(), key: key.as_ref().to_vec() }
    }
}

/// A lock under a key, with the options by which it is acquired. It may be used again and again, and cloned.
///
/// ```no_run
/// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
/// use std::time::Duration;
///
/// let lock = client.lock("orders:42").session_grace(Duration::from_millis(200));
/// let guard = lock.acquire_timeout(Duration::from_secs(3)).await?;
/// // … write to the resource, with guard.token() …
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Lock<K> {
    pub(crate) client: Client,
    pub(crate) wanted: Wanted,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Lock<K> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), wanted: self.wanted.clone(), kind: self.kind }
    }
}

impl<K: Kind> Lock<K> {
    pub(crate) fn new(client: &Client, key: &[u8]) -> Self {
        Self { client: client.clone(), wanted: Wanted::one(K::FAMILY, key), kind: PhantomData }
    }

    fn options_mut(&mut self) -> &mut Options {
        &mut self.wanted.options
    }

    option_methods!();

    async fn within(&self, wait: Wait) -> Result<Option<Guard<K>>, Error> {
        Ok(self.client.core.acquire(&self.wanted, wait).await?.map(Guard::new))
    }

    /// Acquires it if it is free. `None` if it is not.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases in the background what was granted meanwhile.
    ///
    /// # Errors
    ///
    /// Any but [`Error::Timeout`]. A lost reply is asked for again for at most [`Builder::command_timeout`](crate::Builder::command_timeout).
    pub async fn try_acquire(&self) -> Result<Option<Guard<K>>, Error> {
        self.within(Wait::Not).await
    }

    /// Acquires it, and waits for as long as it takes: also while no server answers.
    ///
    /// Waiting takes no connection of its own, and does not poll: the server sends a message when it grants the lock.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves neither a place in the queue nor a hold: the client takes both back in the background.
    ///
    /// # Errors
    ///
    /// Any but [`Error::Timeout`] and [`Error::Unavailable`]. [`Error::Superseded`] if another client waits in the same owner's name.
    pub async fn acquire(&self) -> Result<Guard<K>, Error> {
        self.within(Wait::Until(None)).await?.ok_or(Error::Timeout)
    }

    /// Acquires it, and waits no longer than `timeout`; if no server answers, a quarter of a second more.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if it was not granted in that time; else as [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Guard<K>, Error> {
        self.within(Wait::within(timeout)).await?.ok_or(Error::Timeout)
    }

    /// Acquires it, does some work, and releases it: also when the work fails, and the error is a part of `T`. The work is dropped, wherever
    /// it is, as soon as the lock is lost.
    ///
    /// ```no_run
    /// # async fn write(token: u64) {}
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// client.lock("orders:42").run(async |guard| write(guard.token()).await).await
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, and releases in the background.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). [`Error::Lost`] if the lock was lost before the work was done. What the work has returned is returned
    /// in any case: a release that does not reach the server is logged.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard<K>) -> T) -> Result<T, Error> {
        let guard = self.acquire().await?;
        run(guard, work, Guard::lost, |guard| async move { guard.release().await }, &self.client).await
    }

    /// Takes part in the election of a leader: waits for the lock, does the work while it is held, and is a candidate again whenever the
    /// lock was lost. Returns what the work returns while it leads.
    ///
    /// The work is dropped, wherever it is, as soon as the lock is lost. It has a guard of its own: while that lives, the lock is not
    /// released.
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn lead<T, F>(&self, mut work: impl FnMut(Guard<K>) -> F) -> Result<T, Error>
    where
        F: Future<Output = T>,
    {
        loop {
            let guard = self.acquire().await?;
            let Ok(again) = Held::again(&guard.held.hold) else { continue };
            let work = work(Guard::new(again));
            let release = |guard: Guard<K>| async move { guard.release().await };
            match run(guard, async |_| work.await, Guard::lost, release, &self.client).await {
                Err(Error::Lost) => tracing::info!("the lead was lost"),
                outcome => return outcome,
            }
        }
    }

    /// Takes over a hold that another guard has [left](Guard::detach), perhaps in another process: renews it on the terms of this handle,
    /// and keeps it from now on. It keeps its own session grace, whatever this handle says, and is bound to the connection of this client.
    /// A note of this handle replaces the note of the hold. For permits, the handle says how many there are.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold with this token has ended; else as [`try_acquire`](Self::try_acquire).
    pub async fn attach(&self, hold: &Detached) -> Result<Guard<K>, Error> {
        // No renewal gives a hold another session.
        let options = Options { session_grace: hold.session_grace, ..self.wanted.options.clone() };
        let subject = self.wanted.by(hold.owner.as_slice().into());
        self.client.core.take_over(subject, &options, hold.token).await.map(Guard::new)
    }

    /// A look at the lock from outside: who holds it, who waits, and how to take it away.
    pub fn observe(&self) -> Observer {
        self.client.observe(self.wanted.keys.first().map_or(b"".as_slice(), Vec::as_slice))
    }
}

/// Does work under a guard, and gives the guard back. What the work has returned is not thrown away, and a loss is told at once.
pub(crate) async fn run<G, T, L, R>(
    guard: G,
    work: impl AsyncFnOnce(&G) -> T,
    lost: impl FnOnce(&G) -> L,
    release: impl FnOnce(G) -> R,
    client: &Client,
) -> Result<T, Error>
where
    L: Future<Output = ()>,
    R: Future<Output = Result<(), Error>>,
{
    let lost = lost(&guard);
    let done = tokio::select! {
        biased;
        done = work(&guard) => done,
        () = lost => return Err(Error::Lost),
    };
    // Longer than one command may take it is left to the background.
    match tokio::time::timeout(client.core.common.command_timeout, release(guard)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the work is done, and its lock was not released"),
        Err(_) => tracing::warn!("the work is done, and the release of its lock has no answer"),
    }
    Ok(done)
}

impl Lock<Permits> {
    /// How many permits to take at once, at least 1. Default: 1.
    #[must_use]
    pub fn permits(mut self, permits: u32) -> Self {
        self.wanted.permits = permits;
        self
    }
}

impl Lock<Fair> {
    /// How long the server keeps the place of a waiter whose connection has closed, 0 to 365 days. Default: its `rlock.fair-grace-ms`.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options_mut().place_grace = Some(grace);
        self
    }
}

/// A lock for many readers or one writer, under one key.
///
/// A waiting writer stops later readers, so writers do not starve.
#[derive(Clone, Debug)]
pub struct RwLock {
    client: Client,
    key: Vec<u8>,
}

impl RwLock {
    /// The side of the readers.
    pub fn read(&self) -> Lock<Read> {
        Lock::new(&self.client, &self.key)
    }

    /// The side of the writer.
    pub fn write(&self) -> Lock<Write> {
        Lock::new(&self.client, &self.key)
    }

    /// A look at the lock from outside: who holds it, who waits, and how to take it away.
    pub fn observe(&self) -> Observer {
        self.client.observe(&self.key)
    }
}
