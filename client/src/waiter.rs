//! A request that waits in the server's own queue, until it is granted, refused, too late or unwanted.
//!
//! It blocks no connection: the server answers at once that it waits, and tells the end in a message over the same connection. When that
//! connection is lost, the request is repeated over the next one.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};

use crate::Error;
use crate::call::{Answered, Pauses, Prepare};
use crate::clock::Moment;
use crate::link::{Link, is_id_taken};
use crate::mailbox::{Letter, Message};
use crate::request::{Grant, Request, Unsure};
use crate::timer::sleep_until;
use crate::wire::{self, Ask};

/// How much later than asked for the server's answer may come before the wait is ended from here.
pub(crate) const LATE: Duration = Duration::from_millis(500);

/// A wait at the server that lasted so long was a healthy one: a failure after it is the first.
const HEALTHY: Duration = Duration::from_secs(1);

/// The answer to a request that waits; the end of the wait comes on the channel.
const WAITING: &str = "WAITING";

/// What became of one wait at the server.
enum End {
    /// After a wait it has to be claimed.
    Granted(Grant, HasWaited),
    /// It has to be asked again, by the same id.
    Repeat,
}

/// Whether a grant came after a wait, by a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HasWaited {
    Yes,
    No,
}

/// Waits until the request is granted, or the server says that the deadline is over.
///
/// Cancel safety: dropping it leaves neither a place nor a hold on the server; both are taken back in the background.
pub(crate) async fn wait(request: &Arc<Request>, deadline: Option<Moment>) -> Result<Grant, Error> {
    let turn = request.gate.pass().await;
    // If this ends in the middle, the request is taken back.
    let mut unsure = Unsure::new(request, turn, true);
    let (mut pauses, mut was_heard, mut may_be_known) = (Pauses::new(), false, false);
    loop {
        let started = Moment::now();
        let asking = Asking { request, request_id: unsure.request_id(), deadline, letter: Mutex::default() };
        let give_up = started.after(request.client.settings.retry_for);
        let answered =
            request.ask(&asking, &unsure, deadline.map_or(give_up, |end| give_up.min(end.after(LATE)))).await?;
        may_be_known |= answered.is_resent;
        if answered.said.as_ref().is_err_and(is_id_taken) {
            // Ids that strangers have raised may meet. One that a server may have seen is kept, and has to wait until the other is done with.
            if may_be_known {
                sleep_until(Moment::now().after(pauses.next())).await;
            } else {
                unsure.renumber();
            }
            continue;
        }
        let is_refused = answered.said.is_err();
        let may_be_in_part = request.may_be_granted_in_part(may_be_known);
        let end = match hear(request, &asking, answered, deadline).await {
            Ok(end) => end,
            // Before it was heard: another process of this owner has used higher ids. After that: it has asked since.
            Err(Error::Server { code, message })
                if code == "STALE" && !was_heard && !may_be_in_part && request.raise_ids(&message) =>
            {
                unsure.renumber();
                continue;
            }
            Err(error) => {
                let is_stale = matches!(&error, Error::Server { code, .. } if code == "STALE");
                // Of an earlier copy a refusal says nothing, unless a later request has taken its place, and then nothing of other keys.
                let says_all = if is_refused && !is_stale { !may_be_known } else { !may_be_in_part };
                if says_all {
                    unsure.settled();
                }
                return Err(if is_stale && (was_heard || may_be_in_part) { Error::Superseded } else { error });
            }
        };
        (was_heard, may_be_known) = (true, true);
        match end {
            End::Granted(mut grant, has_waited) => {
                // Of an answer that came late the lease has been running since the request was sent.
                let is_fresh = request.is_fresh(grant.counts_from, Moment::now());
                let confirmed = match has_waited == HasWaited::No && is_fresh {
                    true => Ok(()),
                    false => {
                        let give_up = Moment::now().after(request.client.settings.retry_for);
                        Box::pin(request.confirm(&mut grant, give_up)).await
                    }
                };
                if matches!(&confirmed, Err(Error::NotHeld)) && request.may_be_granted_in_part(true) {
                    request.give_back(&grant.tokens, request.end_of_efforts()).await;
                }
                if matches!(&confirmed, Ok(()) | Err(Error::NotHeld)) {
                    unsure.settled();
                }
                return confirmed.map(|()| grant);
            }
            End::Repeat => {
                if started.until(Moment::now()) >= HEALTHY {
                    pauses = Pauses::new();
                }
                sleep_until(Moment::now().after(pauses.next())).await;
            }
        }
    }
}

/// What an answer means, and the message that follows it.
async fn hear(
    request: &Request,
    asking: &Asking<'_>,
    answered: Answered,
    deadline: Option<Moment>,
) -> Result<End, Error> {
    let Answered { said, first_sent, link, .. } = answered;
    let value = said.map_err(|error| Error::from_answer(&error))?;
    let grant = |tokens| Grant { tokens, counts_from: first_sent, lease: request.lease, link: link.clone() };
    let letter = asking.letter.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(mut letter) = letter.filter(|_| matches!(&value, Value::SimpleString(text) if text == WAITING)) else {
        return match wire::tokens(&value)? {
            Some(tokens) => Ok(End::Granted(grant(tokens), HasWaited::No)),
            // It could only be asked without waiting, while its slot moves from one node to another.
            None if deadline.is_none_or(|deadline| Moment::now() < deadline) => Ok(End::Repeat),
            None => Err(Error::Timeout),
        };
    };
    let message = tokio::select! {
        biased;
        message = letter.read() => message,
        () = link.closed() => None,
    };
    match message {
        Some(Message::Granted(tokens)) => Ok(End::Granted(grant(tokens), HasWaited::Yes)),
        Some(Message::TimedOut) => Err(Error::Timeout),
        Some(Message::Refused { code, text }) if code != "UNBLOCKED" => Err(Error::from_code(code, text)),
        // A failover, or the end of the connection.
        Some(Message::Refused { .. }) | None => Ok(End::Repeat),
    }
}

/// An ACQUIRE that waits, made for the connection over which its message comes.
struct Asking<'a> {
    request: &'a Request,
    request_id: u64,
    deadline: Option<Moment>,
    letter: Mutex<Option<Letter>>,
}

impl Prepare for Asking<'_> {
    async fn prepare(&self, link: &Arc<Link>, is_asking: bool) -> Result<Cow<'_, Cmd>, RedisError> {
        let keep = |letter| *self.letter.lock().unwrap_or_else(PoisonError::into_inner) = letter;
        keep(None);
        // Nobody can wait at a node that is only taking the slot over, but one may ask there.
        if is_asking {
            return Ok(Cow::Owned(self.request.acquire_command(Ask::Once, self.request_id)));
        }
        let channel = link.channel(self.request.slot(), self.request.client.settings.response_timeout).await?;
        let letter = link.expect(self.request_id, self.request.subject.clone())?;
        keep(Some(letter));
        let left = self.deadline.map(|deadline| Moment::now().until(deadline));
        Ok(Cow::Owned(self.request.acquire_command(Ask::Wait(left, &channel), self.request_id)))
    }
}
