//! Unprocessed events of a name. The next command that opens its key, or the timer, processes them.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::Registry;
use super::positions::{NameId, Position};
use crate::bytes::Key;

/// The unprocessed events of a name.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Dirty {
    /// RESTORE, RENAME or the like imported a value: its holds are bound to no connection.
    pub(crate) imported: bool,
    /// The name may have another value, or none.
    pub(crate) replaced: bool,
    /// The progress of the review of a new value and its waiters.
    pub(crate) review: Option<Review>,
    /// Holds, by token, that were used without a connection before the review of an import
    /// finished: their sessions continue.
    pub(crate) sessions_kept: BTreeSet<u64>,
    /// Pending grants to be undone: the tokens of the holds, and the tickets.
    pub(crate) undone: Vec<(u64, u64)>,
    /// Holds, by token, with a closed connection that each was bound to.
    pub(crate) unbound: Vec<(u64, u64)>,
    /// Owners on a fair lock whose connected waiter is gone. The value is the waiter's arrival
    /// number if it timed out, and so gives up its place. A later event replaces an earlier one.
    pub(crate) gone: BTreeMap<Box<[u8]>, Option<u64>>,
    /// MACQUIRE waiters that could not be granted while the name was dirty: they are offered their
    /// keys again.
    pub(crate) offers: Vec<u64>,
}

impl Dirty {
    /// Whether there are no events.
    pub(crate) fn is_clean(&self) -> bool {
        self.has_offers_only() && self.offers.is_empty()
    }

    /// Whether there are no events except offers that wait to be repeated.
    pub(crate) fn has_offers_only(&self) -> bool {
        !self.imported
            && !self.replaced
            && self.review.is_none()
            && self.undone.is_empty()
            && self.unbound.is_empty()
            && self.gone.is_empty()
    }

    /// Adds later events.
    pub(crate) fn merge(&mut self, mut later: Self) {
        self.imported |= later.imported;
        self.replaced |= later.replaced;
        self.review = later.review.or(self.review);
        self.sessions_kept.append(&mut later.sessions_kept);
        self.undone.append(&mut later.undone);
        self.unbound.append(&mut later.unbound);
        self.gone.append(&mut later.gone);
        self.offers.append(&mut later.offers);
    }
}

/// The review of a new value under a name and of its waiters, in stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Review {
    pub(crate) stage: Stage,
    /// The value was imported.
    pub(crate) imported: bool,
}

/// A stage of a [`Review`]. A position is that of the last waiter visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Refuses waiters that the new value cannot serve.
    Unservable(Option<Position>),
    /// Ends the sessions of the holds below this index.
    Sessions(usize),
    /// Grants waiters whose owner already holds the lock.
    Holders(Option<Position>),
    /// Returns the connected waiters of a fair lock to its queue, in the old order.
    Places(Option<Position>),
}

/// The capacity that an empty list keeps.
const KEPT_ENTRIES: usize = 1024;

impl Registry {
    /// Makes a name dirty, or adds to its events.
    pub(crate) fn mark(&mut self, name: NameId, update: impl FnOnce(&mut Dirty)) {
        if let Some(record) = self.names.get_mut(name) {
            update(record.dirty.get_or_insert_default());
            if !record.is_listed {
                record.is_listed = true;
                self.dirty.push_back(name);
            }
        }
    }

    /// The unprocessed events of a name.
    pub(crate) fn dirty(&self, name: NameId) -> Option<&Dirty> {
        self.names.get(name)?.dirty.as_deref()
    }

    /// The unprocessed events of a name, to change them.
    pub(crate) fn dirty_mut(&mut self, name: NameId) -> Option<&mut Dirty> {
        self.names.get_mut(name)?.dirty.as_deref_mut()
    }

    /// Takes out the events of a name for processing. The name stays dirty until
    /// [`Registry::put_back`], so its record survives if its last waiter leaves meanwhile.
    pub(crate) fn take_dirty(&mut self, name: NameId) -> Dirty {
        let record = self.names.get_mut(name);
        record.map(|record| core::mem::take(record.dirty.get_or_insert_default().as_mut())).unwrap_or_default()
    }

    /// Ends what [`Registry::take_dirty`] began. `left` are the events that remain; more may have
    /// been added meanwhile.
    pub(crate) fn put_back(&mut self, name: NameId, mut left: Dirty) {
        if let Some(record) = self.names.get_mut(name) {
            if let Some(added) = record.dirty.take() {
                left.merge(*added);
            }
            if !left.is_clean() {
                self.mark(name, |dirty| *dirty = left);
            }
        }
    }

    /// Makes a name clean.
    pub(crate) fn forget_dirty(&mut self, name: NameId) {
        if let Some(record) = self.names.get_mut(name) {
            record.dirty = None;
        }
        self.tidy(name);
    }

    /// The key of the next dirty name.
    pub(crate) fn next_dirty(&mut self) -> Option<Key> {
        while let Some(name) = self.dirty.pop_front() {
            let Some(record) = self.names.get_mut(name) else {
                continue;
            };
            record.is_listed = false;
            if record.dirty.is_some() {
                return Some(record.key().to_key());
            }
            self.tidy(name);
        }
        // The list may have had very many entries; free that memory.
        self.dirty.shrink_to(KEPT_ENTRIES);
        None
    }

    /// Whether there are dirty names.
    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The dirty names.
    pub(crate) fn dirty_names(&self) -> impl Iterator<Item = NameId> {
        self.dirty.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// Every event of a value, and every event of a name.
    fn full() -> Dirty {
        Dirty {
            imported: true,
            replaced: true,
            review: Some(Review { stage: Stage::Places(None), imported: true }),
            sessions_kept: [3].into(),
            undone: vec![(1, 7)],
            unbound: vec![(1, 7)],
            gone: [(b"a".as_slice().into(), None)].into(),
            offers: vec![7],
        }
    }

    /// The number of events of each type: of a value first, then of a name.
    fn counts(dirty: &Dirty) -> ([usize; 3], [usize; 5]) {
        let Dirty { imported, replaced, review, sessions_kept, undone, unbound, gone, offers } = dirty;
        let [imported, replaced, review] = [*imported, *replaced, review.is_some()].map(usize::from);
        ([undone.len(), unbound.len(), gone.len()], [imported, replaced, review, sessions_kept.len(), offers.len()])
    }

    #[test]
    fn merge_adds_later_events() {
        let mut dirty = Dirty::default();
        dirty.merge(full());
        assert_eq!(counts(&dirty), ([1; 3], [1; 5]));
        let mut later = full();
        later.sessions_kept = [5].into();
        later.gone = [(b"b".as_slice().into(), None)].into();
        dirty.merge(later);
        assert_eq!(counts(&dirty), ([2; 3], [1, 1, 1, 2, 2]));
        dirty.merge(Dirty::default());
        assert_eq!(counts(&dirty), ([2; 3], [1, 1, 1, 2, 2]));
        dirty.merge(Dirty { gone: [(b"a".as_slice().into(), Some(1))].into(), ..Dirty::default() });
        assert_eq!(dirty.gone.into_values().collect::<Vec<_>>(), [Some(1), None], "the last event counts");
    }
}
