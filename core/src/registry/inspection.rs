//! Inspection for tests.

use alloc::vec::Vec;

use super::dirty::Dirty;
use super::positions::{NameId, Position};
use super::{Holder, Registry};
use crate::bytes::KeyRef;

/// The state of a name.
pub(crate) struct NameView<'a> {
    pub(crate) id: NameId,
    pub(crate) key: KeyRef<'a>,
    pub(crate) queue: Vec<Position>,
    pub(crate) holders: &'a [Holder],
    pub(crate) knows_holders: bool,
    pub(crate) is_rejoining: bool,
    pub(crate) is_listed: bool,
    pub(crate) has_pending: bool,
    pub(crate) is_behind: bool,
    pub(crate) dirty: Option<&'a Dirty>,
}

impl Registry {
    /// All names.
    pub(crate) fn views(&self) -> impl Iterator<Item = NameView<'_>> {
        self.names.iter().map(|(id, record)| NameView {
            id,
            key: record.key(),
            queue: record.queue.iter().collect(),
            holders: &record.holders,
            knows_holders: record.knows_holders,
            is_rejoining: record.is_rejoining,
            is_listed: record.is_listed,
            has_pending: record.has_pending,
            is_behind: record.is_behind,
            dirty: record.dirty.as_deref(),
        })
    }

    /// The name of a key.
    pub(crate) fn view(&self, key: KeyRef<'_>) -> Option<NameView<'_>> {
        let name = self.find(key)?;
        self.views().find(|view| view.id == name)
    }

    /// The name of a holder.
    pub(crate) fn owner_of_holder(&self, holder: &Holder) -> &[u8] {
        self.owners.bytes(holder.owner)
    }

    /// Whether there is memory to free of waiters, names and owners.
    pub(crate) fn retired(&self) -> [bool; 3] {
        [self.tickets.has_retired(), self.names.has_retired(), self.owners.has_retired()]
    }
}
