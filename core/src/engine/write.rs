//! The only write path: applies an event to the value and the copy of its holders, and puts it into
//! the outbox for replicas and the append-only file.
//!
//! Invariants:
//! 1. Values change only in [`Engine::commit`] and its inlined form [`Engine::commit_inline`], each
//!    time with an event in the outbox. [`Engine::apply_effect`] applies the events of a master or
//!    a file, through the same [`Engine::apply`].
//! 2. After a command, a key whose value has a deadline has an alarm in `alarms` that is due no
//!    later. It may be due earlier: a renewal does not move the alarm, which finds the new deadline
//!    when it fires.

use smallvec::SmallVec;

use super::Engine;
use super::transaction::{At, Transaction};
use crate::bytes::Owner;
use crate::collections::Alarm;
use crate::event::{EndCause, Event, Phase};
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::Kind;
use crate::limits::MayGrant;
use crate::lock::Lock;
use crate::lock::admission::Value;
use crate::registry::NameId;
use crate::sessions::Binding;
use crate::statistics::count;

impl Engine {
    /// Applies an event and puts it into the outbox.
    #[inline(never)]
    pub(super) fn commit(&mut self, at: &mut At<'_, '_, impl Keyspace>, event: Event) {
        self.commit_inline(at, event);
    }

    /// The body of [`Engine::commit`], inlined into its caller. Most commits are grants and
    /// releases, and the compiler drops the code for other events.
    #[inline(always)]
    pub(super) fn commit_inline(&mut self, at: &mut At<'_, '_, impl Keyspace>, event: Event) {
        match &event {
            Event::Ended { token, cause } => {
                if *cause != EndCause::Released {
                    self.count_end(at, *cause, 1);
                }
                if *cause == EndCause::Expired
                    && let Some(lock) = at.lock()
                    && lock.hold_with_token(*token).is_some_and(|hold| hold.phase() == Phase::Unclaimed)
                {
                    count(&mut self.stats.of(lock.kind()).unclaimed);
                }
                if self.sessions.has_bindings() {
                    self.forget_bindings(at, *token);
                }
            }
            Event::Cleared { cause, except } => self.forget_cleared(at, *cause, except.as_ref()),
            _ => {}
        }
        let name = self.name(at);
        let clears_expire = at.value().clears_expire(&event);
        let id = at.id;
        at.out.effect(id, &event, clears_expire);
        let ends_holds = matches!(event, Event::Ended { .. } | Event::Cleared { .. });
        self.apply(at.tx.keys, id, name, event);
        if ends_holds && !self.pending.is_empty() {
            self.end_grants(at);
        }
        if ends_holds && at.lock().is_some_and(|lock| lock.idle().is_some()) {
            self.begin_idle_time(at, None);
        }
    }

    /// Restarts the idle time of a semaphore if it has no holds. `given` replaces its length, even
    /// if it has holds; 0 removes it.
    pub(super) fn begin_idle_time(&mut self, at: &mut At<'_, '_, impl Keyspace>, given: Option<u64>) {
        let Some(lock) = at.lock() else {
            return;
        };
        let before = lock.idle().map_or(0, |idle| idle.idle_ms);
        let idle_ms = given.unwrap_or(before);
        let is_unused = lock.holds().is_empty() && idle_ms != 0;
        if idle_ms != before || is_unused {
            self.commit(at, Event::Unused { idle_ms, until_us: at.now.after_ms(idle_ms) });
        }
    }

    /// Notes that the holds of some pending grants under a key have ended.
    #[inline(never)]
    pub(super) fn end_grants(&mut self, at: &mut At<'_, '_, impl Keyspace>) {
        if let Some(name) = self.name(at) {
            let has_ended = |token| at.lock().is_none_or(|lock| lock.hold_with_token(token).is_none());
            self.pending.end(name, has_ended);
        }
    }

    fn count_end(&mut self, at: &At<'_, '_, impl Keyspace>, cause: EndCause, holds: u64) {
        let Some(lock) = at.lock() else {
            return;
        };
        let counter = match cause {
            EndCause::Expired => &mut self.stats.of(lock.kind()).expired,
            EndCause::Forced => &mut self.stats.of(lock.kind()).forced,
            EndCause::Released | EndCause::Undone => return,
        };
        *counter = counter.saturating_add(holds);
    }

    /// Counts and unbinds the holds that end together, all except those of one owner.
    fn forget_cleared(&mut self, at: &At<'_, '_, impl Keyspace>, cause: EndCause, except: Option<&Owner>) {
        let Some(lock) = at.lock() else {
            return;
        };
        let mut ended = 0_u64;
        for hold in lock.holds().iter().filter(|hold| Some(hold.owner()) != except) {
            ended = ended.saturating_add(1);
            for client in hold.clients() {
                self.sessions.unbind(&Binding { client: *client, token: hold.token(), key: at.key().to_key() });
            }
        }
        self.count_end(at, cause, ended);
    }

    #[inline(always)]
    fn forget_bindings(&mut self, at: &At<'_, '_, impl Keyspace>, token: u64) {
        if let Some(lock) = at.lock() {
            for client in lock.clients(token) {
                self.sessions.unbind(&Binding { client: *client, token, key: at.key().to_key() });
            }
        }
    }

    /// Applies an event to the value and to the copy of its holders.
    #[inline(always)]
    fn apply(&mut self, keys: &mut impl Keyspace, id: KeyId, name: Option<NameId>, event: Event) {
        let waited_for = name.filter(|name| self.registry.len_under(*name) > 0);
        let noted = waited_for.map(|name| (name, event.clone()));
        match keys.lock_mut(id) {
            Some(lock) => lock.apply(event),
            None => {
                if let (Some(kind), Value::Vacant) = (event.creates(), keys.value(id)) {
                    let mut lock = Lock::new(kind, 1);
                    lock.apply(event);
                    keys.insert(id, lock);
                    self.recheck_other_kinds(name, kind);
                }
            }
        }
        if let Some((name, event)) = noted {
            self.update_holders(keys, id, name, &event);
        }
    }

    /// A lock was created under a name: its waiters for a lock of another kind need a review.
    pub(super) fn recheck_other_kinds(&mut self, name: Option<NameId>, kind: Kind) {
        if let Some(name) = name
            && self.registry.has_other_kind(name, kind)
        {
            self.mark(name, |dirty| dirty.replaced = true);
        }
    }

    /// Binds a hold to a connection, if it has a session.
    pub(super) fn bind(&mut self, at: &mut At<'_, '_, impl Keyspace>, token: u64, client: u64) {
        let Some(lock) = at.lock_mut() else {
            return;
        };
        let (is_new, displaced) = lock.bind(token, client);
        if is_new {
            self.sessions.bind(Binding { client, token, key: at.key().to_key() });
        }
        if let Some(client) = displaced {
            self.sessions.unbind(&Binding { client, token, key: at.key().to_key() });
        }
    }

    /// Unbinds a hold from a connection.
    pub(super) fn unbind(&mut self, at: &mut At<'_, '_, impl Keyspace>, token: u64, client: u64) {
        if let Some(lock) = at.lock_mut() {
            lock.unbind(token, client);
        }
        self.sessions.unbind(&Binding { client, token, key: at.key().to_key() });
    }

    /// Unbinds a hold from all of its connections.
    pub(super) fn unbind_hold(&mut self, at: &mut At<'_, '_, impl Keyspace>, token: u64) {
        let clients: SmallVec<[u64; 1]> = match at.value() {
            Value::Lock(lock) => lock.clients(token).into(),
            Value::Vacant | Value::Foreign => return,
        };
        for client in clients {
            self.unbind(at, token, client);
        }
    }

    /// Restores the invariants of all keys after a request.
    pub(super) fn close(&mut self, tx: &mut Transaction<'_, impl Keyspace>) {
        for id in tx.ids() {
            self.close_key(tx.keys, id);
            if tx.limits.may_grant != MayGrant::Yes
                && let Value::Lock(lock) = tx.keys.value(id)
            {
                // What is still due waits for the end of the pause: a free fair lock for its
                // reservation, expired places and idle semaphores for their new deadline.
                self.alarms.park_due(lock.alarm(), tx.now);
            }
            if let Some(name) = self.name(&mut tx.at(id)) {
                self.registry.tidy(name);
            }
        }
    }

    /// Removes a lock without holds and places; maintains the alarm of any other.
    pub(super) fn close_key(&mut self, keys: &mut impl Keyspace, id: KeyId) {
        match keys.value(id) {
            Value::Lock(lock) if lock.is_disposable() => {
                self.alarms.remove_of(lock.alarm(), keys.key(id));
                keys.remove(id);
            }
            Value::Lock(_) => self.set_alarm(keys, id),
            Value::Vacant | Value::Foreign => {}
        }
    }

    /// Maintains invariant 2.
    pub(super) fn set_alarm(&mut self, keys: &mut impl Keyspace, id: KeyId) {
        let Value::Lock(lock) = keys.value(id) else {
            return;
        };
        let (alarm, due_us, key) = (lock.alarm(), lock.next_deadline_us(), keys.key(id));
        let is_set = self.alarms.is_of(alarm, key);
        let alarm = match due_us {
            Some(due_us) if is_set => return self.alarms.hasten(alarm, due_us),
            Some(due_us) => self.alarms.insert(due_us, key),
            None => {
                if is_set {
                    self.alarms.remove(alarm);
                }
                Alarm::NONE
            }
        };
        if let Some(lock) = keys.lock_mut(id) {
            lock.set_alarm(alarm);
        }
    }

    /// Applies an event of a master or of the append-only file. Decides nothing.
    ///
    /// # Errors
    ///
    /// The reason why the event cannot be applied to the value. Nothing was changed.
    pub fn apply_effect(&mut self, keys: &mut impl Keyspace, id: KeyId, event: &Event) -> Result<(), &'static str> {
        match keys.value(id) {
            Value::Foreign => return Err("the key holds something else than a lock"),
            Value::Lock(lock) => lock.check(event)?,
            Value::Vacant if event.creates().is_some() => {}
            Value::Vacant => return Err("there is no lock"),
        }
        if let Some(number) = event.number() {
            self.raise_token(number);
        }
        let name = self.registry.find(keys.key(id));
        self.apply(keys, id, name, event.clone());
        self.close_key(keys, id);
        Ok(())
    }
}
