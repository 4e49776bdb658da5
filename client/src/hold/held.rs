//! Who is responsible for a hold, and its end: given back, given up, or dropped.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use redis::{ErrorKind, RedisError};

use super::{Bound, Hold, LISTENS_AFTER, State};
use crate::Error;
use crate::clock::Moment;
use crate::gate::Turn;
use crate::request::{Grant, Numbered, Request};
use crate::signal::Signal;
use crate::timer::{sleep_until, within};
use crate::validity::{Terms, Validity, renewal_after};

/// A hold that somebody is responsible for. Dropping it releases in the background.
pub(crate) struct Held {
    pub(crate) hold: Arc<Hold>,
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
    Begun(Turn),
    Done,
}

impl Held {
    /// Takes responsibility for a grant.
    ///
    /// Errors: without a runtime nobody would renew it. Its lease ends it.
    pub(crate) fn new(request: Arc<Request>, grant: Grant) -> Result<Self, Error> {
        let Grant { tokens, counts_from, lease, link } = grant;
        let ends_at = || request.keeping.max_hold.map(|most| counts_from.after(most));
        let terms = Terms {
            lease: request.lease,
            renewal_after: renewal_after(request.lease, rand::random()),
            session_grace: request.gate.session_grace,
            renews: request.keeping.renews,
            ends_at: request.keeping.ends_by.or_else(ends_at),
        };
        let validity = Validity::given(counts_from, lease);
        let bound = Bound::to(&terms, link);
        let state = Mutex::new(State { validity, bound, asked: None, is_doubted: false, listening: None });
        let (lost, ended, is_ending) = (Signal::default(), Signal::default(), tokio::sync::Mutex::new(false));
        let (place, now) = (request.client.keeper.place(), Moment::now());
        let permits = AtomicU32::new(request.subject.permits);
        let hold = Arc::new(Hold {
            request,
            tokens,
            terms,
            state,
            lost,
            is_told_of: AtomicBool::new(false),
            ended,
            is_ending,
            permits,
            release: Numbered::default(),
            place,
            listens_from: now.after(LISTENS_AFTER),
        });
        // Whoever hands out proves what is over by the time it is heard of: until then the keeper would give it up.
        if now < hold.ends() {
            hold.be_looked_at(now);
        }
        if hold.request.client.home.has_ended() {
            hold.request.client.keeper.forget(&hold.place);
            return Err(Error::RuntimeEnded);
        }
        Ok(Self { hold, ending: Ending::NotBegun })
    }

    /// Gives the hold back.
    ///
    /// Cancel safety: dropping it leaves the rest to the background.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        // A renewal that is under way ends here; one that was sent already comes before the release on the same connection. If it came
        // after it all the same, it would find no hold with this token.
        self.hold.request.client.keeper.forget(&self.hold.place);
        let mut now = Moment::now();
        let relied_on_until = self.hold.stop_relying(now);
        let retry_for = self.hold.request.client.settings.retry_for;
        let turn = match self.hold.request.gate.try_pass() {
            Some(turn) => turn,
            // Another request of this owner may be under way for as long as its lease. Then the background goes on waiting.
            None => {
                let turn = within(retry_for, self.hold.request.gate.pass()).await.ok_or_else(|| {
                    let cause = RedisError::from((ErrorKind::Io, "another request of this owner has no answer yet"));
                    Error::Connection { tried_for: retry_for, cause }
                })?;
                now = Moment::now();
                turn
            }
        };
        self.hold.choose_release_id();
        self.ending = Ending::Begun(turn);
        let give_up = now.after(retry_for);
        let outcome = self.hold.end(relied_on_until, give_up).await;
        self.ending = Ending::Done;
        outcome
    }

    /// From now on its release keeps the lock closed for this long, also if the background does it.
    pub(crate) fn keep(&self, keep: Duration) {
        self.hold.release.keep(keep);
    }

    /// Gives the hold up without releasing it: it lives until its lease ends.
    pub(crate) fn leave(mut self) {
        self.ending = Ending::Done;
        self.hold.lost.set();
        self.hold.ended.set();
    }
}

impl Hold {
    /// From now on it is not relied upon. Returns until when it was: only so long a release that was lost can have been what ended it. Where a
    /// hold ends with its connection, the connection that a release was lost with has ended it, if not an earlier one that closed unnoticed.
    fn stop_relying(&self, now: Moment) -> Moment {
        let is_certain = self.is_held_at(now) && self.terms.session_grace != Some(Duration::ZERO);
        let ends = if is_certain { self.ends() } else { now };
        self.lost.set();
        ends
    }

    fn choose_release_id(&self) {
        self.release.renumber(self.request.gate.next_id());
    }

    async fn end(&self, relied_on_until: Moment, give_up: Moment) -> Result<(), Error> {
        *self.is_ending.lock().await = true;
        let permits = self.permits();
        let outcome = self.request.release(&self.tokens, permits, &self.release, relied_on_until, give_up).await;
        self.ended.set();
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
    /// Cancel safety: it must not be dropped. Then nobody would know how many there are to be released. It goes on also when the hold is lost.
    pub(crate) async fn release_some(self: Arc<Self>, permits: u32) -> Result<(), Error> {
        let _turn = self.request.gate.pass().await;
        if permits == 0 || permits >= self.permits() {
            let (asked, has) = (permits, self.permits());
            return Err(Error::Argument(format!(
                "permits is {asked}, and may be 1 to less than the {has} that are held"
            )));
        }
        let numbered = Numbered::default();
        numbered.renumber(self.request.gate.next_id());
        // Whoever releases the rest waits at the gate, so the outcome is known by then, or there is no hold any more.
        loop {
            let ends = self.ends();
            // An earlier copy cannot have ended the hold, so one that is not held any more was lost.
            match self.request.release(&self.tokens, permits, &numbered, Moment::now(), ends).await {
                Err(Error::Connection { .. }) => {
                    sleep_until(ends).await;
                    // It may have been renewed meanwhile.
                    if Moment::now() >= self.ends() {
                        return Err(Error::NotHeld);
                    }
                }
                Err(Error::NotHeld) => {
                    self.lose();
                    return Err(Error::NotHeld);
                }
                outcome => {
                    outcome?;
                    self.permits.fetch_sub(permits, Ordering::Relaxed);
                    return Ok(());
                }
            }
        }
    }

    /// Resolves when a release has come to an end, or nobody is left who could do it.
    pub(crate) async fn ended(self: Arc<Self>) {
        self.ended.wait().await;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.hold.request.client.keeper.forget(&self.hold.place);
        let ending = std::mem::replace(&mut self.ending, Ending::Done);
        if matches!(ending, Ending::Done) {
            return;
        }
        self.hold.lost.set();
        let hold = self.hold.clone();
        // What the owner asks for next comes behind the release, and does not wait for what this holds.
        let ending = match ending {
            Ending::Begun(turn) => Ok(turn),
            _ => Err(hold.request.gate.pass_from_now_on()),
        };
        self.hold.request.client.home.in_background(async move {
            let _turn = match ending {
                Ok(turn) => turn,
                Err(passing) => {
                    let turn = passing.await;
                    hold.choose_release_id();
                    turn
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

/// Resolves when fewer than so many of some futures are still to come.
pub(crate) async fn fewer_pending_than<F: Future<Output = ()> + Unpin>(needed: usize, mut ends: Vec<F>) {
    std::future::poll_fn(|context| {
        ends.retain_mut(|end| Pin::new(end).poll(context).is_pending());
        if ends.len() < needed { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
