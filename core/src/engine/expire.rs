//! Removes expired leases, queues and locks of another kind. `grant_next.rs` removes single expired
//! places.

use super::Engine;
use super::transaction::{At, Transaction};
use crate::budget::CHANGE;
use crate::event::{EndCause, Event, Phase};
use crate::keyspace::Keyspace;
use crate::kind::{Kind, Mode};
use crate::limits::MayGrant;
use crate::lock::{FairQueue, Hold, Lock};

impl Engine {
    /// Ends expired holds. Returns whether there was one. Any number of holds may expire together.
    /// Those that remain when the budget is used up have no effect, and the alarm, which is still
    /// due, fires again at once.
    pub(super) fn expire(&mut self, at: &mut At<'_, '_, impl Keyspace>) -> bool {
        let mut any = false;
        while let Some(end) = next_expiry(at)
            && self.budget.take(CHANGE)
        {
            self.commit(at, end);
            any = true;
        }
        any
    }

    /// Ends all expired holds, before an exclusive grant or before the lock is removed. After the
    /// first 16, it ends the rest in one step. That step spares the holds of the owner `except`,
    /// which may be live; the caller has checked that no other hold is live.
    pub(super) fn clear_expired(&mut self, at: &mut At<'_, '_, impl Keyspace>, except: Option<&[u8]>) {
        const ONE_BY_ONE: usize = 16;
        for _ in 0..ONE_BY_ONE {
            let Some(end) = next_expiry(at) else {
                return;
            };
            self.commit(at, end);
        }
        if next_expiry(at).is_some() {
            self.commit(at, Event::Cleared { cause: EndCause::Expired, except: except.map(Into::into) });
        }
    }

    /// Ends the expired WRITE hold of another owner before readers replace it.
    pub(super) fn end_expired_writer(&mut self, at: &mut At<'_, '_, impl Keyspace>, owner: &[u8]) {
        if let Some(lock) = at.lock()
            && let Some(writer) = lock.writer().filter(|writer| !writer.is_live(at.now))
            && writer.owner().as_slice() != owner
        {
            let end = end_of(writer);
            self.commit(at, end);
        }
    }

    /// Ends an expired hold of an owner before the same owner gets a new one in its place. So the
    /// expiry is counted and no connection stays bound to the old hold. The hold may still exist if
    /// the budget of this turn ran out.
    pub(super) fn end_expired_own(&mut self, at: &mut At<'_, '_, impl Keyspace>, owner: &[u8], mode: Mode) {
        if let Some(lock) = at.lock()
            && let Some(hold) = lock.hold(owner, mode).filter(|hold| !hold.is_live(at.now))
        {
            let end = end_of(hold);
            self.commit(at, end);
        }
    }

    /// Whether something that ended at `until_us` begins again after a pause of grants, because its
    /// owner could not acquire before it ended.
    pub(super) fn begins_again(&self, tx: &Transaction<'_, impl Keyspace>, until_us: u64) -> bool {
        tx.limits.may_grant != MayGrant::Yes || until_us < self.resumed_us
    }

    /// Removes a queue whose places have all expired, in one step regardless of their number. Not
    /// if their graces begin again.
    pub(super) fn drop_expired_queue(&mut self, at: &mut At<'_, '_, impl Keyspace>) {
        let begin_again = |queue: &FairQueue| self.begins_again(at, queue.latest_us());
        if !at.lock().and_then(Lock::queue).is_some_and(begin_again) {
            self.clear_expired_queue(at);
        }
    }

    fn clear_expired_queue(&mut self, at: &mut At<'_, '_, impl Keyspace>) {
        if at.limits.may_grant == MayGrant::Yes
            && let Some(lock) = at.lock()
            && lock.queue().is_some_and(|queue| queue.has_expired(at.now))
        {
            self.commit(at, Event::QueueExpired);
        }
    }

    /// Removes an expired lock of another kind, so that `kind` can be granted. The value's alarm,
    /// which would have served the waiters, is removed with it, so the timer serves the name.
    pub(super) fn make_room(&mut self, at: &mut At<'_, '_, impl Keyspace>, kind: Kind) {
        if let Some(lock) = at.lock()
            && lock.kind() != kind
            && !lock.is_live(at.now)
        {
            self.clear_expired(at, None);
            self.clear_expired_queue(at);
            self.close_key(at.tx.keys, at.id);
            if self.name(at).is_some_and(|name| self.registry.first(name).is_some()) {
                self.defer_to_timer(at.key());
            }
        }
    }
}

/// The event that ends an expired hold. A kept lock reopens with `Released`, so monitoring does not
/// count an expired lease.
fn end_of(hold: &Hold) -> Event {
    let cause = if hold.phase() == Phase::Kept { EndCause::Released } else { EndCause::Expired };
    Event::Ended { token: hold.token(), cause }
}

/// The event that ends the first expired hold.
fn next_expiry(at: &At<'_, '_, impl Keyspace>) -> Option<Event> {
    at.lock()?.expired_hold(at.now).map(end_of)
}
