//! What the server has told of a name, to be acted upon when its key is open: by the next command on it or by the timer.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::positions::Position;
use crate::event::Terms;

/// What there is to act upon under a name.
#[derive(Default)]
pub(super) struct Dirty {
    /// A value came here by RESTORE, RENAME and the like: its holds are bound to no connection.
    pub(super) arrived: bool,
    /// Another value may lie under the name, or none.
    pub(super) replaced: bool,
    /// How far the look at a new value and its waiters has come.
    pub(super) review: Option<Review>,
    /// Holds, by token, that were used without a connection before the look at a value that arrived is at its end: their sessions go on.
    pub(super) spared: BTreeSet<u64>,
    /// Grants whose waiter was gone before it could hear of them.
    pub(super) undelivered: Vec<Undelivered>,
    /// Holds, by token, that their owner has used since such a waiter was gone: all that was granted stays.
    pub(super) heard: BTreeSet<u64>,
    /// Holds, by token, and connections of theirs that closed.
    pub(super) unbound: Vec<(u64, u64)>,
    /// Owners on a fair lock whose connected waiter is gone; and when it had come, if it was answered nil, and so gives up its place. What happened last
    /// counts.
    pub(super) gone: BTreeMap<Box<[u8]>, Option<u64>>,
    /// Waiters for many keys that could not be granted while there was something to act upon here: they are offered their
    /// keys again.
    pub(super) offers: Vec<u64>,
}

impl Dirty {
    /// Whether nothing is left.
    pub(super) fn is_clean(&self) -> bool {
        self.has_offers_only() && self.offers.is_empty()
    }

    /// Whether nothing is left but waiters to be offered their keys again.
    pub(super) fn has_offers_only(&self) -> bool {
        !self.arrived
            && !self.replaced
            && self.review.is_none()
            && self.undelivered.is_empty()
            && self.unbound.is_empty()
            && self.gone.is_empty()
    }

    /// Takes out what is about the value, and goes with it to another name.
    pub(super) fn take_of_value(&mut self) -> Self {
        Self {
            undelivered: core::mem::take(&mut self.undelivered),
            heard: core::mem::take(&mut self.heard),
            unbound: core::mem::take(&mut self.unbound),
            gone: core::mem::take(&mut self.gone),
            ..Self::default()
        }
    }

    /// Adds what has come later.
    pub(super) fn merge(&mut self, mut later: Self) {
        self.arrived |= later.arrived;
        self.replaced |= later.replaced;
        self.review = later.review.or(self.review);
        self.spared.append(&mut later.spared);
        self.undelivered.append(&mut later.undelivered);
        self.heard.append(&mut later.heard);
        self.unbound.append(&mut later.unbound);
        self.gone.append(&mut later.gone);
        self.offers.append(&mut later.offers);
    }
}

/// The look at a value that came under a name, and at those who wait there. It is taken in parts, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Review {
    pub(super) stage: Stage,
    /// The value came by other means than a grant.
    pub(super) arrived: bool,
}

/// A part of a [`Review`]; the waiters up to the position were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
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

/// A grant to a waiter of which it is not known that it was heard.
pub(super) struct Undelivered {
    pub(super) token: u64,
    /// 0 if the owner held already, and the request counts nothing: `ONCE`, or one that was repeated.
    pub(super) count: u32,
    /// The waiter's arrival number.
    pub(super) arrival: u64,
    /// That of the place that the waiter had on a fair lock, if it was one of its own.
    pub(super) grace_ms: Option<u64>,
    /// Of two grants the later one has the higher number.
    pub(super) number: u64,
    pub(super) client: Option<u64>,
    /// It is told on a channel, not over the connection that asked.
    pub(super) is_published: bool,
    /// The grant has bound the hold to the waiter's connection, which it was not before, and nobody who has heard of a grant uses that.
    pub(super) has_bound: bool,
    pub(super) says: Says,
    /// The terms of the hold before, if there was one: as if what was taken back since had not been.
    pub(super) before: Option<Box<Terms>>,
}

/// What a grant says of its hold that is said by no later one which somebody has heard of: it goes with the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Says {
    /// `REQ`.
    pub(super) request: bool,
    /// `SESSION`.
    pub(super) session: bool,
    pub(super) lease: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn undelivered(count: u32) -> Undelivered {
        Undelivered {
            token: 1,
            count,
            arrival: 1,
            grace_ms: None,
            number: 1,
            client: None,
            is_published: false,
            has_bound: false,
            says: Says { request: false, session: false, lease: true },
            before: None,
        }
    }

    /// All that there can be of a value, and all that there can be of a name.
    fn full() -> Dirty {
        Dirty {
            arrived: true,
            replaced: true,
            review: Some(Review { stage: Stage::Lives, arrived: true }),
            spared: [3].into(),
            undelivered: vec![undelivered(1)],
            heard: [1].into(),
            unbound: vec![(1, 7)],
            gone: [(b"a".as_slice().into(), None)].into(),
            offers: vec![7],
        }
    }

    /// How many there are of each: of a value first, and then of a name.
    fn counts(dirty: &Dirty) -> ([usize; 4], [usize; 5]) {
        let Dirty { arrived, replaced, review, spared, undelivered, heard, unbound, gone, offers } = dirty;
        let [arrived, replaced, review] = [*arrived, *replaced, review.is_some()].map(usize::from);
        (
            [undelivered.len(), heard.len(), unbound.len(), gone.len()],
            [arrived, replaced, review, spared.len(), offers.len()],
        )
    }

    #[test]
    fn what_is_about_a_value_goes_with_it_and_the_rest_stays() {
        let mut dirty = full();
        let taken = dirty.take_of_value();
        assert_eq!((counts(&taken), counts(&dirty)), (([1; 4], [0; 5]), ([0; 4], [1; 5])));
    }

    #[test]
    fn what_has_come_later_is_added() {
        let mut dirty = Dirty::default();
        dirty.merge(full());
        assert_eq!(counts(&dirty), ([1; 4], [1; 5]));
        let mut later = full();
        (later.heard, later.spared) = ([3].into(), [5].into());
        later.gone = [(b"b".as_slice().into(), None)].into();
        dirty.merge(later);
        assert_eq!(counts(&dirty), ([2; 4], [1, 1, 1, 2, 2]));
        dirty.merge(Dirty::default());
        assert_eq!(counts(&dirty), ([2; 4], [1, 1, 1, 2, 2]));
        dirty.merge(Dirty { gone: [(b"a".as_slice().into(), Some(1))].into(), ..Dirty::default() });
        assert_eq!(dirty.gone.into_values().collect::<Vec<_>>(), [Some(1), None], "what happened last counts");
    }
}
