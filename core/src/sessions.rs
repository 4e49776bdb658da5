//! Sessions: the holds that are bound to each connection.
//!
//! A hold stores its connections. This is the inverse index: from a connection to the holds to
//! visit when it closes. An entry may outlive its hold, and is ignored then: the hold is
//! authoritative.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Bound;

use crate::bytes::Key;

/// A hold that is bound to a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Binding {
    pub(crate) client: u64,
    pub(crate) token: u64,
    pub(crate) key: Key,
}

/// The bindings of holds to connections.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Sessions {
    bindings: BTreeSet<Binding>,
    /// Closed connections whose holds were not all visited yet.
    closed: BTreeSet<u64>,
    /// Dropped bindings, whose memory is freed in parts.
    stale: Vec<BTreeSet<Binding>>,
}

impl Sessions {
    /// Records that a hold is bound to a connection.
    pub(crate) fn bind(&mut self, binding: Binding) {
        self.bindings.insert(binding);
    }

    /// Records that a hold is no longer bound to a connection.
    pub(crate) fn unbind(&mut self, binding: &Binding) {
        if !self.bindings.is_empty() {
            self.bindings.remove(binding);
        }
    }

    /// Whether any hold is bound to a connection.
    pub(crate) fn has_bindings(&self) -> bool {
        !self.bindings.is_empty()
    }

    /// Whether closing a connection would change anything.
    pub(crate) fn concerns(&self, client: u64) -> bool {
        self.first_of(client).is_some()
    }

    fn first_of(&self, client: u64) -> Option<&Binding> {
        let first = Binding { client, token: 0, key: Key::FIRST };
        self.bindings.range(first..).next().filter(|binding| binding.client == client)
    }

    /// Records that a connection has closed.
    pub(crate) fn close(&mut self, client: u64) {
        if self.first_of(client).is_some() {
            self.closed.insert(client);
        }
    }

    /// Takes out the next binding to a closed connection.
    pub(crate) fn next_closed(&mut self) -> Option<Binding> {
        while let Some(client) = self.closed.first() {
            if let Some(binding) = self.first_of(*client).cloned() {
                self.bindings.remove(&binding);
                return Some(binding);
            }
            self.closed.pop_first();
        }
        None
    }

    /// Whether the connection that a hold claims to be bound to has closed.
    pub(crate) fn is_disconnected(&self, binding: &Binding) -> bool {
        self.closed.contains(&binding.client) || !self.bindings.contains(binding)
    }

    /// The binding after another one, to visit all of them in parts.
    pub(crate) fn next_after(&self, after: Option<&Binding>) -> Option<&Binding> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.bindings.range((from, Bound::Unbounded)).next()
    }

    /// Drops all bindings. [`Sessions::drop_some`] frees the memory in parts.
    pub(crate) fn forget_bindings(&mut self) {
        self.closed.clear();
        if !self.bindings.is_empty() {
            self.stale.push(core::mem::take(&mut self.bindings));
        }
    }

    /// Whether there are closed connections whose holds were not all visited yet.
    pub(crate) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Whether there is memory to free.
    pub(crate) fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Whether the timer has work here.
    pub(crate) fn has_work(&self) -> bool {
        self.has_closed() || self.has_stale()
    }

    /// Frees some memory.
    pub(crate) fn drop_some(&mut self, count: usize) {
        for _ in 0..count {
            let Some(stale) = self.stale.last_mut() else {
                return;
            };
            if stale.pop_first().is_none() {
                self.stale.pop();
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn bindings(&self) -> impl Iterator<Item = &Binding> {
        self.bindings.iter()
    }
}
