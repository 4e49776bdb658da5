//! The runtime of a blocking client, and how threads wait for its tasks.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::{self, Handle, Runtime};
use tokio_util::sync::CancellationToken;

use crate::Error;

/// Interrupts waiting threads. It ends the current and all later waits of the handles that [use
/// it](crate::blocking::Lock::interrupted_by). Clones share one state.
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
    /// Creates an interrupt that is not triggered.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the waits with [`Error::Interrupted`].
    pub fn interrupt(&self) {
        self.0.cancel();
    }

    /// Whether [`interrupt`](Self::interrupt) has been called.
    pub fn is_interrupted(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// The runtime of a client, shared by its handles and guards.
#[derive(Clone, Debug)]
pub(super) struct Driver {
    runtime: Arc<Owned>,
    /// Runtimes of other clients that also drive parts of a `MultiLock`.
    #[cfg(feature = "multi-lock")]
    others: Vec<Arc<Owned>>,
}

#[derive(Debug)]
struct Owned {
    owned: Option<Runtime>,
    /// Whether the last release that a drop waited for timed out.
    is_silent: AtomicBool,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // The last guard may be dropped where blocking is not allowed.
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
            #[cfg(feature = "multi-lock")]
            others: Vec::new(),
        })
    }

    pub(super) fn wait<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.runtime.owned.as_ref().map_or(Err(Error::Closed), |runtime| runtime.block_on(work))
    }

    /// Waits for `work` or for the interrupt.
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

    /// Keeps the runtime of another client alive too.
    #[cfg(feature = "multi-lock")]
    pub(super) fn beside(mut self, other: &Self) -> Self {
        self.others.push(other.runtime.clone());
        self.others.extend_from_slice(&other.others);
        self
    }

    pub(super) fn with<T>(&self, inner: T) -> On<T> {
        On { inner, driver: self.clone(), interrupt: None }
    }
}

/// An asynchronous object with the runtime that drives it.
#[derive(Clone, Debug)]
pub(super) struct On<T> {
    // Declared before `driver`: a guard must start its release before the last driver is dropped.
    pub(super) inner: T,
    pub(super) driver: Driver,
    /// Interrupts its waits.
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

/// How long dropping a guard waits for the release.
const LONGEST_RELEASE: Duration = Duration::from_secs(5);

/// An asynchronous guard whose drop waits for the release. The process may exit right after.
pub(super) struct Kept<G> {
    // Fields are dropped in this order: start the release, wait for it, then perhaps stop the
    // runtime.
    pub(super) inner: G,
    pub(super) release: Release,
    pub(super) driver: Driver,
}

impl<G> Kept<G> {
    pub(super) fn new(driver: &Driver, inner: G, released: impl Future<Output = ()> + Send + Sync + 'static) -> Self {
        let release = Release { end: Box::pin(released), driver: driver.clone() };
        Self { inner, release, driver: driver.clone() }
    }

    /// Ends the guard by an explicit call.
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

/// Waits for the release when dropped, except inside an asynchronous task, which must not block.
pub(super) struct Release {
    end: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    driver: Driver,
}

impl Drop for Release {
    fn drop(&mut self) {
        let may_block = Handle::try_current().is_err_and(|error| error.is_missing_context());
        let Some(runtime) = self.driver.runtime.owned.as_ref().filter(|_| may_block) else { return };
        // After one release has timed out, guards dropped next do not wait for the silent server
        // again.
        let silent = &self.driver.runtime.is_silent;
        let patience = if silent.load(Ordering::Relaxed) { Duration::ZERO } else { LONGEST_RELEASE };
        let end = self.end.as_mut();
        let is_released = runtime.block_on(async { tokio::time::timeout(patience, end).await.is_ok() });
        silent.store(!is_released, Ordering::Relaxed);
    }
}
