//! A keyspace in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

use crate::bytes::{Key, KeyRef};
use crate::keyspace::{KeyId, Keyspace};
use crate::lock::Lock;
use crate::lock::admission::Value as Lies;
use crate::request::Request;

/// The value of a key.
pub(super) enum Value {
    Lock(Lock),
    Foreign,
}

/// The keyspace with some keys open.
pub(super) struct Open<'w> {
    pub(super) open: Vec<Key>,
    pub(super) client: Option<u64>,
    pub(super) barred: &'w BTreeSet<u64>,
    pub(super) values: &'w mut BTreeMap<(u32, Vec<u8>), Value>,
}

impl Open<'_> {
    fn at(&self, id: KeyId) -> (u32, Vec<u8>) {
        let key = &self.open[id.0];
        (key.db, key.name.as_slice().to_vec())
    }
}

impl Keyspace for Open<'_> {
    fn count(&self) -> usize {
        self.open.len()
    }

    fn key(&self, id: KeyId) -> KeyRef<'_> {
        self.open[id.0].borrow()
    }

    fn value(&self, id: KeyId) -> Lies<'_> {
        match self.values.get(&self.at(id)) {
            None => Lies::Vacant,
            Some(Value::Foreign) => Lies::Foreign,
            Some(Value::Lock(lock)) => Lies::Lock(lock),
        }
    }

    fn lock_mut(&mut self, id: KeyId) -> Option<&mut Lock> {
        let at = self.at(id);
        match self.values.get_mut(&at) {
            Some(Value::Lock(lock)) => Some(lock),
            _ => None,
        }
    }

    fn insert(&mut self, id: KeyId, lock: Lock) {
        let before = self.values.insert(self.at(id), Value::Lock(lock));
        assert!(before.is_none(), "the engine inserts only under vacant keys");
    }

    fn remove(&mut self, id: KeyId) {
        let before = self.values.remove(&self.at(id));
        assert!(matches!(before, Some(Value::Lock(_))), "the engine removes only locks");
    }

    fn expire_left_ms(&self, _id: KeyId) -> Option<u64> {
        None
    }

    fn client(&self) -> Option<u64> {
        self.client
    }

    fn is_permitted(&self, client: u64, _request: &Request) -> bool {
        !self.barred.contains(&client)
    }
}
