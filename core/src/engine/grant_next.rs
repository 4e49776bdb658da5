//! Serves the queue of a key from its head, as far as the lock admits: the hand-over. One loop for all kinds.
//!
//! The queue of a fair lock is part of the value, and some of its places have no connection:
//!
//! | the lock is | the head is | then |
//! |---|---|---|
//! | held | | wait |
//! | free | a waiter | it is granted |
//! | free | a place without a connection, nothing reserved | the lock is reserved for it, and an event says so |
//! | free | a place without a connection, reserved for it | wait |
//! | free | a place without a connection, the reservation is over | it has missed it, and loses its place |
//! | | a place at the end of its life | it loses its place, wherever it stands |

use super::Engine;
use super::transaction::At;
use crate::budget::{ANSWER, CHANGE};
use crate::bytes::Owner;
use crate::event::{Event, LeaveCause};
use crate::keyspace::Keyspace;
use crate::lock::admission::{self, Ahead, Decision, Value};
use crate::place::Stay;
use crate::statistics::count;

/// Who or what is first in a queue.
enum Head {
    /// Nobody that could be served.
    Nobody,
    Waiter(u64),
    /// A place without a connection, for which the lock is to be reserved.
    Reserve {
        owner: Owner,
        until_us: u64,
    },
    /// A place that is lost.
    Drop {
        owner: Owner,
        cause: LeaveCause,
    },
    /// A place whose connection is gone, which is not known to it yet.
    Abandoned {
        owner: Owner,
        request_id: Option<u64>,
    },
}

/// What became of a waiter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    Waits,
    Answered,
}

impl Engine {
    /// See the head of this file. `freed` tells that a hold has just ended.
    pub(super) fn grant_next(&mut self, at: &mut At<'_, '_, impl Keyspace>, freed: bool) {
        if self.is_rejoining(at) {
            // Until `rejoin` has finished, places of connected waiters may look expired. The timer continues the rejoin.
            return self.leave_to_timer(at.key());
        }
        self.drop_expired_places(at);
        loop {
            match self.head(at) {
                Head::Nobody => return,
                Head::Waiter(ticket) => {
                    if self.serve_head(at, ticket, freed) == Served::Waits {
                        return;
                    }
                }
                _ if !self.budget.take(CHANGE) => return self.leave_to_timer(at.key()),
                Head::Reserve { owner, until_us } => {
                    return self.commit(at, Event::Reserved { owner, until_us });
                }
                Head::Drop { owner, cause } => self.commit(at, Event::Left { owner, cause }),
                Head::Abandoned { owner, request_id } => {
                    self.release_place(at, owner.as_slice(), request_id, false);
                }
            }
        }
    }

    /// Whether waiters of a fair lock have yet to get their places in the value that now lies under the name.
    pub(super) fn is_rejoining(&self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        self.name(at).is_some_and(|name| self.registry.is_rejoining(name))
    }

    fn head(&self, at: &mut At<'_, '_, impl Keyspace>) -> Head {
        let name = self.name(at);
        let (now, now_us) = (at.now, at.now.mono_us);
        let queue = match at.value() {
            Value::Lock(lock) if lock.queue().is_some() => {
                if lock.is_held(now) {
                    return Head::Nobody;
                }
                lock.queue()
            }
            _ => None,
        };
        let Some((queue, first)) = queue.and_then(|queue| Some((queue, queue.first()?))) else {
            let first = name.and_then(|name| self.registry.first(name));
            return first.map_or(Head::Nobody, |(ticket, _)| Head::Waiter(ticket));
        };
        let owner = Owner::from(first.owner);
        if !first.is_live(now) {
            return Head::Drop { owner, cause: LeaveCause::Expired };
        }
        if let Some(ticket) = name.and_then(|name| self.registry.own_place(first.owner, name)) {
            return Head::Waiter(ticket);
        }
        if first.stay == Stay::Connected {
            return Head::Abandoned { owner, request_id: first.request_id };
        }
        match queue.reserved_until_us() {
            Some(until_us) if until_us <= now_us => Head::Drop { owner, cause: LeaveCause::Missed },
            Some(_) => Head::Nobody,
            None => {
                let grace_us =
                    now.after_ms(first.grace_ms.filter(|grace_ms| *grace_ms != 0).unwrap_or(at.limits.fair_grace_ms));
                let until_us = first.stay.until_us().map_or(grace_us, |life_us| life_us.min(grace_us));
                Head::Reserve { owner, until_us }
            }
        }
    }

    /// Serves the head of a queue.
    fn serve_head(&mut self, at: &mut At<'_, '_, impl Keyspace>, ticket: u64, freed: bool) -> Served {
        let Some(waiter) = self.registry.get(ticket) else {
            return Served::Waits;
        };
        let (owner, kind) = (self.registry.owner_of(waiter), waiter.request().kind);
        let is_wait_over = self.registry.is_wait_over(waiter, at.now);
        let decision = admission::decide(at.value(), Ahead::default(), owner, &waiter.request(), at.now);
        if !is_wait_over && decision == Decision::Wait {
            return Served::Waits;
        }
        let is_offer = !is_wait_over && waiter.is_many() && !matches!(decision, Decision::Refuse(_));
        if is_offer {
            self.offer(at, ticket, freed);
            return Served::Waits;
        }
        if !self.budget.take(ANSWER) {
            self.leave_to_timer(at.key());
            return Served::Waits;
        }
        if self.end_if_over(at, ticket) {
            return Served::Answered;
        }
        if self.serve(at, ticket, decision) && freed {
            count(&mut self.stats.of(kind).handed_over);
        }
        Served::Answered
    }
}
