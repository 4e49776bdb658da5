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
pub(super) struct Binding {
    pub(super) client: u64,
    pub(super) token: u64,
    pub(super) key: Key,
}

/// What ends with each connection.
#[derive(Default)]
pub(super) struct Connections {
    bindings: BTreeSet<Binding>,
    /// Connections that have closed, and whose holds were not all looked at yet.
    closed: BTreeSet<u64>,
    /// Bindings of holds that went away all at once: memory to give back.
    stale: Vec<BTreeSet<Binding>>,
}

impl Connections {
    /// Notes that a hold is bound to a connection.
    pub(super) fn bind(&mut self, binding: Binding) {
        self.bindings.insert(binding);
    }

    /// Notes that a hold is bound to a connection no longer.
    pub(super) fn unbind(&mut self, binding: &Binding) {
        if !self.bindings.is_empty() {
            self.bindings.remove(binding);
        }
    }

    /// Whether any hold is bound to a connection.
    pub(super) fn has_bindings(&self) -> bool {
        !self.bindings.is_empty()
    }

    /// Whether the closing of a connection would change anything.
    pub(super) fn concerns(&self, client: u64) -> bool {
        self.first_of(client).is_some()
    }

    fn first_of(&self, client: u64) -> Option<&Binding> {
        let first = Binding { client, token: 0, key: Key::FIRST };
        self.bindings.range(first..).next().filter(|binding| binding.client == client)
    }

    /// Notes that a connection has closed.
    pub(super) fn close(&mut self, client: u64) {
        if self.first_of(client).is_some() {
            self.closed.insert(client);
        }
    }

    /// Takes out a binding to a connection that has closed.
    pub(super) fn next_closed(&mut self) -> Option<Binding> {
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
    pub(super) fn has_lost(&self, binding: &Binding) -> bool {
        self.closed.contains(&binding.client) || !self.bindings.contains(binding)
    }

    /// The next binding after another one: for a look at all of them in parts.
    pub(super) fn next_after(&self, after: Option<&Binding>) -> Option<&Binding> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.bindings.range((from, Bound::Unbounded)).next()
    }

    /// Every hold went away. The memory goes back in parts, by [`Connections::drop_some`].
    pub(super) fn forget_bindings(&mut self) {
        self.closed.clear();
        if !self.bindings.is_empty() {
            self.stale.push(core::mem::take(&mut self.bindings));
        }
    }

    /// Whether there are connections whose holds were not all looked at yet.
    pub(super) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Whether there is memory to give back in parts.
    pub(super) fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Whether there is something to do in parts.
    pub(super) fn has_work(&self) -> bool {
        self.has_closed() || self.has_stale()
    }

    /// Gives some memory back.
    pub(super) fn drop_some(&mut self, count: usize) {
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
    pub(super) fn bindings(&self) -> impl Iterator<Item = &Binding> {
        self.bindings.iter()
    }
}
