//! Handles to locks: what to acquire, and how.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::acquisition::Acquisition;
use crate::client::Client;
use crate::clock::Moment;
use crate::guard::{Detached, Guard};
use crate::kind::{Fair, Kind, Mutex, Permits, Read, Write};
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
    client: Client,
    keys: Arc<[Vec<u8>]>,
    permits: u32,
    options: Options,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Lock<K> {
    fn clone(&self) -> Self {
        let Self { client, keys, permits, options, kind } = self;
        Self { client: client.clone(), keys: keys.clone(), permits: *permits, options: options.clone(), kind: *kind }
    }
}

impl<K: Kind> Lock<K> {
    pub(crate) fn new(client: &Client, key: &[u8]) -> Self {
        let keys = Arc::from([key.to_vec()]);
        Self { client: client.clone(), keys, permits: 1, options: Options::default(), kind: PhantomData }
    }

    option_methods!();

    /// Acquires it if it is free. `None` if it is not.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases in the background what was granted meanwhile.
    ///
    /// # Errors
    ///
    /// Any but [`Error::Timeout`].
    pub async fn try_acquire(&self) -> Result<Option<Guard<K>>, Error> {
        self.acquisition()?.try_acquire().await.map(|held| held.map(Guard::new))
    }

    /// Acquires it, and waits for as long as it takes.
    ///
    /// Requests are served in the order in which they came to the server. Waiting takes no connection of its own, and asks nothing again and
    /// again: the server sends a message when it is granted.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves neither a place in the queue nor a hold: both are taken back in the background.
    ///
    /// # Errors
    ///
    /// Any but [`Error::Timeout`]. [`Error::NotHeld`] if it was granted, and lost again
    /// before that was heard of: with [`max_hold`](Self::max_hold), or if for [`retry_for`](crate::Builder::retry_for) no answer came
    /// before the lease was over. [`Error::Superseded`] if another client waits in the same owner's name.
    pub async fn acquire(&self) -> Result<Guard<K>, Error> {
        self.acquisition()?.acquire(None).await.map(Guard::new)
    }

    /// Acquires it, and waits no longer than `timeout`; if no server answers, half a second more.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if it was not granted in that time; else as [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Guard<K>, Error> {
        let deadline = Moment::now().after(timeout);
        self.acquisition()?.acquire(Some(deadline)).await.map(Guard::new)
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
    /// As [`acquire`](Self::acquire). [`Error::NotHeld`] if the lock was lost before the work was done.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard<K>) -> T) -> Result<T, Error> {
        let guard = self.acquire().await?;
        let done = {
            let lost = guard.lost();
            tokio::select! {
                biased;
                () = lost => None,
                done = work(&guard) => Some(done),
            }
        };
        let released = guard.release().await;
        done.ok_or(Error::NotHeld).and_then(|done| released.map(|()| done))
    }

    /// Takes over a hold that another guard has [left](Guard::detach), perhaps in another process: renews it on the terms of this handle, and
    /// keeps it from now on. It keeps its own session grace, whatever this handle says, and is bound to the connection of this client. A note of this
    /// handle replaces the note of the hold. For permits, the handle says how many there are.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if the hold with this token is gone, [`Error::Argument`] if guards of that owner in this client rely on another session
    /// grace; else as [`try_acquire`](Self::try_acquire).
    pub async fn attach(&self, hold: &Detached) -> Result<Guard<K>, Error> {
        // No renewal gives a hold another session.
        let (owner, session_grace) = (Some(hold.owner.as_slice().into()), hold.session_grace);
        let options = Options { owner, session_grace, ..self.options.clone() };
        let acquisition = Acquisition::new(&self.client.shared, K::FAMILY, self.keys.clone(), self.permits, &options)?;
        if acquisition.session_grace() != hold.session_grace {
            let what = "session_grace: this client has guards of that owner already, which rely on another one";
            return Err(Error::Argument(what.to_owned()));
        }
        acquisition.take_over(vec![hold.token]).await.map(Guard::new)
    }

    /// A look at the lock from outside: who holds it, who waits, and how to take it away.
    pub fn observe(&self) -> Observer {
        self.client.observe(self.keys.first().map_or(b"".as_slice(), Vec::as_slice))
    }

    fn acquisition(&self) -> Result<Acquisition, Error> {
        Acquisition::new(&self.client.shared, K::FAMILY, self.keys.clone(), self.permits, &self.options)
    }
}

impl Lock<Permits> {
    /// How many permits to take at once, at least 1. Default: 1.
    #[must_use]
    pub fn permits(mut self, permits: u32) -> Self {
        self.permits = permits;
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
