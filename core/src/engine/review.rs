//! The review of a new value under a name and of its waiters. It runs in parts, see [`Stage`].

use alloc::collections::BTreeSet;
use core::ops::Bound;

use super::Engine;
use super::transaction::At;
use crate::budget::{ANSWER, CHANGE};
use crate::bytes::Owner;
use crate::event::Event;
use crate::keyspace::Keyspace;
use crate::kind::{Kind, Mode};
use crate::limits::MayGrant;
use crate::lock::admission::{self, Ahead, Decision, Value};
use crate::outbox::Answer;
use crate::place::Stay;
use crate::registry::{Dirty, NameId, Position, Rank, Review, Stage};

impl Engine {
    /// Continues the review. Returns whether an imported lease had expired.
    pub(super) fn review(&mut self, at: &mut At<'_, '_, impl Keyspace>, name: NameId, dirty: &mut Dirty) -> bool {
        let mut hold_ended = false;
        while let Some(review) = dirty.review {
            let is_first_stage = matches!(review.stage, Stage::Unservable(_));
            match self.review_stage(at, name, review, &dirty.sessions_kept) {
                Ok(stage) => dirty.review = stage.map(|stage| Review { stage, ..review }),
                Err(Stopped(stage)) => {
                    dirty.review = Some(Review { stage, ..review });
                    return hold_ended;
                }
            }
            if dirty.review.is_none() {
                dirty.sessions_kept.clear();
            }
            if is_first_stage {
                // A lock that had expired before it arrived is removed at once: waiters of another
                // kind need the name free, here and on each replica.
                hold_ended |= self.expire(at);
                self.close_key(at.tx.keys, at.id);
            }
        }
        hold_ended
    }

    /// Completes one stage of a review, and returns the next one.
    fn review_stage(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        name: NameId,
        Review { stage, imported }: Review,
        sessions_kept: &BTreeSet<u64>,
    ) -> Result<Option<Stage>, Stopped> {
        match stage {
            Stage::Unservable(after) => {
                self.refuse_unservable(at, name, after).map_err(|after| Stopped(Stage::Unservable(after)))?;
                let holds = if let Some(lock) = at.lock() { lock.holds().len() } else { 0 };
                Ok(Some(match holds {
                    _ if imported => Stage::Sessions(holds),
                    0 => Stage::Places(None),
                    // The holders were unknown, so MACQUIRE waiters may have been skipped.
                    _ => Stage::Holders(None),
                }))
            }
            Stage::Sessions(below) => match self.close_sessions(at, below, sessions_kept) {
                0 => Ok(Some(Stage::Holders(None))),
                below => Err(Stopped(Stage::Sessions(below))),
            },
            Stage::Holders(after) => {
                self.grant_to_holders(at, name, after).map_err(|after| Stopped(Stage::Holders(after)))?;
                if imported {
                    self.detach_places(at, name);
                }
                Ok(Some(Stage::Places(None)))
            }
            Stage::Places(after) => {
                if self.registry.has_kind(name, Kind::Fair) {
                    // A fair lock's waiters take their places in its queue, not in an expired lock
                    // of another kind.
                    self.make_room(at, Kind::Fair);
                }
                let rejoined = self.rejoin(at, name, after);
                self.registry.set_rejoining(name, rejoined.is_err());
                rejoined.map_err(|after| Stopped(Stage::Places(after)))?;
                Ok(None)
            }
        }
    }

    /// Refuses waiters that the value under their name cannot serve. The error is the position
    /// reached if the budget ran out.
    pub(super) fn refuse_unservable(
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
        self.visit_waiters(name, after, |engine, ticket| {
            let Some(waiter) = engine.registry.get(ticket) else {
                return;
            };
            if let Err(refusal) = admission::check_possible(at.value(), &waiter.request(), at.now) {
                engine.budget.take(ANSWER);
                engine.answer(at, ticket, Answer::Refused(refusal));
            }
        })
    }

    /// Visits the waiters behind a position, as far as the budget goes. The error is the position
    /// reached if the budget ran out.
    fn visit_waiters(
        &mut self,
        name: NameId,
        after: Option<Position>,
        mut visit: impl FnMut(&mut Self, u64),
    ) -> Result<(), Option<Position>> {
        let mut after = after;
        while let Some(position) = self.registry.next_in_queue(name, after.map_or(Bound::Unbounded, Bound::Excluded)) {
            if !self.budget.take(CHANGE) {
                return Err(after);
            }
            visit(self, position.ticket);
            after = Some(position);
        }
        Ok(())
    }

    /// Ends the sessions of an imported value, whose holds are bound to no connection. Exceptions
    /// are holds that RENEW or a grant has bound since, and holds in `sessions_kept`, which were
    /// used without a connection. Visits the holds below an index, and returns the index below
    /// which holds remain to be visited.
    fn close_sessions(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        below: usize,
        sessions_kept: &BTreeSet<u64>,
    ) -> usize {
        // If a hold ends meanwhile, the last one takes its index. That one was visited already or
        // granted since.
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

    /// Grants waiters whose owner already holds the lock. The error is the position reached if the
    /// budget ran out.
    fn grant_to_holders(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        name: NameId,
        after: Option<Position>,
    ) -> Result<(), Option<Position>> {
        self.visit_waiters(name, after, |engine, ticket| {
            let Some(waiter) = engine.registry.get(ticket) else {
                return;
            };
            let owner = engine.registry.owner_of(waiter);
            let Some(lock) = at.lock() else {
                return;
            };
            let is_reader = waiter.request().mode == Mode::Write && lock.live_hold(owner, Mode::Read, at.now).is_some();
            if is_reader && waiter.rank() == Rank::Newcomer {
                // The waiters ahead wait for its READ hold, so behind them it would never be
                // served.
                return engine.registry.upgrade(ticket);
            }
            let meets = |mode: &Mode| waiter.request().is_met_by(*mode);
            if Mode::ALL.iter().any(|mode| meets(mode) && lock.live_hold(owner, *mode, at.now).is_some()) {
                engine.budget.take(ANSWER);
                engine.serve_holder(at, ticket);
            }
        })
    }

    /// Serves a waiter whose owner already holds the lock, ahead of the queue.
    fn serve_holder(&mut self, at: &mut At<'_, '_, impl Keyspace>, ticket: u64) {
        if self.answer_if_wait_ended(at, ticket) || at.limits.may_grant != MayGrant::Yes {
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

    /// Detaches the places of an imported fair lock from their connections.
    fn detach_places(&mut self, at: &mut At<'_, '_, impl Keyspace>, name: NameId) {
        if let Some(lock) = at.lock()
            && let Some(queue) = lock.queue()
        {
            let until_us = at.now.after_ms(at.limits.fair_grace_ms);
            let at_us = queue.has_graces().then_some(at.now.mono_us);
            self.commit(at, Event::Detached { until_us, at_us });
            // Expired places become live again, so waiters for a lock of another kind may have been
            // skipped.
            self.recheck_other_kinds(Some(name), Kind::Fair);
        }
    }

    /// Returns the connected waiters of a fair lock in their old order to the queue of a new value,
    /// or of a new lock if the key is vacant. The error is the position reached if the budget ran
    /// out.
    fn rejoin(
        &mut self,
        at: &mut At<'_, '_, impl Keyspace>,
        name: NameId,
        after: Option<Position>,
    ) -> Result<(), Option<Position>> {
        if !self.registry.has_kind(name, Kind::Fair) {
            return Ok(());
        }
        self.visit_waiters(name, after, |engine, ticket| {
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
                    // A waiter without a request id may have asked with one before.
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

/// The budget ran out in the middle of a stage.
struct Stopped(Stage);
