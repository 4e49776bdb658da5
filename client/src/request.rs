//! One acquisition: asked once, waited for, or taken back.
//!
//! Whatever becomes of the future that asks, the server is left with a hold only if somebody has its guard. A request whose outcome is
//! unknown is *taken back*: the same request is sent once more without waiting, which ends a wait and tells whether it was granted, and
//! then it is released.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Cmd;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::Error;
use crate::call::Answered;
use crate::client::Shared;
use crate::clock::Moment;
use crate::identity::{next_request_id, raise_request_ids};
use crate::link::Link;
use crate::servers::Line;
use crate::wire::{self, Acquire, Ask, Family, Subject};

/// Held while a numbered request of an owner is under way, because an owner has one at a time for a lock.
pub(crate) type Gate = Arc<Mutex<()>>;

/// How long taking back is tried before it is left to the end of the lease.
const LONGEST_TAKING_BACK: Duration = Duration::from_secs(60);

/// What is asked for, on which terms, by whom.
pub(crate) struct Request {
    pub(crate) client: Arc<Shared>,
    pub(crate) subject: Subject,
    pub(crate) lease: Duration,
    pub(crate) session_grace: Option<Duration>,
    pub(crate) gate: Gate,
    /// Whether others may ask in the same owner's name, so that it may hold already or stand ahead of the line.
    pub(crate) is_shared_owner: bool,
}

/// A request was granted.
pub(crate) struct Grant {
    pub(crate) tokens: Vec<u64>,
    /// From when the lease counts.
    pub(crate) counts_from: Moment,
    /// The lease that was given.
    pub(crate) lease: Duration,
    /// The connection that the hold is bound to.
    pub(crate) link: Arc<Link>,
    /// The id of the request that was granted.
    pub(crate) request_id: u64,
}

impl Request {
    pub(crate) fn slot(&self) -> Option<u16> {
        self.client.slot_of(&self.subject.keys)
    }

    pub(crate) fn acquire_command(&self, ask: Ask, request_id: u64) -> Cmd {
        let Self { lease, session_grace, .. } = *self;
        self.subject.acquire(Acquire { lease, session_grace, ask, request_id })
    }

    /// Sends a command of this request over the shared connection until it is answered.
    pub(crate) async fn call(&self, command: &Cmd, give_up: Moment) -> Result<Answered, Error> {
        self.client.servers.call(self.slot(), command, self.client.settings.response_timeout, give_up).await
    }

    /// Asks once. `None` if the lock is not free.
    ///
    /// Cancel safety: dropping it takes back what was asked.
    pub(crate) async fn try_once(self: &Arc<Self>, ask: Ask, give_up: Moment) -> Result<Option<Grant>, Error> {
        let gate = self.gate.clone().lock_owned().await;
        match self.try_in_turn(ask, give_up, gate).await {
            // Another process has used this owner, or the wall clock was set back. The server tells the id to go on above.
            Err(Error::Server { code, message }) if code == "STALE" => {
                let Some(seen) = wire::last_seen_id(&message) else {
                    return Err(Error::Server { code, message });
                };
                raise_request_ids(seen);
                let gate = self.gate.clone().lock_owned().await;
                self.try_in_turn(ask, give_up, gate).await
            }
            outcome => outcome,
        }
    }

    async fn try_in_turn(
        self: &Arc<Self>,
        ask: Ask,
        give_up: Moment,
        gate: OwnedMutexGuard<()>,
    ) -> Result<Option<Grant>, Error> {
        let request_id = next_request_id();
        let unsure = Unsure { request: self, request_id, is_sent: AtomicBool::new(false), gate: Some(gate) };
        let command = self.acquire_command(ask, request_id);
        let patience = self.client.settings.response_timeout;
        // If no answer came, the request is taken back as if this future had been dropped.
        let answering = self.client.servers.call_noting(self.slot(), &command, patience, give_up, &unsure.is_sent);
        let answered = answering.await?;
        unsure.settled();
        self.grant_in(answered, request_id)
    }

    /// What an answer to ACQUIRE says.
    pub(crate) fn grant_in(&self, answered: Answered, request_id: u64) -> Result<Option<Grant>, Error> {
        let Answered { said, first_sent, link, .. } = answered;
        let value = said.map_err(|error| Error::from_answer(&error))?;
        let granted = |tokens| Grant { tokens, counts_from: first_sent, lease: self.lease, link, request_id };
        Ok(wire::tokens(&value)?.map(granted))
    }

    /// Gives one hold back. `request_id` is the same in each copy of the request. Done is also what an earlier copy did.
    ///
    /// Cancel safety: when dropped it may have been executed; sending it again with the same id does no harm.
    pub(crate) async fn release(&self, request_id: u64, give_up: Moment) -> Result<(), Error> {
        let answered = self.call(&self.subject.release(request_id), give_up).await?;
        match answered.said.map_err(|error| Error::from_answer(&error)) {
            Ok(_) => Ok(()),
            // The hold that the first copy ended is not remembered.
            Err(Error::NotHeld) if answered.is_resent => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Until when a background task of this request goes on: the server forgets the hold by itself then.
    pub(crate) fn end_of_efforts(&self) -> Moment {
        Moment::now().after(self.lease.min(LONGEST_TAKING_BACK).max(self.client.settings.response_timeout))
    }

    /// Finds out what became of a request that nobody waits for any more, and gives back what it got.
    pub(crate) async fn take_back(&self, request_id: u64, pending: Option<Pending>) {
        let give_up = self.end_of_efforts();
        let granted = match pending {
            None => self.settle(request_id, give_up).await,
            Some(pending) => self.settle_pending(request_id, pending, give_up).await,
        };
        if granted {
            // Not held is what it should be; any other failure is mended by the end of the lease.
            if let Err(error) = self.release(next_request_id(), give_up).await {
                tracing::debug!(%error, "a grant that nobody wants could not be released");
            }
        }
    }

    /// Sends the request once more without waiting: it ends a wait of the same id, and tells whether it was granted.
    async fn settle(&self, request_id: u64, give_up: Moment) -> bool {
        if self.subject.family == Family::Fair
            && let Err(error) = self.call(&self.subject.cancel(), give_up).await
        {
            tracing::debug!(%error, "a place in a fair queue could not be cancelled");
        }
        let outcome = self.call(&self.acquire_command(Ask::Once, request_id), give_up).await;
        match outcome.and_then(|answered| self.grant_in(answered, request_id)) {
            Ok(grant) => grant.is_some(),
            Err(error) => {
                tracing::debug!(%error, "a request that nobody wants could not be taken back");
                false
            }
        }
    }

    /// The same for a request that waits on a connection. The two connections are not ordered, so the wait may begin after it was
    /// ended: it is ended again until it has answered.
    async fn settle_pending(&self, request_id: u64, mut pending: Pending, give_up: Moment) -> bool {
        let mut patience = Duration::from_millis(50);
        let mut granted = false;
        loop {
            granted |= self.settle(request_id, give_up).await;
            match tokio::time::timeout(patience, &mut pending.answer).await {
                Ok(answer) => {
                    let token = answer.ok().and_then(Result::ok).and_then(|value| wire::tokens(&value).ok()?);
                    return granted || token.is_some();
                }
                Err(_) if patience >= self.client.settings.response_timeout => {
                    // Nothing comes over it any more. The server ends the wait when it sees the connection close.
                    pending.link.close();
                    return granted | self.settle(request_id, give_up).await;
                }
                Err(_) => patience *= 2,
            }
        }
    }

    /// Renews what was granted to a waiting connection over the shared one: it tells from when the lease counts, and binds the session.
    pub(crate) async fn confirm(&self, grant: &mut Grant, give_up: Moment) -> Result<(), Error> {
        let answered = self.call(&self.subject.renew(self.lease), give_up).await?;
        let left = wire::milliseconds(&answered.said.map_err(|error| Error::from_answer(&error))?)?;
        grant.counts_from = answered.sent;
        grant.lease = left;
        grant.link = answered.link;
        Ok(())
    }

    /// Repeats the request, which propagates the hold once more, and waits for replicas behind it. Returns how many have it.
    pub(crate) async fn replicate(&self, request_id: u64, wanted: u32, patience: Duration) -> Result<u32, Error> {
        let mut commands = redis::pipe();
        // 0 would be for ever.
        let wait_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX).max(1);
        commands.add_command(self.acquire_command(Ask::Once, request_id)).cmd("WAIT").arg(wanted).arg(wait_ms);
        let patience = patience.saturating_add(self.client.settings.response_timeout);
        let started = Moment::now();
        let outcome = async {
            let link = self.client.servers.link(self.slot(), Line::Witness).await?;
            link.ask_all(&commands, 2, patience).await
        };
        let failed = |cause| Error::Connection { tried_for: started.until(Moment::now()), cause };
        let answers = outcome.await.map_err(failed)?;
        let mut answers = answers.into_iter();
        let mut next = || {
            let answer = answers.next().unwrap_or(redis::Value::Nil);
            answer.extract_error().map_err(|error| Error::from_answer(&error))
        };
        if wire::tokens(&next()?)?.is_none() {
            return Err(Error::NotHeld);
        }
        let acknowledged = wire::number(&next()?)?;
        Ok(u32::try_from(acknowledged).unwrap_or(0))
    }
}

/// A request that waits on a connection.
pub(crate) struct Pending {
    pub(crate) link: Arc<Link>,
    pub(crate) answer: tokio::task::JoinHandle<Result<redis::Value, redis::RedisError>>,
}

/// A request that may have been sent and whose outcome is not known. Dropping it takes the request back in the background.
struct Unsure<'a> {
    request: &'a Arc<Request>,
    request_id: u64,
    is_sent: AtomicBool,
    gate: Option<OwnedMutexGuard<()>>,
}

impl Unsure<'_> {
    /// The outcome is known.
    fn settled(mut self) {
        self.gate = None;
    }
}

impl Drop for Unsure<'_> {
    fn drop(&mut self) {
        let Some(gate) = self.gate.take().filter(|_| self.is_sent.load(Ordering::Relaxed)) else { return };
        let (request, request_id) = (self.request.clone(), self.request_id);
        self.request.client.in_background(async move {
            request.take_back(request_id, None).await;
            drop(gate);
        });
    }
}
