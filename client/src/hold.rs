//! A hold and its keeper: the task that renews it, notices its loss, and is gone with it.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::clock::Moment;
use crate::link::Link;
use crate::news::News;
use crate::request::{Grant, Request};
use crate::timer::{sleep_until, within};
use crate::validity::{Step, Terms, Validity, patience_for, renewal_after};
use crate::wire;

/// Whether its key was taken away is listened to when a hold has lived so long.
const LISTENS_AFTER: Duration = Duration::from_secs(1);

/// A renewal for so long prolongs nothing: the end of a lease does not come nearer.
const SHORTEST_LEASE: Duration = Duration::from_millis(1);

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
    /// Whether somebody has told of the loss.
    is_told_of: AtomicBool,
    /// Set when its release has come to an end, whichever.
    ended: CancellationToken,
    /// How many permits it has, or 1.
    permits: AtomicU32,
    /// The id of its release, once that has begun.
    release_id: AtomicU64,
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

    /// How much of its longest time is left, if it has one.
    pub(crate) fn rest(&self) -> Option<Duration> {
        self.terms.ends_at.map(|end| Moment::now().until(end))
    }

    /// When it can no longer be relied upon if nothing happens.
    pub(crate) fn ends(&self) -> Moment {
        let state = self.state();
        state.validity.ends(&self.terms, state.link.is_closed() || self.request.client.home.has_ended())
    }

    /// Whether it can be relied upon, and something is wrong all the same.
    pub(crate) fn is_suspected(&self) -> bool {
        let is_in_doubt = {
            let state = self.state();
            state.link.is_closed() || state.validity.has_failed()
        };
        is_in_doubt && self.is_held()
    }

    fn lose(&self) {
        if !self.lost.is_cancelled() && !self.is_told_of.swap(true, Ordering::Relaxed) {
            tracing::warn!(key = %self.key(), token = self.tokens.first(), "a lock was lost");
            self.lost.cancel();
            self.request.client.metrics().lost(self.request.subject.first_key());
        }
    }

    /// The first key, for a person to read.
    fn key(&self) -> String {
        String::from_utf8_lossy(self.request.subject.first_key()).into_owned()
    }

    /// Resolves when the hold can no longer be relied upon. It needs no keeper for that, and no runtime: it wakes by the clock when the hold
    /// ends, as far as was known when it was last looked at.
    pub(crate) async fn lost(self: Arc<Self>) {
        let mut told = std::pin::pin!(self.lost.cancelled());
        let mut over = sleep_until(self.ends());
        // Each look at this future looks at the clock: after a stop of the process no timer has gone off yet.
        std::future::poll_fn(|context| {
            if told.as_mut().poll(context).is_ready() || !self.is_held() {
                return Poll::Ready(());
            }
            while Pin::new(&mut over).poll(context).is_ready() {
                // It was renewed meanwhile, or is over.
                if !self.is_held() {
                    return Poll::Ready(());
                }
                over = sleep_until(self.ends());
            }
            Poll::Pending
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
                self.request.client.metrics().renewal_failed(self.request.subject.first_key(), error);
            }
        }
        outcome
    }

    async fn ask_to_renew(&self, renewal: Renewal, give_up: Moment) -> Result<(), Error> {
        let (Renewal::Lease(lease) | Renewal::Binding(lease)) = renewal;
        let patience = patience_for(Moment::now().until(self.ends()));
        let command = self.request.subject.renew(&self.tokens, lease);
        let answered = self.request.call_within(&command, patience, give_up).await?;
        let left = wire::milliseconds(&answered.said.map_err(|error| Error::of_hold(&error))?)?;
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

    /// Waits for replicas to have it, if that is asked for.
    pub(crate) async fn replicate(&self) -> Result<(), Error> {
        let Some((wanted, patience)) = self.request.keeping.replicas else { return Ok(()) };
        let acknowledged = self.request.replicate(self.request_id, wanted, patience).await?;
        if acknowledged >= wanted { Ok(()) } else { Err(Error::Replicas { wanted, acknowledged }) }
    }

    /// Renews while the hold lives. An error says that it is gone.
    async fn renew_in_time(&self, renewal: Renewal, ends: Moment) -> Result<(), Error> {
        match within(Moment::now().until(ends), self.renew(renewal, ends)).await {
            Some(Err(Error::NotHeld)) => Err(Error::NotHeld),
            _ => Ok(()),
        }
    }

    /// The keeper.
    async fn keep(self: Arc<Self>) {
        // A hold that is released soon is not listened to.
        let listen_at = Moment::now().after(LISTENS_AFTER);
        let mut news: Option<News> = None;
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
            let renewal = match step {
                Step::Lose => return self.lose(),
                Step::Renew => Renewal::Lease(self.terms.lease_to_ask(now).unwrap_or(self.terms.lease)),
                // An answer to anything else would not do: the connection may be open, and the lock have moved to another server, for
                // which the session is closed.
                Step::Bind(lease) => Renewal::Binding(lease),
                Step::Sleep(until) => {
                    let may_listen = !news.as_ref().is_some_and(|news| news.come_over(&link));
                    if may_listen && now >= listen_at {
                        // A connection that is silent does not hold a renewal up.
                        news = within(now.until(until), News::of(&self.request, link)).await;
                        continue;
                    }
                    let until = if may_listen { until.min(listen_at) } else { until };
                    let is_bound = self.terms.session_grace.is_some() && !link.is_closed();
                    tokio::select! {
                        () = sleep_until(until) => continue,
                        () = link.closed(), if is_bound => continue,
                        // Something has happened to the key: a renewal that does not prolong tells what.
                        () = News::come(&mut news) => Renewal::Binding(SHORTEST_LEASE),
                    }
                }
            };
            if self.renew_in_time(renewal, ends).await.is_err() {
                return;
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
    /// Sent with the present id, and not answered yet.
    Begun(OwnedMutexGuard<()>),
    Done,
}

impl Held {
    /// Takes responsibility for a grant.
    ///
    /// Errors: without a runtime nobody would renew it. Its lease ends it.
    pub(crate) fn new(request: Arc<Request>, grant: Grant) -> Result<Self, Error> {
        let Grant { tokens, counts_from, lease, link, request_id } = grant;
        let terms = Terms {
            lease: request.lease,
            renewal_after: renewal_after(request.lease, rand::random()),
            session_grace: request.session_grace,
            renews: request.keeping.renews,
            ends_at: request.keeping.max_hold.map(|most| counts_from.after(most)),
        };
        let state = Mutex::new(State { validity: Validity::given(counts_from, lease), link });
        let (lost, ended, is_ending) =
            (CancellationToken::new(), CancellationToken::new(), tokio::sync::Mutex::new(false));
        let release_id = AtomicU64::default();
        let permits = AtomicU32::new(request.subject.permits);
        let hold = Arc::new(Hold {
            request,
            tokens,
            request_id,
            terms,
            state,
            lost,
            is_told_of: AtomicBool::new(false),
            ended,
            is_ending,
            permits,
            release_id,
        });
        let home = &hold.request.client.home;
        let keeper = home.start(hold.clone().keep()).abort_handle();
        if home.has_ended() { Err(Error::RuntimeEnded) } else { Ok(Self { hold, keeper, ending: Ending::NotBegun }) }
    }

    /// Gives the hold back.
    ///
    /// Cancel safety: dropping it leaves the rest to the background.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        // A renewal that is under way ends here; one that was sent already comes before the release on the same connection.
        self.keeper.abort();
        let relied_on_until = self.hold.stop_relying();
        let gate = self.hold.request.gate.pass().await;
        self.hold.choose_release_id();
        self.ending = Ending::Begun(gate);
        let give_up = Moment::now().after(self.hold.request.client.settings.retry_for);
        let outcome = self.hold.end(relied_on_until, give_up).await;
        self.ending = Ending::Done;
        outcome
    }

    /// Gives the hold up without releasing it: it lives until its lease ends.
    pub(crate) fn leave(mut self) {
        self.ending = Ending::Done;
        self.hold.lost.cancel();
        self.hold.ended.cancel();
    }
}

impl Hold {
    /// From now on it is not relied upon. Returns until when it was: only so long a release that was lost can have been what ended it.
    fn stop_relying(&self) -> Moment {
        let ends = if self.is_held() { self.ends() } else { Moment::now() };
        self.lost.cancel();
        ends
    }

    fn choose_release_id(&self) {
        self.release_id.store(self.request.gate.next_id(), Ordering::Relaxed);
    }

    async fn end(&self, relied_on_until: Moment, give_up: Moment) -> Result<(), Error> {
        *self.is_ending.lock().await = true;
        let permits = self.permits();
        let outcome = self.request.release(&self.tokens, permits, &self.release_id, relied_on_until, give_up).await;
        self.ended.cancel();
        let (metrics, key) = (self.request.client.metrics(), self.request.subject.first_key());
        metrics.released(key, outcome.as_ref().err());
        outcome
    }

    /// How many permits it has.
    pub(crate) fn permits(&self) -> u32 {
        self.permits.load(Ordering::Relaxed)
    }

    /// Gives back some of its permits, and keeps the others.
    ///
    /// Cancel safety: it must not be dropped. Then nobody would know how many there are to be released.
    pub(crate) async fn release_some(self: Arc<Self>, permits: u32) -> Result<(), Error> {
        let _gate = self.request.gate.pass().await;
        if permits == 0 || permits >= self.permits() {
            let (asked, has) = (permits, self.permits());
            return Err(Error::Argument(format!(
                "permits is {asked}, and may be 1 to less than the {has} that are held"
            )));
        }
        let request_id = AtomicU64::new(self.request.gate.next_id());
        // An earlier copy cannot have ended the hold, so one that is not held any more was lost.
        let releasing = self.request.release(&self.tokens, permits, &request_id, Moment::now(), Moment::NEVER);
        tokio::select! {
            outcome = releasing => outcome?,
            () = self.clone().lost() => return Err(Error::NotHeld),
        }
        self.permits.fetch_sub(permits, Ordering::Relaxed);
        Ok(())
    }

    /// Resolves when a release has come to an end, or nobody is left who could do it.
    pub(crate) async fn ended(self: Arc<Self>) {
        self.ended.cancelled().await;
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
        self.hold.request.client.home.in_background(async move {
            let _gate = match ending {
                Ending::Begun(gate) => gate,
                _ => {
                    let gate = hold.request.gate.pass().await;
                    hold.choose_release_id();
                    gate
                }
            };
            match hold.end(Moment::NEVER, hold.request.end_of_efforts()).await {
                Ok(()) => {}
                Err(Error::NotHeld) => tracing::debug!(key = %hold.key(), "a dropped lock was not held any more"),
                Err(error) => {
                    tracing::warn!(key = %hold.key(), %error, "a dropped lock was not released; its lease ends it");
                }
            }
        });
    }
}

/// Resolves when fewer than so many of some holds can be relied upon.
pub(crate) fn fewer_than(needed: usize, holds: &[Held]) -> impl Future<Output = ()> + Send + use<> {
    fewer_pending_than(needed, holds.iter().map(|held| Box::pin(held.hold.clone().lost())).collect())
}

/// Resolves when fewer than so many of some holds are still to be released.
pub(crate) fn fewer_unreleased_than(needed: usize, holds: &[Held]) -> impl Future<Output = ()> + Send + use<> {
    fewer_pending_than(needed, holds.iter().map(|held| Box::pin(held.hold.clone().ended())).collect())
}

async fn fewer_pending_than<F: Future<Output = ()> + Unpin>(needed: usize, mut ends: Vec<F>) {
    std::future::poll_fn(|context| {
        ends.retain_mut(|end| Pin::new(end).poll(context).is_pending());
        if ends.len() < needed { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
