//! Handles to locks.

use std::time::Duration;

use crate::Error;
#[cfg(feature = "multi-lock")]
use crate::blocking::client::Client;
use crate::blocking::driver::On;
use crate::blocking::guards::Guard;
#[cfg(feature = "multi-lock")]
use crate::blocking::guards::MultiGuard;
use crate::blocking::same::{acquiring, all_options, options, waits};
use crate::guard::Detached;
use crate::kinds::{Fair, Kind, Permits, Read, Write};

/// A lock on one key, see [`crate::Lock`].
#[derive(Clone, Debug)]
pub struct Lock<K>(pub(super) On<crate::Lock<K>>);

impl<K: Kind> Lock<K> {
    all_options!();
    acquiring!(Guard<K>, "crate::Lock");

    /// See [`crate::Lock::attach`].
    ///
    /// # Errors
    ///
    /// As the asynchronous method.
    pub fn attach(&self, hold: &Detached) -> Result<Guard<K>, Error> {
        Ok(Guard::over(&self.0.driver, self.0.driver.wait(self.0.inner.attach(hold))?))
    }
}

impl Lock<Fair> {
    options! { "crate::Lock" grace(grace: Duration); }
}

impl Lock<Permits> {
    options! { "crate::Lock" permits(permits: u32); }
}

/// A lock for many readers or one writer, see [`crate::RwLock`].
#[derive(Clone, Debug)]
pub struct RwLock(pub(super) On<crate::RwLock>);

impl RwLock {
    /// The readers' lock.
    pub fn read(&self) -> Lock<Read> {
        Lock(self.0.driver.with(self.0.inner.read()))
    }

    /// The writer's lock.
    pub fn write(&self) -> Lock<Write> {
        Lock(self.0.driver.with(self.0.inner.write()))
    }
}

/// A semaphore, see [`crate::Semaphore`].
#[derive(Clone, Debug)]
pub struct Semaphore(pub(super) On<crate::Semaphore>);

impl Semaphore {
    waits! { "crate::Semaphore"
        init(permits: u32) -> bool;
        init_with_idle(permits: u32, idle: Duration) -> bool;
        resize(permits: u32) -> i64;
    }
    #[cfg(feature = "observe")]
    waits! { "crate::Semaphore" available_permits() -> Option<i64>; }

    /// See [`crate::Semaphore::permits`].
    pub fn permits(&self, permits: u32) -> Lock<Permits> {
        Lock(self.0.driver.with(self.0.inner.permits(permits)))
    }
}

/// Several keys locked together, see [`crate::MultiLock`].
#[cfg(feature = "multi-lock")]
#[derive(Clone, Debug)]
pub struct MultiLock(pub(super) On<crate::MultiLock>);

#[cfg(feature = "multi-lock")]
impl MultiLock {
    all_options!();
    acquiring!(MultiGuard, "crate::MultiLock");

    /// See [`crate::MultiLock::and`].
    #[must_use]
    pub fn and<K: AsRef<[u8]>>(self, client: &Client, keys: impl IntoIterator<Item = K>) -> Self {
        let driver = self.0.driver.clone().beside(&client.0.driver);
        Self(On { driver, ..self.0.map(|inner| inner.and(&client.0.inner, keys)) })
    }
}
