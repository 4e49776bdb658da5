//! The keyspace as the engine sees it: values under names, opened for one request.

use crate::bytes::KeyRef;
use crate::deadlines::Alarm;
use crate::lock::Lock;

/// A value as the keyspace stores it: the lock, and the alarm that the engine set for it.
#[derive(Debug)]
pub struct Stored {
    /// The lock.
    pub lock: Lock,
    /// The engine's alarm for the next deadline of the lock. Not part of the value: a copy starts without one.
    pub alarm: Alarm,
    /// The generation of its database in which the engine last settled it; 0 if it never did. Not part of the value either.
    pub(crate) generation: u32,
}

impl Stored {
    /// A lock that was not seen by the engine yet.
    #[must_use]
    pub fn new(lock: Lock) -> Self {
        Self { lock, alarm: Alarm::NONE, generation: 0 }
    }
}

/// The number of an open key in a [`Keyspace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyId(pub usize);

/// What lies under a key.
#[derive(Debug)]
pub enum Slot<'a> {
    /// Nothing.
    Vacant,
    /// A lock.
    Lock(&'a mut Stored),
    /// A value of another type.
    Foreign,
}

/// The open keys of one request.
pub trait Keyspace {
    /// How many keys are open: their numbers are 0 to this, exclusive.
    fn open_count(&self) -> usize;
    /// Opens one more key of the same database, or finds it among those that are open. `None` if this server must not
    /// decide about it now: another node of the cluster serves it.
    fn open(&mut self, key: KeyRef<'_>) -> Option<KeyId>;
    /// The name of an open key.
    fn key(&self, id: KeyId) -> KeyRef<'_>;
    /// What lies under it now.
    fn slot(&mut self, id: KeyId) -> Slot<'_>;
    /// Puts a value under a vacant key.
    fn insert(&mut self, id: KeyId, stored: Stored);
    /// Removes the lock under a key.
    fn remove(&mut self, id: KeyId);
}
