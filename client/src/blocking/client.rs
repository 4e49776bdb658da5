//! The blocking client: how to connect, and its handles.

use crate::Error;
use crate::blocking::driver::{Driver, On};
#[cfg(feature = "multi-lock")]
use crate::blocking::locks::MultiLock;
use crate::blocking::locks::{Lock, RwLock, Semaphore};
#[cfg(feature = "observe")]
use crate::blocking::observer::Observer;
use crate::blocking::same::waits;
use crate::kinds::{Fair, Mutex};

/// A connection to one server, a primary under Sentinel, or a cluster. See [`crate::Client`].
#[derive(Clone, Debug)]
pub struct Client(pub(super) On<crate::Client>);

impl Client {
    /// See [`crate::Client::connect`].
    ///
    /// # Errors
    ///
    /// As the asynchronous method.
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_by(|builder| async move { builder.connect(url).await })
    }

    /// Connects with the options of a [`crate::Builder`], to one server, Sentinel or a cluster.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), rlock_client::Error> {
    /// use std::time::Duration;
    ///
    /// let client = rlock_client::blocking::Client::connect_by(|builder| async move {
    ///     builder.command_timeout(Duration::from_secs(2)).connect("redis://127.0.0.1/").await
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As the method of [`crate::Builder`] that `connect` calls.
    pub fn connect_by<F>(connect: impl FnOnce(crate::Builder) -> F) -> Result<Self, Error>
    where
        F: Future<Output = Result<crate::Client, Error>>,
    {
        let driver = Driver::start()?;
        let client = driver.wait(connect(crate::Client::builder()))?;
        Ok(Self(driver.with(client)))
    }

    waits! { "crate::Client" close() -> (); }

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
    #[cfg(feature = "multi-lock")]
    pub fn multi_lock<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> MultiLock {
        MultiLock(self.0.driver.with(self.0.inner.multi_lock(keys)))
    }

    /// See [`crate::Client::observe`].
    #[cfg(feature = "observe")]
    pub fn observe(&self, key: impl AsRef<[u8]>) -> Observer {
        Observer(self.0.driver.with(self.0.inner.observe(key)))
    }
}
