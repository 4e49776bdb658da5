//! One request that waits.

use smallvec::SmallVec;

use super::positions::{NameId, OwnerId, Position, Rank};
use crate::collections::Alarm;
use crate::outbox::{Answer, Notice};
use crate::request::{Ask, Request, Verb};
use crate::time::Now;

/// The names that a request is about: nearly always one.
pub(super) type RequestNames = SmallVec<[NameId; 1]>;

/// A request that waits.
pub(super) struct Waiter {
    /// In the order in which they were asked for.
    pub(super) names: RequestNames,
    pub(super) rank: Rank,
    pub(super) arrival: u64,
    pub(super) owner: OwnerId,
    pub(super) request: Request,
    /// The connection that waits, if it is one that can close.
    pub(super) client: Option<u64>,
    pub(super) since_us: u64,
    /// Of a request for many keys: which of them was not to be had when it was last looked at.
    pub(super) held_up_by: usize,
    /// It is in the engine's list of requests that may close a circle.
    pub(super) is_suspected: bool,
    pub(super) alarm: Alarm,
}

impl Waiter {
    /// Whether its time is over. What was answered nil is never granted, and what is over is answered nil.
    pub(super) fn is_over(&self, now: Now) -> bool {
        until_us(&self.request).is_some_and(|until_us| until_us <= now.mono_us)
    }

    /// Whether it is a request for many keys, which may be one.
    pub(super) fn is_many(&self) -> bool {
        self.request.verb == Verb::AcquireMany
    }

    /// Where its answer is published, if no connection is blocked for it.
    pub(super) fn notice(&self) -> Option<Notice> {
        let Request { notify, request_id, .. } = self.request;
        Some(Notice { channel: notify?, id: request_id?, client: self.client? })
    }

    /// What it is told when `later`, a request of the same owner, stands in its place.
    pub(super) fn answer_to_succeeded(&self, later: &Request) -> Answer {
        let Request { request_id, notify, .. } = self.request;
        let is_continued = notify.is_some() && (request_id, notify) == (later.request_id, later.notify);
        if is_continued { Answer::Continued } else { Answer::TakenOver }
    }

    pub(super) fn position(&self, ticket: u64) -> Position {
        Position { rank: self.rank, arrival: self.arrival, ticket }
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
pub(super) struct Entrant<'a> {
    pub(super) names: RequestNames,
    pub(super) rank: Rank,
    pub(super) arrival: u64,
    pub(super) owner: &'a [u8],
    pub(super) request: Request,
    pub(super) client: Option<u64>,
}
