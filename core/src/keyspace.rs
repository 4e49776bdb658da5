//! The engine's view of the keyspace: the open keys of a request.

use crate::bytes::KeyRef;
use crate::lock::Lock;
use crate::lock::admission::Value;
use crate::request::Request;

/// The index of an open key in a [`Keyspace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyId(pub usize);

/// The open keys of one request, all in one database, each once.
pub trait Keyspace {
    /// The number of open keys: their indexes are 0 to this, exclusive.
    fn count(&self) -> usize;
    /// The name of an open key.
    fn key(&self, id: KeyId) -> KeyRef<'_>;
    /// Its current value.
    fn value(&self, id: KeyId) -> Value<'_>;
    /// The lock under it, to change it in place.
    fn lock_mut(&mut self, id: KeyId) -> Option<&mut Lock>;
    /// Puts a lock under a vacant key.
    fn insert(&mut self, id: KeyId, lock: Lock);
    /// Removes the lock under a key.
    fn remove(&mut self, id: KeyId);
    /// The milliseconds until a key expires, if a user has set an EXPIRE on it.
    fn expire_left_ms(&self, id: KeyId) -> Option<u64>;
    /// The connection that sent the command. `None` for a script, another module and the timer,
    /// which have no connection that could close.
    fn client(&self) -> Option<u64>;
    /// Whether the user of a connection that waited still has the rights for this request.
    fn is_permitted(&self, client: u64, request: &Request) -> bool;
}
