//! What only a semaphore is asked: to be made, to have another number of permits, to give all that are free.

use crate::event::Event;
use crate::lock::{Kind, Lock};
use crate::request::{Acquire, Refusal};

use super::{Engine, Turn};
use crate::keyspace::{KeyId, Keyspace, Slot};

impl Engine {
    /// INIT: makes a semaphore. Returns whether there was none before.
    ///
    /// # Errors
    ///
    /// [`Refusal::WrongType`] if the key holds something else.
    pub fn init_semaphore(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        permits: u32,
    ) -> Result<bool, Refusal> {
        self.settle_to_acquire(turn, id, Kind::Semaphore);
        let made = match Self::lock_of_kind(turn, id, Kind::Semaphore) {
            Ok(_) => Ok(false),
            Err(Refusal::NoSemaphore) => {
                self.commit(turn, id, Event::Sized { permits });
                Ok(true)
            }
            Err(refusal) => Err(refusal),
        };
        self.finish_all(turn.keys);
        made
    }

    /// RESIZE: gives a semaphore another number of permits. Returns how many are free then; negative if more are in use.
    /// Waiters that want more than there are now are told so.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoSemaphore`] if there is none, [`Refusal::WrongType`] if the key holds something else.
    pub fn resize_semaphore(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        permits: u32,
    ) -> Result<i64, Refusal> {
        self.settled(turn, id, |engine, turn| {
            let before = Self::lock_of_kind(turn, id, Kind::Semaphore)?.map(Lock::permits);
            if before != Some(permits) {
                engine.commit(turn, id, Event::Sized { permits });
            }
            if engine.is_waited_for(turn.keys.key(id)) {
                engine.refuse_misfits(turn, id);
                engine.settle(turn, id, false);
            }
            Ok(Self::available(turn, id))
        })
    }

    /// DRAIN: grants all permits that are free. Returns how many; 0 if there are none or if somebody waits.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoSemaphore`] if there is none, [`Refusal::WrongType`] if the key holds something else.
    pub fn drain_semaphore(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        request: Acquire,
    ) -> Result<u32, Refusal> {
        self.settle_to_acquire(turn, id, Kind::Semaphore);
        let taken = self.drain_settled(turn, id, request);
        self.finish_all(turn.keys);
        taken
    }

    fn drain_settled(
        &mut self,
        turn: &mut Turn<'_, impl Keyspace>,
        id: KeyId,
        request: Acquire,
    ) -> Result<u32, Refusal> {
        Self::lock_of_kind(turn, id, Kind::Semaphore)?;
        let count = u32::try_from(Self::available(turn, id)).unwrap_or(0);
        if count == 0 || self.is_waited_for(turn.keys.key(id)) {
            return Ok(0);
        }
        let token = self.grant(turn, id, &Acquire { count, ..request })?;
        self.touch(token);
        self.stats.granted_at_once = self.stats.granted_at_once.saturating_add(1);
        Ok(count)
    }

    fn available(turn: &mut Turn<'_, impl Keyspace>, id: KeyId) -> i64 {
        match turn.keys.slot(id) {
            Slot::Lock(stored) => stored.lock.available(turn.now),
            Slot::Vacant | Slot::Foreign => 0,
        }
    }
}
