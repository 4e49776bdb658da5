//! Handles to locks: what to acquire, and how.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::client::Client;
use crate::clock::{Moment, sleep_until_some};
use crate::guard::Guard;
use crate::hold::Held;
use crate::identity::unique_owner;
use crate::options::{Options, option_methods};
use crate::request::{Gate, Request};
use crate::waiter::{self, LATE, Patience};
use crate::wire::{Ask, Family, Subject};

mod sealed {
    pub trait Sealed {
        const FAMILY: crate::wire::Family;
    }
}

/// What a lock is: [`Mutex`], [`Fair`], [`Read`], [`Write`] or [`Permits`].
pub trait Kind: sealed::Sealed + Send + Sync + 'static {}

/// A kind whose owner may hold it several times.
pub trait Reentrant: Kind {}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {}
        impl sealed::Sealed for $name {
            const FAMILY: Family = Family::$name;
        }
        impl Kind for $name {}
    )*};
}

kinds! {
    /// One owner at a time.
    Mutex,
    /// One owner at a time, with a queue that the server keeps as data.
    Fair,
    /// The readers' side of a [`RwLock`].
    Read,
    /// The writer's side of a [`RwLock`].
    Write,
}

/// Permits of a [`Semaphore`](crate::Semaphore).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permits {}
impl sealed::Sealed for Permits {
    const FAMILY: Family = Family::Semaphore;
}
impl Kind for Permits {}

impl Reentrant for Mutex {}
impl Reentrant for Fair {}
impl Reentrant for Read {}
impl Reentrant for Write {}

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
    /// Requests are served in the order in which they came: here, in line with the other tasks of this client that want the same lock, and at the
    /// server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves neither a place in the queue nor a hold: both are taken back in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] only if an operator has ended the wait with `CLIENT UNBLOCK`.
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
    /// [`Error::Timeout`] if it was not granted in that time.
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Guard<K>, Error> {
        let deadline = Moment::now().after(timeout);
        self.acquisition()?.acquire(Some(deadline)).await.map(Guard::new)
    }

    fn acquisition(&self) -> Result<Acquisition, Error> {
        Acquisition::new(&self.client, K::FAMILY, self.keys.clone(), self.permits, &self.options)
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

/// One acquisition, whatever its kind.
pub(crate) struct Acquisition {
    request: Arc<Request>,
    max_hold: Option<Duration>,
    renews: bool,
    replicas: Option<(u32, Duration)>,
    skips_line: bool,
}

impl Acquisition {
    pub(crate) fn new(
        client: &Client,
        family: Family,
        keys: Arc<[Vec<u8>]>,
        permits: u32,
        options: &Options,
    ) -> Result<Self, Error> {
        options.check()?;
        if permits == 0 {
            return Err(Error::Argument("permits is 0, and must be at least 1".to_owned()));
        }
        let client = client.shared.clone();
        let (owner, gate) = match &options.owner {
            Some(owner) => (owner.clone(), client.gate_of((family, keys.clone(), owner.clone()))),
            None => (unique_owner().into(), Gate::default()),
        };
        let subject = Subject { family, keys, owner, permits };
        let request = Arc::new(Request {
            client,
            subject,
            lease: options.lease(),
            session_grace: options.session_grace,
            gate,
            is_shared_owner: options.owner.is_some(),
        });
        let (max_hold, renews, replicas) = (options.max_hold, options.renews(), options.replicas);
        Ok(Self { request, max_hold, renews, replicas, skips_line: false })
    }

    /// Another acquisition by the owner of a hold, on the same terms.
    pub(crate) fn by_owner_of(held: &Held, family: Family) -> Self {
        let hold = &held.hold;
        let first = &hold.request;
        let subject = Subject { family, ..first.subject.clone() };
        let gate = match first.subject.family == family {
            true => first.gate.clone(),
            false => first.client.gate_of((family, subject.keys.clone(), subject.owner.clone())),
        };
        let (max_hold, renews) = hold.limits();
        let request = Arc::new(Request {
            client: first.client.clone(),
            subject,
            lease: first.lease,
            session_grace: first.session_grace,
            gate,
            is_shared_owner: true,
        });
        let skips_line = first.subject.family == Family::Read && family == Family::Write;
        Self { request, max_hold, renews, replicas: None, skips_line }
    }

    /// One attempt.
    pub(crate) async fn try_acquire(&self) -> Result<Option<Held>, Error> {
        match self.try_until(None).await? {
            Some(held) => self.hand_out(held).await.map(Some),
            None => Ok(None),
        }
    }

    /// An attempt, and then a wait.
    ///
    /// It ends in time also if no server answers; what was asked is taken back then as if the future had been dropped.
    pub(crate) async fn acquire(&self, deadline: Option<Moment>) -> Result<Held, Error> {
        tokio::select! {
            biased;
            outcome = self.acquire_until(deadline) => outcome,
            () = sleep_until_some(deadline.map(|deadline| deadline.after(LATE))) => Err(Error::Timeout),
        }
    }

    async fn acquire_until(&self, deadline: Option<Moment>) -> Result<Held, Error> {
        let give_up = Moment::now().after(self.request.client.settings.retry_for);
        loop {
            let held = self.wait_until(deadline).await?;
            match self.hand_out(held).await {
                // Who waits goes on waiting, unless the network is always slower than the lease is long. A hold that has to end after a time of
                // its own is not asked for again.
                Err(Error::NotHeld) if self.max_hold.is_none() && Moment::now() < give_up => {
                    tracing::debug!("the lease ended before the grant was heard of; asking again");
                }
                outcome => return outcome,
            }
        }
    }

    async fn wait_until(&self, deadline: Option<Moment>) -> Result<Held, Error> {
        // Who comes while others of this process stand in line goes to its end. An owner that may hold already does not wait for others.
        let may_try =
            self.request.is_shared_owner || !self.request.client.waiting_room.has_line(&self.request.subject.keys);
        if may_try && let Some(held) = self.try_until(deadline).await? {
            return Ok(held);
        }
        let Self { max_hold, renews, skips_line, .. } = *self;
        waiter::wait(self.request.clone(), Patience { deadline, max_hold, renews, skips_line }).await
    }

    async fn try_until(&self, deadline: Option<Moment>) -> Result<Option<Held>, Error> {
        let give_up = Moment::now().after(self.request.client.settings.retry_for);
        let give_up = deadline.map_or(give_up, |deadline| give_up.min(deadline));
        let grant = self.request.try_once(Ask::Once, give_up).await?;
        Ok(grant.map(|grant| Held::new(self.request.clone(), grant, self.max_hold, self.renews)))
    }

    /// The last steps before a hold is in somebody's hands. If one fails, the hold is released.
    async fn hand_out(&self, held: Held) -> Result<Held, Error> {
        let proven = async {
            if let Some((wanted, patience)) = self.replicas {
                held.hold.replicate(wanted, patience).await?;
            }
            held.hold.freshen().await
        };
        match proven.await {
            Ok(()) => Ok(held),
            Err(error) => {
                if let Err(error) = held.release().await {
                    tracing::debug!(%error, "a hold that could not be proven was not released");
                }
                Err(error)
            }
        }
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
    pub(crate) fn new(client: &Client, key: &[u8]) -> Self {
        Self { client: client.clone(), key: key.to_vec() }
    }

    /// The side of the readers.
    pub fn read(&self) -> Lock<Read> {
        Lock::new(&self.client, &self.key)
    }

    /// The side of the writer.
    pub fn write(&self) -> Lock<Write> {
        Lock::new(&self.client, &self.key)
    }
}
