//! The context in which a request is decided.

use core::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use crate::bytes::KeyRef;
use crate::event::Terms;
use crate::keyspace::{KeyId, Keyspace};
use crate::kind::{Kind, Mode};
use crate::limits::Limits;
use crate::lock::admission::Value;
use crate::lock::{Hold, Lock};
use crate::outbox::Outbox;
use crate::registry::{NameId, Registry};
use crate::request::Refusal;
use crate::time::Now;

/// The context of one request: the time, the open keys, and the outbox.
pub struct Transaction<'t, K> {
    /// The time, read once.
    pub now: Now,
    /// The limits of the server.
    pub limits: Limits,
    /// The open keys.
    pub keys: &'t mut K,
    /// Collects the side effects.
    pub out: &'t mut Outbox,
    /// `NOTE text` of the command.
    pub note: Option<&'t [u8]>,
    /// The records of the keys' names. Each is valid while [`Registry::state`] returns the number
    /// beside it.
    names: SmallVec<[(u64, Option<NameId>); 1]>,
}

impl<'t, K: Keyspace> Transaction<'t, K> {
    /// Creates a transaction that has done nothing yet.
    pub fn new(now: Now, limits: Limits, keys: &'t mut K, out: &'t mut Outbox) -> Self {
        Self { now, limits, keys, out, note: None, names: SmallVec::new() }
    }

    /// When the first of some holds ends, by its lease or with its key.
    pub(super) fn ends_us(&self, holds: impl IntoIterator<Item = (KeyId, u64)>) -> u64 {
        holds.into_iter().map(|(id, token)| self.hold_ends_us(id, token)).min().unwrap_or(0)
    }

    fn hold_ends_us(&self, id: KeyId, token: u64) -> u64 {
        let Value::Lock(lock) = self.keys.value(id) else {
            return 0;
        };
        let deadline_us = lock.hold_with_token(token).map_or(0, Hold::deadline_us);
        // A grant of this transaction may have cleared the EXPIRE.
        let expire_ms = if self.out.clears_expire(id) { None } else { self.keys.expire_left_ms(id) };
        expire_ms.map_or(deadline_us, |expire_ms| deadline_us.min(self.now.after_ms(expire_ms)))
    }

    /// All open keys.
    pub(super) fn ids(&self) -> impl Iterator<Item = KeyId> + use<K> {
        (0..self.keys.count()).map(KeyId)
    }

    /// One of the open keys.
    #[inline]
    pub(super) fn at(&mut self, id: KeyId) -> At<'_, 't, K> {
        At { tx: self, id }
    }
}

/// An open key in a transaction.
pub(super) struct At<'a, 't, K> {
    pub(super) tx: &'a mut Transaction<'t, K>,
    pub(super) id: KeyId,
}

impl<'t, K> Deref for At<'_, 't, K> {
    type Target = Transaction<'t, K>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        self.tx
    }
}

impl<K> DerefMut for At<'_, '_, K> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.tx
    }
}

impl<K: Keyspace> At<'_, '_, K> {
    /// The key.
    #[inline]
    pub(super) fn key(&self) -> KeyRef<'_> {
        self.tx.keys.key(self.id)
    }

    /// The value under it.
    #[inline]
    pub(super) fn value(&self) -> Value<'_> {
        self.tx.keys.value(self.id)
    }

    /// The lock under it.
    #[inline]
    pub(super) fn lock(&self) -> Option<&Lock> {
        match self.value() {
            Value::Lock(lock) => Some(lock),
            Value::Vacant | Value::Foreign => None,
        }
    }

    /// The lock under it, to change it in place.
    #[inline]
    pub(super) fn lock_mut(&mut self) -> Option<&mut Lock> {
        self.tx.keys.lock_mut(self.id)
    }

    /// The record of its name. Looked up again only after a record was created or removed.
    pub(super) fn name(&mut self, names: &Registry) -> Option<NameId> {
        let (state, index) = (names.state(), self.id.0);
        if let Some((found_at, name)) = self.tx.names.get(index)
            && *found_at == state
        {
            return *name;
        }
        let name = names.find(self.key());
        if self.tx.names.len() <= index {
            self.tx.names.resize(index.saturating_add(1), (0, None));
        }
        if let Some(known) = self.tx.names.get_mut(index) {
            *known = (state, name);
        }
        name
    }

    /// The connections that the hold with this token is bound to.
    pub(super) fn clients(&self, token: u64) -> &[u64] {
        self.lock().map_or(&[], |lock| lock.clients(token))
    }

    /// Whether the hold with this token is bound to no connection.
    pub(super) fn is_unbound(&self, token: u64) -> bool {
        self.lock().is_some_and(|lock| lock.clients(token).is_empty())
    }

    /// The token and the terms of an owner's live hold.
    pub(super) fn live_terms(&self, kind: Kind, owner: &[u8], mode: Mode) -> Result<Option<(u64, Terms)>, Refusal> {
        let hold = self.value().hold(kind, owner, mode, self.now)?;
        Ok(hold.map(|hold| (hold.token(), hold.terms())))
    }

    /// The terms of the hold with this token.
    pub(super) fn terms_of(&self, token: u64) -> Option<Terms> {
        self.lock()?.hold_with_token(token).map(Hold::terms)
    }
}
