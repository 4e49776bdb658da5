//! Metrics: one method for each kind of event.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::Error;

/// Receives the events of a client's locks, see [`Builder::metrics`](crate::Builder::metrics). By
/// default each method does nothing.
///
/// The client calls these methods inline, so they must be quick and must not block. A panic is
/// caught and logged. If several keys are acquired in one step, `key` is the first.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::time::Duration;
///
/// #[derive(Default)]
/// struct Losses(AtomicU64);
///
/// impl rlock_client::Metrics for Losses {
///     fn lost(&self, _key: &[u8]) {
///         self.0.fetch_add(1, Ordering::Relaxed);
///     }
/// }
///
/// let losses = std::sync::Arc::new(Losses::default());
/// let builder = rlock_client::Client::builder().metrics(losses.clone());
/// ```
pub trait Metrics: Send + Sync {
    /// The lock was granted; the acquisition took `after`.
    fn acquired(&self, key: &[u8], after: Duration) {
        let _ = (key, after);
    }

    /// The lock was not free, and the caller did not wait.
    fn refused(&self, key: &[u8]) {
        let _ = key;
    }

    /// The acquisition failed; it took `after`.
    fn failed(&self, key: &[u8], error: &Error, after: Duration) {
        let _ = (key, error, after);
    }

    /// A renewal failed. The hold is still valid; if it is not renewed in time,
    /// [`lost`](Self::lost) follows.
    fn renewal_failed(&self, key: &[u8], error: &Error) {
        let _ = (key, error);
    }

    /// A hold ended before its release.
    fn lost(&self, key: &[u8]) {
        let _ = key;
    }

    /// A release is over, also that of a dropped guard. `error` is set if it failed.
    fn released(&self, key: &[u8], error: Option<&Error>) {
        let _ = (key, error);
    }
}

struct Uncounted;

impl Metrics for Uncounted {}

#[derive(Clone)]
pub(crate) struct Meter(pub(crate) Arc<dyn Metrics>);

impl Meter {
    /// A panic of the application's metrics must not stop the client's tasks.
    pub(crate) fn count(&self, event: impl FnOnce(&dyn Metrics)) {
        if catch_unwind(AssertUnwindSafe(|| event(&*self.0))).is_err() {
            tracing::error!("the application's metrics panicked");
        }
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self(Arc::new(Uncounted))
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meter")
    }
}
