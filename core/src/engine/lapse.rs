//! What is over goes: leases, places of a fair lock, and what is left of a lock of another kind.

use super::state::{Engine, Transaction};
use super::work::CHANGE;
use crate::bytes::Owner;
use crate::event::{EndCause, Event, LeaveCause, Phase};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::{Kind, Mode};
use crate::lock::Hold;
use crate::lock::admission::Value;

impl Engine {
    /// Ends holds whose lease is over. Returns whether there was one. Any number of holds of one lock may end together: what
    /// is left has no effect any more, and its alarm goes off again at once.
    pub(super) fn expire(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId) -> bool {
        let mut any = false;
        while let Some(end) = lapsed(tx, id)
            && self.work.take(CHANGE)
        {
            self.commit(tx, id, end);
            any = true;
        }
        any
    }

    /// Ends all holds whose lease is over, but for those of one owner, in one step if they are many: before a grant that leaves no
    /// room for others.
    pub(super) fn clear_lapsed(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, except: Option<&[u8]>) {
        const ONE_BY_ONE: usize = 16;
        for _ in 0..ONE_BY_ONE {
            let Some(end) = lapsed(tx, id) else {
                return;
            };
            self.commit(tx, id, end);
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
            let end = end_of(writer);
            self.commit(tx, id, end);
        }
    }

    /// Ends a lapsed hold of an owner before the same owner is granted another one in its place, so that it is counted, and nothing is left
    /// tied to its connections. It may still be there if this turn has done enough.
    pub(super) fn end_lapsed_own(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        id: KeyId,
        owner: &[u8],
        mode: Mode,
    ) {
        if let Value::Lock(lock) = tx.keys.value(id)
            && let Some(hold) = lock.hold(owner, mode).filter(|hold| !hold.is_live(tx.now))
        {
            let end = end_of(hold);
            self.commit(tx, id, end);
        }
    }

    /// Removes places whose life is over, so that nobody counts or shows them.
    pub(super) fn drop_lapsed_places(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId) {
        loop {
            let Value::Lock(lock) = tx.keys.value(id) else {
                return;
            };
            let Some(place) = lock.queue().and_then(|queue| queue.over(tx.now.mono_us)) else {
                return;
            };
            let owner = Owner::from(place.owner);
            if !self.work.take(CHANGE) {
                // Its timer is due, and goes off again at once.
                return;
            }
            self.commit(tx, id, Event::Left { owner, cause: LeaveCause::Lapsed });
        }
    }

    /// A queue whose places are all over goes in one step, however many there are.
    pub(super) fn drop_lapsed_queue(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId) {
        if let Value::Lock(lock) = tx.keys.value(id)
            && lock.queue().is_some_and(|queue| queue.is_over(tx.now))
        {
            self.commit(tx, id, Event::QueueLapsed);
        }
    }

    /// Removes what is left of a lock of another kind that is over: `kind` cannot be granted on its value. With the value goes the alarm that would have
    /// served who waits for what was there, so the name is looked at again.
    pub(super) fn make_room(&mut self, tx: &mut Transaction<'_, impl Keyspace>, id: KeyId, kind: Kind) {
        if let Value::Lock(lock) = tx.keys.value(id)
            && lock.kind() != kind
            && !lock.is_live(tx.now)
        {
            self.clear_lapsed(tx, id, None);
            self.drop_lapsed_queue(tx, id);
            self.close_key(tx.keys, id);
            if self.name(tx, id).is_some_and(|name| self.queues.first(name).is_some()) {
                self.leave_to_timer(tx.keys.key(id));
            }
        }
    }
}

/// The event that ends an expired hold. A kept lock opens with `Released`, so that monitoring counts no expired lease.
fn end_of(hold: &Hold) -> Event {
    let cause = if hold.phase() == Phase::Kept { EndCause::Released } else { EndCause::Expired };
    Event::Ended { token: hold.token(), cause }
}

/// The event that ends the first expired hold.
fn lapsed(tx: &Transaction<'_, impl Keyspace>, id: KeyId) -> Option<Event> {
    match tx.keys.value(id) {
        Value::Lock(lock) => lock.lapsed_hold(tx.now).map(end_of),
        Value::Vacant | Value::Foreign => None,
    }
}
