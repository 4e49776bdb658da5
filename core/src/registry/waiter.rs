//! One request that waits.

use alloc::boxed::Box;

use smallvec::SmallVec;

use super::positions::{NameId, OwnerId, Position, Rank};
use crate::collections::{Alarm, Optional};
use crate::event::Note;
use crate::kind::{Kind, Mode};
use crate::outbox::{Answer, Notice};
use crate::request::{Ask, Channel, Request, Verb};
use crate::time::Now;

/// The names that a request is about: nearly always one.
pub(crate) type RequestNames = SmallVec<[NameId; 1]>;

/// A request that waits. There may be millions, so it is kept small.
pub(crate) struct Waiter {
    /// In the order in which they were asked for.
    pub(super) names: RequestNames,
    pub(super) rank: Rank,
    pub(super) arrival: u64,
    pub(super) owner: OwnerId,
    request: Packed,
    note: Option<Box<Note>>,
    client: Optional,
    pub(super) since_us: u64,
    /// Of a request for many keys: which of them was not to be had when it was last looked at.
    pub(super) held_up_by: u32,
    /// It is in the engine's list of requests that may close a circle.
    pub(super) is_suspected: bool,
    /// Without a blocked connection: which term of this server as a master it began in, see [`Notified`](super::notified::Notified).
    pub(super) term: u16,
    pub(super) alarm: Alarm,
}

/// What a [`Request`] says that waits.
#[derive(Clone, Copy)]
struct Packed {
    until_us: Optional,
    request_id: Optional,
    lease: Span,
    session: Span,
    claim: Span,
    grace: Span,
    count: u32,
    notify: Option<Channel>,
    verb: Verb,
    kind: Kind,
    mode: Mode,
    is_once: bool,
}

/// Milliseconds, 365 days at most, or none, in five bytes.
#[derive(Clone, Copy)]
struct Span([u8; 5]);

impl Span {
    const NONE: u64 = (1 << 40) - 1;

    fn of(ms: Option<u64>) -> Self {
        let [a, b, c, d, e, ..] = ms.unwrap_or(Self::NONE).to_le_bytes();
        Self([a, b, c, d, e])
    }

    fn ms(self) -> Option<u64> {
        let [a, b, c, d, e] = self.0;
        Some(u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])).filter(|ms| *ms != Self::NONE)
    }
}

impl Packed {
    fn of(request: &Request) -> Self {
        let Request { verb, kind, mode, count, request_id, is_once, notify, .. } = *request;
        Self {
            until_us: until_us(request).into(),
            request_id: request_id.into(),
            lease: Span::of(Some(request.lease_ms)),
            session: Span::of(request.session_ms),
            claim: Span::of(request.claim_ms),
            grace: Span::of(request.grace_ms),
            count,
            notify,
            verb,
            kind,
            mode,
            is_once,
        }
    }
}

impl Waiter {
    /// A request that begins to wait.
    pub(super) fn new(entrant: Entrant<'_>, owner: OwnerId, now: Now) -> Self {
        let Entrant { names, rank, arrival, owner: _, request, note, client } = entrant;
        Self {
            names,
            rank,
            arrival,
            owner,
            request: Packed::of(&request),
            note: note.map(|note| Box::new(note.into())),
            client: client.into(),
            since_us: now.mono_us,
            held_up_by: 0,
            is_suspected: false,
            term: 0,
            alarm: Alarm::NONE,
        }
    }

    /// Its names, in the order in which they were asked for.
    pub(crate) fn names(&self) -> &[NameId] {
        &self.names
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn arrival(&self) -> u64 {
        self.arrival
    }

    /// When it began to wait.
    pub(crate) fn since_us(&self) -> u64 {
        self.since_us
    }

    /// The index of the key that it lacked when it was last looked at.
    pub(crate) fn held_up_by(&self) -> usize {
        self.held_up_by as usize
    }

    /// It may close a cycle, and was not searched yet.
    pub(crate) fn is_suspected(&self) -> bool {
        self.is_suspected
    }

    /// What was asked.
    pub(crate) fn request(&self) -> Request {
        let Packed { count, notify, verb, kind, mode, is_once, .. } = self.request;
        Request {
            verb,
            kind,
            mode,
            count,
            lease_ms: self.request.lease.ms().unwrap_or(0),
            request_id: self.request.request_id.get(),
            session_ms: self.request.session.ms(),
            claim_ms: self.request.claim.ms(),
            grace_ms: self.request.grace.ms(),
            is_once,
            notify,
            ask: Ask::Wait { until_us: self.request.until_us.get() },
        }
    }

    /// `NOTE text`. An empty text removes the note of the hold.
    pub(crate) fn note(&self) -> Option<&[u8]> {
        self.note.as_ref().map(|note| &***note)
    }

    /// The connection that waits, if it is one that can close.
    pub(crate) fn client(&self) -> Option<u64> {
        self.client.get()
    }

    /// Whether its time is over. What was answered nil is never granted, and what is over is answered nil.
    pub(crate) fn is_over(&self, now: Now) -> bool {
        self.request.until_us.get().is_some_and(|until_us| until_us <= now.mono_us)
    }

    /// Whether it is a request for many keys, which may be one.
    pub(crate) fn is_many(&self) -> bool {
        self.request.verb == Verb::AcquireMany
    }

    /// Where its answer is published, if no connection is blocked for it.
    pub(crate) fn notice(&self) -> Option<Notice> {
        let Packed { notify, request_id, .. } = self.request;
        let lasts_ms = self.request().unclaimed_ms();
        Some(Notice { channel: notify?, id: request_id.get()?, client: self.client()?, lasts_ms })
    }

    /// The answer when `later`, a request of the same owner, ends it. The same request on the same channel goes on, and
    /// there is nothing to publish.
    pub(crate) fn answer_to_succeeded(&self, later: &Request) -> Answer {
        let Request { request_id, notify, .. } = self.request();
        let is_continued = notify.is_some() && (request_id, notify) == (later.request_id, later.notify);
        if is_continued { Answer::Continued } else { Answer::Superseded }
    }

    pub(super) fn position(&self, ticket: u64) -> Position {
        Position::new(self.rank, self.arrival, ticket)
    }
}

/// When it gives up; never, if it waits for ever.
pub(super) fn until_us(request: &Request) -> Option<u64> {
    match request.ask {
        Ask::Wait { until_us } => until_us,
        Ask::Try | Ask::Queue { .. } => None,
    }
}

/// A request that wants to wait.
pub(crate) struct Entrant<'a> {
    pub(crate) names: RequestNames,
    pub(crate) rank: Rank,
    pub(crate) arrival: u64,
    pub(crate) owner: &'a [u8],
    pub(crate) request: Request,
    pub(crate) note: Option<&'a [u8]>,
    pub(crate) client: Option<u64>,
}
