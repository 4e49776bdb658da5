//! The runtime on which a client was made: its home. Connections, keepers and what tidies up live there, whichever runtime asks for them,
//! because another runtime may end or stand still.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::Error;
use crate::signal::Signal;
use crate::timer::within;

pub(crate) struct Home {
    runtime: Handle,
    /// A task that ends only with the runtime.
    canary: AbortHandle,
    /// What is to be done before a client has left nothing behind.
    tidying: TaskTracker,
    /// Set when the client is closed.
    closing: Signal,
}

impl Home {
    /// The runtime that this is called in.
    pub(crate) fn here() -> Self {
        let runtime = Handle::current();
        let canary = runtime.spawn(std::future::pending::<()>()).abort_handle();
        Self { runtime, canary, tidying: TaskTracker::new(), closing: Signal::default() }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.canary.is_finished()
    }

    /// Whether guards can be given here.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match () {
            () if self.has_ended() => Err(Error::RuntimeEnded),
            () if self.closing.is_set() => Err(Error::Closed),
            () => Ok(()),
        }
    }

    /// Resolves when the client is closed.
    pub(crate) async fn closing(&self) {
        self.closing.wait().await;
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Runs work here that nobody has to wait for.
    pub(crate) fn start<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(work)
    }

    /// Runs what tidies up. If the runtime has ended, the lease tidies up.
    pub(crate) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        if self.has_ended() {
            tracing::warn!("the runtime of a client has ended: what is left on the server lives until its lease ends");
        }
        drop(self.tidying.spawn_on(work, &self.runtime));
    }

    /// Runs work here to its end, also if nobody waits for it any more.
    pub(crate) async fn run_to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let (asker, answer) = oneshot::channel();
        self.in_background(async move { drop(asker.send(work.await)) });
        answer.await.unwrap_or(Err(Error::RuntimeEnded))
    }

    /// As long as this lives, something is under way that may have to be tidied up.
    pub(crate) fn under_way(&self) -> TaskTrackerToken {
        self.tidying.token()
    }

    /// Ends all waits, and waits until everything is tidied up.
    pub(crate) async fn close(&self, patience: Duration) -> Result<(), Error> {
        self.closing.set();
        self.tidying.close();
        let left = || Error::LeftBehind { requests: self.tidying.len() };
        within(patience, self.tidying.wait()).await.ok_or_else(left)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.canary.abort();
    }
}
