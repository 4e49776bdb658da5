//! The same for threads: each method here waits for the one of the same name in the [crate root](crate).
//!
//! ```no_run
//! # fn main() -> Result<(), rlock_client::Error> {
//! let client = rlock_client::blocking::Client::connect("redis://127.0.0.1/")?;
//! let guard = client.lock("orders:42").acquire()?;
//! // … work, with guard.token() …
//! guard.release()?;
//! # Ok(())
//! # }
//! ```
//!
//! A client has a runtime of its own with one thread, on which guards renew themselves. Methods must not be called inside an
//! asynchronous task: they would hold up its runtime, and panic instead.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{self, Handle, Runtime};

use crate::Error;
use crate::kind::{Fair, Kind, Mutex, Permits, Read, Reentrant, Write};
use crate::timer::within;

/// The runtime of a client, shared by its handles and guards.
#[derive(Clone, Debug)]
struct Driver(Arc<Owned>);

#[derive(Debug)]
struct Owned(Option<Runtime>);

impl Drop for Owned {
    fn drop(&mut self) {
        // The last guard may be dropped anywhere, also where blocking is not allowed.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Driver {
    fn start() -> Result<Self, Error> {
        let runtime =
            runtime::Builder::new_multi_thread().worker_threads(1).thread_name("rlock-client").enable_all().build();
        let runtime = runtime.map_err(|cause| Error::Connection { tried_for: Duration::ZERO, cause: cause.into() })?;
        Ok(Self(Arc::new(Owned(Some(runtime)))))
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.0.0.as_ref().map_or(Err(Error::RuntimeEnded), |runtime| runtime.block_on(work))
    }

    fn with<T>(&self, inner: T) -> On<T> {
        On { inner, driver: self.clone() }
    }
}

/// Something of the asynchronous side, with the runtime that drives it.
#[derive(Clone, Debug)]
struct On<T> {
    // Before the driver, so that a guard's release is begun before the last driver goes.
    inner: T,
    driver: Driver,
}

impl<T> On<T> {
    fn map(self, change: impl FnOnce(T) -> T) -> Self {
        Self { inner: change(self.inner), driver: self.driver }
    }
}

/// How long the drop of a guard waits for the release.
const LONGEST_RELEASE: Duration = Duration::from_secs(5);

/// A guard of the asynchronous side. When it is dropped, it has released: the process may end right after that.
struct Kept<G> {
    // Dropped in this order: the release is begun, it is waited for, and then perhaps the runtime ends.
    inner: G,
    release: Release,
    driver: Driver,
}

impl<G> Kept<G> {
    fn new(driver: &Driver, inner: G, released: impl Future<Output = ()> + Send + 'static) -> Self {
        let release = Release { end: Box::pin(released), driver: driver.clone() };
        Self { inner, release, driver: driver.clone() }
    }
}

impl<G: std::fmt::Debug> std::fmt::Debug for Kept<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

/// Waits when it is dropped, unless that is in an asynchronous task, where nothing may block.
struct Release {
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    driver: Driver,
}

impl Drop for Release {
    fn drop(&mut self) {
        let may_block = Handle::try_current().is_err_and(|error| error.is_missing_context());
        if may_block && let Some(runtime) = &self.driver.0.0 {
            runtime.block_on(within(LONGEST_RELEASE, &mut self.end));
        }
    }
}

/// A connection to the place where the locks are, see [`crate::Client`].
#[derive(Clone, Debug)]
pub struct Client(On<crate::Client>);

impl Client {
    /// See [`crate::Client::connect`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_by(|builder| async move { builder.connect(url).await })
    }

    /// Connects with options, or to Sentinel or a cluster.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), rlock_client::Error> {
    /// use std::time::Duration;
    ///
    /// let client = rlock_client::blocking::Client::connect_by(|builder| async move {
    ///     builder.retry_for(Duration::from_secs(5)).connect("redis://127.0.0.1/").await
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As the methods of [`crate::Builder`].
    pub fn connect_by<F>(connect: impl FnOnce(crate::Builder) -> F) -> Result<Self, Error>
    where
        F: Future<Output = Result<crate::Client, Error>>,
    {
        let driver = Driver::start()?;
        let client = driver.wait(connect(crate::Client::builder()))?;
        Ok(Self(driver.with(client)))
    }

    /// See [`crate::Client::close`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn close(&self) -> Result<(), Error> {
        self.0.driver.wait(self.0.inner.close())
    }

    /// See [`crate::Client::lock`].
    pub fn lock(&self, key: impl AsRef<[u8]>) -> Lock<Mutex> {
        Lock(self.0.driver.with(self.0.inner.lock(key)))
    }

    /// See [`crate::Client::fair_lock`].
    pub fn fair_lock(&self, key: impl AsRef<[u8]>) -> Lock<Fair> {
        Lock(self.0.driver.with(self.0.inner.fair_lock(key)))
    }

    /// See [`crate::Client::rw_lock`].
    pub fn rw_lock(&self, key: impl AsRef<[u8]>) -> RwLock {
        RwLock(self.0.driver.with(self.0.inner.rw_lock(key)))
    }

    /// See [`crate::Client::semaphore`].
    pub fn semaphore(&self, key: impl AsRef<[u8]>) -> Semaphore {
        Semaphore(self.0.driver.with(self.0.inner.semaphore(key)))
    }

    /// See [`crate::Client::multi_lock`].
    pub fn multi_lock<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> MultiLock {
        MultiLock(self.0.driver.with(self.0.inner.multi_lock(keys)))
    }
}

/// The options of an acquisition, on a handle that wraps its asynchronous counterpart.
macro_rules! options {
    () => {
        /// See [`crate::Lock::lease`].
        #[must_use]
        pub fn lease(self, lease: Duration) -> Self {
            Self(self.0.map(|inner| inner.lease(lease)))
        }

        /// See [`crate::Lock::renewing`].
        #[must_use]
        pub fn renewing(self, renews: bool) -> Self {
            Self(self.0.map(|inner| inner.renewing(renews)))
        }

        /// See [`crate::Lock::session_grace`].
        #[must_use]
        pub fn session_grace(self, grace: Duration) -> Self {
            Self(self.0.map(|inner| inner.session_grace(grace)))
        }

        /// See [`crate::Lock::max_hold`].
        #[must_use]
        pub fn max_hold(self, most: Duration) -> Self {
            Self(self.0.map(|inner| inner.max_hold(most)))
        }

        /// See [`crate::Lock::owner`].
        #[must_use]
        pub fn owner(self, owner: impl AsRef<[u8]>) -> Self {
            Self(self.0.map(|inner| inner.owner(owner)))
        }

        /// See [`crate::Lock::replicas`].
        #[must_use]
        pub fn replicas(self, replicas: u32, timeout: Duration) -> Self {
            Self(self.0.map(|inner| inner.replicas(replicas, timeout)))
        }
    };
}

/// What acquires, on a handle that wraps its asynchronous counterpart.
macro_rules! acquiring {
    ($guard:ty, $of:literal) => {
        #[doc = concat!("See [`", $of, "::try_acquire`].")]
        ///
        /// # Errors
        ///
        /// As there.
        pub fn try_acquire(&self) -> Result<Option<$guard>, Error> {
            let On { inner, driver } = &self.0;
            Ok(driver.wait(inner.try_acquire())?.map(|guard| <$guard>::over(driver, guard)))
        }

        #[doc = concat!("See [`", $of, "::acquire`].")]
        ///
        /// # Errors
        ///
        /// As there.
        pub fn acquire(&self) -> Result<$guard, Error> {
            let On { inner, driver } = &self.0;
            Ok(<$guard>::over(driver, driver.wait(inner.acquire())?))
        }

        #[doc = concat!("See [`", $of, "::acquire_timeout`].")]
        ///
        /// # Errors
        ///
        /// As there.
        pub fn acquire_timeout(&self, timeout: Duration) -> Result<$guard, Error> {
            let On { inner, driver } = &self.0;
            Ok(<$guard>::over(driver, driver.wait(inner.acquire_timeout(timeout))?))
        }
    };
}

/// What every guard can do, on one that wraps its asynchronous counterpart.
macro_rules! holding {
    ($inner:ty, $of:literal) => {
        fn over(driver: &Driver, guard: $inner) -> Self {
            let released = guard.released();
            Self(Kept::new(driver, guard, released))
        }

        #[doc = concat!("See [`", $of, "::is_held`]. Look at it before each step that must not happen without the lock.")]
        pub fn is_held(&self) -> bool {
            self.0.inner.is_held()
        }

        #[doc = concat!("See [`", $of, "::lost`]: blocks until then.")]
        pub fn wait_until_lost(&self) {
            let lost = self.0.inner.lost();
            // Without a runtime there is no renewal, and the hold is as good as lost.
            let _ = self.0.driver.wait(async { Ok(lost.await) });
        }

        #[doc = concat!("See [`", $of, "::renew`].")]
        ///
        /// # Errors
        ///
        /// As there.
        pub fn renew(&self) -> Result<(), Error> {
            self.0.driver.wait(self.0.inner.renew())
        }

        #[doc = concat!("See [`", $of, "::release`].")]
        ///
        /// # Errors
        ///
        /// As there.
        pub fn release(self) -> Result<(), Error> {
            let Kept { inner, release, driver } = self.0;
            let outcome = driver.wait(inner.release());
            drop(release);
            outcome
        }
    };
}

/// A lock under a key, see [`crate::Lock`].
#[derive(Clone, Debug)]
pub struct Lock<K>(On<crate::Lock<K>>);

impl<K: Kind> Lock<K> {
    options!();
    acquiring!(Guard<K>, "crate::Lock");
}

impl Lock<Permits> {
    /// See [`crate::Lock::permits`].
    #[must_use]
    pub fn permits(self, permits: u32) -> Self {
        Self(self.0.map(|inner| inner.permits(permits)))
    }
}

/// A lock for many readers or one writer, see [`crate::RwLock`].
#[derive(Clone, Debug)]
pub struct RwLock(On<crate::RwLock>);

impl RwLock {
    /// The side of the readers.
    pub fn read(&self) -> Lock<Read> {
        Lock(self.0.driver.with(self.0.inner.read()))
    }

    /// The side of the writer.
    pub fn write(&self) -> Lock<Write> {
        Lock(self.0.driver.with(self.0.inner.write()))
    }
}

/// A number of permits, see [`crate::Semaphore`].
#[derive(Clone, Debug)]
pub struct Semaphore(On<crate::Semaphore>);

impl Semaphore {
    /// See [`crate::Semaphore::init`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn init(&self, permits: u32) -> Result<bool, Error> {
        self.0.driver.wait(self.0.inner.init(permits))
    }

    /// See [`crate::Semaphore::resize`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn resize(&self, permits: u32) -> Result<i64, Error> {
        self.0.driver.wait(self.0.inner.resize(permits))
    }

    /// See [`crate::Semaphore::drain`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn drain(&self) -> Result<Option<(u32, Guard<Permits>)>, Error> {
        let drained = self.0.driver.wait(self.0.inner.drain())?;
        Ok(drained.map(|(permits, guard)| (permits, Guard::over(&self.0.driver, guard))))
    }

    /// See [`crate::Semaphore::permits`].
    pub fn permits(&self, permits: u32) -> Lock<Permits> {
        Lock(self.0.driver.with(self.0.inner.permits(permits)))
    }
}

/// A hold, see [`crate::Guard`]. When it is dropped it has released, or has tried to for 5 s. Dropped in an asynchronous task it
/// releases in the background.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases the lock"]
pub struct Guard<K>(Kept<crate::Guard<K>>);

impl<K: Kind> Guard<K> {
    holding!(crate::Guard<K>, "crate::Guard");

    /// See [`crate::Guard::token`].
    pub fn token(&self) -> u64 {
        self.0.inner.token()
    }

    /// See [`crate::Guard::owner`].
    pub fn owner(&self) -> &[u8] {
        self.0.inner.owner()
    }

    /// See [`crate::Guard::valid_for`].
    pub fn valid_for(&self) -> Duration {
        self.0.inner.valid_for()
    }

    /// See [`crate::Guard::renew_for`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn renew_for(&self, lease: Duration) -> Result<(), Error> {
        self.0.driver.wait(self.0.inner.renew_for(lease))
    }
}

impl<K: Reentrant> Guard<K> {
    /// See [`crate::Guard::reenter`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn reenter(&self) -> Result<Self, Error> {
        Ok(Self::over(&self.0.driver, self.0.driver.wait(self.0.inner.reenter())?))
    }
}

impl Guard<Write> {
    /// See [`crate::Guard::downgrade`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn downgrade(self) -> Result<Guard<Read>, Error> {
        let Kept { inner, driver, .. } = self.0;
        Ok(Guard::over(&driver, driver.wait(inner.downgrade())?))
    }
}

impl Guard<Read> {
    /// See [`crate::Guard::upgrade`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn upgrade(&self) -> Result<Guard<Write>, Error> {
        Ok(Guard::over(&self.0.driver, self.0.driver.wait(self.0.inner.upgrade())?))
    }

    /// See [`crate::Guard::upgrade_timeout`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn upgrade_timeout(&self, timeout: Duration) -> Result<Guard<Write>, Error> {
        Ok(Guard::over(&self.0.driver, self.0.driver.wait(self.0.inner.upgrade_timeout(timeout))?))
    }
}

/// Several keys that are locked together, see [`crate::MultiLock`].
#[derive(Clone, Debug)]
pub struct MultiLock(On<crate::MultiLock>);

impl MultiLock {
    options!();
    acquiring!(MultiGuard, "crate::MultiLock");

    /// See [`crate::MultiLock::and`].
    #[must_use]
    pub fn and<K: AsRef<[u8]>>(self, client: &Client, keys: impl IntoIterator<Item = K>) -> Self {
        Self(self.0.map(|inner| inner.and(&client.0.inner, keys)))
    }
}

/// All keys of a [`MultiLock`], see [`crate::MultiGuard`].
#[derive(Debug)]
#[must_use = "a guard that is dropped releases the locks"]
pub struct MultiGuard(Kept<crate::MultiGuard>);

impl MultiGuard {
    holding!(crate::MultiGuard, "crate::MultiGuard");

    /// See [`crate::MultiGuard::token`].
    pub fn token(&self, key: impl AsRef<[u8]>) -> Option<u64> {
        self.0.inner.token(key)
    }
}

/// Independent masters, see [`crate::Quorum`].
#[derive(Clone, Debug)]
pub struct Quorum(On<crate::Quorum>);

impl Quorum {
    /// See [`crate::Quorum::connect`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn connect(options: &crate::Builder, urls: &[&str]) -> Result<Self, Error> {
        let driver = Driver::start()?;
        let quorum = driver.wait(async { crate::Quorum::connect(options, urls) })?;
        Ok(Self(driver.with(quorum)))
    }

    /// See [`crate::Quorum::lock`].
    pub fn lock(&self, key: impl AsRef<[u8]>) -> QuorumLock {
        QuorumLock(self.0.driver.with(self.0.inner.lock(key)))
    }

    /// See [`crate::Quorum::rw_lock`].
    pub fn rw_lock(&self, key: impl AsRef<[u8]>) -> QuorumRwLock {
        QuorumRwLock(self.0.driver.with(self.0.inner.rw_lock(key)))
    }
}

/// A lock for many readers or one writer on a [`Quorum`], see [`crate::QuorumRwLock`].
#[derive(Clone, Debug)]
pub struct QuorumRwLock(On<crate::QuorumRwLock>);

impl QuorumRwLock {
    /// The side of the readers.
    pub fn read(&self) -> QuorumLock {
        QuorumLock(self.0.driver.with(self.0.inner.read()))
    }

    /// The side of the writer.
    pub fn write(&self) -> QuorumLock {
        QuorumLock(self.0.driver.with(self.0.inner.write()))
    }
}

/// A lock on a [`Quorum`], see [`crate::QuorumLock`].
#[derive(Clone, Debug)]
pub struct QuorumLock(On<crate::QuorumLock>);

impl QuorumLock {
    options!();
    acquiring!(QuorumGuard, "crate::QuorumLock");

    /// See [`crate::QuorumLock::server_timeout`].
    #[must_use]
    pub fn server_timeout(self, timeout: Duration) -> Self {
        Self(self.0.map(|inner| inner.server_timeout(timeout)))
    }
}

/// A lock that a majority of servers has granted, see [`crate::QuorumGuard`].
#[derive(Debug)]
#[must_use = "a guard that is dropped releases the lock"]
pub struct QuorumGuard(Kept<crate::QuorumGuard>);

impl QuorumGuard {
    holding!(crate::QuorumGuard, "crate::QuorumGuard");

    /// See [`crate::QuorumGuard::token`].
    pub fn token(&self) -> u64 {
        self.0.inner.token()
    }
}
