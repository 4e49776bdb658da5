//! What a program may count: one method for each thing that happens to its locks.

use std::sync::Arc;
use std::time::Duration;

use crate::Error;

/// Hears of what happens to the locks of a client, see [`Builder::metrics`](crate::Builder::metrics). Each method does nothing unless it is
/// written.
///
/// They are called where it happens, so they must be quick and must not block, and ask nothing of a guard: they count, or put something aside. They
/// must not panic. Of a [`MultiLock`](crate::MultiLock) each group of keys that is taken in one step is told of by its first key, of a
/// [`Quorum`](crate::Quorum) each server by itself.
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
    /// It was granted, so long after it was asked for.
    fn acquired(&self, key: &[u8], after: Duration) {
        let _ = (key, after);
    }

    /// It was not free, and nobody waited for it.
    fn refused(&self, key: &[u8]) {
        let _ = key;
    }

    /// It was not granted, after so long: [`Error::Timeout`], or something that is wrong.
    fn failed(&self, key: &[u8], error: &Error, after: Duration) {
        let _ = (key, error, after);
    }

    /// A renewal failed. The hold is not lost yet, or [`lost`](Self::lost) follows.
    fn renewal_failed(&self, key: &[u8], error: &Error) {
        let _ = (key, error);
    }

    /// A guard could not rely on its hold any more, and had not released it.
    fn lost(&self, key: &[u8]) {
        let _ = key;
    }

    /// A release has come to an end, that of a dropped guard as well; with what, if it failed.
    fn released(&self, key: &[u8], error: Option<&Error>) {
        let _ = (key, error);
    }
}

/// Nobody counts.
struct Uncounted;

impl Metrics for Uncounted {}

/// Who counts.
#[derive(Clone)]
pub(crate) struct Meter(pub(crate) Arc<dyn Metrics>);

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
