//! What ends with a connection: holds that are bound to it.
//!
//! Which connections a hold is bound to is kept with the hold. Here is the way back, from a connection to the holds that have
//! to be looked at when it closes. An entry may outlive its hold, and is ignored then: the hold is what counts.

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

/// What ends with each connection.
#[derive(Default)]
pub(crate) struct Sessions {
    bindings: BTreeSet<Binding>,
    /// Connections that have closed, and whose holds were not all looked at yet.
    closed: BTreeSet<u64>,
    /// Bindings of holds that went away all at once: memory to give back.
    stale: Vec<BTreeSet<Binding>>,
}

impl Sessions {
    /// Notes that a hold is bound to a connection.
    pub(crate) fn bind(&mut self, binding: Binding) {
        self.bindings.insert(binding);
    }

    /// Notes that a hold is bound to a connection no longer.
    pub(crate) fn unbind(&mut self, binding: &Binding) {
        if !self.bindings.is_empty() {
            self.bindings.remove(binding);
        }
    }

    /// Whether any hold is bound to a connection.
    pub(crate) fn has_bindings(&self) -> bool {
        !self.bindings.is_empty()
    }

    /// Whether the closing of a connection would change anything.
    pub(crate) fn concerns(&self, client: u64) -> bool {
        self.first_of(client).is_some()
    }

    fn first_of(&self, client: u64) -> Option<&Binding> {
        let first = Binding { client, token: 0, key: Key::FIRST };
        self.bindings.range(first..).next().filter(|binding| binding.client == client)
    }

    /// Notes that a connection has closed.
    pub(crate) fn close(&mut self, client: u64) {
        if self.first_of(client).is_some() {
            self.closed.insert(client);
        }
    }

    /// Takes out a binding to a connection that has closed.
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

    /// Whether the connection of a hold that says that it is bound to it has closed.
    pub(crate) fn has_lost(&self, binding: &Binding) -> bool {
        self.closed.contains(&binding.client) || !self.bindings.contains(binding)
    }

    /// The next binding after another one: for a look at all of them in parts.
    pub(crate) fn next_after(&self, after: Option<&Binding>) -> Option<&Binding> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.bindings.range((from, Bound::Unbounded)).next()
    }

    /// Every hold went away. The memory goes back in parts, by [`Sessions::drop_some`].
    pub(crate) fn forget_bindings(&mut self) {
        self.closed.clear();
        if !self.bindings.is_empty() {
            self.stale.push(core::mem::take(&mut self.bindings));
        }
    }

    /// Whether there are connections whose holds were not all looked at yet.
    pub(crate) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Whether there is memory to give back in parts.
    pub(crate) fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Whether there is something to do in parts.
    pub(crate) fn has_work(&self) -> bool {
        self.has_closed() || self.has_stale()
    }

    /// Gives some memory back.
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
