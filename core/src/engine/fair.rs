//! Fair locks: the queue lives in the value, and a waiter may be a blocked connection or only a place.
//!
//! A connected waiter is in both: it has a place here, and a ticket among the waiters of the name. The place gives the
//! order; the ticket is how it is answered.
//!
//! | the lock is | the head is | then |
//! |---|---|---|
//! | held | | wait |
//! | free | connected | it is granted |
//! | free | detached, no turn set | its turn begins: the lock is reserved for it, and an event says so |
//! | free | detached, its turn not over | wait |
//! | free | detached, its turn over | it has missed it, and loses its place |
//! | | at the end of its life | it loses its place, wherever it stands |

use alloc::vec::Vec;

use crate::bytes::Owner;
use crate::event::{Event, LeaveCause};
use crate::keyspace::{KeyId, Keyspace, Slot};
use crate::lock::{Kind, Lock, Mode};
use crate::outbox::Answer;
use crate::places::{Places, Stay};
use crate::queue::{Rank, Standing};
use crate::request::{Acquire, Ask, Refusal};

use super::fresh::Fresh;
use super::pending::{Details, Owed};
use super::{Acquired, Engine, Turn};

/// How many places whose life is over are removed in one go; the alarm goes off again for the rest.
const OVER_AT_ONCE: usize = 1000;

/// What the head of a queue is served with.
enum Head {
    Nothing,
    Grant { owner: Owner, ticket: u64 },
    GiveUp { owner: Owner, ticket: u64 },
    BeginTurn { owner: Owner, until_us: u64 },
    Drop { owner: Owner, cause: LeaveCause },
}

impl Engine {
    /// ACQUIRE on a fair lock by an owner that does not hold it.
    pub(super) fn acquire_place(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        request: Acquire,
    ) -> Result<Acquired, Refusal> {
        let is_vacant = Self::lock_of_kind(turn, id, Kind::Fair)?.is_none();
        if is_vacant && self.waiters.has_other_kind(turn.keys.key(id), Kind::Fair) {
            // Others wait under this name for many keys at once, and for a lock of another kind: none is made here.
            return if request.ask == Ask::Try { Ok(Acquired::Denied) } else { Err(Refusal::WrongType) };
        }
        let now = turn.now;
        let lock = Self::lock_of_kind(turn, id, Kind::Fair)?;
        let is_held = lock.is_some_and(|lock| lock.live_holds(now).next().is_some());
        let places = lock.and_then(Lock::places);
        let count = places.map_or(0, Places::len);
        let mine = places
            .and_then(|places| places.get(request.owner.as_slice()))
            .map(|place| (place.stay, place.arrival, place.request_id));
        let waiting_id = mine.and_then(|(_, _, request_id)| request_id);
        if let (Some(request_id), Some(last_id)) = (request.request_id, waiting_id)
            && request_id < last_id
        {
            return Err(Refusal::Stale { last_id });
        }
        let is_first = places.and_then(Places::first).is_none_or(|first| first.owner == request.owner.as_slice());
        if !is_held && is_first {
            let token = self.grant(turn, id, &request)?;
            let granted = match mine {
                Some(_) => &mut self.stats.granted_after_waiting,
                None => &mut self.stats.granted_at_once,
            };
            *granted = granted.saturating_add(1);
            return Ok(Acquired::Granted(token));
        }
        let stay = match request.ask {
            Ask::Try => return Ok(Acquired::Denied),
            Ask::Queue { life_ms } => Stay::Polled { until_us: turn.now.after_ms(life_ms) },
            Ask::Wait { .. } => Stay::Connected,
        };
        let limit = turn.limits.max_places;
        if mine.is_none() && count >= limit {
            return Err(Refusal::MaxPlaces { limit });
        }
        let replaced = self.waiters.of_owner(turn.keys.key(id), &request.owner, request.mode);
        if stay == Stay::Connected && replaced.is_empty() {
            self.check_waiters(turn)?;
        }
        let owner = request.owner.clone();
        let arrival = mine.map_or_else(|| self.next_number(turn.now), |(_, arrival, _)| arrival);
        let request_id = request.request_id.or(waiting_id);
        let ticket = if stay == Stay::Connected {
            let standing = Standing { rank: Rank::Newcomer, arrival };
            let ticket = self.wait(turn, &[id], standing, request);
            self.check_deadlock(turn, &owner, ticket, &replaced)?;
            Some(ticket)
        } else {
            None
        };
        for ticket in replaced {
            self.waiters.leave(ticket);
            turn.out.answer(ticket, Answer::TakenOver);
        }
        match mine {
            None => self.commit(turn, id, Event::Queued { owner, stay, arrival, request_id, at_head: false }),
            Some((mine, _, _)) if mine != stay || request_id != waiting_id => {
                self.commit(turn, id, Event::Kept { owner, stay, request_id });
            }
            Some(_) => {}
        }
        Ok(ticket.map_or(Acquired::Denied, Acquired::Waiting))
    }

    /// CANCEL: an owner gives its place up. Returns whether it had one.
    ///
    /// # Errors
    ///
    /// [`Refusal::WrongType`] if the key holds something else.
    pub fn cancel(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, owner: &[u8]) -> Result<bool, Refusal> {
        self.settled(turn, id, |engine, turn| engine.cancel_settled(turn, id, owner))
    }

    fn cancel_settled(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, owner: &[u8]) -> Result<bool, Refusal> {
        let now = turn.now;
        let place = Self::lock_of_kind(turn, id, Kind::Fair)?
            .and_then(Lock::places)
            .and_then(|places| places.get(owner))
            .filter(|place| place.is_live(now));
        if place.is_none() {
            return Ok(false);
        }
        let owner = Owner::from(owner);
        for ticket in self.waiters.of_owner(turn.keys.key(id), &owner, Mode::Exclusive) {
            self.waiters.leave(ticket);
            turn.out.answer(ticket, Answer::Cancelled);
        }
        self.commit(turn, id, Event::Left { owner, cause: LeaveCause::Cancelled });
        self.settle(turn, id, false);
        Ok(true)
    }

    /// Serves the queue of a fair lock from its head; see the table above.
    pub(super) fn serve_places(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, freed: bool) {
        self.drop_over(turn, id);
        // A place at the head whose life is over has an alarm that is due: what is left of them here is dropped next time.
        for _ in 0..OVER_AT_ONCE {
            match self.head(turn, id) {
                Head::Nothing => return,
                Head::BeginTurn { owner, until_us } => {
                    self.commit(turn, id, Event::Turn { owner, until_us });
                    return;
                }
                Head::Drop { owner, cause } => self.commit(turn, id, Event::Left { owner, cause }),
                Head::GiveUp { owner, ticket } => {
                    self.waiters.leave(ticket);
                    self.stats.timed_out = self.stats.timed_out.saturating_add(1);
                    turn.out.answer(ticket, Answer::TimedOut);
                    self.commit(turn, id, Event::Left { owner, cause: LeaveCause::TimedOut });
                }
                Head::Grant { owner, ticket } => {
                    let Some(waiter) = self.waiters.leave(ticket) else {
                        return;
                    };
                    if self.grant_to_waiter(turn, id, ticket, &waiter).is_none() {
                        self.commit(turn, id, Event::Left { owner, cause: LeaveCause::TimedOut });
                    } else if freed {
                        self.stats.handed_over = self.stats.handed_over.saturating_add(1);
                    }
                }
            }
        }
    }

    fn head(&self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) -> Head {
        let now = turn.now;
        let Slot::Lock(stored) = turn.keys.slot(id) else {
            return Head::Nothing;
        };
        let lock = &stored.lock;
        let Some((places, head)) = lock.places().and_then(|places| Some((places, places.first()?))) else {
            return Head::Nothing;
        };
        if lock.live_holds(now).next().is_some() {
            return Head::Nothing;
        }
        let (owner, stay, turn_until_us) = (Owner::from(head.owner), head.stay, places.turn_until_us());
        if stay.until_us().is_some_and(|life_us| life_us <= now.mono_us) {
            return Head::Drop { owner, cause: LeaveCause::Lapsed };
        }
        let ticket = self.waiters.of_owner(turn.keys.key(id), &owner, Mode::Exclusive).first().copied();
        if let Some((ticket, waiter)) = ticket.and_then(|ticket| Some((ticket, self.waiters.get(ticket)?))) {
            return if waiter.is_over(now) { Head::GiveUp { owner, ticket } } else { Head::Grant { owner, ticket } };
        }
        match turn_until_us {
            Some(until_us) if until_us <= now.mono_us => Head::Drop { owner, cause: LeaveCause::Missed },
            Some(_) => Head::Nothing,
            None => {
                let grace_us = now.after_ms(turn.limits.fair_grace_ms);
                let until_us = stay.until_us().map_or(grace_us, |life_us| life_us.min(grace_us));
                Head::BeginTurn { owner, until_us }
            }
        }
    }

    /// Removes places whose life is over, so that nobody counts or shows them.
    fn drop_over(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) {
        for _ in 0..OVER_AT_ONCE {
            let now_us = turn.now.mono_us;
            let Slot::Lock(stored) = turn.keys.slot(id) else {
                return;
            };
            let Some(owner) =
                stored.lock.places().and_then(|places| places.over(now_us)).map(|place| Owner::from(place.owner))
            else {
                return;
            };
            self.commit(turn, id, Event::Left { owner, cause: LeaveCause::Lapsed });
        }
    }

    /// What the server's notes come to for the places of a fair lock.
    pub(super) fn settle_places(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        owed: &Owed,
        details: &Details,
    ) {
        if owed.arrived && Self::has_places(turn.keys, id) {
            let until_us = turn.now.after_ms(turn.limits.fair_grace_ms);
            self.commit(turn, id, Event::Detached { until_us });
        }
        if owed.arrived || owed.replaced {
            self.rejoin(turn, id);
        }
        for owner in &details.gave_up {
            if self.abandoned(turn, id, owner).is_some() {
                self.commit(turn, id, Event::Left { owner: owner.clone(), cause: LeaveCause::TimedOut });
            }
        }
        for owner in &details.disconnected {
            if let Some(request_id) = self.abandoned(turn, id, owner) {
                let until_us = turn.now.after_ms(turn.limits.fair_grace_ms);
                let stay = Stay::Grace { until_us };
                self.commit(turn, id, Event::Kept { owner: owner.clone(), stay, request_id });
            }
        }
    }

    /// Whether the place of `owner` says that it is connected, and no connection of it waits any more; and the id of the
    /// request that it stands for.
    fn abandoned(&self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, owner: &Owner) -> Option<Option<u64>> {
        let Slot::Lock(stored) = turn.keys.slot(id) else {
            return None;
        };
        let place = stored.lock.places()?.get(owner.as_slice())?;
        let (stay, request_id) = (place.stay, place.request_id);
        let waits = !self.waiters.of_owner(turn.keys.key(id), owner, Mode::Exclusive).is_empty();
        (stay == Stay::Connected && !waits).then_some(request_id)
    }

    /// Connected waiters stay with the name. When another value lies under it, or none, they take their places there, in
    /// the old order.
    fn rejoin(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId) {
        if self.waiters.len_on(turn.keys.key(id)) == 0 {
            return;
        }
        let waiting: Vec<(Owner, u64, Option<u64>)> = self
            .waiters
            .in_order(turn.keys.key(id))
            .filter(|waiter| waiter.request.kind == Kind::Fair)
            .map(|waiter| (waiter.request.owner.clone(), waiter.standing.arrival, waiter.request.request_id))
            .collect();
        for (owner, arrival, request_id) in waiting {
            let stay = match Self::lock_of_kind(turn, id, Kind::Fair) {
                Err(_) => return,
                Ok(lock) => {
                    lock.and_then(Lock::places).and_then(|places| places.get(owner.as_slice())).map(|place| place.stay)
                }
            };
            match stay {
                Some(Stay::Connected) => {}
                Some(_) => self.commit(turn, id, Event::Kept { owner, stay: Stay::Connected, request_id }),
                None => {
                    let stay = Stay::Connected;
                    self.commit(turn, id, Event::Queued { owner, stay, arrival, request_id, at_head: false });
                }
            }
        }
    }

    /// A grant that is taken back leaves its owner the place that it had: at the head, for a grace.
    pub(super) fn undo_place(&mut self, turn: &mut Turn<'_, impl Keyspace>, id: KeyId, fresh: &Fresh) {
        let Slot::Lock(stored) = turn.keys.slot(id) else {
            return;
        };
        if stored.lock.kind() != Kind::Fair {
            return;
        }
        if let Some(hold) = stored.lock.hold_with_token(fresh.token) {
            let (owner, request_id) = (hold.owner().clone(), hold.request().map(|request| request.id));
            let stay = Stay::Grace { until_us: turn.now.after_ms(turn.limits.fair_grace_ms) };
            self.commit(turn, id, Event::Queued { owner, stay, arrival: fresh.arrival, request_id, at_head: true });
        }
    }

    pub(super) fn has_places(keys: &mut impl Keyspace, id: KeyId) -> bool {
        matches!(keys.slot(id), Slot::Lock(stored) if stored.lock.places().is_some())
    }
}
