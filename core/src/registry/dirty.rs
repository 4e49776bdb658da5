//! What the server has told of a name, to be acted upon when its key is open: by the next command on it or by the timer.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::Registry;
use super::positions::{NameId, Position};
use crate::bytes::Key;

/// What there is to act upon under a name.
#[derive(Default)]
pub(crate) struct Dirty {
    /// A value came here by RESTORE, RENAME and the like: its holds are bound to no connection.
    pub(crate) arrived: bool,
    /// Another value may lie under the name, or none.
    pub(crate) replaced: bool,
    /// How far the look at a new value and its waiters has come.
    pub(crate) review: Option<Review>,
    /// Holds, by token, that were used without a connection before the look at a value that arrived is at its end: their sessions go on.
    pub(crate) sessions_kept: BTreeSet<u64>,
    /// Pending grants to be undone: the tokens of the holds, and the tickets.
    pub(crate) undone: Vec<(u64, u64)>,
    /// Holds, by token, and connections of theirs that closed.
    pub(crate) unbound: Vec<(u64, u64)>,
    /// Owners on a fair lock whose connected waiter is gone; and when it had come, if it was answered nil, and so gives up its place. What happened last
    /// counts.
    pub(crate) gone: BTreeMap<Box<[u8]>, Option<u64>>,
    /// Waiters for many keys that could not be granted while there was something to act upon here: they are offered their
    /// keys again.
    pub(crate) offers: Vec<u64>,
}

impl Dirty {
    /// Whether nothing is left.
    pub(crate) fn is_clean(&self) -> bool {
        self.has_offers_only() && self.offers.is_empty()
    }

    /// Whether nothing is left but waiters to be offered their keys again.
    pub(crate) fn has_offers_only(&self) -> bool {
        !self.arrived
            && !self.replaced
            && self.review.is_none()
            && self.undone.is_empty()
            && self.unbound.is_empty()
            && self.gone.is_empty()
    }

    /// Takes out what is about the value, and goes with it to another name.
    pub(crate) fn take_of_value(&mut self) -> Self {
        Self {
            undone: core::mem::take(&mut self.undone),
            unbound: core::mem::take(&mut self.unbound),
            gone: core::mem::take(&mut self.gone),
            ..Self::default()
        }
    }

    /// Adds what has come later.
    pub(crate) fn merge(&mut self, mut later: Self) {
        self.arrived |= later.arrived;
        self.replaced |= later.replaced;
        self.review = later.review.or(self.review);
        self.sessions_kept.append(&mut later.sessions_kept);
        self.undone.append(&mut later.undone);
        self.unbound.append(&mut later.unbound);
        self.gone.append(&mut later.gone);
        self.offers.append(&mut later.offers);
    }
}

/// The look at a value that came under a name, and at those who wait there. It is taken in parts, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Review {
    pub(crate) stage: Stage,
    /// The value came by other means than a grant.
    pub(crate) arrived: bool,
}

/// A part of a [`Review`]; the waiters up to the position were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Waiters that what lies here now cannot serve are told so.
    Misfits(Option<Position>),
    /// Sessions of holds count as closed, of those below this index in the list of holds.
    Sessions(usize),
    /// Owners that wait for what they turn out to hold need not wait.
    Holders(Option<Position>),
    /// Connected waiters of a fair lock take their places in its queue, in the old order.
    Places(Option<Position>),
    /// The lives of places that came off from their connections are written down.
    Lives,
}

/// For how many entries room is kept in a list that is empty now.
const KEPT_ENTRIES: usize = 1024;

impl Registry {
    /// Makes a name dirty, or adds to what there is to act upon.
    pub(crate) fn mark(&mut self, name: NameId, note: impl FnOnce(&mut Dirty)) {
        if let Some(record) = self.names.get_mut(name) {
            note(record.dirty.get_or_insert_default());
            if !record.is_listed {
                record.is_listed = true;
                self.dirty.push_back(name);
            }
        }
    }

    /// What there is to act upon under a name.
    pub(crate) fn dirty(&self, name: NameId) -> Option<&Dirty> {
        self.names.get(name)?.dirty.as_deref()
    }

    /// The same, to change it.
    pub(crate) fn dirty_mut(&mut self, name: NameId) -> Option<&mut Dirty> {
        self.names.get_mut(name)?.dirty.as_deref_mut()
    }

    /// Takes out what there is to act upon under a name. The name stays dirty until [`Registry::put_back`], so it is not forgotten
    /// if its last waiter leaves meanwhile.
    pub(crate) fn take_dirty(&mut self, name: NameId) -> Dirty {
        let record = self.names.get_mut(name);
        record.map(|record| core::mem::take(record.dirty.get_or_insert_default().as_mut())).unwrap_or_default()
    }

    /// Ends what [`Registry::take_dirty`] began. `left` is what there is still to do; more may have been added meanwhile.
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

    /// A name is not dirty any more.
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
        // There may have been an entry for each of a great many names: that memory goes back.
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

    /// All that there can be of a value, and all that there can be of a name.
    fn full() -> Dirty {
        Dirty {
            arrived: true,
            replaced: true,
            review: Some(Review { stage: Stage::Lives, arrived: true }),
            sessions_kept: [3].into(),
            undone: vec![(1, 7)],
            unbound: vec![(1, 7)],
            gone: [(b"a".as_slice().into(), None)].into(),
            offers: vec![7],
        }
    }

    /// How many there are of each: of a value first, and then of a name.
    fn counts(dirty: &Dirty) -> ([usize; 3], [usize; 5]) {
        let Dirty { arrived, replaced, review, sessions_kept, undone, unbound, gone, offers } = dirty;
        let [arrived, replaced, review] = [*arrived, *replaced, review.is_some()].map(usize::from);
        ([undone.len(), unbound.len(), gone.len()], [arrived, replaced, review, sessions_kept.len(), offers.len()])
    }

    #[test]
    fn what_is_about_a_value_goes_with_it_and_the_rest_stays() {
        let mut dirty = full();
        let taken = dirty.take_of_value();
        assert_eq!((counts(&taken), counts(&dirty)), (([1; 3], [0; 5]), ([0; 3], [1; 5])));
    }

    #[test]
    fn what_has_come_later_is_added() {
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
        assert_eq!(dirty.gone.into_values().collect::<Vec<_>>(), [Some(1), None], "what happened last counts");
    }
}
