//! Requests for semaphores only: INIT, RESIZE and DRAIN.

use super::Engine;
use super::grant::GrantTiming;
use super::transaction::{At, Transaction};
use crate::event::Event;
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::Kind;
use crate::limits::MayGrant;
use crate::lock::Lock;
use crate::lock::admission::{self, Decision};
use crate::registry::Position;
use crate::request::{Refusal, Request};
use crate::statistics::count;

const KEY: KeyId = KeyId(0);

/// An idle time that restarts because the semaphore cannot be removed yet lasts at least this long,
/// since each restart is propagated.
const MIN_RESTART_MS: u64 = 1000;

impl Engine {
    /// INIT: creates a semaphore. Returns whether it is new. `idle_ms` is its idle time from now
    /// on, 0 for none; `None` leaves it unchanged.
    ///
    /// # Errors
    ///
    /// [`Refusal::WrongType`] if the key holds something else.
    pub fn init_semaphore(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        permits: u32,
        idle_ms: Option<u64>,
    ) -> Result<bool, Refusal> {
        self.run_competing(tx, Kind::Semaphore, |engine, tx| {
            let is_new = match tx.keys.value(KEY).of_kind(Kind::Semaphore, tx.now) {
                Ok(_) => false,
                Err(Refusal::NoSemaphore) => {
                    engine.commit(&mut tx.at(KEY), Event::Sized { permits });
                    true
                }
                Err(refusal) => return Err(refusal),
            };
            engine.begin_idle_time(&mut tx.at(KEY), idle_ms);
            Ok(is_new)
        })
    }

    /// Removes a semaphore whose idle time has ended. If a request waits, or if the time ended while
    /// no hold could begin, it begins again instead. In a quarantine the data set may lack holds, so
    /// the semaphore stays until the end.
    pub(super) fn remove_unused(&mut self, at: &mut At<'_, '_, impl Keyspace>) {
        let idle = at.lock().filter(|lock| lock.holds().is_empty()).and_then(Lock::idle);
        let Some(idle) = idle.filter(|idle| idle.until_us <= at.now.mono_us) else {
            return;
        };
        if at.limits.may_grant != MayGrant::Yes {
            return;
        }
        let is_waited_for = self.name(at).is_some_and(|name| self.registry.len_under(name) > 0);
        if is_waited_for || self.begins_again(at, idle.until_us) {
            let until_us = at.now.after_ms(idle.idle_ms.max(MIN_RESTART_MS));
            self.commit(at, Event::Unused { idle_ms: idle.idle_ms, until_us });
        } else {
            self.commit(at, Event::Removed);
        }
    }

    /// RESIZE: changes the permits of a semaphore. Returns how many are free then; negative if more
    /// are in use. Refuses waiters that ask for more than there are now.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoSemaphore`] if there is none, [`Refusal::WrongType`] if the key holds something
    /// else.
    pub fn resize_semaphore(&mut self, tx: &mut Transaction<'_, impl Keyspace>, permits: u32) -> Result<i64, Refusal> {
        self.run_plain(tx, |engine, tx| {
            let before = tx.keys.value(KEY).of_kind(Kind::Semaphore, tx.now)?.map(|lock| lock.permits());
            if before != Some(permits) {
                engine.commit(&mut tx.at(KEY), Event::Sized { permits });
            }
            if let Some(name) = engine.name(&mut tx.at(KEY)).filter(|name| engine.registry.len_under(*name) > 0) {
                if engine.refuse_unservable(&mut tx.at(KEY), name, None).is_err() {
                    // The timer begins again at the head, since the refused waiters have left.
                    engine.mark(name, |dirty| dirty.replaced = true);
                }
                engine.reconcile(&mut tx.at(KEY), false);
            }
            Ok(tx.keys.value(KEY).of_kind(Kind::Semaphore, tx.now)?.map_or(0, |lock| lock.available(tx.now)))
        })
    }

    /// DRAIN: grants all free permits. Returns how many; 0 if there are none or a request waits.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoSemaphore`] if there is none, [`Refusal::WrongType`] if the key holds something
    /// else.
    pub fn drain_semaphore(
        &mut self,
        tx: &mut Transaction<'_, impl Keyspace>,
        owner: &[u8],
        request: &Request,
    ) -> Result<u32, Refusal> {
        self.run_competing(tx, Kind::Semaphore, |engine, tx| {
            let lock = tx.keys.value(KEY).of_kind(Kind::Semaphore, tx.now)?;
            tx.limits.may_grant.check()?;
            let permits = u32::try_from(lock.map_or(0, |lock| lock.available(tx.now))).unwrap_or(0);
            let request = Request { count: permits, ..*request };
            let ahead = engine.ahead(&mut tx.at(KEY), Kind::Semaphore, Position::LAST);
            if permits == 0 || admission::decide(tx.keys.value(KEY), ahead, owner, &request, tx.now) != Decision::Grant
            {
                return Ok(0);
            }
            let client = tx.keys.client();
            let token = engine.grant(&mut tx.at(KEY), owner, &request, client, GrantTiming::AtOnce)?;
            engine.confirm(&mut tx.at(KEY), token);
            count(&mut engine.stats.of(Kind::Semaphore).granted_at_once);
            Ok(permits)
        })
    }
}
