//! Semaphores: several permits under one key.

use std::time::Duration;

use crate::Error;
use crate::client::Client;
use crate::kinds::Permits;
use crate::lock::Lock;
use crate::options::check_span;
use crate::wire;

/// Several permits under one key. A semaphore exists also while no permit is held: create it once
/// with [`init`](Self::init).
///
/// Each acquisition has its own owner, unless the caller sets one with [`owner`](Lock::owner). If
/// that owner acquires the same number of permits again, this is a re-entry and takes no permits.
#[derive(Clone, Debug)]
pub struct Semaphore {
    pub(crate) client: Client,
    pub(crate) key: Vec<u8>,
}

impl Client {
    /// A semaphore.
    pub fn semaphore(&self, key: impl AsRef<[u8]>) -> Semaphore {
        Semaphore { client: self.clone(), key: key.as_ref().to_vec() }
    }
}

impl Semaphore {
    /// Creates the semaphore with this many permits. Returns false, and changes nothing, if it
    /// exists. After a lost reply the client retries; then `false` may also mean that the first
    /// copy created it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the request may or may not be executed.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with `WRONGTYPE` if the key holds something else.
    pub async fn init(&self, permits: u32) -> Result<bool, Error> {
        Ok(self.configure("INIT", permits, None).await? == 1)
    }

    /// As [`init`](Self::init), with an idle time: the server deletes the semaphore after `idle`
    /// without holders and waiters. An existing semaphore gets this idle time, which starts anew.
    /// `idle` is 0 to 365 days, rounded up to whole milliseconds; 0 removes the idle time.
    ///
    /// After the deletion acquisitions fail with [`Error::Refused`] with `NOSEMAPHORE`, until a
    /// client calls `init` again.
    ///
    /// # Cancel safety
    ///
    /// As [`init`](Self::init).
    ///
    /// # Errors
    ///
    /// As [`init`](Self::init); [`Error::Argument`] if `idle` is out of range.
    pub async fn init_with_idle(&self, permits: u32, idle: Duration) -> Result<bool, Error> {
        check_span("idle", idle, Duration::ZERO)?;
        Ok(self.configure("INIT", permits, Some(idle)).await? == 1)
    }

    /// Changes the number of permits. Returns how many are available now; negative while more are
    /// held than exist.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the request may or may not be executed.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with `NOSEMAPHORE` if there is no semaphore.
    pub async fn resize(&self, permits: u32) -> Result<i64, Error> {
        self.configure("RESIZE", permits, None).await
    }

    async fn configure(&self, verb: &str, permits: u32, idle: Option<Duration>) -> Result<i64, Error> {
        let command = wire::configure_semaphore(verb, &self.key, permits, idle);
        wire::number(&self.client.core.request(std::slice::from_ref(&self.key), &command).await?)
    }

    /// A lock that acquires this many permits at once, at least 1.
    pub fn permits(&self, permits: u32) -> Lock<Permits> {
        Lock::new(&self.client, &self.key).permits(permits)
    }
}
