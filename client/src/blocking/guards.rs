//! Guards: what a holder has in its hands.

use std::time::Duration;

use crate::Error;
use crate::blocking::driver::Kept;
use crate::blocking::same::{holding, looks, waits};
use crate::guard::Detached;
use crate::kinds::{Keepable, Kind, Permits, Read, Reentrant, Write};

/// A hold, see [`crate::Guard`]. When it is dropped it has released, or has tried to for 5 s. Dropped in an asynchronous task it
/// releases in the background.
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
    /// As there.
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
    /// As there.
    pub fn release_and_keep(self, keep: Duration) -> Result<(), Error> {
        self.0.end(|inner| inner.release_and_keep(keep))
    }
}

impl<K: Reentrant> Guard<K> {
    /// See [`crate::Guard::reenter`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn reenter(&self) -> Result<Self, Error> {
        Ok(Self::over(&self.0.driver, self.0.inner.reenter()?))
    }
}

impl Guard<Permits> {
    looks! { "crate::Guard" permits() -> u32; }
    waits! { "crate::Guard" release_some(permits: u32) -> (); }
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

/// All keys of a [`MultiLock`](crate::blocking::MultiLock), see [`crate::MultiGuard`].
#[derive(Debug)]
#[must_use = "a guard that is dropped releases the locks"]
pub struct MultiGuard(Kept<crate::MultiGuard>);

impl MultiGuard {
    holding!(crate::MultiGuard, "crate::MultiGuard");
    looks! { "crate::MultiGuard" token(key: impl AsRef<[u8]>) -> Option<u64>; }
}

/// A lock that a majority of servers has granted, see [`crate::QuorumGuard`]. When it is dropped or released, it has released on all servers that
/// have granted it, or has tried to for 5 s. What a server
/// grants later is taken back in the background: [`close`](crate::blocking::Quorum::close) waits for that. Dropped in an asynchronous task it releases in the background.
#[cfg(feature = "quorum")]
#[derive(Debug)]
#[must_use = "a guard that is dropped releases the lock"]
pub struct QuorumGuard(Kept<crate::QuorumGuard>);

#[cfg(feature = "quorum")]
impl QuorumGuard {
    holding!(crate::QuorumGuard, "crate::QuorumGuard");
    looks! { "crate::QuorumGuard" token() -> u64; }
}
