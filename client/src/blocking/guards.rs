//! Guards of the blocking client.

use std::time::Duration;

use crate::Error;
use crate::blocking::driver::Kept;
use crate::blocking::same::{holding, looks, waits};
use crate::guard::Detached;
use crate::kinds::{Keepable, Kind, Permits, Read, Reentrant, Write};

/// A held lock, see [`crate::Guard`]. Dropping it blocks until the lock is released, for at most 5
/// s. Dropped inside an asynchronous task, it does not block and releases in the background.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases the lock"]
pub struct Guard<K>(Kept<crate::Guard<K>>);

impl<K: Kind> Guard<K> {
    holding!(crate::Guard<K>, "crate::Guard");

    looks! { "crate::Guard"
        token() -> u64;
        owner() -> &[u8];
        key() -> &[u8];
        is_suspected() -> bool;
    }

    waits! { "crate::Guard" renew_for(lease: Duration) -> (); }

    /// See [`crate::Guard::detach`].
    ///
    /// # Errors
    ///
    /// As the asynchronous method.
    pub fn detach(self) -> Result<Detached, Error> {
        let Kept { inner, driver, .. } = self.0;
        driver.wait(inner.detach())
    }
}

impl<K: Keepable> Guard<K> {
    /// See [`crate::Guard::release_and_keep`].
    ///
    /// # Errors
    ///
    /// As the asynchronous method.
    pub fn release_and_keep(self, keep: Duration) -> Result<(), Error> {
        self.0.end(|inner| inner.release_and_keep(keep))
    }
}

impl<K: Reentrant> Guard<K> {
    /// See [`crate::Guard::reenter`].
    ///
    /// # Errors
    ///
    /// As the asynchronous method.
    pub fn reenter(&self) -> Result<Self, Error> {
        Ok(Self::over(&self.0.driver, self.0.inner.reenter()?))
    }
}

impl Guard<Permits> {
    looks! { "crate::Guard" permits() -> u32; }
}

impl Guard<Write> {
    /// See [`crate::Guard::downgrade`].
    ///
    /// # Errors
    ///
    /// As the asynchronous method.
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
    /// As the asynchronous method.
    pub fn upgrade(&self) -> Result<Guard<Write>, Error> {
        Ok(Guard::over(&self.0.driver, self.0.driver.wait(self.0.inner.upgrade())?))
    }

    /// See [`crate::Guard::upgrade_timeout`].
    ///
    /// # Errors
    ///
    /// As the asynchronous method.
    pub fn upgrade_timeout(&self, timeout: Duration) -> Result<Guard<Write>, Error> {
        Ok(Guard::over(&self.0.driver, self.0.driver.wait(self.0.inner.upgrade_timeout(timeout))?))
    }
}

/// All keys of a [`MultiLock`](crate::blocking::MultiLock), see [`crate::MultiGuard`].
#[cfg(feature = "multi-lock")]
#[derive(Debug)]
#[must_use = "a guard that is dropped releases the locks"]
pub struct MultiGuard(Kept<crate::MultiGuard>);

#[cfg(feature = "multi-lock")]
impl MultiGuard {
    holding!(crate::MultiGuard, "crate::MultiGuard");
    looks! { "crate::MultiGuard" token(key: impl AsRef<[u8]>) -> Option<u64>; }
}

/// A lock granted by a majority of servers, see [`crate::QuorumGuard`]. Dropping or releasing it
/// blocks until all servers that granted the lock have released it, for at most 5 s. A server that
/// grants later is released in the background; [`close`](crate::blocking::Quorum::close) waits for
/// that. Dropped inside an asynchronous task, the guard does not block and releases in the
/// background.
#[cfg(feature = "quorum")]
#[derive(Debug)]
#[must_use = "a guard that is dropped releases the lock"]
pub struct QuorumGuard(Kept<crate::QuorumGuard>);

#[cfg(feature = "quorum")]
impl QuorumGuard {
    holding!(crate::QuorumGuard, "crate::QuorumGuard");
    looks! { "crate::QuorumGuard" token() -> u64; }
}
