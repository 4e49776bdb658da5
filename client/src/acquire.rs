//! Acquires locks: tries once, waits up to a timeout, or waits without a limit.

use std::sync::Arc;
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use crate::Error;
use crate::clock::Moment;
use crate::core::{Core, Pauses, Reply};
use crate::held::{Held, leaving, reenter};
use crate::hold::{Beginning, Hold};
use crate::identity::next_id;
use crate::options::{LONGEST, Options};
use crate::owners::{self, Desks, Turn};
use crate::request::Request;
use crate::settle::settle;
use crate::subscriber::Letter;
use crate::transport::Link;
use crate::wire::{self, Answer, Ask, CLAIM, Family, Grant, Message, Subject};

/// How long a waiter waits before it sends its request again, in case the message was lost.
const ASKS_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// How long after its timeout an acquisition still waits for the server's own answer.
const PATIENCE: Duration = Duration::from_millis(250);

/// Whether, and until when, to wait for a lock that is held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    Not,
    /// Until this moment, or without a limit.
    Until(Option<Instant>),
}

impl Wait {
    pub(crate) fn within(timeout: Duration) -> Self {
        // The clock may not reach that far, nor to the moment of `limit`.
        Self::Until((timeout <= LONGEST).then(|| Instant::now() + timeout))
    }

    fn is_wait(self) -> bool {
        matches!(self, Self::Until(_))
    }

    /// The time left to wait; `None` without a limit.
    fn left(self) -> Option<Duration> {
        let Self::Until(Some(until)) = self else { return None };
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// When the acquisition ends even if no answer has come.
    pub(crate) fn limit(self, command_timeout: Duration) -> Option<Instant> {
        match self {
            Self::Not => Some(Instant::now() + command_timeout),
            Self::Until(until) => until.map(|until| until + PATIENCE),
        }
    }
}

/// The keys, permits and options of an acquisition.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) family: Family,
    pub(crate) keys: Arc<[Vec<u8>]>,
    pub(crate) permits: u32,
    pub(crate) options: Options,
}

impl Wanted {
    pub(crate) fn one(family: Family, key: &[u8]) -> Self {
        Self { family, keys: Arc::from([key.to_vec()]), permits: 1, options: Options::default() }
    }

    /// The same keys and permits, for one owner.
    pub(crate) fn by(&self, owner: Arc<[u8]>) -> Subject {
        Subject { family: self.family, keys: self.keys.clone(), owner, permits: self.permits }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.options.check()?;
        if self.permits == 0 {
            return Err(Error::Argument("permits is 0; expected at least 1".to_owned()));
        }
        Ok(())
    }
}

impl Core {
    /// Acquires a lock. `None` if it is not free and `wait` says not to wait.
    ///
    /// Cancel safety: dropping the future starts a cleanup of its request in the background.
    pub(crate) async fn acquire(self: &Arc<Self>, wanted: &Wanted, wait: Wait) -> Result<Option<Held>, Error> {
        wanted.check()?;
        let owner = wanted.options.owner.clone();
        let is_named = owner.is_some();
        let subject = wanted.by(owner.unwrap_or_else(|| self.common.id.next_owner().into()));
        self.acquire_by(subject, &wanted.options, is_named, wait).await
    }

    /// Acquires for the given owner. `is_named` is true if other requests may use the same owner.
    pub(crate) async fn acquire_by(
        self: &Arc<Self>,
        subject: Subject,
        options: &Options,
        is_named: bool,
        wait: Wait,
    ) -> Result<Option<Held>, Error> {
        let token = self.enter()?;
        let started = self.now();
        let keys = subject.keys.clone();
        let key = || keys.first().map_or(b"".as_slice(), Vec::as_slice);
        let span = tracing::debug_span!("acquire", key = %String::from_utf8_lossy(key()));
        let acquiring = self.acquire_within(subject, options, is_named, wait, token).instrument(span);
        let outcome = tokio::select! {
            biased;
            () = self.closing.cancelled() => Err(Error::Closed),
            outcome = acquiring => outcome,
        };
        let after = started.until(self.now());
        self.meter.count(|metrics| match &outcome {
            Ok(Some(_)) => metrics.acquired(key(), after),
            Ok(None) => metrics.refused(key()),
            Err(error) => metrics.failed(key(), error, after),
        });
        outcome
    }

    async fn acquire_within(
        self: &Arc<Self>,
        subject: Subject,
        options: &Options,
        is_named: bool,
        wait: Wait,
        token: TaskTrackerToken,
    ) -> Result<Option<Held>, Error> {
        let limit = wait.limit(self.common.command_timeout);
        let mut last = None;
        let acquiring = async {
            let desks = is_named.then(|| self.owners.desks(&subject));
            let mut turn = Turn::new();
            if let Some(desks) = &desks {
                loop {
                    turn = owners::turn(desks).await;
                    match (reenter(desks, &subject), leaving(desks)) {
                        (Ok(Some(held)), _) => return Ok(Some(held)),
                        (Ok(None), None) => break,
                        (Err(error), None) => return Err(error),
                        // This request was first in the queue, but must not find the old hold.
                        (_, Some(released)) => {
                            turn.clear();
                            released.cancelled().await;
                        }
                    }
                }
            }
            let mut attempt = Attempt {
                request: Arc::new(Request::new(self, subject, options)),
                id: 0,
                first_sent: Moment::NEVER,
                claim: CLAIM.min(options.lease()),
                is_open: false,
                is_lost: false,
                is_unanswered: false,
                link: None,
                desks,
                turn,
                token: Some(token),
            };
            // In a box: a thread that blocks on this future may have a small stack.
            let held = Box::pin(attempt.obtain(wait, &mut last)).await?;
            if let (Some(held), true) = (&held, is_named) {
                held.hold.desks();
            }
            Ok(held)
        };
        let outcome = match limit {
            Some(limit) => timeout_at(limit, acquiring).await,
            None => Ok(acquiring.await),
        };
        outcome.unwrap_or_else(|_| match (wait, last) {
            (_, Some(error)) => Err(error),
            (Wait::Until(_), None) => Err(Error::Timeout),
            (Wait::Not, None) => Err(no_answer()),
        })
    }
}

pub(crate) fn no_answer() -> Error {
    Error::unavailable("no answer in time")
}

/// The outcome of one request.
enum Step {
    Granted(Held),
    NotGranted,
    /// Send the request again at once.
    Again,
}

/// An acquisition in progress. Dropping it cleans up a request that is still open.
struct Attempt {
    request: Arc<Request>,
    /// 0 until the request is first sent, and after an answer that ends it.
    id: u64,
    /// When the first copy of the request was sent.
    first_sent: Moment,
    /// How long the hold lasts until it is claimed.
    claim: Duration,
    /// Whether the server may still have this request in a queue or as a hold.
    is_open: bool,
    /// Whether the server may have granted the request without this client knowing. Then a refusal
    /// of a later copy says nothing about the earlier one.
    is_lost: bool,
    /// Whether a copy of the request got no answer.
    is_unanswered: bool,
    link: Option<Arc<Link>>,
    /// Of a named owner.
    desks: Option<Desks>,
    turn: Turn,
    token: Option<TaskTrackerToken>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.is_open {
            let turn = std::mem::take(&mut self.turn);
            settle(self.request.clone(), self.id, self.link.take(), self.desks.take(), turn);
        }
        drop(self.token.take());
    }
}

impl Attempt {
    fn draw_id(&mut self) {
        if self.id == 0 {
            (self.id, self.first_sent) = (next_id(), self.request.core.now());
        }
    }

    /// Sends the request until the server grants or refuses the lock. `last` is the failure that
    /// ends the wait if its time is over now; `None` if the server's last answer was no failure.
    async fn obtain(&mut self, wait: Wait, last: &mut Option<Error>) -> Result<Option<Held>, Error> {
        let (mut pauses, mut has_failed) = (Pauses::default(), false);
        loop {
            last.get_or_insert_with(no_answer);
            let step = self.ask(wait, last).await;
            if step.is_ok() {
                *last = None;
            }
            match step {
                Ok(Step::Granted(held)) => return self.prove(held).await.map(Some),
                Ok(Step::NotGranted) if !wait.is_wait() => return Ok(None),
                Ok(Step::NotGranted) if wait.left().is_some_and(|left| left.is_zero()) => return Err(Error::Timeout),
                Ok(Step::NotGranted) => sleep(pauses.next().min(wait.left().unwrap_or(Duration::MAX))).await,
                Ok(Step::Again) => pauses = Pauses::default(),
                Err(error) if error.is_retryable() && (wait.is_wait() || error.is_lost_reply()) => {
                    if std::mem::replace(&mut has_failed, true) {
                        tracing::debug!(%error, "retrying an acquisition");
                    } else {
                        tracing::warn!(key = %self.request.key(), %error, "retrying an acquisition");
                    }
                    *last = Some(error);
                    sleep(pauses.next()).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends the request, and waits for its outcome if `wait` says so.
    async fn ask(&mut self, wait: Wait, last: &mut Option<Error>) -> Result<Step, Error> {
        if !wait.is_wait() {
            return self.ask_once().await;
        }
        let core = self.request.core.clone();
        let node = core.node(self.request.slot).await?;
        let subscriber = node.subscriber().await?;
        let subscription = subscriber.subscribe(self.request.slot).await.inspect_err(|error| {
            core.servers.redirected(error, subscriber.link());
        })?;
        let link = node.link().await?;
        self.draw_id();
        let letter = subscriber.expect(self.id, self.request.subject.clone());
        let command = self.request.acquire(self.id, self.claim, Ask::Wait(wait.left(), &subscription.channel));
        (self.is_open, self.link) = (true, Some(link.clone()));
        let within = wait.left().map_or(Duration::MAX, |left| left + PATIENCE).min(core.common.command_timeout);
        let reply = core.ask_over(&node, &link, &command, false, within).await;
        match self.hear(&reply) {
            Ok(Answer::Waits) => {
                // The server answers again when the time is over, so silence is a failure too.
                *last = Some(no_answer());
                self.await_message(letter, subscription.gone.clone(), link).await
            }
            Ok(answer) => self.conclude(answer, &reply),
            Err(error) => match core.servers.redirected(&error, &link) {
                // The other node has the key but does not own the slot yet. It cannot publish on a
                // channel of the slot, so do not wait there.
                Some((_, true)) => Box::pin(self.ask_once()).await,
                _ => Err(error),
            },
        }
    }

    /// Sends the request once, without waiting for the lock.
    async fn ask_once(&mut self) -> Result<Step, Error> {
        // Connects before it draws the id.
        self.request.core.node(self.request.slot).await?.link().await?;
        self.draw_id();
        let command = self.request.acquire(self.id, self.claim, Ask::Once);
        // The request may be sent from here on.
        let was_open = std::mem::replace(&mut self.is_open, true);
        let reply = self.request.ask(&command, Duration::MAX).await;
        self.is_open = was_open || reply.link.is_some();
        let answer = self.hear(&reply)?;
        self.conclude(answer, &reply)
    }

    /// Reads the answer to the request, or notes that it was refused or lost.
    fn hear(&mut self, reply: &Reply) -> Result<Answer, Error> {
        self.link = reply.link.clone().or(self.link.take());
        let error = match &reply.said {
            Ok(value) => return wire::answer(value, self.request.subject.keys.len()),
            Err(error) => error.clone(),
        };
        if error.is_lost_reply() {
            self.is_lost |= reply.link.is_some();
            self.is_unanswered |= reply.link.is_some();
        } else {
            self.is_open = self.is_lost && error != Error::Superseded;
        }
        Err(error)
    }

    fn conclude(&mut self, answer: Answer, reply: &Reply) -> Result<Step, Error> {
        match answer {
            Answer::Granted(Grant { tokens, left }) => {
                let Some(link) = &reply.link else { return Err(Error::unavailable("no connection")) };
                let is_unclaimed = left <= self.claim && self.claim < self.request.lease;
                let beginning = Beginning { sent: reply.sent, left, acquired: reply.sent, is_unclaimed };
                let Some(granted) = self.begin(tokens, beginning, link)? else {
                    // A round trip may take longer than the claim.
                    self.claim = (self.claim * 2).min(self.request.lease);
                    return Err(Error::unavailable("the grant arrived after its lease had ended"));
                };
                Ok(granted)
            }
            Answer::NotGranted => {
                self.used();
                Ok(Step::NotGranted)
            }
            Answer::Waits => Err(Error::unexpected(&Value::SimpleString("WAITING".to_owned()))),
        }
    }

    /// The request has ended without a grant. The next attempt needs a new request id.
    fn used(&mut self) {
        (self.is_open, self.is_lost, self.is_unanswered, self.id) = (false, false, false, 0);
    }

    /// Begins the hold that an answer granted. If it has expired meanwhile, the request is sent
    /// again with the same id: the server has forgotten an expired hold and grants a new one, and
    /// it renews a live hold instead of counting it twice.
    fn begin(&mut self, tokens: Vec<u64>, beginning: Beginning, link: &Arc<Link>) -> Result<Option<Step>, Error> {
        match Hold::begin(self.request.clone(), tokens, beginning, link) {
            Ok(hold) => {
                self.is_open = hold.is_none();
                Ok(hold.map(|hold| Step::Granted(Held::first(hold))))
            }
            Err(error) => {
                // The hold that began in a closed client releases itself.
                self.is_open &= error != Error::Closed;
                Err(error)
            }
        }
    }

    /// Waits for the message that ends the wait. The message may be lost, alone or with its
    /// subscription; the server drops the waiter when it sees the connection of the request close.
    #[tracing::instrument(name = "wait", level = "debug", skip_all)]
    async fn await_message(
        &mut self,
        mut letter: Letter,
        gone: tokio_util::sync::CancellationToken,
        link: Arc<Link>,
    ) -> Result<Step, Error> {
        let message = tokio::select! {
            biased;
            message = &mut letter.message => message.ok(),
            () = gone.cancelled() => None,
            () = link.closed().cancelled() => None,
            () = sleep_until(Instant::now() + ASKS_AGAIN_AFTER) => None,
        };
        match message {
            None => {
                self.is_lost = true;
                Ok(Step::Again)
            }
            Some(Message::NotGranted) => {
                self.used();
                Ok(Step::NotGranted)
            }
            Some(Message::Failed(error)) => {
                // A server that is being demoted may have granted the request in the same step.
                if error.code() != "UNBLOCKED" {
                    self.used();
                }
                Err(error)
            }
            Some(Message::Granted(grant)) if grant.tokens.len() == self.request.subject.keys.len() => {
                self.believe(grant, &link)
            }
            Some(Message::Granted(_)) => Err(Error::unavailable("the message of the grant lacks tokens")),
        }
    }

    /// Begins the hold that a message granted. The server counts its time from when it first received
    /// the request, which was after the first copy was sent, so no delay of the message can make the
    /// belief outlast the hold. If that time has passed, or the message says too little, the request
    /// is sent again: its answer says the same about this moment.
    fn believe(&mut self, Grant { tokens, left }: Grant, link: &Arc<Link>) -> Result<Step, Error> {
        // A refusal of the next copy would not end this grant.
        self.is_lost = true;
        if self.is_unanswered || self.request.options.session_grace.is_some() {
            return Ok(Step::Again);
        }
        let is_unclaimed = self.claim < self.request.lease;
        let beginning = Beginning { sent: self.first_sent, left, acquired: self.request.core.now(), is_unclaimed };
        Ok(self.begin(tokens, beginning, link)?.unwrap_or(Step::Again))
    }

    /// Waits until enough replicas have the grant, if the options ask for it. It uses its own
    /// connection because `WAIT` would block other commands.
    async fn prove(&mut self, held: Held) -> Result<Held, Error> {
        let Some((wanted, patience)) = self.request.options.replicas else { return Ok(held) };
        let core = &self.request.core;
        let link = core.node(self.request.slot).await?.dial().await?;
        let mut pipeline = Pipeline::with_capacity(2);
        // The module propagates a repeated ACQUIRE in any case, and WAIT covers only the writes of
        // its own connection.
        pipeline
            .add_command(self.request.acquire(self.id, self.claim, Ask::Once))
            .cmd("WAIT")
            .arg(wanted)
            .arg(wire::ms(patience).max(1));
        let mut answers = link.ask_all(&pipeline, patience + core.common.command_timeout).await?.into_iter();
        answers.next().unwrap_or_else(|| Err(Error::unavailable("no answer")))?;
        let acknowledged = answers.next().unwrap_or_else(|| Err(Error::unavailable("no answer")))?;
        let acknowledged = u32::try_from(wire::number(&acknowledged)?).unwrap_or(0);
        if acknowledged >= wanted {
            return Ok(held);
        }
        // Fail only after the release, so that the lock is free when the caller sees the error.
        drop(held.release(None).await);
        Err(Error::Replicas { wanted, acknowledged })
    }
}

impl Core {
    /// Takes over a hold that exists on the server.
    pub(crate) async fn take_over(
        self: &Arc<Self>,
        subject: Subject,
        options: &Options,
        token: u64,
    ) -> Result<Held, Error> {
        let _entered = self.enter()?;
        options.check()?;
        let desks = self.owners.desks(&subject);
        let _turn = owners::turn(&desks).await;
        let request = Arc::new(Request::new(self, subject, options));
        let mut renew = request.subject.renew(&[token], request.lease);
        if let Some(note) = &options.note {
            renew.arg("NOTE").arg(&**note);
        }
        let within = self.common.command_timeout;
        let reply = self.insist(request.slot, &renew, within, within).await;
        let left = wire::milliseconds(&reply.said?)?;
        let link = reply.link.as_ref().ok_or(Error::Lost)?;
        let beginning = Beginning { sent: reply.sent, left, acquired: reply.sent, is_unclaimed: false };
        let hold = Hold::begin(request, vec![token], beginning, link)?.ok_or(Error::Lost)?;
        hold.desks();
        Ok(Held::first(hold))
    }
}
