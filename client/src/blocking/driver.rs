//! The runtime of a blocking client, and how a thread waits for what runs on it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::{self, Handle, Runtime};
use tokio_util::sync::CancellationToken;

use crate::Error;

/// Ends the waits of threads: those of all handles to which it was [given](crate::blocking::Lock::interrupted_by), now and from now on.
/// Clones are the same one.
///
/// ```no_run
/// # fn example(client: rlock_client::blocking::Client) {
/// let interrupt = rlock_client::blocking::Interrupt::new();
/// let lock = client.lock("orders:42").interrupted_by(&interrupt);
/// let waiting = std::thread::spawn(move || lock.acquire());
/// interrupt.interrupt();
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Interrupt(CancellationToken);

impl Interrupt {
    /// One that has not been used yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the waits.
    pub fn interrupt(&self) {
        self.0.cancel();
    }

    /// Whether it has been used.
    pub fn is_interrupted(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// The runtime of a client, shared by its handles and guards.
#[derive(Clone, Debug)]
pub(super) struct Driver {
    runtime: Arc<Owned>,
    /// Runtimes of other clients, on which a part of the same is driven.
    others: Vec<Arc<Owned>>,
}

#[derive(Debug)]
struct Owned {
    owned: Option<Runtime>,
    /// Whether the last release that a drop has waited for was not answered in time.
    is_silent: AtomicBool,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // The last guard may be dropped anywhere, also where blocking is not allowed.
        if let Some(runtime) = self.owned.take() {
            runtime.shutdown_background();
        }
    }
}

impl Driver {
    pub(super) fn start() -> Result<Self, Error> {
        let runtime =
            runtime::Builder::new_multi_thread().worker_threads(1).thread_name("rlock-client").enable_all().build();
        let runtime = runtime.map_err(|cause| Error::unavailable(format!("no runtime: {cause}")))?;
        Ok(Self {
            runtime: Arc::new(Owned { owned: Some(runtime), is_silent: AtomicBool::new(false) }),
            others: Vec::new(),
        })
    }

    pub(super) fn wait<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.runtime.owned.as_ref().map_or(Err(Error::Closed), |runtime| runtime.block_on(work))
    }

    /// Waits, unless that is interrupted.
    pub(super) fn wait_unless<T>(
        &self,
        interrupt: Option<&Interrupt>,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Some(Interrupt(interrupt)) = interrupt else { return self.wait(work) };
        self.wait(async {
            tokio::select! {
                biased;
                () = interrupt.cancelled() => Err(Error::Interrupted),
                done = work => done,
            }
        })
    }

    /// The same for what another client has a part in: its runtime lives for as long, too.
    pub(super) fn beside(mut self, other: &Self) -> Self {
        self.others.push(other.runtime.clone());
        self.others.extend_from_slice(&other.others);
        self
    }

    pub(super) fn with<T>(&self, inner: T) -> On<T> {
        On { inner, driver: self.clone(), interrupt: None }
    }
}

/// Something of the asynchronous side, with the runtime that drives it.
#[derive(Clone, Debug)]
pub(super) struct On<T> {
    // Before the driver, so that a guard's release is begun before the last driver goes.
    pub(super) inner: T,
    pub(super) driver: Driver,
    /// What ends its waits.
    pub(super) interrupt: Option<Interrupt>,
}

impl<T> On<T> {
    pub(super) fn map(self, change: impl FnOnce(T) -> T) -> Self {
        Self { inner: change(self.inner), ..self }
    }

    pub(super) fn wait<R>(&self, work: impl Future<Output = Result<R, Error>>) -> Result<R, Error> {
        self.driver.wait_unless(self.interrupt.as_ref(), work)
    }
}

/// How long the drop of a guard waits for the release.
const LONGEST_RELEASE: Duration = Duration::from_secs(5);

/// A guard of the asynchronous side. When it is dropped, it has released: the process may end right after that.
pub(super) struct Kept<G> {
    // Dropped in this order: the release is begun, it is waited for, and then perhaps the runtime ends.
    pub(super) inner: G,
    pub(super) release: Release,
    pub(super) driver: Driver,
}

impl<G> Kept<G> {
    pub(super) fn new(driver: &Driver, inner: G, released: impl Future<Output = ()> + Send + Sync + 'static) -> Self {
        let release = Release { end: Box::pin(released), driver: driver.clone() };
        Self { inner, release, driver: driver.clone() }
    }

    /// Ends it by hand.
    pub(super) fn end<F>(self, end: impl FnOnce(G) -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>>,
    {
        let Self { inner, release, driver } = self;
        let outcome = driver.wait(end(inner));
        drop(release);
        outcome
    }
}

impl<G: std::fmt::Debug> std::fmt::Debug for Kept<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

/// Waits when it is dropped, unless that is in an asynchronous task, where nothing may block.
pub(super) struct Release {
    end: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    driver: Driver,
}

impl Drop for Release {
    fn drop(&mut self) {
        let may_block = Handle::try_current().is_err_and(|error| error.is_missing_context());
        let Some(runtime) = self.driver.runtime.owned.as_ref().filter(|_| may_block) else { return };
        // Guards that are dropped together wait together: behind one whose server was silent the others do not wait once more.
        let silent = &self.driver.runtime.is_silent;
        let patience = if silent.load(Ordering::Relaxed) { Duration::ZERO } else { LONGEST_RELEASE };
        let end = self.end.as_mut();
        let is_released = runtime.block_on(async { tokio::time::timeout(patience, end).await.is_ok() });
        silent.store(!is_released, Ordering::Relaxed);
    }
}
