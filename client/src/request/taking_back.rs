//! Takes back a request that nobody waits for any more and whose outcome is not known.
//!
//! A wait is ended. If there is none, the same request is sent once more without waiting: that tells whether it was granted, and then it is
//! released. What cannot be taken back in time ends with its lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redis::Cmd;

use super::{Grant, Numbered, Request};
use crate::Error;
use crate::call::{Answered, Pauses};
use crate::clock::Moment;
use crate::gate::Turn;
use crate::options::SHORTEST;
use crate::timer::{sleep_until, within};
use crate::wire::{self, Acquire, Ask, Subject};

/// How long taking back is tried before it is left to the end of the lease. client/README.md says so, too.
const LONGEST_TAKING_BACK: Duration = Duration::from_secs(60);

/// What became of a wait that nobody wants any more.
enum Wait {
    /// It has ended, without a grant.
    Ended,
    /// There is none: the request may have been granted.
    None,
    /// The node where it may be says nothing of it, for now.
    OutOfReach,
}

/// Until when taking back goes on.
#[derive(Clone, Copy)]
struct Efforts {
    end: Moment,
    /// A server whose memory is full refuses to say what was granted, and none does while the slot is on its way. It is asked no longer than this.
    end_if_untold: Moment,
}

impl Request {
    /// Until when a background task of this request goes on: the server forgets the hold by itself then.
    pub(crate) fn end_of_efforts(&self) -> Moment {
        Moment::now().after(self.lease.min(LONGEST_TAKING_BACK).max(self.client.settings.response_timeout))
    }

    /// Finds out what became of a request that nobody waits for any more, and gives back what it got.
    ///
    /// While its slot is on its way to another node, a wait cannot be ended: the node where it waits has what is said of the key done by the other
    /// one. So it is done again until a node answers that serves the slot: the other one, where nobody waits, or the same if the slot stays.
    async fn take_back(&self, request_id: u64, may_wait: bool, has_earlier_copy: bool, mut turn: Turn) {
        let end = self.end_of_efforts();
        // Not for long if the owner may have other requests, which wait: what it wants to release is memory that may be missing. After that it is done
        // between them.
        let end_if_untold = match self.gate.can_be_found() {
            true => end.min(Moment::now().after(self.client.settings.response_timeout)),
            false => end,
        };
        let (mut pauses, mut has_asked_elsewhere) = (Pauses::new(), false);
        pauses.refused();
        loop {
            let wait = if may_wait { self.end_wait(request_id, end).await } else { Ok(Wait::None) };
            match wait {
                // The copy that waited had got nothing.
                Ok(Wait::Ended) if !self.may_be_granted_in_part(has_earlier_copy) => return,
                Ok(Wait::Ended | Wait::None) => {
                    return self.take_back_grant(request_id, Efforts { end, end_if_untold }).await;
                }
                // What it was granted there is given back. If it is asked for again, it is granted anew.
                Ok(Wait::OutOfReach) if has_asked_elsewhere => {}
                Ok(Wait::OutOfReach) => {
                    has_asked_elsewhere = true;
                    self.take_back_grant(request_id, Efforts { end: end_if_untold, end_if_untold }).await;
                }
                Err(error) => return tracing::warn!(%error, "a wait that nobody wants could not be ended"),
            }
            let next = Moment::now().after(pauses.next());
            if next >= end {
                return;
            }
            if next < end_if_untold {
                sleep_until(next).await;
                continue;
            }
            drop(turn);
            sleep_until(next).await;
            let Some(next_turn) = within(Moment::now().until(end), self.gate.pass()).await else { return };
            turn = next_turn;
        }
    }

    /// Ends a wait.
    async fn end_wait(&self, request_id: u64, give_up: Moment) -> Result<Wait, Error> {
        let Answered { said, is_asking, .. } = self.call(&self.subject.cancel(request_id), give_up).await?;
        let ended = said.map_err(|error| Error::from_answer(&error)).and_then(|said| wire::number(&said));
        Ok(match ended {
            // Also if that has ended something: the place in a fair lock's queue goes along with the lock, and the wait does not.
            _ if is_asking => Wait::OutOfReach,
            Ok(1..) => Wait::Ended,
            _ => Wait::None,
        })
    }

    /// Gives back what a request was granted that waits no more: it is sent once more without waiting, which tells.
    async fn take_back_grant(&self, request_id: u64, efforts: Efforts) {
        let is_many = self.may_be_granted_in_part(true);
        match self.repeat(&self.acquire_command(Ask::Once, request_id), efforts).await {
            Ok(Some(grant)) => self.give_back(&grant.tokens, efforts.end).await,
            // The request was sent once more to be told that.
            Ok(None) if is_many => self.take_back_singly(request_id, efforts).await,
            Ok(None) => {}
            // One of the keys refuses: something else was done in the name of the owner since, or it is no lock any more, or nobody may ask for it. The
            // others are as they were.
            Err(error) if is_many && !matches!(error, Error::Connection { .. } | Error::RuntimeEnded) => {
                self.take_back_singly(request_id, efforts).await;
            }
            Err(error) => tracing::warn!(%error, "a request that nobody wants could not be taken back"),
        }
    }

    /// Gives back what each of several keys was granted with a request. A key that was granted tells its token when it is asked for by the same id;
    /// one that was not is granted for a moment, and given back.
    async fn take_back_singly(&self, request_id: u64, efforts: Efforts) {
        for key in self.subject.keys.iter() {
            let subject = Subject { keys: Arc::from([key.clone()]), ..self.subject.clone() };
            // It prolongs nothing, and ends by itself if it is not given back.
            let (lease, session_grace) = (SHORTEST, self.gate.session_grace);
            let repetition = subject.acquire(Acquire { lease, session_grace, ask: Ask::Once, request_id, note: None });
            let outcome = async {
                let Some(grant) = self.repeat(&repetition, efforts).await? else { return Ok(()) };
                let (gate, client) = (self.gate.clone(), self.client.clone());
                let request = Request { subject, gate, client, note: None, ..*self };
                let numbered = Numbered::default();
                numbered.renumber(self.gate.next_id());
                request.release(&grant.tokens, 1, &numbered, Moment::NEVER, efforts.end).await
            };
            match outcome.await {
                Ok(()) | Err(Error::NotHeld) => {}
                Err(error) => {
                    let key = String::from_utf8_lossy(key);
                    tracing::warn!(%key, %error, "one of several locks that nobody wants could not be released; its lease ends it");
                }
            }
        }
    }

    /// Sends an ACQUIRE once more that nobody waits for. A server whose memory is full refuses it without a look at what the request was granted, so it
    /// is sent again.
    async fn repeat(&self, repetition: &Cmd, efforts: Efforts) -> Result<Option<Grant>, Error> {
        let mut pauses = Pauses::new();
        loop {
            match self.grant_in(self.call(repetition, efforts.end).await?) {
                Err(Error::Server { code, .. }) if code == "OOM" && Moment::now() < efforts.end_if_untold => {
                    pauses.refused();
                    sleep_until(Moment::now().after(pauses.next())).await;
                }
                outcome => return outcome,
            }
        }
    }
}

/// A request that may have been sent and whose outcome is not known. Dropping it takes the request back in the background.
pub(crate) struct Unsure<'a> {
    request: &'a Arc<Request>,
    request_id: u64,
    may_wait: bool,
    /// How often a server may have got it.
    pub(super) copies: AtomicU32,
    turn: Option<Turn>,
}

impl<'a> Unsure<'a> {
    pub(crate) fn new(request: &'a Arc<Request>, turn: Turn, may_wait: bool) -> Self {
        let (request_id, copies) = (request.gate.next_id(), AtomicU32::new(0));
        Self { request, request_id, may_wait, copies, turn: Some(turn) }
    }

    pub(crate) fn request_id(&self) -> u64 {
        self.request_id
    }

    /// The server has refused the id.
    pub(crate) fn renumber(&mut self) {
        self.request_id = self.request.gate.next_id();
    }

    /// The outcome is known.
    pub(crate) fn settled(mut self) {
        self.turn = None;
    }
}

impl Drop for Unsure<'_> {
    fn drop(&mut self) {
        let copies = self.copies.load(Ordering::Relaxed);
        let Some(turn) = self.turn.take().filter(|_| copies > 0) else { return };
        let (request, request_id, may_wait) = (self.request.clone(), self.request_id, self.may_wait);
        self.request.client.home.in_background(async move {
            request.take_back(request_id, may_wait, copies > 1, turn).await;
        });
    }
}
