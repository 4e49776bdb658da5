//! Brings a key up to date, so that what is decided next meets its true state: acts upon what the server has told, ends
//! leases that are over, and serves the queue.

use alloc::vec::Vec;

use super::dirty::{Dirty, Gone, Review, Stage, Undelivered};
use super::names::{NameId, Position};
use super::state::{Engine, Transaction};
use super::work::{ANSWER, CHANGE};
use crate::bytes::Owner;
use crate::event::{ChangeCause, EndCause, Event, LeaveCause, Terms};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::{Kind, Mode};
use crate::lock::Hold;
use crate::lock::admission::{self, Value};
use crate::outbox::Answer;
use crate::place::Stay;
use core::ops::Bound;

impl Engine {
    /// Brings a key up to date. `freed` tells that the caller has just ended a hold.
    pub(super) fn reconcile(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, freed: bool) {
        if self.is_at_rest(tx, id) {
            return;
        }
        let mut freed = freed;
        let changes = tx.out.effects().len();
        if self.is_dirty(tx, id) {
            freed |= self.act(tx, id);
        }
        freed |= self.expire(tx, id);
        self.drop_lapsed_queue(tx, id);
        self.grant_next(tx, id, freed);
        if tx.out.effects().len() != changes {
            // A value that was made here and has no alarm would be taken for one that arrived, if the same command comes here
            // again.
            self.set_alarm(tx.keys, id);
        }
    }

    /// Whether there is plainly nothing to do about a key: the common case of a lock that nobody waits for.
    pub(super) fn is_at_rest(&self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId) -> bool {
        if self.name(tx, id).is_some() {
            return false;
        }
        match tx.keys.value(id) {
            Value::Vacant | Value::Foreign => true,
            Value::Lock(lock) => {
                let is_due = lock.next_deadline_us().is_some_and(|due_us| due_us <= tx.now.mono_us);
                let generation = self.databases.generation(tx.keys.key(id).db);
                !is_due && lock.queue().is_none() && !self.is_behind(tx.keys, id, generation)
            }
        }
    }

    /// Brings a key up to date if the server has told something about it. What commands do that do not compete for the lock:
    /// to them a lease that ended is just not there, and the queue can wait for the timer.
    pub(super) fn reconcile_if_dirty(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId) {
        if self.is_dirty(tx, id) {
            self.reconcile(tx, id, false);
        }
    }

    /// Whether the server has told something about a key, or about all keys of its database, that was not acted upon.
    pub(super) fn is_dirty(&self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId) -> bool {
        let record = self.name(tx, id).and_then(|name| self.queues.names.get(name));
        let generation = self.databases.generation(tx.keys.key(id).db);
        let is_told = record.is_some_and(|record| record.dirty.is_some() || record.generation < generation);
        is_told || self.is_behind(tx.keys, id, generation)
    }

    /// The same, but for what says nothing about who holds: that there are requests to be granted.
    pub(super) fn is_unsettled(&self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId) -> bool {
        let record = self.name(tx, id).and_then(|name| self.queues.names.get(name));
        let generation = self.databases.generation(tx.keys.key(id).db);
        let is_told = record.is_some_and(|record| {
            record.dirty.as_ref().is_some_and(|dirty| !dirty.has_requests_only()) || record.generation < generation
        });
        is_told || self.is_behind(tx.keys, id, generation)
    }

    /// Whether a value was last reconciled in an earlier generation, or never. One without a deadline has nothing that could be.
    fn is_behind(&self, keys: &impl Keyspace, id: KeyId, generation: u32) -> bool {
        let Value::Lock(lock) = keys.value(id) else {
            return false;
        };
        let reconciled_in = self.leases.reconciled_in_of(lock.alarm(), keys.key(id), &self.databases).unwrap_or(0);
        reconciled_in < generation && lock.next_deadline_us().is_some()
    }

    /// Acts upon what the server has told of a key, as far as the allowance goes. Returns whether a lease of what came was over.
    fn act(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId) -> bool {
        let generation = self.databases.generation(tx.keys.key(id).db);
        let is_behind = self.is_behind(tx.keys, id, generation);
        let name = self.intern(tx.keys.key(id));
        let Some(record) = self.queues.names.get_mut(name) else {
            return false;
        };
        let was_behind = record.generation < generation;
        record.generation = generation;
        // What is dirty is not forgotten, also if its last waiter leaves meanwhile.
        let mut dirty = core::mem::take(record.dirty.get_or_insert_default());
        if is_behind || was_behind || dirty.arrived || dirty.replaced {
            let arrived = is_behind || dirty.arrived || dirty.review.is_some_and(|review| review.arrived);
            dirty.review = Some(Review { stage: Stage::Misfits(None), arrived });
            (dirty.arrived, dirty.replaced) = (false, false);
            self.take_in(tx, id, name, arrived);
        }
        let freed = self.review(tx, id, name, &mut dirty);
        // First: a grant that is taken back takes its SESSION along.
        self.undo(tx, id, &mut dirty.undelivered);
        self.end_sessions(tx, id, &mut dirty.unbound);
        self.release_places(tx, id, name, &mut dirty.gone);
        self.go_on_with_siblings(tx, id, name, &mut dirty.granted);
        if let Some(record) = self.queues.names.get_mut(name) {
            let come = record.dirty.take().filter(|come| !come.is_clean());
            if come.is_some() || !dirty.is_clean() {
                self.mark(name, |left| {
                    *left = *dirty;
                    left.merge(come.map(|come| *come).unwrap_or_default());
                });
            }
        }
        freed
    }

    /// Takes note of another value under a name.
    fn take_in(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, name: NameId, arrived: bool) {
        let generation = self.databases.generation(tx.keys.key(id).db);
        if let Some(lock) = tx.keys.lock_mut(id).filter(|_| arrived) {
            lock.unbind_all();
            let alarm = lock.alarm();
            if self.is_alarm_of(alarm, tx.keys.key(id)) {
                self.leases.set_reconciled_in(alarm, generation);
            }
            // One without an alarm gets it now: that it has one says that it was taken in.
            self.set_alarm(tx.keys, id);
        }
        self.copy_holders(tx.keys, id, name);
    }

    /// Goes on with the look at a value that came, and at those who wait for it. Returns whether a lease was over.
    fn review(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, name: NameId, dirty: &mut Dirty) -> bool {
        let mut freed = false;
        while let Some(review) = dirty.review {
            let is_first_look = review.stage == Stage::Misfits(None);
            match self.review_stage(tx, id, name, review) {
                Ok(stage) => dirty.review = stage.map(|stage| Review { stage, ..review }),
                Err(Stopped(stage)) => {
                    dirty.review = Some(Review { stage, ..review });
                    return freed;
                }
            }
            if is_first_look {
                // A lock that was over when it came goes at once: waiters of another kind need the name free, here and on
                // each copy.
                freed |= self.expire(tx, id);
                self.close_key(tx.keys, id);
            }
        }
        freed
    }

    /// Takes one stage of a review to its end, and returns the next one.
    fn review_stage(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        name: NameId,
        Review { stage, arrived }: Review,
    ) -> Result<Option<Stage>, Stopped> {
        match stage {
            Stage::Misfits(after) => {
                self.refuse_misfits(tx, id, name, after).map_err(|after| Stopped(Stage::Misfits(after)))?;
                let holds = if let Value::Lock(lock) = tx.keys.value(id) { lock.holds().len() } else { 0 };
                Ok(Some(match holds {
                    _ if arrived => Stage::Sessions(holds),
                    0 => Stage::Places(None),
                    // Who holds it was not known, and who waits for it and others together was passed over.
                    _ => Stage::Holders(None),
                }))
            }
            Stage::Sessions(below) => match self.close_sessions(tx, id, below) {
                0 => Ok(Some(Stage::Holders(None))),
                below => Err(Stopped(Stage::Sessions(below))),
            },
            Stage::Holders(after) => {
                self.grant_to_holders(tx, id, name, after).map_err(|after| Stopped(Stage::Holders(after)))?;
                if arrived {
                    self.detach_places(tx, id, name);
                }
                Ok(Some(Stage::Places(None)))
            }
            Stage::Places(after) => {
                if self.queues.names.get(name).is_some_and(|record| record.has_kind(Kind::Fair)) {
                    // A place is taken in the queue of a fair lock, and not of what is left of another one.
                    self.make_room(tx, id, Kind::Fair);
                }
                let rejoined = self.rejoin(tx, id, name, after);
                if let Some(record) = self.queues.names.get_mut(name) {
                    record.is_rejoining = rejoined.is_err();
                }
                rejoined.map_err(|after| Stopped(Stage::Places(after)))?;
                Ok(Some(Stage::Lives))
            }
            Stage::Lives => {
                while tx.keys.lock_mut(id).is_some_and(|lock| lock.settle_places(LIVES_AT_ONCE)) {
                    if !self.work.take(COST_OF_LIVES) {
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
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        name: NameId,
        after: Option<Position>,
    ) -> Result<(), Option<Position>> {
        let Some(record) = self.queues.names.get(name) else {
            return Ok(());
        };
        let may_have = match tx.keys.value(id) {
            Value::Foreign => true,
            Value::Lock(lock) if lock.kind() == Kind::Semaphore => true,
            Value::Lock(lock) => record.has_other_kind(lock.kind()),
            Value::Vacant => record.has_kind(Kind::Semaphore),
        };
        if !may_have {
            return Ok(());
        }
        self.each_waiter(name, after, |engine, ticket| {
            let Some(waiter) = engine.queues.get(ticket) else {
                return;
            };
            if let Err(refusal) = admission::check_possible(tx.keys.value(id), &waiter.request, tx.now) {
                engine.work.take(ANSWER);
                engine.answer(tx, ticket, Answer::Refused(refusal));
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
        while let Some(position) =
            self.queues.names.next_in_queue(name, after.map_or(Bound::Unbounded, Bound::Excluded))
        {
            if !self.work.take(CHANGE) {
                return Err(after);
            }
            look(self, position.ticket);
            after = Some(position);
        }
        Ok(())
    }

    /// Of a value that came by other means than a grant no hold is bound to a connection, and its sessions count as closed.
    /// Looks at the holds below an index, and returns below which it has yet to look.
    fn close_sessions(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, below: usize) -> usize {
        // A hold that ends meanwhile is replaced by the last one, which was looked at already.
        for at in (0..below).rev() {
            if !self.work.take(CHANGE) {
                return at.saturating_add(1);
            }
            let Value::Lock(lock) = tx.keys.value(id) else {
                return 0;
            };
            if let Some(hold) = lock.holds().get(at)
                && hold.session_ms().is_some()
            {
                self.end_session(tx, id, hold.token());
            }
        }
        0
    }

    /// Grants what owners wait for and turn out to hold. Fails with how far it came, if not to the end.
    fn grant_to_holders(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        name: NameId,
        after: Option<Position>,
    ) -> Result<(), Option<Position>> {
        self.each_waiter(name, after, |engine, ticket| {
            let Some(waiter) = engine.queues.get(ticket) else {
                return;
            };
            let owner = engine.queues.owner_of(waiter);
            let Value::Lock(lock) = tx.keys.value(id) else {
                return;
            };
            let covers = |mode: &Mode| mode.covers().contains(&waiter.request.mode);
            if Mode::ALL.iter().any(|mode| covers(mode) && lock.live_hold(owner, *mode, tx.now).is_some()) {
                engine.work.take(ANSWER);
                engine.grant_sibling(tx, id, ticket, false);
            }
        })
    }

    /// Cuts the places of a fair lock that came off from their connections.
    fn detach_places(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, name: NameId) {
        if matches!(tx.keys.value(id), Value::Lock(lock) if lock.queue().is_some()) {
            let until_us = tx.now.after_ms(tx.limits.fair_grace_ms);
            self.commit(tx, id, Event::Detached { until_us });
            // Places whose life was over live again: who waits for a lock of another kind may have been passed over.
            self.note_kind(Some(name), Kind::Fair);
        }
    }

    /// Connected waiters stay with the name. When another value lies under it, or none, they take their places there, in
    /// the old order. Fails with how far it came, if not to the end.
    fn rejoin(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        name: NameId,
        after: Option<Position>,
    ) -> Result<(), Option<Position>> {
        if !self.queues.names.get(name).is_some_and(|record| record.has_kind(Kind::Fair)) {
            return Ok(());
        }
        self.each_waiter(name, after, |engine, ticket| {
            let Some(waiter) = engine.queues.get(ticket).filter(|waiter| waiter.request.kind == Kind::Fair) else {
                return;
            };
            let (owner, arrival) = (Owner::from(engine.queues.owner_of(waiter)), waiter.arrival);
            let (stay, request_id) = (Stay::Connected, waiter.request.request_id);
            let Ok(lock) = tx.keys.value(id).of_kind(Kind::Fair, tx.now) else {
                return;
            };
            let place = lock.and_then(|lock| lock.place(owner.as_slice())).map(|place| place.stay);
            match place {
                Some(Stay::Connected) => {}
                Some(_) => engine.commit(tx, id, Event::Kept { owner, stay, request_id }),
                None => engine.commit(tx, id, Event::Queued { owner, stay, arrival, request_id, at_head: false }),
            }
        })
    }

    /// Takes back grants that nobody heard of, the latest first.
    fn undo(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, grants: &mut Vec<Undelivered>) {
        while !grants.is_empty() && self.work.take(CHANGE) {
            let Some(grant) = grants.pop() else {
                return;
            };
            let token = grant.token;
            let Some(terms) = terms_of(tx.keys, id, token) else {
                continue;
            };
            let left = terms.count.saturating_sub(grant.count);
            if left == 0 {
                self.give_place_back(tx, id, &grant);
                self.commit(tx, id, Event::Ended { token, cause: EndCause::Undone });
                continue;
            }
            if let Some(client) = grant.client.filter(|_| grant.has_bound) {
                self.unbind(tx, id, token, client);
            }
            // What came later stands. A deadline never comes nearer.
            let terms = match grant.before_and_after.as_deref() {
                Some((before, after))
                    if (after.request, after.session_ms, after.lease_ms)
                        == (terms.request, terms.session_ms, terms.lease_ms) =>
                {
                    Terms { count: left, deadline_us: terms.deadline_us.max(before.deadline_us), ..before.clone() }
                }
                _ => Terms { count: left, ..terms },
            };
            self.commit(tx, id, Event::Changed { token, cause: ChangeCause::Released, terms });
        }
    }

    /// A grant that is taken back leaves its owner the place that it had on a fair lock: at the head, for a grace.
    fn give_place_back(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, grant: &Undelivered) {
        let Value::Lock(lock) = tx.keys.value(id) else {
            return;
        };
        if let Some(hold) = lock.hold_with_token(grant.token).filter(|_| lock.kind() == Kind::Fair) {
            let (owner, request_id) = (hold.owner().clone(), hold.request().map(|request| request.id));
            let stay = Stay::Grace { until_us: tx.now.after_ms(tx.limits.fair_grace_ms) };
            self.commit(tx, id, Event::Queued { owner, stay, arrival: grant.arrival, request_id, at_head: true });
        }
    }

    /// Unbinds holds from connections that have closed, and ends the sessions of those that are bound to no other.
    fn end_sessions(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, unbound: &mut Vec<(u64, u64)>) {
        while !unbound.is_empty() && self.work.take(CHANGE) {
            let Some((token, client)) = unbound.pop() else {
                return;
            };
            let Some(lock) = tx.keys.lock_mut(id).filter(|lock| lock.clients(token).contains(&client)) else {
                continue;
            };
            lock.unbind(token, client);
            if lock.clients(token).is_empty() {
                self.end_session(tx, id, token);
            }
        }
    }

    /// Brings the deadline of a hold that lost its last connection nearer.
    fn end_session(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, token: u64) {
        let Some(terms) = terms_of(tx.keys, id, token) else {
            return;
        };
        let Some(session_ms) = terms.session_ms else {
            return;
        };
        let deadline_us = terms.deadline_us.min(tx.now.after_ms(session_ms));
        if deadline_us < terms.deadline_us {
            let terms = Terms { deadline_us, ..terms };
            self.commit(tx, id, Event::Changed { token, cause: ChangeCause::SessionEnded, terms });
        }
    }

    /// The places of waiters of a fair lock that are gone: who got nil gives its place up, the others keep theirs for a grace.
    fn release_places(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        name: NameId,
        gone: &mut Vec<Gone>,
    ) {
        let mut done = 0_usize;
        for Gone { owner, gave_up } in gone.iter() {
            if !self.work.take(CHANGE) {
                break;
            }
            done = done.saturating_add(1);
            if let Some(request_id) = self.abandoned(tx, id, name, owner) {
                self.release_place(tx, id, owner, request_id, *gave_up);
            }
        }
        gone.drain(..done);
    }

    pub(super) fn release_place(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        owner: &[u8],
        request_id: Option<u64>,
        gave_up: bool,
    ) {
        let owner = owner.into();
        if gave_up {
            self.commit(tx, id, Event::Left { owner, cause: LeaveCause::TimedOut });
        } else {
            let stay = Stay::Grace { until_us: tx.now.after_ms(tx.limits.fair_grace_ms) };
            self.commit(tx, id, Event::Kept { owner, stay, request_id });
        }
    }

    /// Whether the place of an owner says that it is connected, and no connection of it waits any more; and the id of the
    /// request that it stands for.
    fn abandoned(
        &self,
        tx: &Transaction<'_, impl Keyspace>,
        id: KeyId,
        name: NameId,
        owner: &[u8],
    ) -> Option<Option<u64>> {
        let Value::Lock(lock) = tx.keys.value(id) else {
            return None;
        };
        let place = lock.place(owner)?;
        let waits = self.queues.first_of(owner, name, Mode::Exclusive).is_some();
        (place.stay == Stay::Connected && !waits).then_some(place.request_id)
    }

    /// A queue whose places are all over goes in one step, however many there are.
    pub(super) fn drop_lapsed_queue(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId) {
        if let Value::Lock(lock) = tx.keys.value(id)
            && lock.queue().is_some_and(|queue| queue.is_over(tx.now))
        {
            self.commit(tx, id, Event::QueueLapsed);
        }
    }

    /// Ends holds whose lease is over. Returns whether there was one. Any number of holds of one lock may end together: what
    /// is left has no effect any more, and its alarm goes off again at once.
    pub(super) fn expire(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId) -> bool {
        let mut any = false;
        while let Some(token) = lapsed(tx, id)
            && self.work.take(CHANGE)
        {
            self.commit(tx, id, Event::Ended { token, cause: EndCause::Expired });
            any = true;
        }
        any
    }

    /// Ends all holds whose lease is over, but for those of one owner, in one step if they are many: before a grant that leaves no
    /// room for others.
    pub(super) fn clear_lapsed(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, except: Option<&[u8]>) {
        const ONE_BY_ONE: usize = 16;
        for _ in 0..ONE_BY_ONE {
            let Some(token) = lapsed(tx, id) else {
                return;
            };
            self.commit(tx, id, Event::Ended { token, cause: EndCause::Expired });
        }
        if lapsed(tx, id).is_some() {
            self.commit(tx, id, Event::Cleared { cause: EndCause::Expired, except: except.map(Into::into) });
        }
    }

    /// Ends a lapsed hold for writing of another owner, before readers come in its place.
    pub(super) fn end_lapsed_writer(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, owner: &[u8]) {
        if let Value::Lock(lock) = tx.keys.value(id)
            && let Some(writer) = lock.writer().filter(|writer| !writer.is_live(tx.now))
            && writer.owner().as_slice() != owner
        {
            let token = writer.token();
            self.commit(tx, id, Event::Ended { token, cause: EndCause::Expired });
        }
    }

    /// Removes what is left of a lock of another kind that is over: `kind` cannot be granted on its value.
    pub(super) fn make_room(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, kind: Kind) {
        if let Value::Lock(lock) = tx.keys.value(id)
            && lock.kind() != kind
            && !lock.is_live(tx.now)
        {
            self.clear_lapsed(tx, id, None);
            self.drop_lapsed_queue(tx, id);
            self.close_key(tx.keys, id);
        }
    }
}

/// How many lives of places are written down at once; it costs as much as so many changes.
const LIVES_AT_ONCE: usize = 64;
const COST_OF_LIVES: u32 = 8;

/// The allowance was used up in the middle of a stage.
struct Stopped(Stage);

/// The token of a hold whose lease is over.
fn lapsed(tx: &Transaction<'_, impl Keyspace>, id: KeyId) -> Option<u64> {
    match tx.keys.value(id) {
        Value::Lock(lock) => lock.lapsed_hold(tx.now).map(Hold::token),
        Value::Vacant | Value::Foreign => None,
    }
}

/// The terms of the hold with a token.
pub(super) fn terms_of(keys: &impl Keyspace, id: KeyId, token: u64) -> Option<Terms> {
    match keys.value(id) {
        Value::Lock(lock) => lock.hold_with_token(token).map(Hold::terms),
        Value::Vacant | Value::Foreign => None,
    }
}
