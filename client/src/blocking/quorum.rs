//! Locks on several independent servers.

use std::time::Duration;

use crate::Error;
use crate::blocking::driver::{Driver, On};
use crate::blocking::guards::QuorumGuard;
use crate::blocking::same::{acquiring, all_options, options, waits};

/// Independent primaries, see [`crate::Quorum`].
#[derive(Clone, Debug)]
pub struct Quorum(On<crate::Quorum>);

impl Quorum {
    /// See [`crate::Quorum::connect`].
    ///
    /// # Errors
    ///
    /// As the asynchronous method.
    pub fn connect(options: &crate::Builder, urls: &[&str]) -> Result<Self, Error> {
        let driver = Driver::start()?;
        let quorum = driver.wait(async { crate::Quorum::connect(options, urls) })?;
        Ok(Self(driver.with(quorum)))
    }

    waits! { "crate::Quorum" close() -> (); }

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
    /// The readers' lock.
    pub fn read(&self) -> QuorumLock {
        QuorumLock(self.0.driver.with(self.0.inner.read()))
    }

    /// The writer's lock.
    pub fn write(&self) -> QuorumLock {
        QuorumLock(self.0.driver.with(self.0.inner.write()))
    }
}

/// A lock on a [`Quorum`], see [`crate::QuorumLock`].
#[derive(Clone, Debug)]
pub struct QuorumLock(On<crate::QuorumLock>);

impl QuorumLock {
    all_options!();
    acquiring!(QuorumGuard, "crate::QuorumLock");

    options! { "crate::QuorumLock" server_timeout(timeout: Duration); }
}
