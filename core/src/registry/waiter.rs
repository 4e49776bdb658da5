//! A waiter: a request that waits.

use alloc::boxed::Box;

use smallvec::SmallVec;

use super::positions::{NameId, OwnerId, Position, Rank};
use crate::collections::{Alarm, Optional};
use crate::event::Note;
use crate::kind::{Kind, Mode};
use crate::outbox::{Answer, Notice};
use crate::request::{Ask, Channel, Request, Verb};
use crate::time::Now;

/// The names of a request: nearly always one.
pub(crate) type RequestNames = SmallVec<[NameId; 1]>;

/// A request that waits. There may be millions, so it is small.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Waiter {
    /// In the order of the request.
    pub(super) names: RequestNames,
    pub(super) rank: Rank,
    pub(super) arrival: u64,
    pub(super) owner: OwnerId,
    request: Packed,
    note: Option<Box<Note>>,
    client: Optional,
    pub(super) since_us: u64,
    /// For MACQUIRE: the index of the key that was unavailable at the last check.
    pub(super) blocked_by: u32,
    /// It is in the engine's list of requests that may close a cycle.
    pub(super) is_suspected: bool,
    /// For a notified waiter: the master term in which its wait began, see
    /// [`Notified`](super::notified::Notified).
    pub(super) term: u16,
    pub(super) alarm: Alarm,
}

/// The fields of a waiting [`Request`].
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
    /// [`ONCE`] and [`TIMED`].
    flags: u8,
}

const ONCE: u8 = 1;
const TIMED: u8 = 2;

/// Optional milliseconds in five bytes, at most 365 days.
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
        let Request { verb, kind, mode, count, request_id, is_once, is_timed, notify, .. } = *request;
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
            flags: if is_once { ONCE } else { 0 } | if is_timed { TIMED } else { 0 },
        }
    }
}

impl Waiter {
    /// Creates a waiter.
    pub(super) fn new(entrant: Entrant<'_>, owner: OwnerId) -> Self {
        let Entrant { names, rank, arrival, owner: _, request, note, client, since_us } = entrant;
        Self {
            names,
            rank,
            arrival,
            owner,
            request: Packed::of(&request),
            note: note.map(|note| Box::new(note.into())),
            client: client.into(),
            since_us,
            blocked_by: 0,
            is_suspected: false,
            term: 0,
            alarm: Alarm::NONE,
        }
    }

    /// Its names, in the order of the request.
    pub(crate) fn names(&self) -> &[NameId] {
        &self.names
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn arrival(&self) -> u64 {
        self.arrival
    }

    /// When its wait began: with `NOTIFY`, when the server first received its id in this wait.
    pub(crate) fn since_us(&self) -> u64 {
        self.since_us
    }

    /// The index of the key that was unavailable at the last check.
    pub(crate) fn blocked_by(&self) -> usize {
        self.blocked_by as usize
    }

    /// It may close a cycle, and its search is pending.
    pub(crate) fn is_suspected(&self) -> bool {
        self.is_suspected
    }

    /// The request.
    pub(crate) fn request(&self) -> Request {
        let Packed { count, notify, verb, kind, mode, flags, .. } = self.request;
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
            is_once: flags & ONCE != 0,
            is_timed: flags & TIMED != 0,
            notify,
            ask: Ask::Wait { until_us: self.request.until_us.get() },
        }
    }

    /// `NOTE text`. An empty text removes the note of the hold.
    pub(crate) fn note(&self) -> Option<&[u8]> {
        self.note.as_ref().map(|note| &***note)
    }

    /// The connection that sent the request, if it has one.
    pub(crate) fn client(&self) -> Option<u64> {
        self.client.get()
    }

    /// Whether it has timed out. Such a waiter gets nil, and is never granted.
    pub(crate) fn has_timed_out(&self, now: Now) -> bool {
        self.request.until_us.get().is_some_and(|until_us| until_us <= now.mono_us)
    }

    /// Whether it is a MACQUIRE, which may have a single key.
    pub(crate) fn is_many(&self) -> bool {
        self.request.verb == Verb::AcquireMany
    }

    /// The channel for its answer, if no connection is blocked for it.
    pub(crate) fn notice(&self) -> Option<Notice> {
        let Packed { notify, request_id, .. } = self.request;
        Some(Notice { channel: notify?, id: request_id.get()?, client: self.client()? })
    }

    /// The answer when `later`, a request of the same owner, ends it. If `later` is the same
    /// request with the same channel, the wait continues, and there is nothing to publish.
    pub(crate) fn answer_when_superseded_by(&self, later: &Request) -> Answer {
        let Request { request_id, notify, .. } = self.request();
        let is_continued = notify.is_some() && (request_id, notify) == (later.request_id, later.notify);
        if is_continued { Answer::Continued } else { Answer::Superseded }
    }

    pub(super) fn position(&self, ticket: u64) -> Position {
        Position::new(self.rank, self.arrival, ticket)
    }
}

/// When a request times out; `None` if never.
pub(super) fn until_us(request: &Request) -> Option<u64> {
    match request.ask {
        Ask::Wait { until_us } => until_us,
        Ask::Try | Ask::Queue { .. } => None,
    }
}

/// A request that is about to wait.
pub(crate) struct Entrant<'a> {
    pub(crate) names: RequestNames,
    pub(crate) rank: Rank,
    pub(crate) arrival: u64,
    pub(crate) owner: &'a [u8],
    pub(crate) request: Request,
    pub(crate) note: Option<&'a [u8]>,
    pub(crate) client: Option<u64>,
    /// See [`Waiter::since_us`].
    pub(crate) since_us: u64,
}
