//! The look at a value that came under a name, and at those who wait there. It is taken in parts, see [`Stage`].

use alloc::collections::BTreeSet;
use core::ops::Bound;

use super::Engine;
use super::transaction::At;
use crate::budget::{ANSWER, CHANGE};
use crate::bytes::Owner;
use crate::event::Event;
use crate::keyspace::Keyspace;
use crate::kind::{Kind, Mode};
use crate::lock::admission::{self, Ahead, Decision, Value};
use crate::outbox::Answer;
use crate::place::Stay;
use crate::registry::{Dirty, Review, Stage};
use crate::registry::{NameId, Position, Rank};

impl Engine {
    /// Goes on with the look at a value that came, and at those who wait for it. Returns whether a lease was over.
    pub(super) fn review(&mut self, at: &mut At<'_, '_, impl Keyspace>, name: NameId, dirty: &mut Dirty) -> bool {
        let mut freed = false;
        while let Some(review) = dirty.review {
            let is_first_stage = matches!(review.stage, Stage::Misfits(_));
            match self.review_stage(at, name, review, &dirty.sessions_kept) {
                Ok(stage) => dirty.review = stage.map(|stage| Review { stage, ..review }),
                Err(Stopped(stage)) => {
                    dirty.review = Some(Review { stage, ..review });
                    return freed;
                }
            }
            if dirty.review.is_none() {
                dirty.sessions_kept.clear();
            }
            if is_first_stage {
                // A lock that was over when it came goes at once: waiters of another kind need the name free, here and on
                // each copy.
                freed |= self.expire(at);
                self.close_key(at.tx.keys, at.id);
            }
        }
        freed
    }

    /// Takes one stage of a review to its end, and returns the next one.
    fn review_stage(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        name: NameId,
        Review { stage, arrived }: Review,
        sessions_kept: &BTreeSet<u64>,
    ) -> Result<Option<Stage>, Stopped> {
        match stage {
            Stage::Misfits(after) => {
                self.refuse_misfits(at, name, after).map_err(|after| Stopped(Stage::Misfits(after)))?;
                let holds = if let Some(lock) = at.lock() { lock.holds().len() } else { 0 };
                Ok(Some(match holds {
                    _ if arrived => Stage::Sessions(holds),
                    0 => Stage::Places(None),
                    // Who holds it was not known, and who waits for it and others together was passed over.
                    _ => Stage::Holders(None),
                }))
            }
            Stage::Sessions(below) => match self.close_sessions(at, below, sessions_kept) {
                0 => Ok(Some(Stage::Holders(None))),
                below => Err(Stopped(Stage::Sessions(below))),
            },
            Stage::Holders(after) => {
                self.grant_to_holders(at, name, after).map_err(|after| Stopped(Stage::Holders(after)))?;
                if arrived {
                    self.detach_places(at, name);
                }
                Ok(Some(Stage::Places(None)))
            }
            Stage::Places(after) => {
                if self.registry.has_kind(name, Kind::Fair) {
                    // A place is taken in the queue of a fair lock, and not of what is left of another one.
                    self.make_room(at, Kind::Fair);
                }
                let rejoined = self.rejoin(at, name, after);
                self.registry.set_rejoining(name, rejoined.is_err());
                rejoined.map_err(|after| Stopped(Stage::Places(after)))?;
                Ok(Some(Stage::Lives))
            }
            Stage::Lives => {
                while at.lock_mut().is_some_and(|lock| lock.settle_places(LIVES_AT_ONCE)) {
                    if !self.budget.take_or_end_turn(COST_OF_LIVES) {
                        return Err(Stopped(Stage::Lives));
                    }
                }
                Ok(None)
            }
        }
    }

    /// Answers waiters that what lies under their name now cannot serve. Fails with how far it came, if not to the end.
    pub(super) fn refuse_misfits(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        name: NameId,
        after: Option<Position>,
    ) -> Result<(), Option<Position>> {
        let may_have = match at.value() {
            Value::Foreign => true,
            Value::Lock(lock) if lock.kind() == Kind::Semaphore => true,
            Value::Lock(lock) => self.registry.has_other_kind(name, lock.kind()),
            Value::Vacant => self.registry.has_kind(name, Kind::Semaphore),
        };
        if !may_have {
            return Ok(());
        }
        self.each_waiter(name, after, |engine, ticket| {
            let Some(waiter) = engine.registry.get(ticket) else {
                return;
            };
            if let Err(refusal) = admission::check_possible(at.value(), &waiter.request(), at.now) {
                engine.budget.take(ANSWER);
                engine.answer(at, ticket, Answer::Refused(refusal));
            }
        })
    }

    /// Looks at the waiters behind a position, as far as the allowance goes. Fails with how far it came, if not to the end.
    fn each_waiter(
        &mut self,
        name: NameId,
        after: Option<Position>,
        mut look: impl FnMut(&mut Self, u64),
    ) -> Result<(), Option<Position>> {
        let mut after = after;
        while let Some(position) = self.registry.next_in_queue(name, after.map_or(Bound::Unbounded, Bound::Excluded)) {
            if !self.budget.take(CHANGE) {
                return Err(after);
            }
            look(self, position.ticket);
            after = Some(position);
        }
        Ok(())
    }

    /// Of a value that came by other means than a grant no hold is bound to a connection, and its sessions count as closed: but for
    /// those that were bound since it came, by RENEW or by a grant, and those whose sessions go on because they were used without a connection.
    /// Looks at the holds below an index, and returns below which it has yet to look.
    fn close_sessions(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        below: usize,
        sessions_kept: &BTreeSet<u64>,
    ) -> usize {
        // A hold that ends meanwhile is replaced by the last one, which was looked at already or granted since.
        for index in (0..below).rev() {
            if !self.budget.take(CHANGE) {
                return index.saturating_add(1);
            }
            let Some(lock) = at.lock() else {
                return 0;
            };
            if let Some(hold) = lock.holds().get(index)
                && hold.session_ms().is_some()
                && lock.clients(hold.token()).is_empty()
                && !sessions_kept.contains(&hold.token())
            {
                self.end_session(at, hold.token());
            }
        }
        0
    }

    /// Grants what owners wait for and turn out to hold. Fails with how far it came, if not to the end.
    fn grant_to_holders(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        name: NameId,
        after: Option<Position>,
    ) -> Result<(), Option<Position>> {
        self.each_waiter(name, after, |engine, ticket| {
            let Some(waiter) = engine.registry.get(ticket) else {
                return;
            };
            let owner = engine.registry.owner_of(waiter);
            let Some(lock) = at.lock() else {
                return;
            };
            let is_reader = waiter.request().mode == Mode::Write && lock.live_hold(owner, Mode::Read, at.now).is_some();
            if is_reader && waiter.rank() == Rank::Newcomer {
                // The waiters ahead wait for its READ, so behind them it would never be served.
                return engine.registry.upgrade(ticket);
            }
            let meets = |mode: &Mode| waiter.request().is_met_by(*mode);
            if Mode::ALL.iter().any(|mode| meets(mode) && lock.live_hold(owner, *mode, at.now).is_some()) {
                engine.budget.take(ANSWER);
                engine.serve_holder(at, ticket);
            }
        })
    }

    /// Serves a waiter whose owner holds already, past the queue: it need not wait any longer.
    fn serve_holder(&mut self, at: &mut At<'_, '_, impl Keyspace>, ticket: u64) {
        if self.end_if_over(at, ticket) {
            return;
        }
        let Some(waiter) = self.registry.get(ticket) else {
            return;
        };
        if waiter.is_many() {
            return self.offer(at, ticket, false);
        }
        let owner = self.registry.owner_of(waiter);
        match admission::decide(at.value(), Ahead::default(), owner, &waiter.request(), at.now) {
            Decision::Wait => {}
            decision => {
                self.serve(at, ticket, decision);
            }
        }
    }

    /// Cuts the places of a fair lock that came off from their connections.
    fn detach_places(&mut self, at: &mut At<'_, '_, impl Keyspace>, name: NameId) {
        if let Some(lock) = at.lock()
            && let Some(queue) = lock.queue()
        {
            // What an earlier cutting off has left to some goes on. A copy need not know of that one, so the event says it.
            let left_us = queue.detached_until_us();
            let until_us = at.now.after_ms(at.limits.fair_grace_ms).max(left_us);
            let at_us = queue.has_graces().then_some(at.now.mono_us);
            self.commit(at, Event::Detached { until_us, at_us });
            // Places whose life was over live again: who waits for a lock of another kind may have been passed over.
            self.note_kind(Some(name), Kind::Fair);
        }
    }

    /// Connected waiters stay with the name. When another value lies under it, or none, they take their places there, in
    /// the old order. Fails with how far it came, if not to the end.
    fn rejoin(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        name: NameId,
        after: Option<Position>,
    ) -> Result<(), Option<Position>> {
        if !self.registry.has_kind(name, Kind::Fair) {
            return Ok(());
        }
        self.each_waiter(name, after, |engine, ticket| {
            let Some(waiter) = engine.registry.get(ticket).filter(|waiter| waiter.request().kind == Kind::Fair) else {
                return;
            };
            let (owner, arrival) = (Owner::from(engine.registry.owner_of(waiter)), waiter.arrival());
            let (stay, request_id, grace_ms) =
                (Stay::Connected, waiter.request().request_id, waiter.request().grace_ms);
            let Ok(lock) = at.value().of_kind(Kind::Fair, at.now) else {
                return;
            };
            let place = lock
                .and_then(|lock| lock.place(owner.as_slice()))
                .map(|place| (place.stay, place.request_id, place.grace_ms));
            match place {
                Some((Stay::Connected, ..)) => {}
                Some((_, known_id, known_grace_ms)) => {
                    // Who waits without a number has perhaps asked with one before.
                    let request_id = request_id.or(known_id);
                    let grace_ms = grace_ms.or(known_grace_ms);
                    engine.commit(at, Event::Kept { owner, stay, request_id, grace_ms });
                }
                None => {
                    engine.commit(at, Event::Queued { owner, stay, arrival, request_id, grace_ms, at_head: false });
                }
            }
        })
    }
}

/// How many lives of places are written down at once; it costs as much as so many changes.
const LIVES_AT_ONCE: usize = 64;

const COST_OF_LIVES: u32 = 8;

/// The allowance was used up in the middle of a stage.
struct Stopped(Stage);
