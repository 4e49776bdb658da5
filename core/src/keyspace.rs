//! The keyspace as the engine sees it: the keys that a request is about, opened for it.

use crate::bytes::KeyRef;
use crate::lock::Lock;
use crate::lock::admission::Value;
use crate::request::Request;

/// The number of an open key in a [`Keyspace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyId(pub usize);

/// The open keys of one request, all of one database, each once.
pub trait Keyspace {
    /// How many keys are open: their numbers are 0 to this, exclusive.
    fn count(&self) -> usize;
    /// The name of an open key.
    fn key(&self, id: KeyId) -> KeyRef<'_>;
    /// What lies under it now.
    fn value(&self, id: KeyId) -> Value<'_>;
    /// The lock under it, to change it in place.
    fn lock_mut(&mut self, id: KeyId) -> Option<&mut Lock>;
    /// Puts a lock under a vacant key.
    fn insert(&mut self, id: KeyId, lock: Lock);
    /// Removes the lock under a key.
    fn remove(&mut self, id: KeyId);
    /// The connection that asks, if it is one that can close: not a script, not another module, not the timer.
    fn client(&self) -> Option<u64>;
    /// Whether the user of a connection, which has waited, may still make this request for the open keys.
    fn is_permitted(&self, client: u64, request: &Request) -> bool;
}
