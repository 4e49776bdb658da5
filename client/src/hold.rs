//! A hold and its keeper: the task that renews it, notices its loss, and is gone with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::clock::{Moment, sleep_until};
use crate::identity::next_request_id;
use crate::link::Link;
use crate::request::{Grant, Request};
use crate::validity::{Step, Terms, Validity};
use crate::wire;

/// What RENEW is asked for.
#[derive(Clone, Copy, Debug)]
enum Renewal {
    /// A new lease.
    Lease(Duration),
    /// To bind the hold to the connection, and to let it live for so long, which is less than it should live anyway.
    Binding(Duration),
}

/// What an owner has been granted, as far as this side knows.
pub(crate) struct Hold {
    pub(crate) request: Arc<Request>,
    pub(crate) tokens: Vec<u64>,
    /// The id of the request that was granted.
    request_id: u64,
    terms: Terms,
    state: Mutex<State>,
    /// Set when the hold can no longer be relied upon, for whatever reason.
    lost: CancellationToken,
    /// Held while a renewal is under way; true once the hold is being released. So no renewal follows a release.
    is_ending: tokio::sync::Mutex<bool>,
}

struct State {
    validity: Validity,
    /// The connection that the hold is bound to.
    link: Arc<Link>,
}

impl Hold {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the hold can be relied upon at this moment. Reads the clock, so it is right also after a suspend.
    pub(crate) fn is_held(&self) -> bool {
        if self.lost.is_cancelled() {
            return false;
        }
        let is_held = Moment::now() < self.ends();
        if !is_held {
            self.lose();
        }
        is_held
    }

    /// For how long from now it may be held, and whether it renews itself.
    pub(crate) fn limits(&self) -> (Option<Duration>, bool) {
        (self.terms.ends_at.map(|end| Moment::now().until(end)), self.terms.renews)
    }

    /// When it can no longer be relied upon if nothing happens.
    pub(crate) fn ends(&self) -> Moment {
        let state = self.state();
        state.validity.ends(&self.terms, state.link.is_closed())
    }

    fn lose(&self) {
        if !self.lost.is_cancelled() {
            tracing::warn!(key = %self.key(), token = self.tokens.first(), "a lock was lost");
            self.lost.cancel();
        }
    }

    /// The first key, for a person to read.
    fn key(&self) -> String {
        self.request.subject.keys.first().map(|key| String::from_utf8_lossy(key).into_owned()).unwrap_or_default()
    }

    /// Resolves when the hold can no longer be relied upon.
    pub(crate) async fn lost(self: Arc<Self>) {
        let mut told = std::pin::pin!(self.lost.cancelled());
        // Each look at this future looks at the clock: after a stop of the process no timer has gone off yet.
        std::future::poll_fn(|context| match told.as_mut().poll(context) {
            std::task::Poll::Pending if self.is_held() => std::task::Poll::Pending,
            _ => std::task::Poll::Ready(()),
        })
        .await;
    }

    /// Renews once, trying until `give_up`. Not held means lost.
    ///
    /// Cancel safety: when dropped, the renewal may or may not take place.
    async fn renew(&self, renewal: Renewal, give_up: Moment) -> Result<(), Error> {
        let is_ending = self.is_ending.lock().await;
        if *is_ending {
            return Err(Error::NotHeld);
        }
        let outcome = self.ask_to_renew(renewal, give_up).await;
        match &outcome {
            Ok(()) => {}
            Err(Error::NotHeld) => self.lose(),
            Err(error) => {
                tracing::warn!(key = %self.key(), %error, "a renewal failed");
                self.state().validity.renewal_failed(Moment::now());
            }
        }
        outcome
    }

    async fn ask_to_renew(&self, renewal: Renewal, give_up: Moment) -> Result<(), Error> {
        let (Renewal::Lease(lease) | Renewal::Binding(lease)) = renewal;
        let answered = self.request.call(&self.request.subject.renew(lease), give_up).await?;
        let left = wire::milliseconds(&answered.said.map_err(|error| Error::from_answer(&error))?)?;
        let mut state = self.state();
        match renewal {
            Renewal::Lease(_) => state.validity.renewed(answered.sent, left),
            Renewal::Binding(_) => state.validity.bound(answered.sent, left),
        }
        state.link = answered.link;
        Ok(())
    }

    /// Renews by hand: with the lease of the hold, or another one. A hold that was lost stays lost: somebody may have heard of it.
    pub(crate) async fn renew_by_hand(&self, lease: Option<Duration>) -> Result<(), Error> {
        if !self.is_held() {
            return Err(Error::NotHeld);
        }
        let now = Moment::now();
        let most = self.terms.lease_to_ask(now).ok_or(Error::NotHeld)?;
        let lease = match (lease, self.terms.ends_at) {
            (Some(lease), Some(end)) => lease.min(now.until(end)),
            (Some(lease), None) => lease,
            (None, _) => most,
        };
        let give_up = self.ends().min(now.after(self.request.client.settings.retry_for));
        self.renew(Renewal::Lease(lease), give_up).await
    }

    /// A hold whose lease counts from so long ago that little of it is left is renewed before anybody has it.
    pub(crate) async fn freshen(&self) -> Result<(), Error> {
        let state_is_old = {
            let state = self.state();
            let is_closed = state.link.is_closed();
            !matches!(
                state.validity.next_step(&self.terms.renewing(), is_closed, Moment::now()),
                Step::Sleep(_) | Step::Bind(_)
            )
        };
        if !state_is_old {
            return Ok(());
        }
        let now = Moment::now();
        let lease = self.terms.lease_to_ask(now).ok_or(Error::NotHeld)?;
        self.renew(Renewal::Lease(lease), now.after(self.request.client.settings.retry_for)).await
    }

    /// Waits for replicas to have it.
    pub(crate) async fn replicate(&self, wanted: u32, patience: Duration) -> Result<(), Error> {
        let acknowledged = self.request.replicate(self.request_id, wanted, patience).await?;
        if acknowledged >= wanted { Ok(()) } else { Err(Error::Replicas { wanted, acknowledged }) }
    }

    /// Renews while the hold lives. An error says that it is gone.
    async fn renew_in_time(&self, renewal: Renewal, ends: Moment) -> Result<(), Error> {
        tokio::select! {
            outcome = self.renew(renewal, ends) => match outcome {
                Err(Error::NotHeld) => Err(Error::NotHeld),
                _ => Ok(()),
            },
            () = sleep_until(ends) => Ok(()),
        }
    }

    /// The keeper.
    async fn keep(self: Arc<Self>) {
        loop {
            let now = Moment::now();
            let (step, ends, link) = {
                let state = self.state();
                let is_closed = state.link.is_closed();
                (
                    state.validity.next_step(&self.terms, is_closed, now),
                    state.validity.ends(&self.terms, is_closed),
                    state.link.clone(),
                )
            };
            // Whatever it does, it is back when the hold ends.
            match step {
                Step::Lose => return self.lose(),
                Step::Renew => {
                    let lease = self.terms.lease_to_ask(now).unwrap_or(self.terms.lease);
                    if self.renew_in_time(Renewal::Lease(lease), ends).await.is_err() {
                        return;
                    }
                }
                // An answer to anything else would not do: the connection may be open, and the lock have moved to another server, for
                // which the session is closed.
                Step::Bind(lease) => {
                    if self.renew_in_time(Renewal::Binding(lease), ends).await.is_err() {
                        return;
                    }
                }
                Step::Sleep(until) => {
                    let is_bound = self.terms.session_grace.is_some() && !link.is_closed();
                    tokio::select! {
                        () = sleep_until(until) => {}
                        () = link.closed(), if is_bound => {}
                    }
                }
            }
        }
    }
}

/// A hold that somebody is responsible for. Dropping it releases in the background.
pub(crate) struct Held {
    pub(crate) hold: Arc<Hold>,
    keeper: AbortHandle,
    ending: Ending,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("key", &self.hold.key()).field("tokens", &self.hold.tokens).finish_non_exhaustive()
    }
}

/// How far a release has come.
enum Ending {
    NotBegun,
    /// Sent with this id, and not answered yet.
    Begun(u64, OwnedMutexGuard<()>),
    Done,
}

impl Held {
    /// Takes responsibility for a grant.
    pub(crate) fn new(request: Arc<Request>, grant: Grant, max_hold: Option<Duration>, renews: bool) -> Self {
        let Grant { tokens, counts_from, lease, link, request_id } = grant;
        let ends_at = max_hold.map(|most| counts_from.after(most));
        let terms = Terms { lease: request.lease, session_grace: request.session_grace, renews, ends_at };
        let state = Mutex::new(State { validity: Validity::given(counts_from, lease), link });
        let (lost, is_ending) = (CancellationToken::new(), tokio::sync::Mutex::new(false));
        let hold = Arc::new(Hold { request, tokens, request_id, terms, state, lost, is_ending });
        let keeper = hold.request.client.runtime.spawn(hold.clone().keep()).abort_handle();
        Self { hold, keeper, ending: Ending::NotBegun }
    }

    /// Gives the hold back.
    ///
    /// Cancel safety: dropping it leaves the rest to the background.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        // A renewal that is under way ends here; one that was sent already comes before the release on the same connection.
        self.keeper.abort();
        self.hold.lost.cancel();
        let gate = self.hold.request.gate.clone().lock_owned().await;
        let request_id = next_request_id();
        self.ending = Ending::Begun(request_id, gate);
        let give_up = Moment::now().after(self.hold.request.client.settings.retry_for);
        let outcome = self.hold.end(request_id, give_up).await;
        self.ending = Ending::Done;
        outcome
    }
}

impl Hold {
    async fn end(&self, request_id: u64, give_up: Moment) -> Result<(), Error> {
        *self.is_ending.lock().await = true;
        self.request.release(request_id, give_up).await
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keeper.abort();
        let ending = std::mem::replace(&mut self.ending, Ending::Done);
        if matches!(ending, Ending::Done) {
            return;
        }
        self.hold.lost.cancel();
        let hold = self.hold.clone();
        self.hold.request.client.in_background(async move {
            let (request_id, _gate) = match ending {
                Ending::Begun(request_id, gate) => (request_id, gate),
                _ => {
                    let gate = hold.request.gate.clone().lock_owned().await;
                    (next_request_id(), gate)
                }
            };
            if let Err(error) = hold.end(request_id, hold.request.end_of_efforts()).await {
                tracing::debug!(key = %hold.key(), %error, "a dropped lock was not released");
            }
        });
    }
}
