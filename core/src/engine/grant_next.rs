//! The hand-over: serves the queue of a key from its head, as far as the lock admits. One loop
//! serves all kinds.
//!
//! The queue of a fair lock is part of the value, and some of its places have no connection:
//!
//! | lock | head of the queue | action |
//! |---|---|---|
//! | held | | wait |
//! | free | a waiter | grant it |
//! | free | a place without a connection, nothing reserved | reserve the lock for it, and publish an event |
//! | free | a place without a connection, reserved for it | wait |
//! | free | a place without a connection, reservation expired | drop the place: it missed its turn |
//! | | an expired place | drop the place, wherever it is |

use super::Engine;
use super::transaction::{At, Transaction};
use crate::budget::{ANSWER, CHANGE};
use crate::bytes::Owner;
use crate::event::{Event, LeaveCause};
use crate::keyspace::Keyspace;
use crate::limits::MayGrant;
use crate::lock::admission::{self, Ahead, Decision};
use crate::place::{Place, Stay};
use crate::statistics::count;

/// The head of a queue.
enum Head {
    /// Nothing to serve.
    Nothing,
    /// Waiters are retaking their places in a new value, so places may look expired. The timer
    /// continues that.
    Rejoining,
    Waiter(u64),
    /// A place without a connection: reserve the lock for it.
    Reserve {
        owner: Owner,
        until_us: u64,
    },
    /// An expired place whose time begins again.
    Keep {
        owner: Owner,
        stay: Stay,
        request_id: Option<u64>,
        grace_ms: Option<u64>,
    },
    /// A place to drop.
    Drop {
        owner: Owner,
        cause: LeaveCause,
    },
    /// A place that is still marked as connected, although no request of its owner waits.
    Abandoned {
        owner: Owner,
        request_id: Option<u64>,
    },
}

/// The result of serving a waiter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    Waits,
    Answered,
}

impl Engine {
    /// See the module documentation. `hold_ended`: a hold has just ended.
    pub(super) fn grant_next(&mut self, at: &mut At<'_, '_, impl Keyspace>, hold_ended: bool) {
        while at.limits.may_grant == MayGrant::Yes {
            match self.head(at) {
                Head::Nothing => return,
                Head::Waiter(ticket) => {
                    if self.serve_head(at, ticket, hold_ended) == Served::Waits {
                        return;
                    }
                }
                Head::Rejoining => return self.defer_to_timer(at.key()),
                _ if !self.budget.take(CHANGE) => return self.defer_to_timer(at.key()),
                Head::Reserve { owner, until_us } => {
                    return self.commit(at, Event::Reserved { owner, until_us });
                }
                Head::Drop { owner, cause } => self.commit(at, Event::Left { owner, cause }),
                Head::Keep { owner, stay, request_id, grace_ms } => {
                    self.commit(at, Event::Kept { owner, stay, request_id, grace_ms });
                }
                Head::Abandoned { owner, request_id } => {
                    self.release_place(at, owner.as_slice(), request_id, false);
                }
            }
        }
    }

    fn head(&self, at: &mut At<'_, '_, impl Keyspace>) -> Head {
        let name = self.name(at);
        if name.is_some_and(|name| self.registry.is_rejoining(name)) {
            return Head::Rejoining;
        }
        let now = at.now;
        let Some((lock, queue, first)) = at.lock().and_then(|lock| Some((lock, lock.queue()?, lock.queue()?.first()?)))
        else {
            let first = name.and_then(|name| self.registry.first(name));
            return first.map_or(Head::Nothing, |(ticket, _)| Head::Waiter(ticket));
        };
        if let Some(place) = queue.expired_place(now.mono_us) {
            return self.expired(at, &place);
        }
        if lock.is_held(now) {
            return Head::Nothing;
        }
        if let Some(ticket) = name.and_then(|name| self.registry.own_place(first.owner, name)) {
            return Head::Waiter(ticket);
        }
        let owner = Owner::from(first.owner);
        if first.stay == Stay::Connected {
            return Head::Abandoned { owner, request_id: first.request_id };
        }
        match queue.reserved_until_us().filter(|until_us| !self.begins_again(at, *until_us)) {
            Some(until_us) if until_us <= now.mono_us => Head::Drop { owner, cause: LeaveCause::Missed },
            Some(_) => Head::Nothing,
            None => {
                let grace_us =
                    now.after_ms(first.grace_ms.filter(|grace_ms| *grace_ms != 0).unwrap_or(at.limits.fair_grace_ms));
                let until_us = first.stay.until_us().map_or(grace_us, |life_us| life_us.min(grace_us));
                Head::Reserve { owner, until_us }
            }
        }
    }

    /// What becomes of an expired place: it goes, unless it ended while no hold could begin. Then
    /// its grace begins again.
    fn expired(&self, tx: &Transaction<'_, impl Keyspace>, place: &Place<'_>) -> Head {
        let owner = Owner::from(place.owner);
        if !place.stay.until_us().is_some_and(|until_us| self.begins_again(tx, until_us)) {
            return Head::Drop { owner, cause: LeaveCause::Expired };
        }
        let until_us = tx.now.after_ms(place.grace_ms.unwrap_or(tx.limits.fair_grace_ms));
        let stay = match place.stay {
            Stay::Polled { .. } => Stay::Polled { until_us },
            Stay::Grace { .. } | Stay::Connected => Stay::Grace { until_us },
        };
        Head::Keep { owner, stay, request_id: place.request_id, grace_ms: place.grace_ms }
    }

    /// Serves the head of a queue.
    fn serve_head(&mut self, at: &mut At<'_, '_, impl Keyspace>, ticket: u64, hold_ended: bool) -> Served {
        let Some(waiter) = self.registry.get(ticket) else {
            return Served::Waits;
        };
        let (owner, kind) = (self.registry.owner_of(waiter), waiter.request().kind);
        let has_wait_ended = self.registry.has_wait_ended(waiter, at.now);
        let decision = admission::decide(at.value(), Ahead::default(), owner, &waiter.request(), at.now);
        if !has_wait_ended && decision == Decision::Wait {
            return Served::Waits;
        }
        let is_offer = !has_wait_ended && waiter.is_many() && !matches!(decision, Decision::Refuse(_));
        if is_offer {
            self.offer(at, ticket, hold_ended);
            return Served::Waits;
        }
        if !self.budget.take(ANSWER) {
            self.defer_to_timer(at.key());
            return Served::Waits;
        }
        if has_wait_ended {
            self.answer_if_wait_ended(at, ticket);
        } else if self.serve(at, ticket, decision) && hold_ended {
            count(&mut self.stats.of(kind).handed_over);
        }
        Served::Answered
    }
}
