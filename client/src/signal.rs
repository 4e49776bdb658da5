//! Something that happens once, and those who wait for it. Of each hold there are two, and hardly anybody waits for them, so it costs nothing
//! until somebody does.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use tokio_util::sync::CancellationToken;

#[derive(Default)]
pub(crate) struct Signal {
    is_set: AtomicBool,
    waited_for: OnceLock<CancellationToken>,
}

impl Signal {
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// It has happened.
    pub(crate) fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        // Either this sees whoever waits, or who waits sees that it is set.
        fence(Ordering::SeqCst);
        if let Some(waited_for) = self.waited_for.get() {
            waited_for.cancel();
        }
    }

    /// Resolves when it has happened.
    pub(crate) async fn wait(&self) {
        let waited_for = self.waited_for.get_or_init(CancellationToken::new);
        fence(Ordering::SeqCst);
        if !self.is_set() {
            waited_for.cancelled().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn whoever_waits_hears_of_it_whenever_it_is_set() {
        for _ in 0..2000 {
            let signal = Arc::<Signal>::default();
            let waiting = tokio::spawn({
                let signal = signal.clone();
                async move { signal.wait().await }
            });
            signal.set();
            tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it is told").expect("no panic");
            signal.wait().await;
            assert!(signal.is_set());
        }
        let signal = Signal::default();
        assert!(!signal.is_set() && tokio::time::timeout(Duration::from_millis(10), signal.wait()).await.is_err());
    }
}
