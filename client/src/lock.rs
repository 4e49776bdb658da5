//! Handles to locks.

use std::marker::PhantomData;
use std::time::Duration;

use futures_util::FutureExt;

use crate::Error;
use crate::acquire::{Wait, Wanted};
use crate::client::Client;
use crate::guard::{Detached, Guard};
use crate::held::Held;
use crate::kinds::{Fair, Kind, Mutex, Permits, Read, Write};
use crate::options::{Options, option_methods};

impl Client {
    /// A mutex: one owner at a time.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock<Mutex> {
        Lock::new(self, key.as_ref())
    }

    /// A mutex whose queue the server stores as data: its order survives restarts and failovers.
    pub fn fair_lock(&self, key: impl AsRef<[u8]>) -> Lock<Fair> {
        Lock::new(self, key.as_ref())
    }

    /// A lock for many readers or one writer.
    pub fn rw_lock(&self, key: impl AsRef<[u8]>) -> RwLock {
        RwLock { client: self.clone(), key: key.as_ref().to_vec() }
    }
}

/// A lock on one key, with its options. It can be reused and cloned.
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

    /// Acquires the lock if it is free; otherwise returns `None`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lock granted meanwhile is released in the background.
    ///
    /// # Errors
    ///
    /// Any but [`Error::Timeout`]. After a lost reply the client retries for at most
    /// [`Builder::command_timeout`](crate::Builder::command_timeout).
    pub async fn try_acquire(&self) -> Result<Option<Guard<K>>, Error> {
        self.within(Wait::Not).await
    }

    /// Acquires the lock, waiting as long as it takes, even while no server answers.
    ///
    /// A waiting task needs no connection of its own and does not poll: the server sends a message
    /// when it grants the lock.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the client leaves the queue and releases a lock granted meanwhile,
    /// in the background.
    ///
    /// # Errors
    ///
    /// Any but [`Error::Timeout`]. [`Error::Unavailable`] only with [`replicas`](Self::replicas),
    /// if the client cannot ask for their acknowledgement. [`Error::Superseded`] if another client
    /// sends a request for the same owner.
    pub async fn acquire(&self) -> Result<Guard<K>, Error> {
        self.within(Wait::Until(None)).await?.ok_or(Error::Timeout)
    }

    /// Acquires the lock, waiting no longer than `timeout`, or 250 ms more if no server answers. A
    /// `timeout` above 365 days is no limit.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if another owner held the lock for that time. [`Error::Unavailable`] with
    /// the last failure if the server was unreachable, silent or refusing when the time ended.
    /// Otherwise as [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Guard<K>, Error> {
        self.within(Wait::within(timeout)).await?.ok_or(Error::Timeout)
    }

    /// Acquires the lock, runs `work`, and releases the lock. An error of `work` is part of `T`,
    /// and does not prevent the release. If the lock is lost, `work` is dropped at once.
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
    /// Dropping the future drops `work` and releases the lock in the background.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). [`Error::Lost`] if the lock was lost before `work` completed,
    /// or if the release finds that the hold had ended; a result of `work` is then discarded. Any
    /// other failure of the release is only logged.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard<K>) -> T) -> Result<T, Error> {
        let guard = self.acquire().await?;
        run(guard, work, Guard::lost, |guard| async move { guard.release().await }, &self.client).await
    }

    /// Elects a leader: waits for the lock, and runs `work` while it is held. After a loss of the
    /// lock it waits again. Returns the result of the first `work` that completes while the lock is
    /// held.
    ///
    /// If the lock is lost, `work` is dropped at once. It owns the guard: while the guard lives,
    /// the lock is not released.
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

    /// Takes over a hold that another guard has [detached](Guard::detach), also in another process.
    /// It is renewed with the options of this handle.
    /// * The hold keeps its session grace, whatever this handle says, and is now bound to the
    ///   connection of this client.
    /// * A note of this handle replaces the note of the hold.
    /// * For a semaphore, this handle must have the number of permits that are held.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold with this token has ended; otherwise as
    /// [`try_acquire`](Self::try_acquire).
    pub async fn attach(&self, hold: &Detached) -> Result<Guard<K>, Error> {
        // A renewal cannot change the session of a hold.
        let options = Options { session_grace: hold.session_grace, ..self.wanted.options.clone() };
        let subject = self.wanted.by(hold.owner.as_slice().into());
        self.client.core.take_over(subject, &options, hold.token).await.map(Guard::new)
    }
}

/// Runs `work` under a guard, then releases the guard. If the lock is lost, polls `work` no more,
/// and returns no result of it.
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
    let mut lost = std::pin::pin!(lost(&guard));
    // After a stall of the process both are ready. Each poll of `lost` reads the clock.
    let done = tokio::select! {
        biased;
        () = &mut lost => return Err(Error::Lost),
        done = work(&guard) => done,
    };
    // The last step of `work` may have outlasted the hold.
    if lost.now_or_never().is_some() {
        return Err(Error::Lost);
    }
    // After `command_timeout` the release goes on in the background.
    match tokio::time::timeout(client.core.common.command_timeout, release(guard)).await {
        Ok(Ok(())) => {}
        Ok(Err(Error::Lost)) => return Err(Error::Lost),
        Ok(Err(error)) => tracing::warn!(%error, "the work is done, but its lock could not be released"),
        Err(_) => tracing::warn!("the work is done, but releasing its lock timed out"),
    }
    Ok(done)
}

impl Lock<Permits> {
    /// How many permits to acquire at once, at least 1. Default: 1.
    #[must_use]
    pub fn permits(mut self, permits: u32) -> Self {
        self.wanted.permits = permits;
        self
    }
}

impl Lock<Fair> {
    /// How long the server keeps the place of a waiter whose connection has closed, 0 to 365 days.
    /// Default: the server's setting `rlock.fair-grace-ms`.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options_mut().place_grace = Some(grace);
        self
    }
}

/// A lock on one key for many readers or one writer.
///
/// A waiting writer holds back later readers, so writers do not starve.
#[derive(Clone, Debug)]
pub struct RwLock {
    client: Client,
    key: Vec<u8>,
}

impl RwLock {
    /// The read lock.
    pub fn read(&self) -> Lock<Read> {
        Lock::new(&self.client, &self.key)
    }

    /// The write lock.
    pub fn write(&self) -> Lock<Write> {
        Lock::new(&self.client, &self.key)
    }
}
