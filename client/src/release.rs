//! Releases a hold. A release whose caller is dropped goes on in the background.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::Value;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::Error;
use crate::clock::Moment;
use crate::core::Pauses;
use crate::identity::next_id;
use crate::owners::{self, Desks, Turn};
use crate::request::Request;
use crate::transport::Link;
use crate::wire::{self, Family, Subject};

/// What to release, and how long to try.
#[derive(Clone)]
pub(crate) struct Release {
    /// While it lives, later requests of a named owner find it, and wait for this release.
    pub(crate) _hold: Arc<dyn Any + Send + Sync>,
    pub(crate) request: Arc<Request>,
    pub(crate) tokens: Arc<[u64]>,
    /// The desks of a named owner.
    pub(crate) desks: Option<Desks>,
    /// The connection of the hold's session: closing it before the release would end the hold.
    pub(crate) _kept: Option<Arc<Link>>,
    /// How long the lock stays closed afterwards.
    pub(crate) keep: Option<Duration>,
    /// Before this moment, only an earlier copy of the RELEASE, if there was one, can have ended
    /// the hold.
    pub(crate) relied_until: Moment,
    pub(crate) until: Moment,
    /// Cancelled when the release is over, whether it succeeded or not.
    pub(crate) done: CancellationToken,
}

impl Release {
    /// One of several keys refuses the command for all of them, because it is not a lock, or
    /// forbidden. Releases the others.
    async fn release_each(&self) {
        let Self { request, tokens, .. } = self;
        let within = request.core.common.command_timeout;
        for (key, token) in request.subject.keys.iter().zip(tokens.iter()) {
            let subject = Subject { keys: Arc::from([key.clone()]), ..request.subject.clone() };
            drop(request.core.insist(request.slot, &subject.release(&[*token], 0, None), within, within).await);
        }
    }
}

/// A release in progress. If it is dropped, it goes on in the background.
pub(crate) struct Releasing {
    release: Release,
    /// Assigned when its turn comes, if it needs one.
    id: Option<u64>,
    /// Resolves when it is its turn among the requests of a named owner.
    awaited: Option<BoxFuture<'static, Turn>>,
    turn: Turn,
    is_repeated: bool,
    is_in_background: bool,
    /// `None` when the release is over.
    token: Option<TaskTrackerToken>,
}

impl Releasing {
    /// Takes a place in the queue of requests of a named owner.
    pub(crate) fn new(release: Release) -> Self {
        let awaited = release.desks.clone().map(owners::turn_from_now_on);
        let token = Some(release.request.core.token());
        Self { release, id: None, awaited, turn: Turn::new(), is_repeated: false, is_in_background: false, token }
    }

    pub(crate) async fn run(&mut self) -> Result<(), Error> {
        if let Some(awaited) = &mut self.awaited {
            self.turn = awaited.await;
            self.awaited = None;
        }
        let ended = self.release.request.core.common.ended.clone();
        // Not `run_until_cancelled`, whose future contains the other one twice.
        let outcome = tokio::select! {
            biased;
            () = ended.cancelled() => Err(Error::Closed),
            outcome = self.ask() => outcome,
        };
        self.turn.clear();
        self.token = None;
        self.release.done.cancel();
        let request = &self.release.request;
        request.core.meter.count(|metrics| metrics.released(request.subject.first_key(), outcome.as_ref().err()));
        outcome
    }

    async fn ask(&mut self) -> Result<(), Error> {
        let request = self.release.request.clone();
        // A repeat finds no hold with this token, unless other requests count in the same hold.
        let is_counted = request.options.is_owner_shared || request.subject.family == Family::Semaphore;
        let id = is_counted.then(|| *self.id.get_or_insert_with(next_id));
        let keep_ms = self.release.keep.map_or(0, wire::ms);
        let release = request.subject.release(&self.release.tokens, keep_ms, id);
        let mut pauses = Pauses::default();
        loop {
            let left = request.core.now().until(self.release.until);
            if left.is_zero() {
                return Err(Error::unavailable("no answer to the release before the lease ended"));
            }
            let reply = request.ask(&release, left).await;
            // An earlier copy may have released it, and all of several keys.
            let is_done = self.is_repeated && request.core.now() < self.release.relied_until;
            let error = match reply.said {
                Ok(Value::Array(left)) if left.contains(&Value::Nil) => {
                    let has_none = left.iter().all(|left| *left == Value::Nil);
                    return if is_done && has_none { Ok(()) } else { Err(Error::Lost) };
                }
                Ok(_) => return Ok(()),
                Err(Error::Lost) if is_done => return Ok(()),
                Err(error) => error,
            };
            if !error.is_retryable() && request.subject.is_many() {
                self.release.release_each().await;
            }
            if error.ends_a_hold() {
                return Err(Error::Lost);
            }
            if error.code() == "ERR" && self.release.keep.take().is_some() {
                // Another client holds the lock for the same shared owner, so only this client's
                // count remains to be released.
                self.id = None;
                return Box::pin(self.ask()).await.and(Err(error));
            }
            if !error.is_retryable() {
                // A newer request of this owner has the hold.
                return if error.code() == "STALE" { Ok(()) } else { Err(error) };
            }
            self.is_repeated |= error.is_lost_reply() && reply.link.is_some();
            sleep(pauses.next().min(left)).await;
        }
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        let Some(token) = self.token.take() else { return };
        if self.is_in_background {
            // The runtime has stopped.
            self.release.done.cancel();
            return;
        }
        let mut rest = Self {
            release: self.release.clone(),
            awaited: self.awaited.take(),
            turn: std::mem::take(&mut self.turn),
            is_in_background: true,
            token: Some(token),
            ..*self
        };
        drop(self.release.request.core.common.home.spawn(async move {
            match rest.run().await {
                Ok(()) => {}
                Err(Error::Lost) => tracing::debug!(key = %rest.release.request.key(), "the lock of a dropped guard was no longer held"),
                Err(error) => {
                    tracing::warn!(key = %rest.release.request.key(), %error, "could not release a lock; its lease ends the hold");
                }
            }
        }));
    }
}
