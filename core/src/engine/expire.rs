//! What is over goes: leases, places of a fair lock, and what is left of a lock of another kind.

use super::Engine;
use super::transaction::At;
use crate::budget::CHANGE;
use crate::bytes::Owner;
use crate::event::{EndCause, Event, LeaveCause, Phase};
use crate::keyspace::Keyspace;
use crate::kind::{Kind, Mode};
use crate::lock::Hold;
use crate::lock::admission::Value;

impl Engine {
    /// Ends holds whose lease is over. Returns whether there was one. Any number of holds of one lock may end together: what
    /// is left has no effect any more, and its alarm goes off again at once.
    pub(super) fn expire(&mut self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        let mut any = false;
        while let Some(end) = lapsed(at)
            && self.budget.take(CHANGE)
        {
            self.commit(at, end);
            any = true;
        }
        any
    }

    /// Ends all holds whose lease is over, but for those of one owner, in one step if they are many: before a grant that leaves no
    /// room for others.
    pub(super) fn clear_expired(&mut self, at: &mut At<'_, '_, impl Keyspace>, except: Option<&[u8]>) {
        const ONE_BY_ONE: usize = 16;
        for _ in 0..ONE_BY_ONE {
            let Some(end) = lapsed(at) else {
                return;
            };
            self.commit(at, end);
        }
        if lapsed(at).is_some() {
            self.commit(at, Event::Cleared { cause: EndCause::Expired, except: except.map(Into::into) });
        }
    }

    /// Ends a lapsed hold for writing of another owner, before readers come in its place.
    pub(super) fn end_expired_writer(&mut self, at: &mut At<'_, '_, impl Keyspace>, owner: &[u8]) {
        if let Some(lock) = at.lock()
            && let Some(writer) = lock.writer().filter(|writer| !writer.is_live(at.now))
            && writer.owner().as_slice() != owner
        {
            let end = end_of(writer);
            self.commit(at, end);
        }
    }

    /// Ends a lapsed hold of an owner before the same owner is granted another one in its place, so that it is counted, and nothing is left
    /// tied to its connections. It may still be there if this turn has done enough.
    pub(super) fn end_expired_own(&mut self, at: &mut At<'_, '_, impl Keyspace>, owner: &[u8], mode: Mode) {
        if let Some(lock) = at.lock()
            && let Some(hold) = lock.hold(owner, mode).filter(|hold| !hold.is_live(at.now))
        {
            let end = end_of(hold);
            self.commit(at, end);
        }
    }

    /// Removes places whose life is over, so that nobody counts or shows them.
    pub(super) fn drop_expired_places(&mut self, at: &mut At<'_, '_, impl Keyspace>) {
        loop {
            let Some(lock) = at.lock() else {
                return;
            };
            let Some(place) = lock.queue().and_then(|queue| queue.over(at.now.mono_us)) else {
                return;
            };
            let owner = Owner::from(place.owner);
            if !self.budget.take(CHANGE) {
                // Its timer is due, and goes off again at once.
                return;
            }
            self.commit(at, Event::Left { owner, cause: LeaveCause::Expired });
        }
    }

    /// A queue whose places are all over goes in one step, however many there are.
    pub(super) fn drop_expired_queue(&mut self, at: &mut At<'_, '_, impl Keyspace>) {
        if let Some(lock) = at.lock()
            && lock.queue().is_some_and(|queue| queue.is_over(at.now))
        {
            self.commit(at, Event::QueueExpired);
        }
    }

    /// Removes what is left of a lock of another kind that is over: `kind` cannot be granted on its value. With the value goes the alarm that would have
    /// served who waits for what was there, so the name is looked at again.
    pub(super) fn make_room(&mut self, at: &mut At<'_, '_, impl Keyspace>, kind: Kind) {
        if let Some(lock) = at.lock()
            && lock.kind() != kind
            && !lock.is_live(at.now)
        {
            self.clear_expired(at, None);
            self.drop_expired_queue(at);
            self.close_key(at.tx.keys, at.id);
            if self.name(at).is_some_and(|name| self.registry.first(name).is_some()) {
                self.leave_to_timer(at.key());
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
fn lapsed(at: &At<'_, '_, impl Keyspace>) -> Option<Event> {
    match at.value() {
        Value::Lock(lock) => lock.expired_hold(at.now).map(end_of),
        Value::Vacant | Value::Foreign => None,
    }
}
