//! A request that waits: in the line of its lock, then blocked at the server, until it is granted, refused, too late or unwanted.
//!
//! It runs as a task of its own that is never dropped in the middle. Whoever does not want it any more says so, and it leaves
//! nothing behind.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::call::{Pauses, Verdict, judge};
use crate::clock::{Moment, sleep_until, sleep_until_some};
use crate::hold::Held;
use crate::identity::next_request_id;
use crate::link::Link;
use crate::request::{Grant, Pending, Request};
use crate::servers::Line;
use crate::waiting_room::Seat;
use crate::wire::{self, Ask, Family};

/// How often the first in line asks while all waiting connections are taken.
const POLL: Duration = Duration::from_millis(100);

/// How long a place in a fair queue is kept between two of these.
const PLACE_LIFE: Duration = Duration::from_secs(5);

/// How much later than asked for the server's nil may come before the wait is ended from here.
pub(crate) const LATE: Duration = Duration::from_millis(500);

/// A wait at the server that lasted so long was a healthy one: a failure after it is the first.
const HEALTHY: Duration = Duration::from_secs(1);

/// How a request waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// When it gives up.
    pub(crate) deadline: Option<Moment>,
    /// When the hold has to end, counted from the grant.
    pub(crate) max_hold: Option<Duration>,
    /// Whether the hold renews itself.
    pub(crate) renews: bool,
    /// Whether it need not stand in line: a reader that wants to write is ahead of all others at the server, too.
    pub(crate) skips_line: bool,
}

/// A request that is willing to wait.
struct Waiter {
    request: Arc<Request>,
    deadline: Option<Moment>,
    /// Whether it is unwanted.
    unwanted: CancellationToken,
    skips_line: bool,
    /// Where the answer goes, as soon as there is one: what is left to be tidied up keeps nobody waiting.
    asker: Mutex<Option<oneshot::Sender<Result<Held, Error>>>>,
}

/// Waits until the request is granted.
///
/// Cancel safety: dropping it leaves neither a place nor a hold on the server; both are taken back in the background.
pub(crate) async fn wait(request: Arc<Request>, patience: Patience) -> Result<Held, Error> {
    let unwanted = CancellationToken::new();
    let _when_dropped = unwanted.clone().drop_guard();
    let (asker, answer) = oneshot::channel();
    let Patience { deadline, skips_line, max_hold, renews } = patience;
    let client = request.client.clone();
    let waiter = Waiter { request, deadline, unwanted, skips_line, asker: Mutex::new(Some(asker)) };
    client.in_background(async move {
        let request = waiter.request.clone();
        // A grant is made a hold before it is handed over: if nobody takes it, it releases itself.
        match waiter.run().await {
            Ok(grant) => waiter.say(Ok(Held::new(request, grant, max_hold, renews))),
            Err(error) => waiter.say(Err(error)),
        }
    });
    answer.await.unwrap_or(Err(Error::ShuttingDown))
}

/// What became of something that took time.
enum Outcome<T> {
    Done(T),
    TooLate,
    Unwanted,
}

/// A wait came to nothing, for a reason that a further try may mend.
struct Failure {
    cause: Error,
    /// For how long it waited at the server; what connecting took before does not count.
    waited: Duration,
}

/// What the first in line has found.
enum Found {
    Seat(Seat),
    Grant(Grant),
}

impl Waiter {
    /// Waits. When it returns, nothing is left on the server but a grant.
    async fn run(&self) -> Result<Grant, Error> {
        let gate = self.in_time(self.request.gate.clone().lock_owned()).await.into_result()?;
        let room = &self.request.client.waiting_room;
        // The server looks for circles of owners among those that wait at the server. Who has an owner that may hold elsewhere is not kept
        // out of its sight as long as there is a connection to wait on.
        let seat = if self.request.is_shared_owner { room.try_sit_down() } else { None };
        let place = match self.skips_line || seat.is_some() {
            true => None,
            false => Some(self.in_time(room.line_up(&self.request.subject.keys)).await.into_result()?),
        };
        let outcome = self.at_the_head(seat).await;
        drop((place, gate));
        outcome
    }

    /// Tells the outcome, unless that was done already.
    fn say(&self, outcome: Result<Held, Error>) {
        if let Some(asker) = self.asker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // If nobody listens, dropping a hold releases it.
            drop(asker.send(outcome));
        }
    }

    /// Tells an error, and then takes back what may have been left at the server.
    async fn fail<T>(&self, error: Error, request_id: u64, pending: Option<Pending>) -> Result<T, Error> {
        self.say(Err(error.clone()));
        self.request.take_back(request_id, pending).await;
        Err(error)
    }

    async fn at_the_head(&self, mut seat: Option<Seat>) -> Result<Grant, Error> {
        loop {
            let found = match seat.take() {
                Some(seat) => Found::Seat(seat),
                None => self.find_seat().await?,
            };
            // Others may sit there while the grant is being confirmed.
            let mut grant = match found {
                Found::Grant(grant) => return Ok(grant),
                Found::Seat(seat) => self.block(&seat).await?,
            };
            match self.request.confirm(&mut grant, self.give_up()).await {
                Ok(()) => return Ok(grant),
                Err(Error::NotHeld) => tracing::debug!("the lease ended before the grant was heard of; waiting again"),
                Err(error) => return self.fail(error, grant.request_id, None).await,
            }
        }
    }

    /// Waits for a connection to wait on, and asks from time to time as long as there is none.
    async fn find_seat(&self) -> Result<Found, Error> {
        let mut seat = std::pin::pin!(self.request.client.waiting_room.clone().sit_down());
        let mut last_id = None;
        loop {
            let outcome = tokio::select! {
                biased;
                seat = &mut seat => Outcome::Done(seat.ok_or(Error::ShuttingDown)?),
                () = self.unwanted.cancelled() => Outcome::Unwanted,
                () = sleep_until_some(self.deadline) => Outcome::TooLate,
                () = tokio::time::sleep(POLL) => {
                    let id = next_request_id();
                    last_id = Some(id);
                    match self.poll(id).await? {
                        Some(grant) => return Ok(Found::Grant(grant)),
                        None => continue,
                    }
                }
            };
            match (outcome.into_result(), last_id) {
                (Ok(seat), _) => return Ok(Found::Seat(seat)),
                // It may have left a place in a fair queue.
                (Err(error), Some(id)) if self.request.subject.family == Family::Fair => {
                    return self.fail(error, id, None).await;
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// Asks once over the shared connection.
    async fn poll(&self, request_id: u64) -> Result<Option<Grant>, Error> {
        let ask = if self.request.subject.family == Family::Fair { Ask::Queue(PLACE_LIFE) } else { Ask::Once };
        match self.request.call(&self.request.acquire_command(ask, request_id), self.give_up()).await {
            Ok(answered) => self.request.grant_in(answered, request_id),
            Err(error) => self.fail(error, request_id, None).await,
        }
    }

    /// Blocks at the server until it is granted.
    async fn block(&self, seat: &Seat) -> Result<Grant, Error> {
        let request_id = next_request_id();
        let (mut pauses, mut failing_since) = (Pauses::new(), None);
        loop {
            let Failure { cause, waited } = match self.block_once(seat, request_id).await? {
                Ok(grant) => return Ok(grant),
                Err(failure) => failure,
            };
            let now = Moment::now();
            if waited >= HEALTHY {
                (pauses, failing_since) = (Pauses::new(), None);
            }
            let since = *failing_since.get_or_insert(now);
            tracing::debug!(%cause, "waiting again");
            let pause = sleep_until(now.after(pauses.next()));
            let ended = match since.until(now) >= self.request.client.settings.retry_for {
                true => Err(cause),
                false => self.in_time(pause).await.into_result(),
            };
            if let Err(error) = ended {
                return self.fail(error, request_id, None).await;
            }
        }
    }

    /// One wait at the server.
    async fn block_once(&self, seat: &Seat, request_id: u64) -> Result<Result<Grant, Failure>, Error> {
        let started = Moment::now();
        let link = match self.in_time(self.connect(seat)).await {
            Outcome::Done(Ok(link)) => link,
            Outcome::Done(Err(cause)) => {
                self.request.client.servers.forget_slots();
                let cause = Error::Connection { tried_for: started.until(Moment::now()), cause };
                return Ok(Err(Failure { cause, waited: Duration::ZERO }));
            }
            // An earlier try may have left something.
            Outcome::TooLate => return self.fail(Error::Timeout, request_id, None).await,
            Outcome::Unwanted => return self.fail(Error::ShuttingDown, request_id, None).await,
        };
        let started = Moment::now();
        let mut pending = self.send(link, request_id);
        loop {
            tokio::select! {
                biased;
                answer = &mut pending.answer => {
                    let answer = answer.unwrap_or_else(|_| Err(RedisError::from((ErrorKind::Io, "the wait was aborted"))));
                    return self.hear(seat, &pending.link, answer, request_id, started).await;
                }
                () = self.unwanted.cancelled() => {
                    return self.leave(Error::ShuttingDown, seat, pending, request_id).await;
                }
                () = sleep_until_some(self.deadline.map(|deadline| deadline.after(LATE))) => {
                    return self.leave(Error::Timeout, seat, pending, request_id).await;
                }
                () = tokio::time::sleep(self.request.client.settings.refresh_waits_after) => match self.move_over(&pending.link, request_id).await {
                    Ok(moved) => {
                        // It is answered when the place has been taken over. Closing it before would give the place up.
                        let old = std::mem::replace(&mut pending, moved);
                        drop(tokio::time::timeout(HEALTHY, old.answer).await);
                        old.link.close();
                    }
                    Err(cause) => {
                        pending.link.close();
                        return Ok(Err(Failure::of(started, cause)));
                    }
                },
            }
        }
    }

    /// What the answer to a wait means.
    async fn hear(
        &self,
        seat: &Seat,
        link: &Arc<Link>,
        answer: Result<redis::Value, RedisError>,
        request_id: u64,
        started: Moment,
    ) -> Result<Result<Grant, Failure>, Error> {
        let error = match answer {
            Ok(value) => {
                seat.put_back(link.clone());
                let Some(tokens) = wire::tokens(&value)? else { return Err(Error::Timeout) };
                let (link, lease) = (link.clone(), self.request.lease);
                return Ok(Ok(Grant { tokens, counts_from: started, lease, link, request_id }));
            }
            Err(error) => error,
        };
        let verdict = judge(&error, link);
        if verdict != Verdict::Reconnect {
            seat.put_back(link.clone());
        }
        if verdict == Verdict::Final {
            return Err(Error::from_answer(&error));
        }
        let servers = &self.request.client.servers;
        if let Verdict::Ask(_) = verdict {
            // The slot is on its way. Nobody can wait on the node that takes it over, but one may ask there.
            if let Some(grant) = self.poll(next_request_id()).await? {
                return Ok(Ok(grant));
            }
        }
        if error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
            && let Ok(shared) = servers.link(self.request.slot(), Line::Shared).await
            && shared.info().addr() == link.info().addr()
        {
            // The shared connection leads to the same demoted master.
            shared.close();
        }
        servers.heed(verdict, link);
        Ok(Err(Failure::of(started, error)))
    }

    /// Ends a wait that is pending, so that the connection can be used again.
    async fn leave<T>(&self, why: Error, seat: &Seat, pending: Pending, request_id: u64) -> Result<T, Error> {
        let link = pending.link.clone();
        let outcome = self.fail(why, request_id, Some(pending)).await;
        seat.put_back(link);
        outcome
    }

    /// A connection to where the shared one leads.
    async fn connect(&self, seat: &Seat) -> Result<Arc<Link>, RedisError> {
        let client = &self.request.client;
        let shared = client.servers.link(self.request.slot(), Line::Shared).await?;
        let connected = seat.connection(&client.servers, shared.info()).await;
        if connected.is_err() {
            // The shared one may be as dead, and nobody else be asking over it. It closes if no answer comes, and the next leads elsewhere.
            drop(shared.ask(&redis::cmd("PING"), Some(client.settings.response_timeout)).await);
        }
        connected
    }

    fn send(&self, link: Arc<Link>, request_id: u64) -> Pending {
        let left = self.deadline.map(|deadline| Moment::now().until(deadline));
        let command = self.request.acquire_command(Ask::Block(left), request_id);
        let on = link.clone();
        let answer = tokio::spawn(async move { on.ask(&command, None).await });
        Pending { link, answer }
    }

    /// Takes the place in the queue over to a fresh connection. One at a time, so that there is at most one connection more than the
    /// waiting room has.
    async fn move_over(&self, old: &Link, request_id: u64) -> Result<Pending, RedisError> {
        let client = &self.request.client;
        let _alone = client.moving.lock().await;
        let link = client.servers.connect(old.info().clone()).await?;
        Ok(self.send(link, request_id))
    }

    /// Until when requests over the shared connection are repeated.
    fn give_up(&self) -> Moment {
        let by_patience = Moment::now().after(self.request.client.settings.retry_for);
        self.deadline.map_or(by_patience, |deadline| by_patience.min(deadline.after(LATE)))
    }

    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Outcome<T> {
        tokio::select! {
            biased;
            done = work => Outcome::Done(done),
            () = self.unwanted.cancelled() => Outcome::Unwanted,
            () = sleep_until_some(self.deadline) => Outcome::TooLate,
        }
    }
}

impl Failure {
    /// A wait that was sent at `started`.
    fn of(started: Moment, cause: RedisError) -> Self {
        let waited = started.until(Moment::now());
        Self { cause: Error::Connection { tried_for: waited, cause }, waited }
    }
}

impl<T> Outcome<T> {
    fn into_result(self) -> Result<T, Error> {
        match self {
            Self::Done(done) => Ok(done),
            Self::TooLate => Err(Error::Timeout),
            // Nobody hears it.
            Self::Unwanted => Err(Error::ShuttingDown),
        }
    }
}
