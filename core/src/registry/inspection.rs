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

    /// Checks the invariants.
    pub(crate) fn assert_consistent(&self) {
        let (mut in_queues, mut holders, mut waits, mut holdings) = (0, 0, 0, 0);
        for (name, record) in self.names.iter() {
            in_queues += record.queue.len();
            holders += record.holders.len();
            assert!(!record.queue.is_empty() || record.holders.is_empty());
            for position in record.queue.iter() {
                let waiter = self.get(position.ticket).expect("a waiter");
                assert!(waiter.names.contains(&name) && waiter.position(position.ticket) == position);
            }
        }
        for (id, owner) in self.owners.iter() {
            waits += owner.waits.len();
            holdings += owner.holdings.len();
            assert!(owner.waits.len() + owner.holdings.len() > 0, "an owner waits or holds");
            let mut followed = 0;
            let names: Vec<_> = owner.waits.iter().map(|wait| wait.name).collect();
            assert!(names.is_sorted_by(|name, next| name < next), "one request under each name: {names:?}");
            for wait in owner.waits.iter() {
                assert_eq!(self.get(wait.position.ticket).expect("a waiter").owner, id);
                followed +=
                    u32::from(self.names.next_in_queue(wait.name, core::ops::Bound::Excluded(wait.position)).is_some());
            }
            assert_eq!(owner.followed, followed);
        }
        let (mut waiting, mut waited_for, mut alarms) = (0, 0, 0);
        for (_, (_, waiter)) in self.tickets.iter() {
            waiting += 1;
            waited_for += waiter.names.len();
            alarms += usize::from(waiter.alarm != crate::collections::Alarm::NONE);
        }
        assert_eq!((waiting, alarms, holdings), (self.waiting, self.timeouts.len(), holders));
        assert_eq!((in_queues, waits), (waited_for, waited_for));
        let notified = self.tickets.iter().filter(|(_, (_, waiter))| waiter.notice().is_some());
        assert_eq!(notified.count(), self.notified.len());
    }
}
